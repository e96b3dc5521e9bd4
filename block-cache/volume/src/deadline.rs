//! Time limit of requests. A device that stalls or disappears must not hold its clients for ever: a
//! request that exceeds the limit fails for its client with `TimedOut`.
//!
//! The device still has the request and its buffer. Until its completion arrives, the range that it
//! changes is in *quarantine*: requests that touch the range are refused. So a write that lands
//! late never overwrites a newer one.
//!
//! Time is counted in quarters of the limit, so that a request that ends in time never reads a
//! clock. A late request fails between the limit and a quarter more.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::time::Duration;

use forebay_block::{Error, ErrorKind, Op};

use crate::answer::Answer;
use crate::stats::OpKind;

#[cfg(test)]
thread_local! {
    /// A planted fault, which the tests must find.
    static FORGETS_LATE_REQUESTS: Cell<bool> = const { Cell::new(false) };
}

/// Number of parts of the limit in which time is counted.
const PARTS: u32 = 4;

/// A request at the device.
pub(crate) struct PendingRequest {
    pub(crate) kind: OpKind,
    offset: u64,
    pub(crate) len: u64,
    changes: bool,
    /// Arrival time, if its latency is measured.
    pub(crate) came: Option<Duration>,
    pub(crate) answer: Answer,
    part: u64,
}

impl PendingRequest {
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

    /// Returns the error for the client of a late request.
    pub(crate) fn late(&self, volume: &str, limit: Duration) -> Error {
        let then = match self.changes {
            true => "; its range is not served until it is completed",
            false => "",
        };
        Error::new(
            ErrorKind::TimedOut,
            format!(
                "volume {volume}: a {} of {} bytes at {} was not completed within {} s{then}",
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
    InUse(PendingRequest),
    /// Its client has the error, and the completion has not arrived.
    Late(Late),
}

/// A request whose client has the error already.
struct Late {
    kind: OpKind,
    range: Range<u64>,
    changes: bool,
}

const NONE: usize = usize::MAX;

/// Requests at a volume's device, while there is a time limit.
pub(crate) struct Deadlines {
    limit: Cell<Option<Duration>>,
    part: Cell<u64>,
    places: RefCell<Vec<Place>>,
    free: Cell<usize>,
    taken: Cell<usize>,
    /// Number of overdue requests that change data. Each new request checks it.
    quarantined: Cell<usize>,
    /// Whether a task counts the time.
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

    /// Returns the time limit, or `None` if there is none.
    pub(crate) const fn limit(&self) -> Option<Duration> {
        self.limit.get()
    }

    /// Returns the interval for counting time, while a request may become late.
    pub(crate) fn pause(&self) -> Option<Duration> {
        let limit = self.limit.get().filter(|_| self.taken.get() > 0);
        limit.map(|limit| limit / PARTS)
    }

    /// Adds a request that is submitted to the device. Returns its place.
    pub(crate) fn add(&self, mut pending: PendingRequest) -> usize {
        pending.part = self.part.get();
        self.taken.set(self.taken.get() + 1);
        let mut places = self.places.borrow_mut();
        let at = self.free.get();
        if at == NONE {
            places.push(Place::InUse(pending));
            return places.len() - 1;
        }
        match std::mem::replace(&mut places[at], Place::InUse(pending)) {
            Place::Free { next } => self.free.set(next),
            Place::InUse(_) | Place::Late(_) => unreachable!("the free list holds free places"),
        }
        at
    }

    /// Removes a completed request. Returns it, unless its client has the error already.
    pub(crate) fn remove(&self, at: usize) -> Option<PendingRequest> {
        let next = self.free.replace(at);
        match std::mem::replace(&mut self.places.borrow_mut()[at], Place::Free { next }) {
            Place::InUse(pending) => {
                self.taken.set(self.taken.get() - 1);
                Some(pending)
            }
            Place::Late(late) => {
                let changed = usize::from(late.changes);
                self.quarantined.set(self.quarantined.get() - changed);
                None
            }
            Place::Free { .. } => unreachable!("a request ends once"),
        }
    }

    /// Counts one part of the limit. Returns the requests that are late by now.
    pub(crate) fn count(&self) -> Vec<PendingRequest> {
        let now = self.part.get() + 1;
        self.part.set(now);
        let mut late = Vec::new();
        for place in &mut *self.places.borrow_mut() {
            let Place::InUse(pending) = place else {
                continue;
            };
            if now - pending.part <= u64::from(PARTS) {
                continue;
            }
            let is_late = Late {
                kind: pending.kind,
                range: pending.offset..pending.offset + pending.len,
                changes: pending.changes,
            };
            let changed = usize::from(pending.changes);
            self.quarantined.set(self.quarantined.get() + changed);
            if let Place::InUse(pending) = std::mem::replace(place, Place::Late(is_late)) {
                late.push(pending);
            }
        }
        self.taken.set(self.taken.get() - late.len());
        late
    }

    /// Returns whether a request touches the range of a late change.
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

    /// Describes the requests at the device.
    pub(crate) fn unreaped(&self) -> Vec<String> {
        let words =
            |kind: OpKind, at: u64, len: u64| format!("a {} of {len} bytes at {at}", kind.as_str());
        let places = self.places.borrow();
        let had = places.iter().filter_map(|place| match place {
            Place::Free { .. } => None,
            Place::InUse(pending) => Some(words(pending.kind, pending.offset, pending.len)),
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
