//! Flush of all files of the node, at the request of the directory.

use std::collections::BTreeSet;

use forebay_block::Result;

use super::{Client, Link};
use crate::message::ToDirectory;
use crate::store::Store;

/// Maximum number of files that an answer names.
pub const NAMED_MAX: usize = 64;

/// Outcome of a flush of all files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlushedAll {
    /// Number of dirty pages that are durable now.
    pub pages: u64,
    /// Files of which a write was refused or lost.
    pub failed: BTreeSet<u64>,
}

impl<S: Store, L: Link> Client<S, L> {
    /// Executes the directory's requests to flush all files, until [`Client::end_flushes`]. The
    /// caller runs it on a thread of its own, since it waits for the store.
    pub fn run_flushes(&self) {
        let mut state = self.lock_state();
        while !state.flushes_are_over {
            let Some(ticket) = state.node.take_flush_request() else {
                state = state.wait(&self.flush_requested);
                continue;
            };
            drop(state);
            let flushed = self.flush_all();
            state = self.lock_state();
            // A broken client has no directory to answer.
            if let Ok(FlushedAll { pages, failed }) = flushed {
                let named = failed.iter().take(NAMED_MAX);
                let named = named.map(|inode| (ticket, *inode));
                let named = named.map(|(ticket, inode)| ToDirectory::NotFlushed { ticket, inode });
                state.messages.extend(named);
                state.messages.push(ToDirectory::FlushedAll {
                    ticket,
                    pages,
                    failed: failed.len() as u64,
                });
                // If the link is gone, the client is broken or rejoins.
                let _ = self.act(&mut state);
            }
        }
    }

    /// Ends [`Client::run_flushes`] after its current flush, and [`Client::wait_dirty`] at once.
    pub fn end_flushes(&self) {
        self.lock_state().flushes_are_over = true;
        self.flush_requested.notify_all();
        self.dirtied.notify_all();
    }

    /// Makes all of this node's writes durable that may not be so, and all dirty pages in its
    /// memory. Losses stay for the next flush of their file to report.
    ///
    /// # Errors
    /// `Disconnected`.
    pub fn flush_all(&self) -> Result<FlushedAll> {
        let mut state = self.lock_state();
        let before = state.node.known_losses();
        let mut files = state.node.dirty_files();
        drop(state);
        // Their writers may count them too.
        let adopted = self.adopt_all()?;
        let unsynced: Vec<u64> = self.lock_state().unsynced.files().collect();
        for inode in adopted.keys().copied().chain(unsynced) {
            files.entry(inode).or_default();
        }
        let mut all = FlushedAll::default();
        for (inode, pages) in files {
            let written = self.write_back(inode);
            if let Some(error) = self.broken() {
                return Err(error);
            }
            let is_adopted = adopted.get(&inode).copied().unwrap_or(true);
            match self.sync_for_none(inode) && written.is_ok() && is_adopted {
                true => all.pages += pages,
                false => drop(all.failed.insert(inode)),
            }
        }
        let after = self.lock_state().node.known_losses();
        all.failed.extend(after.since(&before));
        Ok(all)
    }
}
