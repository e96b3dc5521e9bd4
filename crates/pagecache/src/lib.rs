//! The distributed page cache: every file page has at most one copy in the memory of a cluster of nodes. One node
//! owns the frame that holds it; the others map that frame.
//!
//! - [`message`]: what nodes and the directory say to each other.
//! - [`protocol`]: the same as bytes.
//! - [`directory`]: which page is where; a state machine without I/O.

pub mod directory;
mod fault;
pub mod message;
pub mod node;
pub mod protocol;
pub mod segment;
#[cfg(test)]
mod simulation;
pub mod store;
