//! Queues of the committer: records with waiting requests, records without, and other entries to
//! log.

use std::collections::VecDeque;

use forebay_policy::BlockId;

use super::Committer;
use crate::map::marks::MarkId;
use crate::map::{DEFERRED, DYING, LATER, NO_RECORD, PENDING, UNRECORDED};

/// Something to log besides block records.
#[derive(Clone, Debug)]
pub(crate) enum Entry {
    /// The places of blocks.
    Kill(Vec<u32>),
    Mark(MarkId),
    Unmark {
        volume: u16,
        region: u64,
    },
    Open,
    Close,
}

/// Slots whose records no request waits for.
#[derive(Debug, Default)]
pub(crate) struct Later {
    queue: VecDeque<BlockId>,
    /// Number of slots that were ever removed.
    taken: u64,
    /// Value of `taken` at which all slots that waited at the last tick of the timer are removed.
    due: u64,
}

impl Later {
    pub(crate) fn push(&mut self, slot: BlockId) {
        self.queue.push_back(slot);
    }

    pub(crate) fn pop(&mut self) -> Option<BlockId> {
        let slot = self.queue.pop_front()?;
        self.taken += 1;
        Some(slot)
    }

    /// Returns whether some slots have waited since the last call or longer.
    pub(crate) fn overdue(&mut self) -> bool {
        let overdue = self.taken < self.due;
        self.due = self.taken + self.queue.len() as u64;
        overdue
    }
}

/// Shrinks a queue that is far below its capacity: frees the memory of a burst.
fn trim(queue: &mut VecDeque<BlockId>) {
    const FEWEST: usize = 1 << 12;
    if queue.capacity() > FEWEST && queue.len() < queue.capacity() / 8 {
        queue.shrink_to(queue.capacity() / 4);
    }
}

impl Committer {
    /// Frees memory of the queues that the last burst of records took. Called after each round.
    pub(crate) fn trim_queues(&self) {
        trim(&mut self.pending.borrow_mut());
        trim(&mut self.later.borrow_mut().queue);
    }

    /// Queues a slot for the next round, which records its content.
    pub(crate) fn queue_record(&self, slot: BlockId) {
        let mut map = self.map.borrow_mut();
        if !map.slot(slot).has(PENDING | DYING) {
            map.clear_flags(slot, LATER);
            map.add_flags(slot, PENDING);
            self.pending.borrow_mut().push_back(slot);
        }
    }

    /// Queues a slot whose record may wait for room: no promise needs it.
    pub(crate) fn queue_later(&self, slot: BlockId) {
        let mut map = self.map.borrow_mut();
        if !map.slot(slot).has(PENDING | LATER | DYING) {
            map.add_flags(slot, LATER);
            self.later.borrow_mut().push(slot);
        }
    }

    /// Removes and returns the oldest slot whose record may wait.
    pub(crate) fn pop_later(&self) -> Option<BlockId> {
        loop {
            let slot = self.later.borrow_mut().pop()?;
            let mut map = self.map.borrow_mut();
            if map.slot(slot).has(LATER) {
                map.clear_flags(slot, LATER);
                return Some(slot);
            }
        }
    }

    /// Returns whether the log durably has the map's state of a slot's valid granules.
    pub(crate) fn record_is_durable(&self, slot: BlockId) -> bool {
        let entry = self.map.borrow().slot(slot);
        !entry.has(PENDING | LATER | DEFERRED)
            && entry.record_at != NO_RECORD
            && !self.log.borrow().in_flight(entry.record_at)
    }

    /// Returns whether each overwrite of a slot's data has a newer record, and that is durable.
    pub(crate) fn overwrites_are_recorded(&self, slot: BlockId) -> bool {
        let entry = self.map.borrow().slot(slot);
        let is_in_flight = || self.log.borrow().in_flight(entry.record_at);
        !entry.has(UNRECORDED) && (entry.record_at == NO_RECORD || !is_in_flight())
    }

    /// Queues something else for the next round.
    pub(crate) fn queue_entry(&self, entry: Entry) {
        self.entries.borrow_mut().push(entry);
    }

    /// Notes that the death of a clean slot, or of a dirty slot that was given up by name, is about
    /// to be logged. The slot must not be logged after that, and its region's mark no longer covers
    /// it.
    pub(crate) fn kill_slot(&self, slot: BlockId) {
        let entry = self.map.borrow().slot(slot);
        self.map.borrow_mut().kill(slot);
        if entry.has(UNRECORDED) {
            self.map.borrow_mut().clear_flags(slot, UNRECORDED);
            self.marks.recorded(entry.key);
        }
    }

    /// Notes that a granule turned dirty in a slot whose record calls it clean, under the region's
    /// mark.
    pub(crate) fn note_unrecorded(&self, slot: BlockId) {
        let entry = self.map.borrow().slot(slot);
        if !entry.has(UNRECORDED) {
            self.map.borrow_mut().add_flags(slot, UNRECORDED);
            self.marks.unrecorded(entry.key);
        }
    }
}
