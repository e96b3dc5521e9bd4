//! Stream sockets, TCP and Unix, on the reactor that they were made on.

mod address;
mod deadline;
mod listener;
mod stream;

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

use forebay_block::{Context, Error, ErrorKind, Result};

use crate::reactor::Driver;
pub use address::Address;
pub use deadline::Deadline;
pub use listener::{Listener, check_listen};
pub use stream::{Incoming, Stream};

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
