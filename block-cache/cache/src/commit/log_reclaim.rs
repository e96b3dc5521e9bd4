//! Reclaims the tail of the log: records that still count are logged once more before the ring
//! reuses their position. The reclaimer of slots is another part ([`evict`](crate::evict)).
//!
//! To find the subjects of the records at the tail, all blocks and marks are scanned, one window of
//! the ring ahead. The scan advances by a few for each record that the tail passes. That takes less
//! memory than a word for each position of the ring, since a slot has four positions.

use forebay_metadata::log::Log;
use forebay_policy::BlockId;

use super::Committer;
use crate::map::marks::{MarkId, Marks};
use crate::map::{LATER, LIVE, Map, NO_RECORD, PENDING};

/// Windows of the ring.
const WINDOWS: u64 = 64;

/// Subject of a record in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Subject {
    /// No subject: the record matters only until the records that it supersedes have left the ring.
    Nothing,
    Block(BlockId),
    Mark(MarkId),
}

/// Encodings of a subject in four bytes: none, and the flag of a mark. A block is its number.
const NOTHING: u32 = u32::MAX;
const MARK: u32 = 1 << 31;

/// A part of the ring, and the subjects of its records.
#[derive(Debug)]
struct Window {
    /// Number of its first record. All its records were durable before the search began. A block or
    /// mark that gets a newer record during the search has none here any more.
    from: u64,
    /// Number of the record after its last.
    to: u64,
    /// Encoded subject of each record.
    subjects: Vec<u32>,
    /// Number of blocks that the search has visited.
    blocks: u32,
    /// Number of marks that the search has visited.
    marks: u32,
}

impl Window {
    fn new(records: usize) -> Self {
        Self {
            from: 0,
            to: 0,
            subjects: vec![NOTHING; records],
            blocks: 0,
            marks: 0,
        }
    }

    fn begin(&mut self, from: u64, log: &Log) {
        let to = from + self.subjects.len() as u64;
        *self = Self {
            from,
            to: to.min(log.batch()).max(from),
            subjects: std::mem::take(&mut self.subjects),
            blocks: 0,
            marks: 0,
        };
        self.subjects.fill(NOTHING);
    }

    /// Returns the index in the window of a position of the ring.
    fn index(&self, position: u32, log: &Log) -> Option<usize> {
        let (capacity, first) = (log.capacity(), self.from % log.capacity());
        let position = u64::from(position);
        let index = if position >= first {
            position - first
        } else {
            position + capacity - first
        };
        (index < self.to - self.from).then_some(index as usize)
    }

    /// Scans the next `count` blocks and marks.
    fn search(&mut self, count: u32, map: &Map, marks: &Marks, log: &Log) {
        let numbers = self.blocks..map.numbers().min(self.blocks.saturating_add(count));
        self.blocks = numbers.end;
        for id in BlockId::range(numbers) {
            let position = map.record_at(id);
            if position != NO_RECORD
                && let Some(index) = self.index(position, log)
            {
                self.subjects[index] = id.get();
            }
        }
        let ids = self.marks..marks.numbers().min(self.marks.saturating_add(count));
        self.marks = ids.end;
        for mark in ids {
            if let Some(position) = marks.record_at(mark).filter(|at| *at != NO_RECORD)
                && let Some(index) = self.index(position, log)
            {
                self.subjects[index] = mark | MARK;
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
        2 * self.here.subjects.len() * size_of::<u32>()
    }

    /// Returns the subject of the durable record `lsn`. Calls must have ascending `lsn`.
    fn subject(&mut self, lsn: u64, map: &Map, marks: &Marks, log: &Log) -> Subject {
        let records = u32::try_from(self.here.subjects.len()).expect("a part of the ring");
        if lsn >= self.here.to {
            if self.next.from == self.here.to && lsn < self.next.to {
                std::mem::swap(&mut self.here, &mut self.next);
            } else {
                self.here.begin(lsn, log);
            }
            self.here.search(u32::MAX, map, marks, log);
            self.next.begin(self.here.to, log);
        }
        // So the search of the next window is complete when the tail has passed this one.
        let all = map.numbers().max(marks.numbers());
        self.next.search(all / records + 1, map, marks, log);
        match self.here.subjects[(lsn - self.here.from) as usize] {
            NOTHING => Subject::Nothing,
            mark if mark & MARK != 0 => Subject::Mark(mark & !MARK),
            number => Subject::Block(BlockId::new(number)),
        }
    }
}

impl Committer {
    /// Returns the number of records in use above which the tail is cleaned. It is high, so that
    /// most records are dead by then. It is low enough to log all live records once more in time.
    /// See docs/internals/format/log.md, "Room".
    fn tail_cleaning_threshold(&self) -> u64 {
        let capacity = self.log.borrow().capacity();
        let slots = u64::from(self.map.borrow().units());
        // A cache of an earlier version may have more marks than are set now.
        let marks = self.marks.limit(capacity).max(self.marks.len() as u64);
        capacity.saturating_sub(slots + marks) / 16 * 15
    }

    /// Advances the tail and logs live records once more. First it frees the room that the ring
    /// needs, then it uses the padding of the last unit.
    pub(crate) fn clean_tail(&self, end: u64) {
        let enough = self.tail_cleaning_threshold();
        loop {
            let (oldest, position) = {
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
                let subject = tail.subject(lsn, &self.map.borrow(), &self.marks, &log);
                let position = u32::try_from(lsn % log.capacity()).expect("a ring position");
                (subject, position)
            };
            match oldest {
                Subject::Nothing if self.opened_at.get() == position => self.log_open(),
                Subject::Nothing => {}
                Subject::Block(id) => {
                    let entry = self.map.borrow().state(id);
                    if entry.has(LIVE) && entry.record_at == position {
                        self.map.borrow_mut().set_record(id, NO_RECORD);
                        self.map.borrow_mut().clear_flags(id, PENDING | LATER);
                        self.log_block(id);
                    }
                }
                Subject::Mark(id) => {
                    if self.marks.record_at(id) == Some(position) {
                        self.log_mark(id);
                    }
                }
            }
            self.log.borrow_mut().drop_oldest();
        }
    }
}
