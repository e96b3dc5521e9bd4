//! Queues of the committer: records with waiting requests, records without, and other entries to
//! log.

use std::collections::VecDeque;

use forebay_policy::{BlockId, Slot};

use super::Committer;
use crate::map::marks::MarkId;
use crate::map::{DEFERRED, DYING, LATER, NO_RECORD, PENDING, UNRECORDED};

/// Something to log besides block records.
#[derive(Clone, Debug)]
pub(crate) enum Entry {
    /// Slots of blocks.
    Kill(Vec<Slot>),
    Mark(MarkId),
    Unmark {
        volume: u16,
        region: u64,
    },
    Open,
    Close,
}

/// Blocks whose records no request waits for.
#[derive(Debug, Default)]
pub(crate) struct Later {
    queue: VecDeque<BlockId>,
    /// Number of blocks that were ever removed.
    taken: u64,
    /// Value of `taken` at which all blocks that waited at the last tick of the timer are removed.
    due: u64,
}

impl Later {
    pub(crate) fn push(&mut self, id: BlockId) {
        self.queue.push_back(id);
    }

    pub(crate) fn pop(&mut self) -> Option<BlockId> {
        let id = self.queue.pop_front()?;
        self.taken += 1;
        Some(id)
    }

    /// Returns whether some blocks have waited since the last call or longer.
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

    /// Queues a block for the next round, which records its content.
    pub(crate) fn queue_record(&self, id: BlockId) {
        let mut map = self.map.borrow_mut();
        if !map.state(id).has(PENDING | DYING) {
            map.clear_flags(id, LATER);
            map.add_flags(id, PENDING);
            self.pending.borrow_mut().push_back(id);
        }
    }

    /// Queues a block whose record may wait for room: no promise needs it.
    pub(crate) fn queue_later(&self, id: BlockId) {
        let mut map = self.map.borrow_mut();
        if !map.state(id).has(PENDING | LATER | DYING) {
            map.add_flags(id, LATER);
            self.later.borrow_mut().push(id);
        }
    }

    /// Removes and returns the oldest block whose record may wait.
    pub(crate) fn pop_later(&self) -> Option<BlockId> {
        loop {
            let id = self.later.borrow_mut().pop()?;
            let mut map = self.map.borrow_mut();
            if map.state(id).has(LATER) {
                map.clear_flags(id, LATER);
                return Some(id);
            }
        }
    }

    /// Returns whether the log durably has the map's state of a block's valid granules.
    pub(crate) fn record_is_durable(&self, id: BlockId) -> bool {
        let entry = self.map.borrow().state(id);
        !entry.has(PENDING | LATER | DEFERRED)
            && entry.record_at != NO_RECORD
            && !self.log.borrow().in_flight(entry.record_at)
    }

    /// Returns whether each overwrite of a block's data has a newer record, and that is durable.
    pub(crate) fn overwrites_are_recorded(&self, id: BlockId) -> bool {
        let entry = self.map.borrow().state(id);
        let is_in_flight = || self.log.borrow().in_flight(entry.record_at);
        !entry.has(UNRECORDED) && (entry.record_at == NO_RECORD || !is_in_flight())
    }

    /// Queues something else for the next round.
    pub(crate) fn queue_entry(&self, entry: Entry) {
        self.entries.borrow_mut().push(entry);
    }

    /// Notes that the death of a clean block, or of a dirty block that was given up by name, is
    /// about to be logged. The block must not be logged after that, and its region's mark no longer
    /// covers it.
    pub(crate) fn kill_block(&self, id: BlockId) {
        let entry = self.map.borrow().state(id);
        self.map.borrow_mut().kill(id);
        if entry.has(UNRECORDED) {
            self.map.borrow_mut().clear_flags(id, UNRECORDED);
            self.marks.recorded(entry.key);
        }
    }

    /// Notes that a granule turned dirty in a block whose record calls it clean, under the region's
    /// mark.
    pub(crate) fn note_unrecorded(&self, id: BlockId) {
        let entry = self.map.borrow().state(id);
        if !entry.has(UNRECORDED) {
            self.map.borrow_mut().add_flags(id, UNRECORDED);
            self.marks.unrecorded(entry.key);
        }
    }
}
