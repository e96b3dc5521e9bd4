//! Writes of this node that may not be in the store, and their age.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Access, Effect, Node, PageId, Place};

/// A page that this node wrote and that may not be in the store.
#[derive(Clone, Copy, Debug)]
pub(super) struct Written {
    /// Number of its last store on this node: a flush covers only stores before its start.
    pub(super) store: u64,
    /// Place of the last store.
    pub(super) place: Place,
    /// [Time](Node::set_time) of its first store since the page was in the store.
    pub(super) since: Duration,
}

/// Unflushed writes by page.
#[derive(Debug, Default)]
pub(super) struct Unflushed {
    pages: BTreeMap<PageId, Written>,
    /// Number of pages by the time of their first write.
    times: BTreeMap<Duration, usize>,
}

/// Writes of a node that may not be in the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dirty {
    /// Number of their pages. A page that was evicted counts until its write-back is requested.
    pub pages: usize,
    /// [Time](Node::set_time) of the oldest of them, if there is one.
    pub since: Option<Duration>,
}

impl Unflushed {
    pub(super) fn get(&self, page: PageId) -> Option<&Written> {
        self.pages.get(&page)
    }

    /// Adds a page, or replaces its last write.
    pub(super) fn insert(&mut self, page: PageId, written: Written) {
        *self.times.entry(written.since).or_default() += 1;
        if let Some(before) = self.pages.insert(page, written) {
            self.forget_time(before.since);
        }
    }

    pub(super) fn remove(&mut self, page: PageId) {
        if let Some(removed) = self.pages.remove(&page) {
            self.forget_time(removed.since);
        }
    }

    /// Returns the pages of a file.
    pub(super) fn of_file(&self, inode: u64) -> impl Iterator<Item = (&PageId, &Written)> {
        self.pages.range(pages_of(inode))
    }

    fn iter(&self) -> impl Iterator<Item = (&PageId, &Written)> {
        self.pages.iter()
    }

    fn forget_time(&mut self, time: Duration) {
        if let Some(count) = self.times.get_mut(&time) {
            *count -= 1;
            if *count == 0 {
                self.times.remove(&time);
            }
        }
    }
}

impl Node {
    /// Notes the time, by any clock that starts with this node. The age of writes is counted by it.
    pub fn set_time(&mut self, now: Duration) {
        self.time = self.time.max(now);
    }

    /// Notes that this node has stored into a page: a flush of the file will cover it.
    pub fn stored(&mut self, page: PageId, place: Place) {
        self.lose_unflushed();
        if self.is_lost(place) {
            self.counts.lost_pages += 1;
            self.lose(page.inode);
            return;
        }
        self.stores += 1;
        let written = self.unflushed.get(page);
        let written = Written {
            store: self.stores,
            place,
            since: written.map_or(self.time, |written| written.since),
        };
        self.unflushed.insert(page, written);
    }

    /// Has this node write a dirty page back whose writer may have ended. `since` is the time of
    /// its first write, or later than now if that is unknown. If this node does not map the page,
    /// it looks it up, and a later call adopts it: the page might not be published yet. Returns
    /// whether this node will write the page back.
    pub fn adopt(
        &mut self,
        page: PageId,
        place: Place,
        since: Duration,
        out: &mut Vec<Effect>,
    ) -> bool {
        self.lose_unflushed();
        if self.unflushed.get(page).is_some() || self.unpublished.contains_key(&page) {
            return true;
        }
        match self.mapped.find(page) {
            None => {
                self.look_up(page, Access::Read, out);
                return false;
            }
            Some(mapping) if mapping.leaving || mapping.place != place => return false,
            Some(_) => {}
        }
        self.stores += 1;
        let store = self.stores;
        let written = Written {
            store,
            place,
            since: since.min(self.time),
        };
        self.unflushed.insert(page, written);
        true
    }

    /// Returns the amount and age of this node's writes that may not be in the store.
    pub fn dirty(&mut self) -> Dirty {
        self.lose_unflushed();
        let unpublished = self.unpublished.values();
        let unpublished = unpublished.map(|unpublished| unpublished.since);
        let unflushed = self.unflushed.times.keys().next().copied();
        Dirty {
            pages: self.unflushed.pages.len() + self.unpublished.len(),
            since: unpublished.chain(unflushed).min(),
        }
    }

    /// Returns the files with writes that have been unflushed for `expiry` or longer. Returns all
    /// files with unflushed writes if there are more than `most` such pages.
    pub fn expired(&mut self, expiry: Duration, most: usize) -> Vec<u64> {
        let dirty = self.dirty();
        let is_full = dirty.pages > most;
        let is_due = |since: Duration| is_full || since + expiry <= self.time;
        if !dirty.since.is_some_and(is_due) {
            return Vec::new();
        }
        let written = self.unflushed.iter();
        let written = written.filter(|(_, written)| is_due(written.since));
        let unpublished = self.unpublished.iter();
        let unpublished = unpublished.filter(|(_, unpublished)| is_due(unpublished.since));
        let pages = written.map(|(page, _)| page);
        let pages = pages.chain(unpublished.map(|(page, _)| page));
        let mut files: Vec<u64> = pages.map(|page| page.inode).collect();
        files.sort_unstable();
        files.dedup();
        files
    }

    /// Returns the files with writes that may not be in the store, and the number of their pages.
    pub fn dirty_files(&mut self) -> BTreeMap<u64, u64> {
        self.lose_unflushed();
        let mut files: BTreeMap<u64, u64> = BTreeMap::new();
        let unflushed = self.unflushed.iter().map(|(page, _)| page);
        for page in unflushed.chain(self.unpublished.keys()) {
            *files.entry(page.inode).or_default() += 1;
        }
        files
    }

    /// Removes the unflushed pages of which `is_lost` says so, and returns them.
    pub(super) fn take_unflushed(&mut self, is_lost: impl Fn(Place) -> bool) -> Vec<PageId> {
        let pages = self.unflushed.iter();
        let lost = pages.filter(|(_, written)| is_lost(written.place));
        let lost: Vec<PageId> = lost.map(|(page, _)| *page).collect();
        for page in &lost {
            self.unflushed.remove(*page);
        }
        lost
    }
}

/// Returns the range of all pages of a file.
pub(super) fn pages_of(inode: u64) -> std::ops::RangeInclusive<PageId> {
    let first = PageId { inode, index: 0 };
    let last = PageId {
        inode,
        index: u64::MAX,
    };
    first..=last
}
