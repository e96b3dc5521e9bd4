//! Counters of a cache.

use std::cell::RefCell;

/// Counts since the cache was opened; in blocks where nothing else is said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransitStats {
    /// Written into a slot.
    pub written: u64,
    /// Of these, versions of a block that had a slot.
    pub rewritten: u64,
    /// Written to the device because no slot was free.
    pub bypassed: u64,
    /// Written to the device because of FUA.
    pub fua: u64,
    /// Writes of a block that waited for a slot.
    pub waited: u64,
    /// Writes of a block that waited for the end of its eviction.
    pub collided: u64,
    /// Evicted: written to the device from a slot.
    pub evicted: u64,
    /// Evictions that the device refused.
    pub refused: u64,
    /// Read from a slot.
    pub read_hits: u64,
    /// Read from the device.
    pub read_misses: u64,
    /// Flushes, each one request.
    pub flushes: u64,
    /// Number of blocks that flushes found in slots when they arrived.
    pub flushed: u64,
    /// Slots.
    pub slots: u64,
    /// Slots in use.
    pub used: u64,
    /// Slots whose blocks the device does not have.
    pub owed: u64,
    /// Memory of a slot besides its data, bytes.
    pub slot_bytes: u64,
}

/// The running counts.
#[derive(Debug, Default)]
pub(crate) struct Counters(RefCell<TransitStats>);

impl Counters {
    pub(crate) fn get(&self) -> TransitStats {
        *self.0.borrow()
    }

    #[inline]
    pub(crate) fn add(&self, change: impl FnOnce(&mut TransitStats)) {
        change(&mut self.0.borrow_mut());
    }
}
