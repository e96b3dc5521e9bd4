//! Staging, least recently used.
//!
//! Data stays until no slot is free. A write then waits for two steps: the eviction of the least
//! recently used block to the device, and its own copy.

use crate::policy::{Admission, Decide, LINK_BYTES, Links, List, NONE, Slots, View};

#[derive(Debug)]
pub(crate) struct Lru {
    links: Links,
    /// Candidates, least recently used first.
    used: List,
}

impl Lru {
    pub(crate) fn new(slots: usize) -> Self {
        Self {
            links: Links::new(slots),
            used: List::default(),
        }
    }
}

impl Decide for Lru {
    fn admit(&mut self, slots: &Slots, _block: u64) -> Admission {
        match slots.room() {
            0 => Admission::Wait,
            _ => Admission::Slot,
        }
    }

    fn next(&mut self, view: View<'_>) -> Option<u32> {
        self.used
            .front()
            .filter(|_| view.slots.room() + view.evicting < view.waiting)
    }

    fn entered(&mut self, slot: u32, _block: u64) {
        self.used.push_back(&mut self.links, slot);
    }

    fn read(&mut self, slot: u32) {
        self.began(slot);
        self.entered(slot, 0);
    }

    fn began(&mut self, slot: u32) {
        self.used.remove(&mut self.links, slot);
    }

    fn returned(&mut self, slot: u32) {
        let oldest = self.used.front().unwrap_or(NONE);
        self.used.insert(&mut self.links, slot, oldest);
    }

    fn slot_bytes(&self) -> usize {
        LINK_BYTES
    }
}
