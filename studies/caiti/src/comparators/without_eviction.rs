//! Caiti without eager eviction, to measure the effect of eager eviction.
//!
//! When the cache is full, writes of blocks that it does not hold bypass it until a flush empties
//! it.

use crate::policy::{Admission, Caiti, Decide, Slots, View};

#[derive(Debug)]
pub(crate) struct WithoutEviction;

impl Decide for WithoutEviction {
    fn admit(&mut self, slots: &Slots, block: u64) -> Admission {
        Caiti.admit(slots, block)
    }

    fn next(&mut self, _view: View<'_>) -> Option<u32> {
        None
    }
}
