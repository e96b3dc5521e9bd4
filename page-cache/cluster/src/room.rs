//! Allocation of blocks in the source for later write-backs.
//!
//! A written page stays in memory until its write-back. A source that is full by then would refuse
//! it: the page could not leave memory, and its writer would not learn of it. So a write allocates
//! its blocks in the source first, as file systems with delayed allocation reserve them, and fails
//! like theirs.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use forebay_block::Result;

use crate::PAGE_BYTES;
use crate::tree::Tree;

/// Ranges of a file that were allocated through one open file, so that only the first write to a
/// page asks the source. A program that makes the file shorter through another open file frees
/// blocks that stay in this set. A write there is then refused at its write-back only.
#[derive(Debug, Default)]
pub(crate) struct Room {
    /// End of each range by its start, bytes. No two ranges touch.
    ranges: Mutex<BTreeMap<u64, u64>>,
}

impl Room {
    /// Allocates the pages of a range that no earlier call allocated.
    ///
    /// # Errors
    /// `NoSpace` if the source is full, or another error of the source.
    pub(crate) fn allocate(&self, tree: &Tree, inode: u64, bytes: Range<u64>) -> Result<()> {
        let page = PAGE_BYTES as u64;
        let whole = bytes.start / page * page..bytes.end.next_multiple_of(page);
        if self.has(&whole) {
            return Ok(());
        }
        tree.allocate(inode, whole.clone())?;
        self.add(whole);
        Ok(())
    }

    /// Forgets all ranges: the file has become shorter.
    pub(crate) fn clear(&self) {
        self.lock().clear();
    }

    fn has(&self, range: &Range<u64>) -> bool {
        let ranges = self.lock();
        let before = ranges.range(..=range.start).next_back();
        before.is_some_and(|(_, end)| *end >= range.end)
    }

    fn add(&self, mut range: Range<u64>) {
        let mut ranges = self.lock();
        while let Some((start, end)) = ranges.range(..=range.end).next_back() {
            let (start, end) = (*start, *end);
            if end < range.start {
                break;
            }
            range = range.start.min(start)..range.end.max(end);
            ranges.remove(&start);
        }
        ranges.insert(range.start, range.end);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<u64, u64>> {
        self.ranges.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_touch_become_one() {
        let room = Room::default();
        for range in [8..12, 0..4, 20..24, 4..8] {
            room.add(range);
        }
        assert!(room.has(&(0..12)) && room.has(&(5..7)) && room.has(&(20..24)));
        assert!(!room.has(&(0..13)) && !room.has(&(12..20)) && !room.has(&(11..21)));
        room.add(10..22);
        assert_eq!(*room.lock(), BTreeMap::from([(0, 24)]));
        room.clear();
        assert!(!room.has(&(0..4)));
    }
}
