//! Caiti without eager eviction, to see what that does: the cache fills, and from then on all but
//! rewritten blocks go round it, until a flush empties it.

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
