//! How long a request may take. A device that stalls, or went away without a word, must not hold its clients for ever:
//! what has not ended in time ends for its client with `TimedOut`.
//!
//! The device still has it, with its buffer. Until its completion arrives, what it changes is in *quarantine*: requests
//! that touch it are refused, so that a write which lands late never lands on a newer one.
//!
//! Time is counted in quarters of the limit, so that a request that ends in time never looks at a clock: it is told late
//! after the limit and before a quarter more.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::time::Duration;

use forebay_block::{Error, ErrorKind, Op};

use crate::forward::Answer;
use crate::stats::OpKind;

#[cfg(test)]
thread_local! {
    /// A planted fault, that the tests are shown to find.
    static FORGETS_LATE_REQUESTS: Cell<bool> = const { Cell::new(false) };
}

/// Parts of the limit in which time is counted.
const PARTS: u32 = 4;

/// A request that a device has.
pub(crate) struct Seat {
    pub(crate) kind: OpKind,
    offset: u64,
    pub(crate) len: u64,
    changes: bool,
    /// When it came, if its latency is measured.
    pub(crate) came: Option<Duration>,
    pub(crate) answer: Answer,
    part: u64,
}

impl Seat {
    pub(crate) const fn new(
        op: Op,
        offset: u64,
        len: u64,
        came: Option<Duration>,
        answer: Answer,
    ) -> Self {
        Self {
            kind: OpKind::of(op),
            offset,
            len,
            changes: !matches!(op, Op::Read | Op::Flush),
            came,
            answer,
            part: 0,
        }
    }

    /// What a client is told whose request is late.
    pub(crate) fn late(&self, volume: &str, limit: Duration) -> Error {
        let then = match self.changes {
            true => "; what it changes is not served until it ends",
            false => "",
        };
        Error::new(
            ErrorKind::TimedOut,
            format!(
                "volume {volume}: a {} of {} bytes at {} has not ended in {} s{then}",
                self.kind.as_str(),
                self.len,
                self.offset,
                limit.as_secs_f64(),
            ),
        )
    }
}

enum Place {
    Free {
        next: usize,
    },
    Taken(Seat),
    /// Its client was told; the device was not heard of.
    Late(Late),
}

/// A request whose client was told.
struct Late {
    kind: OpKind,
    range: Range<u64>,
    changes: bool,
}

const NONE: usize = usize::MAX;

/// The requests that a volume's device has, while their time is limited.
pub(crate) struct Deadlines {
    limit: Cell<Option<Duration>>,
    part: Cell<u64>,
    places: RefCell<Vec<Place>>,
    free: Cell<usize>,
    taken: Cell<usize>,
    /// Of those that are late, how many change something: what each request has to look at.
    quarantined: Cell<usize>,
    /// Whether somebody counts the time.
    pub(crate) attended: Cell<bool>,
}

impl Deadlines {
    pub(crate) const fn new() -> Self {
        Self {
            limit: Cell::new(None),
            part: Cell::new(0),
            places: RefCell::new(Vec::new()),
            free: Cell::new(NONE),
            taken: Cell::new(0),
            quarantined: Cell::new(0),
            attended: Cell::new(false),
        }
    }

    pub(crate) fn set(&self, limit: Duration) {
        self.limit.set(Some(limit));
    }

    /// What a request may take; without a limit if none.
    pub(crate) const fn limit(&self) -> Option<Duration> {
        self.limit.get()
    }

    /// How often the time is to be counted, while there is anything that may be late.
    pub(crate) fn pause(&self) -> Option<Duration> {
        let limit = self.limit.get().filter(|_| self.taken.get() > 0);
        limit.map(|limit| limit / PARTS)
    }

    /// Notes a request that goes to the device. Returns its place.
    pub(crate) fn sit(&self, mut seat: Seat) -> usize {
        seat.part = self.part.get();
        self.taken.set(self.taken.get() + 1);
        let mut places = self.places.borrow_mut();
        let at = self.free.get();
        if at == NONE {
            places.push(Place::Taken(seat));
            return places.len() - 1;
        }
        match std::mem::replace(&mut places[at], Place::Taken(seat)) {
            Place::Free { next } => self.free.set(next),
            Place::Taken(_) | Place::Late(_) => unreachable!("the free list holds free places"),
        }
        at
    }

    /// The device has ended a request: who waits for it, unless that was told already.
    pub(crate) fn rise(&self, at: usize) -> Option<Seat> {
        let next = self.free.replace(at);
        match std::mem::replace(&mut self.places.borrow_mut()[at], Place::Free { next }) {
            Place::Taken(seat) => {
                self.taken.set(self.taken.get() - 1);
                Some(seat)
            }
            Place::Late(late) => {
                let changed = usize::from(late.changes);
                self.quarantined.set(self.quarantined.get() - changed);
                None
            }
            Place::Free { .. } => unreachable!("a request ends once"),
        }
    }

    /// A part of the limit has passed: those that are late by now.
    pub(crate) fn count(&self) -> Vec<Seat> {
        let now = self.part.get() + 1;
        self.part.set(now);
        let mut late = Vec::new();
        for place in &mut *self.places.borrow_mut() {
            let Place::Taken(seat) = place else { continue };
            if now - seat.part <= u64::from(PARTS) {
                continue;
            }
            let is_late = Late {
                kind: seat.kind,
                range: seat.offset..seat.offset + seat.len,
                changes: seat.changes,
            };
            let changed = usize::from(seat.changes);
            self.quarantined.set(self.quarantined.get() + changed);
            if let Place::Taken(seat) = std::mem::replace(place, Place::Late(is_late)) {
                late.push(seat);
            }
        }
        self.taken.set(self.taken.get() - late.len());
        late
    }

    /// Whether a request touches what one changes that is late.
    pub(crate) fn refuses(&self, offset: u64, len: u64) -> bool {
        #[cfg(test)]
        if FORGETS_LATE_REQUESTS.get() {
            return false;
        }
        self.quarantined.get() > 0 && len > 0 && self.is_late(&(offset..offset + len))
    }

    #[cold]
    fn is_late(&self, asked: &Range<u64>) -> bool {
        self.places.borrow().iter().any(|place| match place {
            Place::Late(late) if late.changes => {
                late.range.start < asked.end && asked.start < late.range.end
            }
            _ => false,
        })
    }

    /// What the device has, in words.
    pub(crate) fn unreaped(&self) -> Vec<String> {
        let words =
            |kind: OpKind, at: u64, len: u64| format!("a {} of {len} bytes at {at}", kind.as_str());
        let places = self.places.borrow();
        let had = places.iter().filter_map(|place| match place {
            Place::Free { .. } => None,
            Place::Taken(seat) => Some(words(seat.kind, seat.offset, seat.len)),
            Place::Late(late) => {
                let range = &late.range;
                Some(words(late.kind, range.start, range.end - range.start))
            }
        });
        had.collect()
    }
}

#[cfg(test)]
mod tests;
