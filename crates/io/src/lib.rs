//! The only place for system calls, io_uring, clock and entropy, with its seeded, fault-injecting
//! twin.
//!
//! - [`rt`]: the single-threaded executor that every reactor runs. The simulator runs the same one
//!   with a virtual clock and a seeded choice of the next task, so that the engine is the same code
//!   in production and under test.
//! - [`sync`]: what tasks of one reactor use to wait for each other.

pub mod rt;
pub mod sim;
pub mod sync;
