//! I/O transit caching (Caiti): eager eviction and conditional bypass.
//!
//! Blocks pass through slots and do not stay. Written blocks continue to the device at once, in
//! order of arrival. If that is too slow, a write does not wait for a free slot. The wait would
//! cost a write to the device, plus a copy. Its block goes to the device directly.

use super::{Admission, Decide, View};
use crate::slots::Slots;

/// I/O transit: each block is evicted at once, and a write that finds no free slot bypasses the
/// cache.
#[derive(Debug)]
pub struct Caiti;

impl Decide for Caiti {
    fn admit(&mut self, slots: &Slots, _block: u64) -> Admission {
        match slots.room() {
            0 => Admission::Bypass,
            _ => Admission::Slot,
        }
    }

    fn next(&mut self, view: View<'_>) -> Option<u32> {
        view.slots.oldest()
    }
}
