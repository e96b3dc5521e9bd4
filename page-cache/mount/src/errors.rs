//! Error numbers for programs.

use std::io;

use forebay_block::{Error, ErrorKind};
use fuser::Errno;

/// Returns the error number of an error of the system; `EIO` if it has none.
pub(crate) fn errno_of_io(error: &io::Error) -> Errno {
    Errno::from_i32(error.raw_os_error().unwrap_or(libc::EIO))
}

/// Returns the error number for an error of Forebay: that of its system error, or of its kind.
/// Returns `EIO` if the cluster cannot be reached.
pub(crate) fn errno_of(error: &Error) -> Errno {
    Errno::from_i32(match (error.kind(), error.raw_os_error()) {
        (ErrorKind::Disconnected | ErrorKind::ShuttingDown, _) => libc::EIO,
        (_, Some(number)) => number,
        (ErrorKind::OutOfRange, None) => libc::EFBIG,
        (kind, None) => kind.errno(),
    })
}
