//! Ranges of blocks whose requests go to the device themselves, one after the other where they
//! overlap.
//!
//! Once such a request waits, nothing new is written into slots of its range, so that it gets its
//! turn.

use std::cell::{Cell, RefCell};
use std::ops::Range;

#[derive(Debug)]
struct Bar {
    number: u64,
    blocks: Range<u64>,
    running: bool,
}

/// The ranges, in the order of their requests.
#[derive(Debug, Default)]
pub(crate) struct Bars {
    bars: RefCell<Vec<Bar>>,
    next: Cell<u64>,
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

impl Bars {
    /// Adds a range. Returns its number.
    pub(crate) fn add(&self, blocks: Range<u64>) -> u64 {
        let number = self.next.get();
        self.next.set(number + 1);
        self.bars.borrow_mut().push(Bar {
            number,
            blocks,
            running: false,
        });
        number
    }

    /// Returns whether no earlier request holds any of it.
    pub(crate) fn is_next(&self, number: u64) -> bool {
        let bars = self.bars.borrow();
        let own = bars.iter().position(|bar| bar.number == number);
        let own = own.expect("a bar is there until it is removed");
        let earlier = &bars[..own];
        !earlier
            .iter()
            .any(|bar| overlap(&bar.blocks, &bars[own].blocks))
    }

    /// The request of this range goes to the device now.
    pub(crate) fn run(&self, number: u64) {
        let mut bars = self.bars.borrow_mut();
        for bar in bars.iter_mut().filter(|bar| bar.number == number) {
            bar.running = true;
        }
    }

    pub(crate) fn remove(&self, number: u64) {
        self.bars.borrow_mut().retain(|bar| bar.number != number);
    }

    /// Returns whether a range overlaps these blocks.
    #[inline]
    pub(crate) fn has(&self, blocks: &Range<u64>) -> bool {
        let bars = self.bars.borrow();
        bars.iter().any(|bar| overlap(&bar.blocks, blocks))
    }

    /// Returns whether the request of an overlapping range is at the device.
    #[inline]
    pub(crate) fn is_running(&self, blocks: &Range<u64>) -> bool {
        let bars = self.bars.borrow();
        bars.iter()
            .any(|bar| bar.running && overlap(&bar.blocks, blocks))
    }
}
