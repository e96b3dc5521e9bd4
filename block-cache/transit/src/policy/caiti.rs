//! I/O transit caching (Caiti): eager eviction and conditional bypass.
//!
//! Slots are a way through, not a place to stay: what is written goes on to the device at once, in the order
//! of its arrival. Where that does not keep up, no free slot is waited for, since the wait is a write to the
//! device and a copy on top of it; the block goes to the device itself.

use super::{Admission, Decide, View};
use crate::slots::Slots;

/// I/O transit: each block is evicted at once, and a write that finds no free slot bypasses the cache.
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
