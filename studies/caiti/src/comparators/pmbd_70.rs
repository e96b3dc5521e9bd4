//! The persistent-memory block driver as published: a syncer empties a sub-buffer in the background
//! from 70% on. A write to a full sub-buffer waits for a slot.

use super::pmbd::Buffers;
use crate::policy::{Admission, Decide, Slots, View};

/// Where the syncer begins.
const WATERMARK_PERCENT: usize = 70;

#[derive(Debug)]
pub(crate) struct Pmbd70(Buffers);

impl Pmbd70 {
    pub(crate) fn new(slots: usize) -> Self {
        Self(Buffers::new(slots))
    }
}

impl Decide for Pmbd70 {
    fn admit(&mut self, _slots: &Slots, block: u64) -> Admission {
        let buffer = self.0.of_block(block);
        match self.0.is_full(buffer) {
            true => Admission::Wait,
            false => Admission::Slot,
        }
    }

    fn line(&self, block: u64) -> usize {
        self.0.of_block(block)
    }

    fn next(&mut self, _view: View<'_>) -> Option<u32> {
        self.0.next()
    }

    fn entered(&mut self, slot: u32, block: u64) {
        let buffer = self.0.entered(slot, block);
        if self.0.has_reached(buffer, WATERMARK_PERCENT) {
            self.0.drain(buffer);
        }
    }

    fn began(&mut self, slot: u32) {
        self.0.began(slot);
    }

    fn returned(&mut self, slot: u32) {
        self.0.returned(slot);
    }

    fn left(&mut self, slot: u32, _is_copy: bool) {
        self.0.left(slot);
    }

    fn slot_bytes(&self) -> usize {
        Buffers::slot_bytes()
    }
}
