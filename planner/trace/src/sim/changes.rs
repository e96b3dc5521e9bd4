//! Changes of a simulated cache's blocks.

use std::ops::Range;

use forebay_policy::BlockId;

/// What happened to a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It is cached from now on.
    Placed,
    /// A client wrote to it: it is dirty.
    Written,
    /// It was written back: it is clean.
    Cleaned,
    /// It is gone.
    Removed,
}

/// A block to which something happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changed {
    /// What.
    pub change: Change,
    /// The block; its number is used again when it is gone.
    pub id: BlockId,
    /// The volume.
    pub volume: u16,
    /// What of the volume it holds, in blocks of the smallest size.
    pub units: Range<u64>,
    /// Where it lies in the cache, in blocks of the smallest size.
    pub places: Range<u64>,
}
