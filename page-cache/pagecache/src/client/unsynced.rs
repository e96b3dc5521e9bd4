//! Files with writes in the store that may not be durable.

use std::collections::BTreeMap;

use forebay_block::{ErrorKind, Result};

use super::{Client, Link};
use crate::store::Store;

/// Number of files above which the oldest half is synced, although no program flushes them.
const FILES_MAX: usize = 4096;

/// The files, with the number of the last request that may have written to each.
#[derive(Debug, Default)]
pub(super) struct Unsynced {
    files: BTreeMap<u64, u64>,
    requests: u64,
}

impl Unsynced {
    /// Notes that a file is about to be written to in the store.
    pub(super) fn insert(&mut self, inode: u64) {
        self.requests += 1;
        self.files.insert(inode, self.requests);
    }

    /// Returns the files.
    pub(super) fn files(&self) -> impl Iterator<Item = u64> {
        self.files.keys().copied()
    }

    /// Returns the last request for a file.
    fn request(&self, inode: u64) -> Option<u64> {
        self.files.get(&inode).copied()
    }

    /// Notes that the writes of all requests up to this one are durable.
    fn synced(&mut self, inode: u64, request: Option<u64>) {
        if self.request(inode) == request {
            self.files.remove(&inode);
        }
    }

    /// Returns the oldest half of the files, if there are too many.
    fn surplus(&self) -> Vec<u64> {
        if self.files.len() <= FILES_MAX {
            return Vec::new();
        }
        let files = self.files.iter();
        let mut oldest: Vec<(u64, u64)> =
            files.map(|(inode, request)| (*request, *inode)).collect();
        oldest.sort_unstable();
        oldest.truncate(self.files.len() - FILES_MAX / 2);
        oldest.into_iter().map(|(_, inode)| inode).collect()
    }
}

impl<S: Store, L: Link> Client<S, L> {
    /// Makes all nodes' writes to the file durable that are in the store.
    pub(super) fn sync_store(&self, inode: u64) -> Result<()> {
        let request = self.lock_state().unsynced.request(inode);
        let synced = self.store.sync(inode);
        let mut state = self.lock_state();
        match &synced {
            Ok(()) => state.unsynced.synced(inode, request),
            Err(error) => {
                state.node.sync_failed();
                // The system reports it once, and only this flush gets it. All others that have
                // the file open must report it, too.
                if error.kind() != ErrorKind::NotFound {
                    state.node.lose(inode);
                }
            }
        }
        synced
    }

    /// As [`Client::sync_store`], for no program. Returns whether the file is durable or removed. A
    /// failure stays for the next flush of the file to report.
    pub(super) fn sync_for_none(&self, inode: u64) -> bool {
        let request = self.lock_state().unsynced.request(inode);
        match self.sync_store(inode) {
            Ok(()) => true,
            // It was removed, and programs need no write of it any more.
            Err(error) if error.kind() == ErrorKind::NotFound => {
                self.lock_state().unsynced.synced(inode, request);
                true
            }
            Err(_) => false,
        }
    }

    /// Bounds the number of files that a flush of all has to sync.
    pub(super) fn sync_surplus(&self) {
        let surplus = self.lock_state().unsynced.surplus();
        for inode in surplus {
            let _ = self.sync_for_none(inode);
        }
    }
}
