//! What each who has a file open has heard of its losses.

use std::sync::atomic::{AtomicU64, Ordering};

use forebay_block::{Error, ErrorKind, Result};

use super::{Client, Link};
use crate::store::Store;

/// How many losses of a file somebody who has it open was told of.
#[derive(Debug)]
pub struct Heard(AtomicU64);

impl<S: Store, L: Link> Client<S, L> {
    /// A program opens a file of so many pages. Who opens it hears by its
    /// [`Client::fsync_for`] of each loss from now on, and of those that nobody has heard of.
    pub fn open(&self, inode: u64, pages: u64) -> Heard {
        let mut state = self.lock_state();
        state.node.open(inode, pages);
        Heard(AtomicU64::new(state.node.losses_said(inode)))
    }

    /// As [`Client::fsync`], for one of many who have the file open: what was lost is said once to each of them, since
    /// it may have been written by any.
    ///
    /// # Errors
    /// As [`Client::fsync`]'s.
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
            "{what} of {}: the store refused something written, or a node died that held it: write it again",
            self.store.name(inode)
        );
        Error::new(ErrorKind::Lost, context)
    }
}
