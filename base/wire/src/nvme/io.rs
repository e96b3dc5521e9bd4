//! I/O commands: the NVM command set.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::Command;

/// Opcodes (Base 7, "I/O Commands"; NVM 3.2).
pub mod opcode {
    /// Makes all completed writes durable (Base 7.1).
    pub const FLUSH: u8 = 0x00;
    /// Writes (NVM 3.2.6).
    pub const WRITE: u8 = 0x01;
    /// Reads (NVM 3.2.4).
    pub const READ: u8 = 0x02;
    /// Compares with the host's data (NVM 3.2.1).
    pub const COMPARE: u8 = 0x05;
    /// Makes a range read as zeroes (NVM 3.2.8).
    pub const WRITE_ZEROES: u8 = 0x08;
    /// Hints on ranges, deallocation among them (NVM 3.2.3).
    pub const DATASET_MANAGEMENT: u8 = 0x09;
    /// Reads without transfer (NVM 3.2.5).
    pub const VERIFY: u8 = 0x0c;
}

/// Force unit access: bit 30 of dword 12 (NVM 3.2.6, "FUA").
const FUA: u32 = 1 << 30;
/// Deallocate: bit 25 of dword 12 of Write Zeroes (NVM 3.2.8, "DEAC").
const DEAC: u32 = 1 << 25;
/// Deallocate: bit 2 of dword 11 of Dataset Management (NVM 3.2.3, "AD").
const AD: u32 = 1 << 2;

/// Maximum number of ranges of a Dataset Management command (NVM 3.2.3, "NR").
pub const MAX_RANGES: usize = 256;
/// Bytes of a [`Range`].
pub const RANGE_BYTES: usize = 16;

/// Fields of commands on a range of blocks.
impl Command {
    /// Returns the first logical block (NVM 3.2, "SLBA").
    #[must_use]
    pub const fn first_block(&self) -> u64 {
        self.words[0] as u64 | (self.words[1] as u64) << 32
    }

    /// Returns the number of logical blocks; the field counts from zero (NVM 3.2, "NLB").
    #[must_use]
    pub const fn blocks(&self) -> u32 {
        (self.words[2] & 0xffff) + 1
    }

    /// Returns whether the write must be durable before the completion.
    #[must_use]
    pub const fn fua(&self) -> bool {
        self.words[2] & FUA != 0
    }

    /// Returns whether Write Zeroes may free the space.
    #[must_use]
    pub const fn may_deallocate(&self) -> bool {
        self.words[2] & DEAC != 0
    }

    /// Returns whether Dataset Management deallocates.
    #[must_use]
    pub const fn deallocates(&self) -> bool {
        self.words[1] & AD != 0
    }

    /// Returns the number of ranges of Dataset Management; the field counts from zero (NVM 3.2.3,
    /// "NR").
    #[must_use]
    pub const fn ranges(&self) -> usize {
        (self.words[0] & 0xff) as usize + 1
    }

    /// Returns a command on a range of blocks.
    ///
    /// # Panics
    /// If the range has no block or more than 65,536.
    #[must_use]
    pub const fn on_range(opcode: u8, nsid: u32, first_block: u64, blocks: u32, fua: bool) -> Self {
        assert!(
            blocks > 0 && blocks <= 1 << 16,
            "a range that one command takes"
        );
        let words = [
            (first_block & 0xffff_ffff) as u32,
            (first_block >> 32) as u32,
            (blocks - 1) | if fua { FUA } else { 0 },
            0,
            0,
            0,
        ];
        Self::new(opcode, nsid, words)
    }

    /// Sets whether this Write Zeroes may free the space.
    #[must_use]
    pub const fn deallocating(mut self, may: bool) -> Self {
        self.words[2] = if may {
            self.words[2] | DEAC
        } else {
            self.words[2] & !DEAC
        };
        self
    }

    /// Returns a Dataset Management command that deallocates `ranges` ranges.
    ///
    /// # Panics
    /// Without a range, or with more than [`MAX_RANGES`].
    #[must_use]
    pub const fn deallocate(nsid: u32, ranges: usize) -> Self {
        assert!(
            ranges > 0 && ranges <= MAX_RANGES,
            "ranges that one command takes"
        );
        let words = [ranges as u32 - 1, AD, 0, 0, 0, 0];
        Self::new(opcode::DATASET_MANAGEMENT, nsid, words)
    }
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RangeLayout {
    attributes: U32,
    blocks: U32,
    first_block: U64,
}

/// A range of Dataset Management (NVM 3.2.3, "Range Definition").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// Hints on the use of the range.
    pub attributes: u32,
    /// Number of logical blocks; this field counts from one.
    pub blocks: u32,
    /// First logical block.
    pub first_block: u64,
}

impl Range {
    /// Encodes the range.
    #[must_use]
    pub fn encode(self) -> [u8; RANGE_BYTES] {
        zerocopy::transmute!(RangeLayout {
            attributes: self.attributes.into(),
            blocks: self.blocks.into(),
            first_block: self.first_block.into(),
        })
    }

    /// Decodes a host's range.
    #[must_use]
    pub fn decode(bytes: [u8; RANGE_BYTES]) -> Self {
        let layout: RangeLayout = zerocopy::transmute!(bytes);
        Self {
            attributes: layout.attributes.get(),
            blocks: layout.blocks.get(),
            first_block: layout.first_block.get(),
        }
    }
}
