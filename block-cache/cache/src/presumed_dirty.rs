//! Blocks that count as dirty since recovery, though no record says so.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::time::Duration;

use forebay_io::rt;
use forebay_policy::BlockId;

use crate::stats::{RecoveryProgress, Stats};

/// The blocks that recovery presumed to be dirty and that were not written back yet.
#[derive(Debug)]
pub(crate) struct PresumedDirty {
    left: Cell<u64>,
    /// Number of such blocks at the start.
    found: u64,
    /// Whether the cache was open last in an earlier boot of the machine.
    power_was_lost: bool,
    /// Dirty granules in the record of a block, where a record calls a part of the block dirty.
    recorded: RefCell<HashMap<BlockId, u64>>,
    /// Time of the opening.
    opened: Duration,
}

impl PresumedDirty {
    /// Returns the blocks that a recovery found.
    pub(crate) fn new(found: u64, power_was_lost: bool, recorded: HashMap<BlockId, u64>) -> Self {
        Self {
            left: Cell::new(0),
            found,
            power_was_lost,
            recorded: RefCell::new(recorded),
            opened: rt::now(),
        }
    }

    /// Sets the number of blocks that are left.
    pub(crate) fn begin(&self, blocks: usize) {
        self.left.set(blocks as u64);
    }

    /// Notes that a block was written back, overwritten or dropped.
    pub(crate) fn remove(&self, id: BlockId) {
        self.recorded.borrow_mut().remove(&id);
        self.left.set(self.left.get() - 1);
    }

    /// Returns whether no block is left.
    pub(crate) const fn is_over(&self) -> bool {
        self.left.get() == 0
    }

    /// Returns whether the cache was open last in an earlier boot of the machine.
    pub(crate) const fn power_was_lost(&self) -> bool {
        self.power_was_lost
    }

    /// Returns the granules of a block that its record calls dirty.
    pub(crate) fn recorded(&self, id: BlockId) -> u64 {
        self.recorded.borrow().get(&id).copied().unwrap_or(0)
    }

    /// Returns the progress of the write-back of these blocks.
    pub(crate) fn progress(&self, stats: &Stats) -> RecoveryProgress {
        RecoveryProgress {
            found_blocks: self.found,
            left_blocks: self.left.get(),
            elapsed_ms: u64::try_from((rt::now() - self.opened).as_millis()).unwrap_or(u64::MAX),
            compared_bytes: stats.compared_bytes.get(),
            same_bytes: stats.same_bytes.get(),
        }
    }
}
