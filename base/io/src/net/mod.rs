//! Stream sockets, TCP and Unix, on the reactor that they were made on.

mod address;
mod listener;
mod stream;

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::rc::Rc;

use forebay_block::{Context, Error, ErrorKind, Result};

use crate::reactor::{Driver, Hold, SocketFuture, SocketStep};
pub use address::Address;
pub use listener::{Listener, may_listen};
pub(crate) use stream::Message;
pub use stream::{Incoming, Stream};

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
    fn duplicate(&self) -> io::Result<OwnedFd> {
        self.fd.try_clone()
    }

    pub(crate) fn start(self: &Rc<Self>, step: &SocketStep, hold: Hold) -> SocketFuture {
        self.driver.start_socket(self, step, hold)
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.driver.forget(self.fd());
    }
}

/// A new stream socket of `family`.
fn new_socket(driver: &Driver, family: libc::c_int) -> Result<OwnedFd> {
    let mut kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
    if driver.wants_nonblocking() {
        kind |= libc::SOCK_NONBLOCK;
    }
    // SAFETY: a plain system call.
    let fd = unsafe { libc::socket(family, kind, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error()).context(|| "making a socket");
    }
    // SAFETY: the call above made this descriptor, and it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A count from an operation's result, or the error that it names.
pub(crate) fn count(result: i32) -> Result<usize> {
    usize::try_from(result).map_err(|_| {
        let error = io::Error::from_raw_os_error(-result);
        match -result {
            libc::ECONNREFUSED | libc::ENOTCONN | libc::ECANCELED => {
                Error::with_source(ErrorKind::Disconnected, "", error)
            }
            libc::ESHUTDOWN => ErrorKind::ShuttingDown.into(),
            _ => error.into(),
        }
    })
}

#[cfg(test)]
mod tests;
