//! NVMe over TCP: PDUs and their digests.
//!
//! Numbers and layouts follow the NVM Express TCP Transport Specification 1.0; each item names its
//! section there by title. All integers are little-endian.
//!
//! A violation of the rules by a PDU is a [`Fault`]: the content of the PDU that ends the
//! connection.

mod pdu;

use crc_fast::{CrcAlgorithm, checksum};

pub use pdu::{
    COMMON_BYTES, Common, DATA_BYTES, DataHeader, Initialize, Kind, Layout, R2t, Terminate, flag,
};

/// Bytes of a digest ("Header Digest", "Data Digest").
pub const DIGEST_BYTES: usize = 4;
/// Bytes of the largest header ("ICReq", "ICResp").
pub const MAX_HEADER_BYTES: usize = 128;
/// Maximum data in the capsules of admin and Fabrics commands, bytes ("Capsules").
pub const ADMIN_IN_CAPSULE_BYTES: u32 = 8192;
/// Smallest limit on the data of one H2CData PDU, bytes ("ICResp", "MAXH2CDATA").
pub const MIN_H2C_DATA_BYTES: u32 = 4096;
/// Maximum data alignment in units of 4 bytes, counted from zero ("ICReq", "HPDA").
pub const MAX_ALIGNMENT: u8 = 31;

/// Returns the CRC32C of `bytes` in wire order ("Digests").
#[must_use]
pub fn digest(bytes: &[u8]) -> [u8; DIGEST_BYTES] {
    let [a, b, c, d, ..] = checksum(CrcAlgorithm::Crc32Iscsi, bytes).to_le_bytes();
    [a, b, c, d]
}

/// Digests of a connection ("ICReq", "DGST").
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
    /// A field of a header is invalid; the information is its offset.
    InvalidHeaderField = 1,
    /// A PDU arrived at a wrong time.
    SequenceError = 2,
    /// The digest of a header does not match; the information is the received digest.
    HeaderDigest = 3,
    /// Data outside of the requested range.
    OutOfRange = 4,
    /// More data than the limit.
    LimitExceeded = 5,
    /// A parameter that is not supported; the information is its offset.
    Unsupported = 6,
}

/// Reason for the end of a connection: the error, and information on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The error.
    pub fatal: Fatal,
    /// Information on the error.
    pub information: u32,
}

impl Fault {
    /// Returns the fault of an invalid field at `offset` of a header.
    #[must_use]
    pub const fn field(offset: u32) -> Self {
        Self {
            fatal: Fatal::InvalidHeaderField,
            information: offset,
        }
    }

    /// Returns a fault without information.
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
                    "the field at byte {information} of a PDU's header is invalid"
                )
            }
            Fatal::SequenceError => f.write_str("a PDU out of sequence"),
            Fatal::HeaderDigest => f.write_str("the digest of a PDU's header does not match"),
            Fatal::OutOfRange => f.write_str("data outside of the requested range"),
            Fatal::LimitExceeded => f.write_str("more data than the limit"),
            Fatal::Unsupported => {
                write!(f, "the parameter at byte {information} is not supported")
            }
        }
    }
}
