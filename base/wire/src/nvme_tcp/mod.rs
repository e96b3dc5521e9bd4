//! NVMe over TCP: PDUs and their digests.
//!
//! Numbers and layouts follow the NVM Express TCP Transport Specification 1.0; each item names its section
//! there by title. All integers are little-endian.
//!
//! Whatever of a PDU breaks the rules is a [`Fault`]: what the PDU that ends the connection says.

mod pdu;

use crc_fast::{CrcAlgorithm, checksum};

pub use pdu::{
    COMMON_BYTES, Common, DATA_BYTES, DataHeader, Initialize, Kind, Layout, R2t, Terminate, flag,
};

/// Bytes of a digest ("Header Digest", "Data Digest").
pub const DIGEST_BYTES: usize = 4;
/// Bytes of the longest header ("ICReq", "ICResp").
pub const MAX_HEADER_BYTES: usize = 128;
/// Data that the capsules of admin and fabrics commands take, bytes ("Capsules").
pub const ADMIN_IN_CAPSULE_BYTES: u32 = 8192;
/// Smallest limit on the data of one H2CData PDU, bytes ("ICResp", "MAXH2CDATA").
pub const MIN_H2C_DATA_BYTES: u32 = 4096;
/// Most data alignment, counted from zero in 4 bytes ("ICReq", "HPDA").
pub const MAX_ALIGNMENT: u8 = 31;

/// CRC32C of `bytes` as it travels ("Digests").
#[must_use]
pub fn digest(bytes: &[u8]) -> [u8; DIGEST_BYTES] {
    let [a, b, c, d, ..] = checksum(CrcAlgorithm::Crc32Iscsi, bytes).to_le_bytes();
    [a, b, c, d]
}

/// Which digests a connection has agreed on ("ICReq", "DGST").
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Digests {
    /// After each header.
    pub header: bool,
    /// After each PDU's data.
    pub data: bool,
}

/// Fatal errors ("H2CTermReq", "C2HTermReq": "Fatal Error Status").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fatal {
    /// A field of a header makes no sense; the information is its offset.
    InvalidHeaderField = 1,
    /// A PDU at a time when it may not come.
    SequenceError = 2,
    /// A header is not what its digest says; the information is the digest received.
    HeaderDigest = 3,
    /// Data outside of what was asked for.
    OutOfRange = 4,
    /// More data than the limit.
    LimitExceeded = 5,
    /// A parameter that is not supported; the information is its offset.
    Unsupported = 6,
}

/// What ends a connection: the error, and information on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What is wrong.
    pub fatal: Fatal,
    /// Where, or what.
    pub information: u32,
}

impl Fault {
    /// A field at `offset` of a header makes no sense.
    #[must_use]
    pub const fn field(offset: u32) -> Self {
        Self {
            fatal: Fatal::InvalidHeaderField,
            information: offset,
        }
    }

    /// An error that has no information.
    #[must_use]
    pub const fn plain(fatal: Fatal) -> Self {
        Self {
            fatal,
            information: 0,
        }
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let information = self.information;
        match self.fatal {
            Fatal::InvalidHeaderField => {
                write!(
                    f,
                    "the field at byte {information} of a PDU's header makes no sense"
                )
            }
            Fatal::SequenceError => f.write_str("a PDU at a time when it may not come"),
            Fatal::HeaderDigest => f.write_str("a PDU's header is not what its digest says"),
            Fatal::OutOfRange => f.write_str("data outside of what was asked for"),
            Fatal::LimitExceeded => f.write_str("more data than the limit"),
            Fatal::Unsupported => {
                write!(f, "the parameter at byte {information} is not supported")
            }
        }
    }
}
