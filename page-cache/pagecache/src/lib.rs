//! The distributed page cache: every file page has at most one copy in the memory of a cluster of
//! nodes. One node owns its frame, and the others map that frame.
//!
//! - [`message`], [`protocol`]: the messages of nodes and directory, and their encoding.
//! - [`directory`], [`node`]: the protocol as state machines without I/O, clock or threads, so that
//!   the simulation runs the code that programs run.
//! - [`segment`]: the memory that all nodes map; [`store`]: the backing store of pages.
//! - [`client`]: reads, writes, views and flushes for programs, with threads.

pub mod client;
pub mod directory;
mod fault;
pub mod message;
pub mod node;
pub mod protocol;
pub mod segment;
#[cfg(test)]
mod simulation;
pub mod store;
