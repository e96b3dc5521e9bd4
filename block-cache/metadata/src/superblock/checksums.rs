//! Where the checksums of cached data lie, if the cache was formatted to have some.

use super::{INCOMPAT_CHECKSUMS, RESERVED_BYTES, Superblock};
use crate::checksums::{CELL_BYTES, ChecksumTable};
use crate::record::RECORD_BYTES;

/// Bytes that the checksums of one slot take.
pub(super) const fn of_slot(block_bytes: u64) -> u64 {
    block_bytes / CELL_BYTES as u64 * 4
}

/// Bytes that they take for so many slots, in whole units.
pub(super) const fn bytes(slots: u64, block_bytes: u64, unit_bytes: u32) -> u64 {
    (slots * of_slot(block_bytes)).next_multiple_of(unit_bytes as u64)
}

impl Superblock {
    /// Whether cached data has checksums.
    #[must_use]
    pub const fn has_checksums(&self) -> bool {
        self.incompat & INCOMPAT_CHECKSUMS != 0
    }

    /// Where the checksums of cached data lie, if it has some.
    #[must_use]
    pub fn checksum_table(&self) -> Option<ChecksumTable> {
        self.has_checksums().then(|| ChecksumTable {
            offset: self.checksums_offset,
            unit_bytes: self.log.unit_bytes,
            cells: u64::from(self.slots) * u64::from(self.block_size_bytes) / CELL_BYTES as u64,
        })
    }

    pub(super) fn table_is_sound(&self) -> bool {
        let log_end = self.log.offset + self.log.records * RECORD_BYTES as u64;
        self.checksum_table().is_none_or(|sums| {
            sums.offset >= log_end.max(RESERVED_BYTES)
                && self
                    .tree()
                    .is_none_or(|tree| sums.offset >= tree.offset + tree.bytes())
                && sums.offset.is_multiple_of(u64::from(sums.unit_bytes))
        })
    }
}
