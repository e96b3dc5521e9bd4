//! The status of a completion (Base 3.3.3.2.1, "Status Field Definition").

use forebay_block::ErrorKind;

/// A status: its code, the code's type, and "do not retry".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Status(u16);

/// "Do Not Retry".
const DNR: u16 = 1 << 14;
/// All bits of a status, which are bits 15:1 of the half word on the wire; bit 0 is the phase tag.
const MASK: u16 = 0x7fff;

const fn generic(code: u8) -> Status {
    Status(code as u16)
}

const fn specific(code: u8) -> Status {
    Status(1 << 8 | code as u16)
}

const fn media(code: u8) -> Status {
    Status(2 << 8 | code as u16)
}

/// Generic ("Generic Command Status Definition").
impl Status {
    /// Success.
    pub const SUCCESS: Self = generic(0x00);
    /// Unknown command.
    pub const INVALID_OPCODE: Self = generic(0x01).final_();
    /// A field of the command is invalid.
    pub const INVALID_FIELD: Self = generic(0x02).final_();
    /// A command in flight has the same identifier.
    pub const COMMAND_ID_CONFLICT: Self = generic(0x03).final_();
    /// The data could not be transferred.
    pub const DATA_TRANSFER_ERROR: Self = generic(0x04);
    /// An internal error.
    pub const INTERNAL_ERROR: Self = generic(0x06);
    /// Aborted by the host.
    pub const ABORT_REQUESTED: Self = generic(0x07).final_();
    /// Unknown namespace.
    pub const INVALID_NAMESPACE: Self = generic(0x0b).final_();
    /// Not now: before Connect, or before the controller is ready.
    pub const COMMAND_SEQUENCE_ERROR: Self = generic(0x0c).final_();
    /// The descriptor's length is not that of the data.
    pub const DATA_SGL_LENGTH_INVALID: Self = generic(0x0f).final_();
    /// A descriptor of an unsupported type.
    pub const SGL_TYPE_INVALID: Self = generic(0x11).final_();
    /// In-capsule data beyond the capsule.
    pub const SGL_OFFSET_INVALID: Self = generic(0x16).final_();
    /// The namespace is read-only.
    pub const WRITE_PROTECTED: Self = generic(0x20).final_();
    /// The data was damaged in transfer; it may be sent again.
    pub const TRANSIENT_TRANSPORT_ERROR: Self = generic(0x22);
    /// Past the end of the namespace.
    pub const LBA_OUT_OF_RANGE: Self = generic(0x80).final_();
    /// No space left.
    pub const CAPACITY_EXCEEDED: Self = generic(0x81).final_();
}

/// Command specific ("Command Specific Status Definition").
impl Status {
    /// Too many asynchronous event requests (Base 5.2).
    pub const EVENT_LIMIT_EXCEEDED: Self = specific(0x05).final_();
    /// Unknown log page (Base 5.16).
    pub const INVALID_LOG_PAGE: Self = specific(0x09).final_();
    /// The feature cannot be set (Base 5.27).
    pub const FEATURE_NOT_CHANGEABLE: Self = specific(0x0e).final_();
    /// Connect in an unknown format (Base 6.3).
    pub const CONNECT_INCOMPATIBLE_FORMAT: Self = specific(0x80).final_();
    /// No resources for this Connect now; a later one may succeed (Base 6.3).
    pub const CONNECT_BUSY: Self = specific(0x81);
    /// A parameter of Connect is invalid (Base 6.3).
    pub const CONNECT_INVALID_PARAMETERS: Self = specific(0x82).final_();
    /// This host may not connect (Base 6.3).
    pub const CONNECT_INVALID_HOST: Self = specific(0x84).final_();
    /// The host has not authenticated itself on this queue (Base 3.3.3.2.1).
    pub const AUTHENTICATION_REQUIRED: Self = specific(0x91).final_();
}

/// Media ("Media and Data Integrity Errors Definition").
impl Status {
    /// The data was not written.
    pub const WRITE_FAULT: Self = media(0x80);
    /// The data cannot be read.
    pub const UNRECOVERED_READ_ERROR: Self = media(0x81);
    /// The data differs from the compared data (NVM 3.2.1).
    pub const COMPARE_FAILURE: Self = media(0x85).final_();
}

impl Status {
    const fn final_(self) -> Self {
        Self(self.0 | DNR)
    }

    /// Returns the status code.
    #[must_use]
    pub const fn code(self) -> u8 {
        self.0.to_le_bytes()[0]
    }

    /// Returns the status code type: generic, command specific, media, path.
    #[must_use]
    pub const fn code_type(self) -> u8 {
        self.0.to_le_bytes()[1] & 7
    }

    /// Returns whether a retry is useless.
    #[must_use]
    pub const fn do_not_retry(self) -> bool {
        self.0 & DNR != 0
    }

    /// Returns the upper half of a completion's last word, with phase tag 0 as in Fabrics.
    #[must_use]
    pub const fn to_wire(self) -> u16 {
        self.0 << 1
    }

    /// Decodes the upper half of a completion's last word.
    #[must_use]
    pub const fn from_wire(word: u16) -> Self {
        Self((word >> 1) & MASK)
    }

    /// Returns the error kind of this status for a host.
    #[must_use]
    pub const fn kind(self) -> ErrorKind {
        match self {
            it if it.is(Self::INVALID_FIELD) => ErrorKind::InvalidInput,
            it if it.is(Self::LBA_OUT_OF_RANGE) => ErrorKind::OutOfRange,
            it if it.is(Self::WRITE_PROTECTED) => ErrorKind::ReadOnly,
            it if it.is(Self::CAPACITY_EXCEEDED) => ErrorKind::NoSpace,
            it if it.is(Self::INVALID_OPCODE) => ErrorKind::Unsupported,
            it if it.is(Self::INVALID_NAMESPACE) => ErrorKind::NotFound,
            it if it.is(Self::CONNECT_BUSY) => ErrorKind::Busy,
            it if it.is(Self::CONNECT_INVALID_HOST) => ErrorKind::Permission,
            it if it.is(Self::AUTHENTICATION_REQUIRED) => ErrorKind::Permission,
            _ => ErrorKind::Io,
        }
    }

    /// Returns whether both are the same status, except "do not retry".
    #[must_use]
    pub const fn is(self, other: Self) -> bool {
        (self.0 ^ other.0) & 0x7ff == 0
    }

    /// Returns the status for an error of `kind`, of a command that `writes` or does not.
    #[must_use]
    pub const fn of(kind: ErrorKind, writes: bool) -> Self {
        match kind {
            ErrorKind::InvalidInput => Self::INVALID_FIELD,
            ErrorKind::OutOfRange => Self::LBA_OUT_OF_RANGE,
            ErrorKind::ReadOnly | ErrorKind::Permission => Self::WRITE_PROTECTED,
            ErrorKind::NoSpace => Self::CAPACITY_EXCEEDED,
            ErrorKind::Unsupported => Self::INVALID_OPCODE,
            ErrorKind::Io | ErrorKind::Corrupt | ErrorKind::Lost if writes => Self::WRITE_FAULT,
            ErrorKind::Io | ErrorKind::Corrupt | ErrorKind::Lost => Self::UNRECOVERED_READ_ERROR,
            _ => Self::INTERNAL_ERROR,
        }
    }
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (kind, code) = (self.code_type(), self.code());
        write!(f, "NVMe status {kind}:{code:02x}h")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_specifications_numbers() {
        assert_eq!(Status::SUCCESS.to_wire(), 0);
        assert_eq!(Status::INVALID_FIELD.to_wire(), 0x8004);
        assert_eq!(Status::CONNECT_INVALID_HOST.code_type(), 1);
        assert_eq!(Status::CONNECT_INVALID_HOST.code(), 0x84);
        assert_eq!(Status::COMPARE_FAILURE.to_wire(), 0x850a);
        assert!(!Status::TRANSIENT_TRANSPORT_ERROR.do_not_retry());
    }

    #[test]
    fn no_error_kind_becomes_success() {
        for kind in [
            ErrorKind::Io,
            ErrorKind::Lost,
            ErrorKind::Corrupt,
            ErrorKind::TimedOut,
            ErrorKind::ShuttingDown,
        ] {
            assert_ne!(Status::of(kind, true), Status::SUCCESS);
            assert_ne!(Status::of(kind, false), Status::SUCCESS);
        }
    }

    #[test]
    fn a_status_translates_back_to_its_kind() {
        for kind in [
            ErrorKind::InvalidInput,
            ErrorKind::OutOfRange,
            ErrorKind::ReadOnly,
            ErrorKind::NoSpace,
            ErrorKind::Unsupported,
            ErrorKind::Io,
        ] {
            assert_eq!(Status::of(kind, true).kind(), kind);
            assert_eq!(Status::of(kind, false).kind(), kind);
        }
        // With and without "do not retry"; not of another type.
        let wire = Status::LBA_OUT_OF_RANGE.to_wire();
        let retried = Status::from_wire(wire & !(DNR << 1));
        assert_eq!(retried.kind(), ErrorKind::OutOfRange);
        assert_eq!(Status::from_wire(wire | 1 << 9).kind(), ErrorKind::Io);
        assert_eq!(
            Status::UNRECOVERED_READ_ERROR.to_string(),
            "NVMe status 2:81h"
        );
    }

    #[test]
    fn a_status_comes_back_from_the_wire() {
        for word in 0..=u16::MAX {
            assert_eq!(Status::from_wire(word).to_wire(), word & !1);
        }
    }
}
