//! Sockets of a driver, and their operations in flight.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::rc::Rc;
use std::task::Waker;

use forebay_block::Buf;

use super::{Driver, SocketFuture};
use crate::engine::{Message, SocketStep};

/// A descriptor and its driver. Operations in flight hold it open.
pub(crate) struct Socket {
    fd: OwnedFd,
    driver: Rc<Driver>,
}

impl Socket {
    /// Takes a socket over that blocks or not as the driver wants it.
    pub(crate) fn adopt(driver: &Rc<Driver>, fd: OwnedFd) -> Rc<Self> {
        Rc::new(Self {
            fd,
            driver: Rc::clone(driver),
        })
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// A descriptor of its own for the same socket.
    pub(crate) fn duplicate(&self) -> io::Result<OwnedFd> {
        self.fd.try_clone()
    }

    /// Starts an operation. `hold` lives until its result has arrived.
    pub(crate) fn start(self: &Rc<Self>, step: &SocketStep, hold: Hold) -> SocketFuture {
        self.driver.start_socket(self, step, hold)
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.driver.forget(self.fd());
    }
}

/// Objects that a socket operation keeps alive besides the socket.
pub(crate) enum Hold {
    Nothing,
    Buf(#[allow(dead_code, reason = "kept alive, not read")] Buf),
    Message(#[allow(dead_code, reason = "kept alive, not read")] Rc<Message>),
    Address(#[allow(dead_code, reason = "kept alive, not read")] Box<libc::sockaddr_storage>),
}

pub(crate) enum SocketState {
    /// In flight, with the waker of its waiting task.
    Waiting(Option<Waker>),
    /// Done; the future has not looked yet.
    Ready(i32),
    /// The future was dropped; the result is thrown away.
    Detached,
}

pub(crate) struct SocketOp {
    pub(crate) socket: Rc<Socket>,
    pub(crate) _hold: Hold,
    /// Whether a good result is a new descriptor.
    pub(crate) accepts: bool,
    /// Whether the engine may be closed before it has ended:
    /// [`SocketStep::is_left_behind`].
    pub(crate) left_behind: bool,
    pub(crate) state: SocketState,
}
