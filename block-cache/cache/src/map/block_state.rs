//! State of a block in the map.

use forebay_policy::BlockKey;

use super::flags::Flags;
use crate::geometry::Block;

/// State of a block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockState {
    /// The volume, and the block's first unit.
    pub(crate) key: BlockKey,
    /// The block's size, as a power of two of units.
    pub(crate) class: u8,
    pub(crate) valid: u64,
    pub(crate) dirty: u64,
    /// Position in the ring of the record that counts.
    pub(crate) record_at: u32,
    pub(crate) flags: Flags,
}

impl BlockState {
    pub(crate) const fn has(&self, flags: Flags) -> bool {
        self.flags.has(flags)
    }

    pub(crate) const fn block(&self) -> Block {
        Block {
            unit: self.key.block(),
            class: self.class,
        }
    }
}

/// A block that may have to go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    /// Names its lock, with the granules that it covers.
    pub(crate) region: BlockKey,
    pub(crate) granules: u64,
    pub(crate) dirty: bool,
    pub(crate) flags: Flags,
}

/// Cached share of a volume.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Share {
    pub(crate) blocks: u64,
    pub(crate) bytes: u64,
    pub(crate) dirty_bytes: u64,
}
