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
    /// flush.
    ///
    /// # Errors
    /// `Disconnected`.
    pub fn write_back_expired(&self, now: Duration, expiry: Duration, most: usize) -> Result<()> {
        let mut state = self.lock_state();
        state.node.set_time(now);
        let files = state.node.expired(expiry, most);
        drop(state);
        for inode in files {
            let _ = self.sync(inode, "write-back", Node::write_back);
        }
        self.broken().map_or(Ok(()), Err)
    }

    /// Returns the amount and age of this node's writes that may not be in the store.
    pub fn dirty(&self) -> Dirty {
        self.lock_state().node.dirty()
    }

    /// Makes all nodes' writes to the file durable that are in the store.
    pub(super) fn sync_store(&self, inode: u64) -> Result<()> {
        let synced = self.store.sync(inode);
        if synced.is_err() {
            self.lock_state().node.sync_failed();
        }
        synced
    }
}
