//! Staging in sub-buffers, as the persistent-memory block driver does.
//!
//! The address of a block selects its sub-buffer. A full sub-buffer is emptied as a whole. Writes
//! to that sub-buffer wait until it is empty.

use crate::policy::{Admission, Decide, LINES, LINK_BYTES, Links, List, Slots, View};

/// Sub-buffers of a cache that is large enough.
const BUFFERS: usize = LINES;
/// A sub-buffer has at least so many slots.
const LEAST: usize = 8;

/// The sub-buffers: who belongs where, and how full they are.
#[derive(Debug)]
pub(super) struct Buffers {
    links: Links,
    /// The sub-buffer of each slot that is in use.
    of: Box<[u8]>,
    buffers: Box<[Buffer]>,
    /// Slots of each.
    quota: usize,
    /// Where to look first for something to evict, so that all get their turn.
    turn: usize,
}

#[derive(Debug, Default)]
struct Buffer {
    /// Candidates, in order of arrival.
    queue: List,
    /// Slots in use.
    used: usize,
    draining: bool,
}

impl Buffers {
    pub(super) fn new(slots: usize) -> Self {
        // One slot is kept for new versions of what is there.
        let slots_for_new = slots - 1;
        let count = (slots_for_new / LEAST).clamp(1, BUFFERS);
        Self {
            links: Links::new(slots),
            of: vec![0; slots].into(),
            buffers: (0..count).map(|_| Buffer::default()).collect(),
            quota: slots_for_new / count,
            turn: 0,
        }
    }

    /// The sub-buffer of a block.
    pub(super) fn of_block(&self, block: u64) -> usize {
        let mixed = block.wrapping_mul(0xd6e8_feb8_6659_fd93) >> 32;
        mixed as usize % self.buffers.len()
    }

    pub(super) fn is_full(&self, buffer: usize) -> bool {
        self.buffers[buffer].used >= self.quota
    }

    /// Whether a sub-buffer has reached `percent` of its slots.
    pub(super) fn has_reached(&self, buffer: usize, percent: usize) -> bool {
        self.buffers[buffer].used * 100 >= self.quota * percent
    }

    pub(super) fn drain(&mut self, buffer: usize) {
        self.buffers[buffer].draining = true;
    }

    pub(super) fn is_draining(&self, buffer: usize) -> bool {
        self.buffers[buffer].draining
    }

    /// The next candidate of those that are emptied.
    pub(super) fn next(&mut self) -> Option<u32> {
        for _ in 0..self.buffers.len() {
            self.turn = (self.turn + 1) % self.buffers.len();
            let buffer = &self.buffers[self.turn];
            if let Some(slot) = buffer.queue.front().filter(|_| buffer.draining) {
                return Some(slot);
            }
        }
        None
    }

    /// Returns the sub-buffer.
    pub(super) fn entered(&mut self, slot: u32, block: u64) -> usize {
        let buffer = self.of_block(block);
        self.of[slot as usize] = buffer as u8;
        self.buffers[buffer].used += 1;
        self.returned(slot);
        buffer
    }

    pub(super) fn began(&mut self, slot: u32) {
        let buffer = &mut self.buffers[usize::from(self.of[slot as usize])];
        buffer.queue.remove(&mut self.links, slot);
    }

    pub(super) fn returned(&mut self, slot: u32) {
        let buffer = &mut self.buffers[usize::from(self.of[slot as usize])];
        buffer.queue.push_back(&mut self.links, slot);
    }

    pub(super) fn left(&mut self, slot: u32) {
        let buffer = &mut self.buffers[usize::from(self.of[slot as usize])];
        buffer.used -= 1;
        buffer.draining &= buffer.used > 0;
    }

    pub(super) const fn slot_bytes() -> usize {
        LINK_BYTES + 1
    }
}

#[derive(Debug)]
pub(crate) struct Pmbd(Buffers);

impl Pmbd {
    pub(crate) fn new(slots: usize) -> Self {
        Self(Buffers::new(slots))
    }
}

impl Decide for Pmbd {
    fn admit(&mut self, _slots: &Slots, block: u64) -> Admission {
        let buffer = self.0.of_block(block);
        if self.0.is_full(buffer) {
            self.0.drain(buffer);
        }
        match self.0.is_draining(buffer) {
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
        self.0.entered(slot, block);
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
