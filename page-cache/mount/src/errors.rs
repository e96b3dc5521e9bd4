//! Error numbers for programs.

use std::io;

use forebay_block::{Error, ErrorKind};
use fuser::Errno;

/// Returns the system's error number.
pub(crate) fn number_of(error: &io::Error) -> Errno {
    Errno::from_i32(error.raw_os_error().unwrap_or(libc::EIO))
}

/// Returns the system's error number, or `EIO` if the cluster is out of reach.
pub(crate) fn number_of_ours(error: &Error) -> Errno {
    Errno::from_i32(match (error.kind(), error.raw_os_error()) {
        (ErrorKind::Disconnected | ErrorKind::ShuttingDown, _) => libc::EIO,
        (_, Some(number)) => number,
        (ErrorKind::OutOfRange, None) => libc::EFBIG,
        (kind, None) => kind.errno(),
    })
}
