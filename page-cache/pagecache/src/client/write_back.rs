//! Write-back of writes that no program flushes.

use std::collections::BTreeMap;
use std::time::Duration;

use forebay_block::Result;

use super::{Client, Link, State};
use crate::message::{PageId, Place};
use crate::node::{Dirty, Node};
use crate::store::Store;

/// Searches for dirty pages in this node's memory within the expiry: two find a page, and a third
/// finds it mapped.
const SEARCHES: u32 = 4;

/// Dirty pages in this node's memory, when it was last searched.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// By frame, in order.
    pages: Vec<(PageId, Place)>,
    /// Time of the search, from the node's start.
    at: Duration,
}

impl<S: Store, L: Link> Client<S, L> {
    /// Writes back all files with writes that are as old as `expiry` at the time `now`, counted
    /// from the node's start. Writes back all files if there are more than `most` such pages. A
    /// write-back that the store refuses is repeated in the next call, and reported by the next
    /// flush. Returns whether the store refused none.
    ///
    /// That includes pages in this node's memory that other nodes wrote: they may have ended.
    /// Three calls a quarter of `expiry` apart write such a page back.
    ///
    /// # Errors
    /// `Disconnected`.
    pub fn write_back_expired(&self, now: Duration, expiry: Duration, most: usize) -> Result<bool> {
        self.adopt_dirty(now, expiry)?;
        let mut state = self.lock_state();
        state.node.set_time(now);
        let files = state.node.expired(expiry, most);
        drop(state);
        let mut is_complete = true;
        for inode in files {
            is_complete &= self.write_back(inode).is_ok();
        }
        self.sync_surplus();
        self.broken().map_or(Ok(is_complete), Err)
    }

    /// Adopts the dirty pages in this node's memory that an earlier search has found too.
    fn adopt_dirty(&self, now: Duration, expiry: Duration) -> Result<()> {
        let state = self.lock_state();
        let is_due = now >= state.found.at + expiry / SEARCHES;
        let Some(share) = state.node.share().filter(|_| is_due) else {
            return Ok(());
        };
        drop(state);
        let pages = share.filter_map(|frame| self.segment.unsaved(frame));
        let pages = pages.collect();
        let mut state = self.lock_state();
        let found = Found { pages, at: now };
        let before = std::mem::replace(&mut state.found, found).pages;
        let State {
            node,
            found,
            effects,
            ..
        } = &mut *state;
        for (page, place) in &found.pages {
            let earlier = before.binary_search_by_key(&place.frame, |(_, place)| place.frame);
            if earlier.is_ok_and(|index| before[index].1 == *place) {
                node.adopt(*page, *place, now.saturating_sub(expiry), effects);
            }
        }
        self.act(&mut state)
    }

    /// Adopts all dirty pages in this node's memory. Returns their files, and whether all dirty
    /// pages of each were adopted.
    pub(super) fn adopt_all(&self) -> Result<BTreeMap<u64, bool>> {
        let share = self.lock_state().node.share();
        let mut copy = vec![0; self.segment.page_size_bytes()];
        let mut files = BTreeMap::new();
        for frame in share.into_iter().flatten() {
            let Some((page, place)) = self.segment.unsaved(frame) else {
                continue;
            };
            let is_complete = files.entry(page.inode).or_insert(true);
            // The page is mapped then. If it was lost or removed, the frame has another.
            let _ = self.read(page, &mut copy);
            let mut state = self.lock_state();
            let State { node, effects, .. } = &mut *state;
            let is_adopted = node.adopt(page, place, Duration::MAX, effects);
            self.act(&mut state)?;
            *is_complete &= is_adopted || self.segment.unsaved(frame) != Some((page, place));
        }
        Ok(files)
    }

    /// Returns the amount and age of this node's writes that may not be in the store.
    pub fn dirty(&self) -> Dirty {
        self.lock_state().node.dirty()
    }

    /// Puts this node's writes to the file into the store. A loss stays for the next flush to
    /// report.
    ///
    /// # Errors
    /// `Lost` if the store refused a write, `TimedOut`, or `Disconnected`.
    pub fn write_back(&self, inode: u64) -> Result<()> {
        self.lock_state().unsynced.insert(inode);
        self.sync(inode, "write-back", Node::write_back)
    }
}
