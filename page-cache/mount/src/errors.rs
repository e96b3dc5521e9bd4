//! Errors, as programs get them.

use std::io;

use forebay_block::{Error, ErrorKind};
use fuser::Errno;

/// The number that the system had for it.
pub(crate) fn number_of(error: &io::Error) -> Errno {
    Errno::from_i32(error.raw_os_error().unwrap_or(libc::EIO))
}

/// The number that the system had for it; of a cluster that is out of reach `EIO`.
pub(crate) fn number_of_ours(error: &Error) -> Errno {
    Errno::from_i32(match (error.kind(), error.raw_os_error()) {
        (ErrorKind::Disconnected | ErrorKind::ShuttingDown, _) => libc::EIO,
        (_, Some(number)) => number,
        (ErrorKind::OutOfRange, None) => libc::EFBIG,
        (kind, None) => kind.errno(),
    })
}
