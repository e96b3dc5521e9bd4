//! Losses of a file that each of its users has been notified of.

use std::sync::atomic::{AtomicU64, Ordering};

use forebay_block::{Error, ErrorKind, Result};

use super::{Client, Link};
use crate::store::Store;

/// Number of losses of a file that one of its users was notified of.
#[derive(Debug)]
pub struct Heard(AtomicU64);

impl<S: Store, L: Link> Client<S, L> {
    /// Opens a file of `pages` pages. Its user is notified by [`Client::fsync_for`] of later
    /// losses, and of those that no flush has reported yet.
    pub fn open(&self, inode: u64, pages: u64) -> Heard {
        let mut state = self.lock_state();
        state.node.open(inode, pages);
        Heard(AtomicU64::new(state.node.losses_said(inode)))
    }

    /// Like [`Client::fsync`], for one of several users of the file. Each loss is reported once to
    /// each of them, since any of them may have written the data.
    ///
    /// # Errors
    /// As for [`Client::fsync`].
    pub fn fsync_for(&self, inode: u64, heard: &Heard) -> Result<()> {
        let synced = self.fsync(inode);
        let losses = self.lock_state().node.losses(inode);
        let news = heard.0.swap(losses, Ordering::AcqRel) != losses;
        synced?;
        match news {
            true => Err(self.lost(inode, "fsync")),
            false => Ok(()),
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
