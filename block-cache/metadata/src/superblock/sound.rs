//! Checks whether the values of a superblock make sense. A superblock that verifies may still come
//! from another program.

use forebay_block::{Error, ErrorKind, Result};

use super::{DirtyTracking, INCOMPAT_TRACKING, RESERVED_BYTES, Superblock};
use crate::record::RECORD_BYTES;

/// No offset on a device is as large, so lengths can be added without overflow.
const FARTHEST: u64 = 1 << 60;

impl Superblock {
    /// Numbers that the rest of the code divides by, adds up and allocates from.
    pub(super) fn sound(&self, name: &str) -> Result<()> {
        let block = u64::from(self.block_size_bytes);
        let unit = u64::from(self.log.unit_bytes.max(1));
        let sound = block.is_power_of_two()
            && (4096..=1 << 20).contains(&block)
            && self.unit_is_sound()
            && self.slots > 0
            && self.slots <= 1 << 31
            && self.log.records >= u64::from(self.slots)
            && self.log.records < 1 << 40
            && self.reached < 1 << 48
            && (self.log.records * RECORD_BYTES as u64).is_multiple_of(unit)
            && self.log.offset >= RESERVED_BYTES
            && [
                self.log.offset,
                self.data_offset,
                self.tree_offset,
                self.checksums_offset,
            ]
            .iter()
            .all(|offset| *offset < FARTHEST)
            && self.data_offset.is_multiple_of(512)
            && self.region_shift <= 16
            && (self.incompat & INCOMPAT_TRACKING == 0)
                == (self.dirty_tracking == DirtyTracking::Exact)
            && self.tree().is_none_or(|tree| {
                tree.offset >= self.log.offset + self.log.records * RECORD_BYTES as u64
                    && tree.offset.is_multiple_of(u64::from(tree.unit_bytes))
            })
            && self.table_is_sound();
        if sound {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Corrupt,
            format!(
                "{name}: the superblock has a valid checksum and an invalid geometry: another \
                 build may have written it"
            ),
        ))
    }
}
