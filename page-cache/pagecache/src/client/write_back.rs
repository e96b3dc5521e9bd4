//! Write-back of writes that no program flushes.

use std::time::Duration;

use forebay_block::Result;

use super::{Client, Link};
use crate::node::{Dirty, Node};
use crate::store::Store;

impl<S: Store, L: Link> Client<S, L> {
    /// Writes back all files with writes that are as old as `expiry` at the time `now`, counted
    /// from the node's start. Writes back all files if there are more than `most` such pages. A
    /// write-back that the store refuses is repeated in the next call, and reported by the next
    /// flush. Returns whether the store refused none.
    ///
    /// # Errors
    /// `Disconnected`.
    pub fn write_back_expired(&self, now: Duration, expiry: Duration, most: usize) -> Result<bool> {
        let mut state = self.lock_state();
        state.node.set_time(now);
        let files = state.node.expired(expiry, most);
        drop(state);
        let mut is_complete = true;
        for inode in files {
            is_complete &= self.write_back(inode).is_ok();
        }
        self.broken().map_or(Ok(is_complete), Err)
    }

    /// Returns the amount and age of this node's writes that may not be in the store.
    pub fn dirty(&self) -> Dirty {
        self.lock_state().node.dirty()
    }

    /// Puts this node's writes to the file into the store. A loss stays for the next flush to
    /// report.
    ///
    /// # Errors
    /// `Lost` if the store refused a write, or `Disconnected`.
    pub fn write_back(&self, inode: u64) -> Result<()> {
        self.lock_state().unsynced.insert(inode);
        self.sync(inode, "write-back", Node::write_back)
    }

    /// Makes all nodes' writes to the file durable that are in the store.
    pub(super) fn sync_store(&self, inode: u64) -> Result<()> {
        // A write-back during the sync adds it once more.
        self.lock_state().unsynced.remove(&inode);
        let synced = self.store.sync(inode);
        if synced.is_err() {
            let mut state = self.lock_state();
            state.unsynced.insert(inode);
            state.node.sync_failed();
        }
        synced
    }
}
