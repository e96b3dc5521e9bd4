//! Memory that a cache takes, foretold from its size.

use forebay_metadata::superblock::Superblock;
use forebay_policy::BlockSizes;

use crate::checksum::CELL;
use crate::format::inspect::Inspection;
use crate::geometry::Geometry;

/// Most bytes of memory for each block of the smallest size. The block table with its index takes
/// 33, and the live record with the flags 6. Data needed only at a start takes 3, and the log's
/// tail 1.
const UNIT_BYTES: u64 = 43;
/// Most bytes of memory that do not depend on the size: read-ahead, the bit-tree and the shortest
/// tables.
const FIXED_BYTES: u64 = 4 << 20;

/// Returns the most memory that a cache takes when it is full, in bytes.
#[must_use]
pub fn memory_needed(superblock: &Superblock) -> u64 {
    let sizes = BlockSizes::from_mask(superblock.block_size_bytes, superblock.classes);
    needed(sizes, superblock.slots, superblock.has_checksums())
}

impl Inspection {
    /// Returns the most memory that the cache takes when it is full, in bytes.
    #[must_use]
    pub fn memory_needed(&self) -> u64 {
        needed(self.sizes, self.blocks, self.checksums)
    }
}

fn needed(sizes: BlockSizes, units: u32, checksums: bool) -> u64 {
    // Two bits for each granule.
    let granules = u64::from(Geometry::new(sizes, 0).granules(0));
    let sums = match checksums {
        true => size_of::<u32>() as u64 * (sizes.unit_bytes() / u64::from(CELL)),
        false => 0,
    };
    u64::from(units) * (UNIT_BYTES + granules.div_ceil(4) + sums) + FIXED_BYTES
}
