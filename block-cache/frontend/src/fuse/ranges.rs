//! Locks on ranges of blocks, for the tasks of one reactor.
//!
//! Whole-block writes of one range may overlap each other, since the volume orders them. A
//! read-modify-write of a block must meet none of them: between its read and its write, another
//! write could be acknowledged and then be undone.

use std::cell::RefCell;
use std::ops::Range;

use forebay_io::sync::WaitList;

/// How a range is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hold {
    /// With others that write whole blocks.
    Shared,
    /// Alone.
    Alone,
}

#[derive(Debug, Default)]
pub(super) struct Ranges {
    held: RefCell<Vec<(Range<u64>, Hold)>>,
    freed: WaitList,
}

/// A range is held while this lives.
#[derive(Debug)]
pub(super) struct Guard<'a> {
    ranges: &'a Ranges,
    range: Range<u64>,
    hold: Hold,
}

impl Ranges {
    /// Waits until `range` is free for `hold`, and holds it.
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
