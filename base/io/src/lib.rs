//! The only place for system calls, io_uring, clock and entropy, with a seeded simulation that
//! injects faults.
//!
//! - [`rt`]: the single-threaded executor that every reactor runs. The simulator runs the same one
//!   with a virtual clock and a seeded choice of the next task. So the engine is the same code in
//!   production and under test.
//! - [`reactor`]: a thread's executor with its driver: io_uring, or threads if io_uring is
//!   forbidden.
//! - [`mod@file`], [`blocks`], [`direct`], [`durable`], [`owner`], [`passthrough`], [`pmem`],
//!   [`shm`], [`tree`], [`xattr`]: files, devices and memory for tasks of a reactor.
//! - [`net`], [`event`], [`fuse`], [`library`], [`limits`], [`process`], [`send`], [`system`],
//!   [`workers`]: other facilities of the machine for these tasks.
//! - [`sync`]: synchronization of tasks of one reactor; [`answer`]: with another thread.

pub mod answer;
pub mod blocks;
pub mod direct;
pub mod durable;
mod engine;
pub mod event;
pub mod file;
pub mod fuse;
mod holder;
pub mod library;
pub mod limits;
mod lock;
pub mod log_limiter;
pub mod net;
mod new_directories;
pub mod owner;
pub mod passthrough;
pub mod pmem;
pub mod process;
pub mod reactor;
pub mod rt;
pub mod send;
pub mod shm;
pub mod sim;
mod snapshot;
mod stop;
pub mod sync;
pub mod system;
#[cfg(test)]
mod testing;
pub mod tree;
pub mod uncached;
pub mod workers;
pub mod xattr;

pub use engine::Engine;
pub use new_directories::NewDirectories;
pub use reactor::{Reactor, never_sleep, spawn_reactor};
pub use stop::{Stop, Waiting};
