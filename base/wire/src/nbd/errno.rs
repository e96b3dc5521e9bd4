//! Error numbers ("Error values"): a fixed set, independent of the machine's own.

use forebay_block::ErrorKind;

/// Operation not permitted.
pub const EPERM: u32 = 1;
/// Input/output error.
pub const EIO: u32 = 5;
/// Cannot allocate memory.
pub const ENOMEM: u32 = 12;
/// Invalid argument.
pub const EINVAL: u32 = 22;
/// No space left on device.
pub const ENOSPC: u32 = 28;
/// Value too large.
pub const EOVERFLOW: u32 = 75;
/// Operation not supported.
pub const ENOTSUP: u32 = 95;
/// The server is in the process of being shut down.
pub const ESHUTDOWN: u32 = 108;

/// Returns the error number of `kind` for a client. A write past the end is `ENOSPC`, any other
/// request past the end `EINVAL`.
#[must_use]
pub const fn errno(kind: ErrorKind, write: bool) -> u32 {
    match kind {
        ErrorKind::InvalidInput => EINVAL,
        ErrorKind::OutOfRange if write => ENOSPC,
        ErrorKind::OutOfRange => EINVAL,
        ErrorKind::ReadOnly | ErrorKind::Permission => EPERM,
        ErrorKind::NoSpace => ENOSPC,
        ErrorKind::Unsupported => ENOTSUP,
        ErrorKind::ShuttingDown => ESHUTDOWN,
        _ => EIO,
    }
}

/// Returns the error kind of a server's number. Unknown numbers are I/O errors. The document asks
/// clients to treat them as `EINVAL`, but a request that was valid when sent has not become
/// invalid.
#[must_use]
pub const fn error_kind(errno: u32) -> ErrorKind {
    match errno {
        EPERM => ErrorKind::ReadOnly,
        EINVAL | EOVERFLOW => ErrorKind::InvalidInput,
        ENOSPC => ErrorKind::NoSpace,
        ENOTSUP => ErrorKind::Unsupported,
        ESHUTDOWN => ErrorKind::ShuttingDown,
        _ => ErrorKind::Io,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_comes_back_as_its_kind() {
        for kind in [
            ErrorKind::Io,
            ErrorKind::InvalidInput,
            ErrorKind::ReadOnly,
            ErrorKind::NoSpace,
            ErrorKind::Unsupported,
            ErrorKind::ShuttingDown,
        ] {
            assert_eq!(error_kind(errno(kind, true)), kind);
            assert_eq!(error_kind(errno(kind, false)), kind);
        }
    }

    #[test]
    fn past_the_end_depends_on_the_direction() {
        assert_eq!(errno(ErrorKind::OutOfRange, true), ENOSPC);
        assert_eq!(errno(ErrorKind::OutOfRange, false), EINVAL);
    }

    #[test]
    fn no_error_kind_becomes_success() {
        for kind in [ErrorKind::Lost, ErrorKind::Corrupt, ErrorKind::TimedOut] {
            assert_eq!(errno(kind, false), EIO);
        }
    }
}
