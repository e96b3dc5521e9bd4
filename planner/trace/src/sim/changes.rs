//! Changes of a simulated cache's blocks.

use std::ops::Range;

use forebay_policy::BlockId;

/// Kind of a change of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It was inserted.
    Placed,
    /// A client wrote to it: it is dirty.
    Written,
    /// It was written back: it is clean.
    Cleaned,
    /// It was removed.
    Removed,
}

/// A change of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changed {
    /// Kind of the change.
    pub change: Change,
    /// Number of the block, which is reused after its removal.
    pub id: BlockId,
    /// Number of the volume.
    pub volume: u16,
    /// Range of the volume in the block, in blocks of the smallest size.
    pub units: Range<u64>,
    /// Range of the cache in the block, in blocks of the smallest size.
    pub slots: Range<u64>,
}
