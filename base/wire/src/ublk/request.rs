//! Requests, and the arguments of the commands that fetch and end them.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{DESCRIPTOR_BYTES, IO_BYTES};

/// A request in memory that the driver shares (`struct ublksrv_io_desc`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// One of [`op`](super::op).
    pub op: u8,
    /// `FUA`, `NOUNMAP` and others, in their places.
    pub flags: u32,
    /// Length, sectors.
    pub sectors: u32,
    /// First sector.
    pub start_sector: u64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawDescriptor {
    op_flags: u32,
    nr_sectors: u32,
    start_sector: u64,
    addr: u64,
}

impl Descriptor {
    /// Decodes a descriptor.
    #[must_use]
    pub fn decode(bytes: [u8; DESCRIPTOR_BYTES]) -> Self {
        let raw: RawDescriptor = zerocopy::transmute!(bytes);
        let [op, ..] = raw.op_flags.to_le_bytes();
        Self {
            op,
            flags: raw.op_flags & !0xff,
            sectors: raw.nr_sectors,
            start_sector: raw.start_sector,
        }
    }

    /// Encodes the descriptor.
    #[must_use]
    pub fn encode(self) -> [u8; DESCRIPTOR_BYTES] {
        zerocopy::transmute!(RawDescriptor {
            op_flags: self.flags | u32::from(self.op),
            nr_sectors: self.sectors,
            start_sector: self.start_sector,
            addr: 0,
        })
    }
}

/// The argument of a queue's command (`struct ublksrv_io_cmd`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Io {
    /// The queue.
    pub queue: u16,
    /// The tag.
    pub tag: u16,
    /// Result of the tag's request: bytes of a read or write, zero for others, or a negated error
    /// number.
    pub result: i32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawIo {
    q_id: u16,
    tag: u16,
    result: i32,
    addr: u64,
}

impl Io {
    /// Decodes an argument.
    #[must_use]
    pub fn decode(bytes: [u8; IO_BYTES]) -> Self {
        let raw: RawIo = zerocopy::transmute!(bytes);
        Self {
            queue: raw.q_id,
            tag: raw.tag,
            result: raw.result,
        }
    }

    /// Encodes the argument without a buffer, as [`USER_COPY`](super::feature::USER_COPY) requires.
    #[must_use]
    pub fn encode(self) -> [u8; IO_BYTES] {
        zerocopy::transmute!(RawIo {
            q_id: self.queue,
            tag: self.tag,
            result: self.result,
            addr: 0,
        })
    }
}
