//! Little-endian fields at fixed offsets, and the checksum that is seeded with the cache's
//! identity.

use crc_fast::{CrcAlgorithm, checksum};

/// Distinguishes this cache's structures from those of any other: the checksum of its UUID. A
/// record that an earlier cache left on the same device does not verify under it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seed(u32);

impl Seed {
    /// The seed of the cache with this UUID.
    #[must_use]
    pub fn new(uuid: &[u8; 16]) -> Self {
        Self(crc32c(uuid))
    }

    /// CRC32C of `bytes` under this seed.
    pub(crate) fn checksum(self, bytes: &[u8]) -> u32 {
        crc32c(bytes) ^ self.0
    }
}

/// CRC32C (RFC 3720, section 12.1).
fn crc32c(bytes: &[u8]) -> u32 {
    u32::try_from(checksum(CrcAlgorithm::Crc32Iscsi, bytes)).expect("a 32-bit checksum")
}

macro_rules! field {
    ($get:ident, $put:ident, $type:ty) => {
        pub(crate) fn $get(bytes: &[u8], at: usize) -> $type {
            const SIZE: usize = size_of::<$type>();
            let mut field = [0; SIZE];
            field.copy_from_slice(&bytes[at..at + SIZE]);
            <$type>::from_le_bytes(field)
        }

        pub(crate) fn $put(bytes: &mut [u8], at: usize, value: $type) {
            bytes[at..at + size_of::<$type>()].copy_from_slice(&value.to_le_bytes());
        }
    };
}

field!(get_u16, put_u16, u16);
field!(get_u32, put_u32, u32);
field!(get_u64, put_u64, u64);

/// Encodes a number that may not be there: zero where it is not, and one more than the number where
/// it is.
pub(crate) const fn put_optional(value: Option<u64>) -> u64 {
    match value {
        Some(value) => value.saturating_add(1),
        None => 0,
    }
}

/// Decodes what [`put_optional`] has encoded.
pub(crate) const fn get_optional(field: u64) -> Option<u64> {
    field.checked_sub(1)
}

/// The 16 bytes at `at`.
pub(crate) fn get_id(bytes: &[u8], at: usize) -> [u8; 16] {
    let mut id = [0; 16];
    id.copy_from_slice(&bytes[at..at + 16]);
    id
}
