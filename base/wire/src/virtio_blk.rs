//! The block device of virtio: requests, configuration space, features (Virtual I/O Device 1.2,
//! section 5.2).

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Length of a sector, bytes, independent of the logical block size (5.2.6).
pub const SECTOR_BYTES: u64 = 512;

/// Feature bits (5.2.3; those of the rings and of the transport in 6).
pub mod feature {
    /// The device reports the maximum number of segments of a request.
    pub const SEG_MAX: u64 = 1 << 2;
    /// The device is read-only.
    pub const RO: u64 = 1 << 5;
    /// The device reports the logical block size.
    pub const BLK_SIZE: u64 = 1 << 6;
    /// There is a volatile cache, and a command that flushes it.
    pub const FLUSH: u64 = 1 << 9;
    /// The device reports the physical block size.
    pub const TOPOLOGY: u64 = 1 << 10;
    /// There are several queues.
    pub const MQ: u64 = 1 << 12;
    /// Discard.
    pub const DISCARD: u64 = 1 << 13;
    /// Write zeroes.
    pub const WRITE_ZEROES: u64 = 1 << 14;
    /// Descriptors may refer to tables of descriptors (6).
    pub const RING_INDIRECT_DESC: u64 = 1 << 28;
    /// Each side announces the entry from which on it wants notifications (6).
    pub const RING_EVENT_IDX: u64 = 1 << 29;
    /// The device follows version 1 (6).
    pub const VERSION_1: u64 = 1 << 32;
}

/// Types of requests (5.2.6).
pub mod request {
    /// Read.
    pub const IN: u32 = 0;
    /// Write.
    pub const OUT: u32 = 1;
    /// Makes all completed writes durable.
    pub const FLUSH: u32 = 4;
    /// Returns the serial number.
    pub const GET_ID: u32 = 8;
    /// Discards ranges.
    pub const DISCARD: u32 = 11;
    /// Makes ranges read as zeroes.
    pub const WRITE_ZEROES: u32 = 13;
}

/// Status of a request: the last byte that the device writes (5.2.6).
pub mod status {
    /// Success.
    pub const OK: u8 = 0;
    /// I/O error.
    pub const IOERR: u8 = 1;
    /// Unsupported request.
    pub const UNSUPP: u8 = 2;
}

/// Bytes of a serial number (5.2.6, `GET_ID`).
pub const ID_BYTES: usize = 20;
/// Bytes of a [`Header`].
pub const HEADER_BYTES: usize = 16;
/// Bytes of a [`Segment`].
pub const SEGMENT_BYTES: usize = 16;
/// Bytes of a [`Config`].
pub const CONFIG_BYTES: usize = 60;
/// Allows the device to free the space of a [`Segment`] (5.2.6, `unmap`).
pub const UNMAP: u32 = 1;

/// Header of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// One of [`request`].
    pub kind: u32,
    /// The first sector of a read or write.
    pub sector: u64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawHeader {
    kind: U32,
    reserved: U32,
    sector: U64,
}

impl Header {
    /// Decodes a header.
    #[must_use]
    pub fn decode(bytes: [u8; HEADER_BYTES]) -> Self {
        let raw: RawHeader = zerocopy::transmute!(bytes);
        Self {
            kind: raw.kind.get(),
            sector: raw.sector.get(),
        }
    }

    /// Encodes the header.
    #[must_use]
    pub fn encode(self) -> [u8; HEADER_BYTES] {
        zerocopy::transmute!(RawHeader {
            kind: self.kind.into(),
            reserved: 0.into(),
            sector: self.sector.into(),
        })
    }
}

/// A range of a discard or of write zeroes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// First sector.
    pub sector: u64,
    /// Length, sectors.
    pub sectors: u32,
    /// [`UNMAP`] and reserved bits.
    pub flags: u32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawSegment {
    sector: U64,
    sectors: U32,
    flags: U32,
}

impl Segment {
    /// Decodes a range.
    #[must_use]
    pub fn decode(bytes: [u8; SEGMENT_BYTES]) -> Self {
        let raw: RawSegment = zerocopy::transmute!(bytes);
        Self {
            sector: raw.sector.get(),
            sectors: raw.sectors.get(),
            flags: raw.flags.get(),
        }
    }

    /// Encodes the range.
    #[must_use]
    pub fn encode(self) -> [u8; SEGMENT_BYTES] {
        zerocopy::transmute!(RawSegment {
            sector: self.sector.into(),
            sectors: self.sectors.into(),
            flags: self.flags.into(),
        })
    }
}

/// Configuration space (5.2.4), without geometry, and without the secure erase and zone fields at
/// its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Size, sectors.
    pub capacity_sectors: u64,
    /// Maximum number of segments of a request.
    pub max_segments: u32,
    /// Logical block size, bytes.
    pub block_bytes: u32,
    /// Physical block size as a power of two of logical blocks.
    pub physical_block_shift: u8,
    /// Number of queues.
    pub queues: u16,
    /// Maximum length of a range of a discard or write-zeroes, sectors.
    pub max_range_sectors: u32,
    /// Maximum number of ranges of a discard or write-zeroes.
    pub max_ranges: u32,
}

#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct RawConfig {
    capacity: U64,
    size_max: U32,
    seg_max: U32,
    geometry: [u8; 4],
    blk_size: U32,
    physical_block_exp: u8,
    alignment_offset: u8,
    min_io_size: U16,
    opt_io_size: U32,
    writeback: u8,
    unused0: u8,
    num_queues: U16,
    max_discard_sectors: U32,
    max_discard_seg: U32,
    discard_sector_alignment: U32,
    max_write_zeroes_sectors: U32,
    max_write_zeroes_seg: U32,
    write_zeroes_may_unmap: u8,
    unused1: [u8; 3],
}

impl Config {
    /// Encodes the configuration space.
    #[must_use]
    pub fn encode(&self) -> [u8; CONFIG_BYTES] {
        let block_sectors = self.block_bytes / SECTOR_BYTES as u32;
        zerocopy::transmute!(RawConfig {
            capacity: self.capacity_sectors.into(),
            size_max: 0.into(),
            seg_max: self.max_segments.into(),
            geometry: [0; 4],
            blk_size: self.block_bytes.into(),
            physical_block_exp: self.physical_block_shift,
            alignment_offset: 0,
            min_io_size: 1.into(),
            opt_io_size: 0.into(),
            writeback: 1,
            unused0: 0,
            num_queues: self.queues.into(),
            max_discard_sectors: self.max_range_sectors.into(),
            max_discard_seg: self.max_ranges.into(),
            discard_sector_alignment: block_sectors.into(),
            max_write_zeroes_sectors: self.max_range_sectors.into(),
            max_write_zeroes_seg: self.max_ranges.into(),
            write_zeroes_may_unmap: 1,
            unused1: [0; 3],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_decoded_as_encoded() {
        let header = Header {
            kind: request::OUT,
            sector: 0x0102_0304_0506,
        };
        let bytes = header.encode();
        assert_eq!(bytes, [1, 0, 0, 0, 0, 0, 0, 0, 6, 5, 4, 3, 2, 1, 0, 0]);
        assert_eq!(Header::decode(bytes), header);
        let segment = Segment {
            sector: 7,
            sectors: 0x100,
            flags: UNMAP,
        };
        let bytes = segment.encode();
        assert_eq!(bytes, [7, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 1, 0, 0, 0]);
        assert_eq!(Segment::decode(bytes), segment);
    }

    #[test]
    fn the_configuration_space_has_each_field_at_its_place() {
        let bytes = Config {
            capacity_sectors: 0x1122,
            max_segments: 126,
            block_bytes: 4096,
            physical_block_shift: 3,
            queues: 0x0204,
            max_range_sectors: 0x0a0b,
            max_ranges: 9,
        }
        .encode();
        assert_eq!(bytes[..8], [0x22, 0x11, 0, 0, 0, 0, 0, 0]);
        assert_eq!(
            (bytes[12], bytes[20], bytes[21], bytes[24]),
            (126, 0, 16, 3)
        );
        // Of `writeback`, and of the number of queues.
        assert_eq!((bytes[32], bytes[34], bytes[35]), (1, 4, 2));
        assert_eq!((bytes[36], bytes[40], bytes[44]), (0x0b, 9, 8));
        assert_eq!((bytes[48], bytes[52], bytes[56]), (0x0b, 9, 1));
    }
}
