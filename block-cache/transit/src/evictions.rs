//! State of evictions: those in flight, and whether others wait for the end of the start.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use forebay_block::BlockDevice;

/// Evictors and what they write to.
pub(crate) struct Evictions {
    pub(crate) device: Rc<dyn BlockDevice>,
    pub(crate) most: usize,
    pub(crate) evictors: Cell<usize>,
    pub(crate) in_flight: Cell<usize>,
}

impl Evictions {
    /// At most `most` evictions at a time.
    pub(crate) fn new(device: Rc<dyn BlockDevice>, most: usize) -> Self {
        Self {
            device,
            most: most.max(1),
            evictors: Cell::new(0),
            in_flight: Cell::new(0),
        }
    }

    /// Returns the number of slots that are being evicted.
    pub(crate) const fn in_flight(&self) -> usize {
        self.in_flight.get()
    }
}

/// Whether evictions wait.
#[derive(Debug, Default)]
pub(crate) struct Hold {
    pub(crate) on: Cell<bool>,
    /// Slots that an earlier process left held, and the range locks of their blocks.
    pub(crate) left_held: RefCell<Vec<(u32, u64)>>,
}

impl Hold {
    pub(crate) const fn is_on(&self) -> bool {
        self.on.get()
    }
}
