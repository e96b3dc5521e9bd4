//! A range of regions, of any length, that is locked as one.
//!
//! A discard of a whole volume covers millions of regions, of which few are locked or have cached
//! data. A range takes the regions in ascending order, as if each had its own lock. A run of
//! regions without locks is taken at once. Each locked region between two runs is taken by its own
//! lock, behind earlier waiters.

use std::ops::Range;
use std::task::Waker;

use forebay_metadata::order::{Part, Site};
use forebay_policy::BlockKey;

use super::{Guard, Lock, LockTable};

/// The lock that stands for all ranges. No volume has this number, so no region has this lock.
const ANY_RANGE: BlockKey = BlockKey::new(u16::MAX, 0);

/// Regions of a volume that one task has for itself.
#[derive(Debug)]
pub(super) struct Held {
    number: u64,
    volume: u16,
    regions: Range<u64>,
}

impl Held {
    fn has(&self, region: BlockKey) -> bool {
        self.volume == region.volume() && self.regions.contains(&region.block())
    }
}

/// A held range; dropping it gives it back.
#[must_use = "dropping the guard releases the range"]
pub(crate) struct RangeGuard<'a> {
    table: &'a LockTable,
    /// None where a test leaves the lock out.
    number: Option<u64>,
    /// Regions that others had locked.
    guards: Vec<Guard<'a>>,
}

impl LockTable {
    /// Waits for all granules of these regions of a volume, alone.
    pub(crate) async fn exclusive_range(
        &self,
        site: Site,
        volume: u16,
        regions: Range<u64>,
    ) -> RangeGuard<'_> {
        let mut range = RangeGuard {
            table: self,
            number: None,
            guards: Vec::new(),
        };
        if site.lacks(Part::Lock) {
            return range;
        }
        let number = self.begin_range(volume, regions.start);
        range.number = Some(number);
        let mut at = regions.start;
        loop {
            let locked = self.first_locked(number, volume, at..regions.end);
            self.extend_range(number, locked.unwrap_or(regions.end));
            let Some(region) = locked else {
                return range;
            };
            let key = BlockKey::new(volume, region);
            let guard = self.acquire(site, key, u64::MAX, true).await;
            range.guards.push(guard);
            at = region + 1;
            self.extend_range(number, at);
        }
    }

    /// Returns whether a held range contains this region.
    pub(super) fn is_in_range(&self, region: Option<BlockKey>) -> bool {
        let ranges = self.ranges.borrow();
        region.is_some_and(|region| ranges.iter().any(|range| range.has(region)))
    }

    fn begin_range(&self, volume: u16, start: u64) -> u64 {
        let mut ranges = self.ranges.borrow_mut();
        let number = ranges.last().map_or(0, |last| last.number + 1);
        ranges.push(Held {
            number,
            volume,
            regions: start..start,
        });
        let mut locks = self.locks.borrow_mut();
        let stand_in = locks.entry(ANY_RANGE.hash());
        stand_in.or_insert_with(|| Lock::new(Some(ANY_RANGE)));
        number
    }

    /// The first of these regions that is locked or waited for, or in another range than this one.
    fn first_locked(&self, number: u64, volume: u16, regions: Range<u64>) -> Option<u64> {
        let locks = self.locks.borrow();
        let locked = (locks.values().filter_map(|lock| lock.region))
            .filter(|region| region.volume() == volume && regions.contains(&region.block()));
        let ranges = self.ranges.borrow();
        let others = (ranges.iter())
            .filter(|range| range.number != number && range.volume == volume)
            .map(|range| range.regions.start.max(regions.start)..range.regions.end.min(regions.end))
            .filter(|common| !common.is_empty());
        let others = others.map(|common| common.start);
        locked.map(BlockKey::block).chain(others).min()
    }

    fn extend_range(&self, number: u64, end: u64) {
        let mut ranges = self.ranges.borrow_mut();
        let own = ranges.iter_mut().find(|range| range.number == number);
        own.expect("a range is there until it is given back")
            .regions
            .end = end;
    }

    fn end_range(&self, number: u64) {
        let mut ranges = self.ranges.borrow_mut();
        let own = ranges.iter().position(|range| range.number == number);
        let ended = ranges.remove(own.expect("a range is there until it is given back"));
        let mut locks = self.locks.borrow_mut();
        if ranges.is_empty() {
            locks.remove(&ANY_RANGE.hash());
        }
        let own = |lock: &&Lock| lock.region.is_some_and(|region| ended.has(region));
        let woken: Vec<Waker> = (locks.values().filter(own))
            .flat_map(Lock::ready_wakers)
            .collect();
        drop((locks, ranges));
        woken.into_iter().for_each(Waker::wake);
    }
}

impl Drop for RangeGuard<'_> {
    fn drop(&mut self) {
        self.guards.clear();
        if let Some(number) = self.number {
            self.table.end_range(number);
        }
    }
}
