//! The object `volume`: identity and first size of a volume. It never changes.

use std::time::Duration;

use bytes::Bytes;
use forebay_block::Result;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Id, VERSION, check_magic, check_numbers, corrupt, crc32c};

/// Name of the object.
pub(crate) const NAME: &str = "volume";
const MAGIC: [u8; 8] = *b"FBOBJVOL";

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Layout {
    magic: [u8; 8],
    version: U16,
    zero: [u8; 6],
    id: Id,
    size_bytes: U64,
    time_ms: U64,
    zeroes: [u8; 12],
    crc: U32,
}

/// Length of the object, bytes.
pub(crate) const BYTES: u64 = size_of::<Layout>() as u64;

/// Identity and first size of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Superblock {
    /// Random identity.
    pub(crate) id: Id,
    /// Size at creation, bytes. Claims have later sizes.
    pub(crate) size_bytes: u64,
    /// Time of creation, since 1970.
    pub(crate) time: Duration,
}

impl Superblock {
    pub(crate) fn encode(&self) -> Bytes {
        let mut layout = Layout {
            magic: MAGIC,
            version: VERSION.into(),
            zero: [0; 6],
            id: self.id,
            size_bytes: self.size_bytes.into(),
            time_ms: to_ms(self.time).into(),
            zeroes: [0; 12],
            crc: 0.into(),
        };
        let end = layout.as_bytes().len() - 4;
        layout.crc = crc32c(&layout.as_bytes()[..end]).into();
        Bytes::copy_from_slice(layout.as_bytes())
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        let layout = Layout::ref_from_bytes(bytes).map_err(|_| corrupt("its length is wrong"))?;
        check_magic(layout.magic, MAGIC, layout.version.get())?;
        if crc32c(&bytes[..bytes.len() - 4]) != layout.crc.get() {
            return Err(corrupt("its checksum does not match"));
        }
        check_numbers([0; 3], layout.size_bytes.get())?;
        Ok(Self {
            id: layout.id,
            size_bytes: layout.size_bytes.get(),
            time: Duration::from_millis(layout.time_ms.get()),
        })
    }
}

/// Returns whole milliseconds.
pub(super) fn to_ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
