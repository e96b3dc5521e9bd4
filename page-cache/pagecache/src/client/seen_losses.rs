//! Losses of a file that each of its users has been notified of.

use std::sync::atomic::{AtomicU64, Ordering};

use forebay_block::{Error, ErrorKind, Result};

use super::{Client, Link};
use crate::node::Node;
use crate::store::Store;

/// Number of losses of a file that one of its users was notified of.
#[derive(Debug)]
pub struct SeenLosses(AtomicU64);

impl<S: Store, L: Link> Client<S, L> {
    /// Opens a file of `pages` pages. Its user is notified by [`Client::fsync_for`] of later
    /// losses, and of those that no flush has reported yet.
    pub fn open(&self, inode: u64, pages: u64) -> SeenLosses {
        let mut state = self.lock_state();
        state.node.open(inode, pages);
        SeenLosses(AtomicU64::new(state.node.reported_losses(inode)))
    }

    /// Like [`Client::fsync`], for one of several users of the file. Each loss is reported once to
    /// each of them, since any of them may have written the data.
    ///
    /// # Errors
    /// As for [`Client::fsync`].
    pub fn fsync_for(&self, inode: u64, seen: &SeenLosses) -> Result<()> {
        self.report_to(seen, inode, "fsync", self.fsync(inode))
    }

    /// Puts this node's writes to the file into the store, without syncing it. Reports losses to
    /// this user as [`Client::fsync_for`] does.
    ///
    /// # Errors
    /// - `Lost` if the store refused a write, or a node died that held one.
    /// - `TimedOut` if no page of it was stored for longer than the limit.
    /// - `Disconnected`.
    pub fn close_for(&self, inode: u64, seen: &SeenLosses) -> Result<()> {
        self.lock_state().unsynced.insert(inode);
        let written = self.sync(inode, "close", Node::fsync);
        self.report_to(seen, inode, "close", written)
    }

    /// Adds the losses that this user was not notified of to the outcome of a flush.
    fn report_to(
        &self,
        seen: &SeenLosses,
        inode: u64,
        what: &str,
        flushed: Result<()>,
    ) -> Result<()> {
        let losses = self.lock_state().node.losses(inode);
        let news = seen.0.swap(losses, Ordering::AcqRel) != losses;
        match news {
            true => Err(self.lost(inode, what)),
            false => flushed,
        }
    }

    pub(super) fn lost(&self, inode: u64, what: &str) -> Error {
        let context = format!(
            "{what} of {}: WRITTEN DATA IS LOST: the store refused it, or the node that held it \
             died\n\
             help: write it a second time",
            self.store.name(inode)
        );
        Error::new(ErrorKind::Lost, context)
    }
}
