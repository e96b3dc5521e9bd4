//! Reclaims the tail of the log: records that still count are logged once more before the ring
//! reuses their place. The reclaimer of slots is another part ([`evict`](crate::evict)).
//!
//! To find the subjects of the records at the tail, all slots and marks are scanned, one window of
//! the ring ahead. The scan advances by a few for each record that the tail passes. That takes less
//! memory than a word for each place of the ring, since a slot has four places.

use forebay_metadata::log::Log;
use forebay_policy::BlockId;

use super::Committer;
use crate::map::marks::{MarkId, Marks};
use crate::map::{LATER, LIVE, Map, NO_RECORD, PENDING};

/// Windows of the ring.
const WINDOWS: u64 = 64;

/// Whom a record speaks of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    /// No subject: the record matters only until the records that it supersedes have left the ring.
    Nobody,
    Slot(BlockId),
    Mark(MarkId),
}

/// Owners in four bytes.
const NOBODY: u32 = u32::MAX;
const MARK: u32 = 1 << 31;

/// A part of the ring and whom its records speak of.
#[derive(Debug)]
struct Window {
    /// Numbers of its first record and of the one behind its last. All were durable before the
    /// search began, so that a slot or mark that gets a new record meanwhile counts here no more.
    from: u64,
    to: u64,
    owners: Vec<u32>,
    /// Slots and marks that were looked at.
    slots: u32,
    marks: u32,
}

impl Window {
    fn new(records: usize) -> Self {
        Self {
            from: 0,
            to: 0,
            owners: vec![NOBODY; records],
            slots: 0,
            marks: 0,
        }
    }

    fn begin(&mut self, from: u64, log: &Log) {
        let to = from + self.owners.len() as u64;
        *self = Self {
            from,
            to: to.min(log.batch()).max(from),
            owners: std::mem::take(&mut self.owners),
            slots: 0,
            marks: 0,
        };
        self.owners.fill(NOBODY);
    }

    /// Returns the index in the window of a place of the ring.
    fn index(&self, place: u32, log: &Log) -> Option<usize> {
        let (capacity, first) = (log.capacity(), self.from % log.capacity());
        let place = u64::from(place);
        let index = if place >= first {
            place - first
        } else {
            place + capacity - first
        };
        (index < self.to - self.from).then_some(index as usize)
    }

    /// Scans the next `count` slots and marks.
    fn search(&mut self, count: u32, map: &Map, marks: &Marks, log: &Log) {
        let slots = self.slots..map.numbers().min(self.slots.saturating_add(count));
        self.slots = slots.end;
        for slot in slots {
            let place = map.record_at(slot);
            if place != NO_RECORD
                && let Some(index) = self.index(place, log)
            {
                self.owners[index] = slot;
            }
        }
        let ids = self.marks..marks.numbers().min(self.marks.saturating_add(count));
        self.marks = ids.end;
        for mark in ids {
            if let Some(place) = marks.record_at(mark).filter(|place| *place != NO_RECORD)
                && let Some(index) = self.index(place, log)
            {
                self.owners[index] = mark | MARK;
            }
        }
    }
}

/// The part of the ring that the tail is in, and the one behind it.
#[derive(Debug)]
pub(crate) struct Tail {
    here: Window,
    next: Window,
}

impl Tail {
    pub(crate) fn new(capacity: u64) -> Self {
        let records = usize::try_from(capacity.div_ceil(WINDOWS)).expect("a ring fits memory");
        Self {
            here: Window::new(records),
            next: Window::new(records),
        }
    }

    /// Bytes of memory.
    pub(crate) fn memory_bytes(&self) -> usize {
        2 * self.here.owners.len() * size_of::<u32>()
    }

    /// Whom the durable record `lsn` speaks of. Asked in ascending order.
    fn owner(&mut self, lsn: u64, map: &Map, marks: &Marks, log: &Log) -> Owner {
        let records = u32::try_from(self.here.owners.len()).expect("a part of the ring");
        if lsn >= self.here.to {
            if self.next.from == self.here.to && lsn < self.next.to {
                std::mem::swap(&mut self.here, &mut self.next);
            } else {
                self.here.begin(lsn, log);
            }
            self.here.search(u32::MAX, map, marks, log);
            self.next.begin(self.here.to, log);
        }
        // All of them, by the time that the tail has passed this window.
        let all = map.numbers().max(marks.numbers());
        self.next.search(all / records + 1, map, marks, log);
        match self.here.owners[(lsn - self.here.from) as usize] {
            NOBODY => Owner::Nobody,
            mark if mark & MARK != 0 => Owner::Mark(mark & !MARK),
            slot => Owner::Slot(slot),
        }
    }
}

impl Committer {
    /// Number of records in use above which the tail is cleaned. It is high, so that most records
    /// are dead by then. It is low enough that all live records can be logged once more in time.
    /// See docs/internals/format/log.md, "Room".
    fn log_in_use_at_most(&self) -> u64 {
        let capacity = self.log.borrow().capacity();
        let slots = u64::from(self.map.borrow().units());
        // A cache of an earlier version may have more marks than are set now.
        let marks = self.marks.limit(capacity).max(self.marks.len() as u64);
        capacity.saturating_sub(slots + marks) / 16 * 15
    }

    /// Advances the tail and logs live records once more. First it frees the room that the ring
    /// needs, then it uses the padding of the last unit.
    pub(crate) fn clean_tail(&self, end: u64) {
        let enough = self.log_in_use_at_most();
        loop {
            let (oldest, place) = {
                let log = self.log.borrow();
                let needed = log.used() > enough;
                let worthwhile = log.used() > log.capacity() / 4 && log.unit_room() > 0;
                if !((needed && log.next() < end) || worthwhile) {
                    return;
                }
                let Some(lsn) = log.oldest() else {
                    return;
                };
                let mut tail = self.tail.borrow_mut();
                let owner = tail.owner(lsn, &self.map.borrow(), &self.marks, &log);
                let place = u32::try_from(lsn % log.capacity()).expect("a ring place");
                (owner, place)
            };
            match oldest {
                Owner::Nobody if self.opened_at.get() == place => self.log_open(),
                Owner::Nobody => {}
                Owner::Slot(slot) => {
                    let entry = self.map.borrow().slot(slot);
                    if entry.has(LIVE) && entry.record_at == place {
                        self.map.borrow_mut().set_record(slot, NO_RECORD);
                        self.map.borrow_mut().clear_flags(slot, PENDING | LATER);
                        self.log_slot(slot);
                    }
                }
                Owner::Mark(id) => {
                    if self.marks.record_at(id) == Some(place) {
                        self.log_mark(id);
                    }
                }
            }
            self.log.borrow_mut().drop_oldest();
        }
    }
}
