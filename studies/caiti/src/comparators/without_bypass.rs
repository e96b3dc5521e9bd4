//! Caiti without conditional bypass, to see what that does: a write that finds the cache full waits
//! for the next slot that has got through.

use crate::policy::{Admission, Caiti, Decide, Slots, View};

#[derive(Debug)]
pub(crate) struct WithoutBypass;

impl Decide for WithoutBypass {
    fn admit(&mut self, slots: &Slots, _block: u64) -> Admission {
        match slots.room() {
            0 => Admission::Wait,
            _ => Admission::Slot,
        }
    }

    fn next(&mut self, view: View<'_>) -> Option<u32> {
        Caiti.next(view)
    }
}
