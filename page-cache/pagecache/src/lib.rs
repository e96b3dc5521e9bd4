//! The distributed page cache: every file page has at most one copy in the memory of a cluster of nodes. One node
//! owns the frame that holds it; the others map that frame.
//!
//! - [`message`], [`protocol`]: what nodes and the directory say to each other, and the same as bytes.
//! - [`directory`], [`node`]: who has what and why; state machines without I/O, clock or threads, so that the
//!   simulation runs the code that programs run.
//! - [`segment`]: the memory that all map; [`store`]: where pages come from.
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
