//! Locks of ranges of blocks, for requests that bypass the slots. Requests of overlapping ranges
//! run one after the other.
//!
//! Once such a request waits, nothing new is written into slots of its range, so that it gets its
//! turn.

use std::cell::{Cell, RefCell};
use std::ops::Range;

/// Lock of one request.
#[derive(Debug)]
struct RangeLock {
    number: u64,
    blocks: Range<u64>,
    /// Whether the request is at the device.
    running: bool,
}

/// Locks of all such requests, in order of arrival.
#[derive(Debug, Default)]
pub(crate) struct RangeLocks {
    locks: RefCell<Vec<RangeLock>>,
    /// Number of the next lock.
    next: Cell<u64>,
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

impl RangeLocks {
    /// Adds a range. Returns its number.
    pub(crate) fn add(&self, blocks: Range<u64>) -> u64 {
        let number = self.next.get();
        self.next.set(number + 1);
        self.locks.borrow_mut().push(RangeLock {
            number,
            blocks,
            running: false,
        });
        number
    }

    /// Returns whether no earlier range overlaps this one.
    pub(crate) fn is_next(&self, number: u64) -> bool {
        let locks = self.locks.borrow();
        let own = locks.iter().position(|lock| lock.number == number);
        let own = own.expect("a lock is there until it is removed");
        let earlier = &locks[..own];
        !earlier
            .iter()
            .any(|lock| overlap(&lock.blocks, &locks[own].blocks))
    }

    /// Notes that the request of a range goes to the device now.
    pub(crate) fn run(&self, number: u64) {
        let mut locks = self.locks.borrow_mut();
        for lock in locks.iter_mut().filter(|lock| lock.number == number) {
            lock.running = true;
        }
    }

    /// Removes the range of a request that has ended.
    pub(crate) fn remove(&self, number: u64) {
        self.locks.borrow_mut().retain(|lock| lock.number != number);
    }

    /// Returns whether a range overlaps these blocks.
    #[inline]
    pub(crate) fn has(&self, blocks: &Range<u64>) -> bool {
        let locks = self.locks.borrow();
        locks.iter().any(|lock| overlap(&lock.blocks, blocks))
    }

    /// Returns whether the request of an overlapping range is at the device.
    #[inline]
    pub(crate) fn is_running(&self, blocks: &Range<u64>) -> bool {
        let locks = self.locks.borrow();
        locks
            .iter()
            .any(|lock| lock.running && overlap(&lock.blocks, blocks))
    }
}
