//! Locks on ranges of blocks, for the tasks of one reactor.
//!
//! Whole-block writes may overlap, since the volume orders them. A read-modify-write excludes all
//! of them: a write that completes between its read and its write would be lost.

use std::cell::RefCell;
use std::ops::Range;

use forebay_io::sync::WaitList;

/// Mode of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hold {
    /// Shared by writers of whole blocks.
    Shared,
    /// Exclusive.
    Alone,
}

#[derive(Debug, Default)]
pub(super) struct Ranges {
    held: RefCell<Vec<(Range<u64>, Hold)>>,
    freed: WaitList,
}

/// A held range, released on drop.
#[derive(Debug)]
pub(super) struct Guard<'a> {
    ranges: &'a Ranges,
    range: Range<u64>,
    hold: Hold,
}

impl Ranges {
    /// Waits until `range` can be locked as `hold`, and locks it.
    pub(super) async fn hold(&self, range: Range<u64>, hold: Hold) -> Guard<'_> {
        self.freed.until(|| !self.conflicts(&range, hold)).await;
        self.held.borrow_mut().push((range.clone(), hold));
        Guard {
            ranges: self,
            range,
            hold,
        }
    }

    fn conflicts(&self, range: &Range<u64>, hold: Hold) -> bool {
        self.held.borrow().iter().any(|(other, other_hold)| {
            (hold == Hold::Alone || *other_hold == Hold::Alone)
                && range.start < other.end
                && other.start < range.end
        })
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        let mut held = self.ranges.held.borrow_mut();
        let own = |entry: &(Range<u64>, Hold)| entry.0 == self.range && entry.1 == self.hold;
        if let Some(index) = held.iter().position(own) {
            held.swap_remove(index);
        }
        drop(held);
        self.ranges.freed.wake_all();
    }
}
