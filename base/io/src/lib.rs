//! The only place for system calls, io_uring, clock and entropy, with its seeded, fault-injecting
//! twin.
//!
//! - [`rt`]: the single-threaded executor that every reactor runs. The simulator runs the same one
//!   with a virtual clock and a seeded choice of the next task, so that the engine is the same code
//!   in production and under test.
//! - [`reactor`]: a thread's executor with its driver: io_uring, or threads where that is forbidden.
//! - [`mod@file`], [`net`], [`event`], [`fuse`], [`limits`], [`passthrough`], [`pmem`], [`shm`], [`process`], [`system`], [`tree`]: what tasks of a reactor use of the machine.
//! - [`sync`]: what tasks of one reactor use to wait for each other; [`answer`]: for another thread.

pub mod answer;
pub mod event;
pub mod file;
pub mod fuse;
pub mod limits;
pub mod net;
pub mod passthrough;
pub mod pmem;
pub mod process;
pub mod reactor;
pub mod rt;
pub mod shm;
pub mod sim;
mod snapshot;
mod stop;
pub mod sync;
pub mod system;
#[cfg(test)]
mod testing;
mod threads;
pub mod told;
pub mod tree;
mod uring;

pub use reactor::{Engine, Reactor, never_sleep, spawn_reactor};
pub use stop::Stop;
