//! Engines that carry out the system calls of a reactor: io_uring, or epoll with worker threads.
//!
//! An engine takes steps, which are system calls as data, and returns their results with the tokens
//! of their operations. The driver of the reactor owns the operations.

mod message;
mod park;
mod step;
mod threads;
mod uring;

use std::time::Duration;

use forebay_block::{Error, ErrorKind, Result};

pub(crate) use message::Message;
pub(crate) use park::Parker;
pub(crate) use step::{FileStep, SocketStep, TRANSFER_MAX_BYTES, Target};
pub(crate) use threads::{Epoll, Pool};
pub(crate) use uring::Ring;

/// Number of an operation in an engine: slot and the slot's generation.
pub(crate) type Token = u64;

/// First of the tokens that name no operation.
pub(crate) const FIRST_SPECIAL: Token = u64::MAX - 15;

/// Time that an engine may wait for results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// No time.
    No,
    /// At most this long, or without a limit.
    Until(Option<Duration>),
}

/// Engine that carries out a reactor's I/O.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Engine {
    /// Engine named by the environment variable `FOREBAY_IO` (`uring` or `threads`). Without it,
    /// io_uring if the kernel allows it, else threads (with a warning that says why).
    #[default]
    Auto,
    /// io_uring, or an error.
    Uring,
    /// epoll for sockets and a pool of worker threads for files.
    Threads,
}

impl Engine {
    /// Returns the engine that the environment names, for [`Engine::Auto`].
    ///
    /// # Errors
    /// `InvalidInput` if it names none.
    pub(crate) fn resolve(self) -> Result<Self> {
        match self {
            Self::Auto => Self::named(std::env::var("FOREBAY_IO").as_deref().unwrap_or("auto")),
            chosen => Ok(chosen),
        }
    }

    /// Returns the engine of a name in `FOREBAY_IO`.
    pub(crate) fn named(name: &str) -> Result<Self> {
        match name {
            "" | "auto" => Ok(Self::Auto),
            "uring" | "io_uring" => Ok(Self::Uring),
            "threads" => Ok(Self::Threads),
            other => Err(Error::new(
                ErrorKind::InvalidInput,
                format!(
                    "the environment variable FOREBAY_IO is {other:?}, which is not an engine\n\
                     help: set it to uring, threads or auto"
                ),
            )),
        }
    }
}
