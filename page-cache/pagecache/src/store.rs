//! Backing store of pages.

use std::sync::atomic::{Ordering, fence};

use forebay_block::{Error, ErrorKind, Result};

use crate::message::{NodeId, PageId, Place};
use crate::segment::{Frame, Segment};

/// A store of file pages that all nodes reach.
///
/// After [`Store::write_page`] returns, the page is in the store whichever process dies, and every
/// later reader gets it. After [`Store::sync`] it also survives a power loss. The store must refuse
/// requests of a dead node before the directory is notified of its death.
pub trait Store {
    /// Reads a whole page. Bytes beyond the end of the file are zeroes.
    ///
    /// # Errors
    /// Errors of the store.
    fn read_page(&self, page: PageId, into: &mut [u8]) -> Result<()>;

    /// Writes a whole page.
    ///
    /// # Errors
    /// Errors of the store. The page is then old or new in the store.
    fn write_page(&self, page: PageId, from: &[u8]) -> Result<()>;

    /// Makes all nodes' writes to the file durable.
    ///
    /// # Errors
    /// Errors of the store. Writes since the last successful sync may be lost.
    fn sync(&self, inode: u64) -> Result<()>;

    /// Returns the name of a file for messages.
    fn name(&self, inode: u64) -> String {
        format!("inode {inode}")
    }
}

/// Fills a frame from the store, for [`Effect::Fill`](crate::node::Effect::Fill). The frame names
/// the page before the store is read. So a program that changes the store and then checks all
/// frames ([`Segment::page_in`]) finds every page that may be older.
///
/// # Errors
/// Errors of the store. The frame stays open, unusable for other nodes until it is filled anew.
pub fn fill(
    segment: &Segment,
    store: &impl Store,
    node: NodeId,
    page: PageId,
    place: Place,
    scratch: &mut [u8],
) -> Result<()> {
    segment.open(page, place, node);
    // Visible to every program that changes the store from now on.
    fence(Ordering::SeqCst);
    store.read_page(page, scratch)?;
    segment.store(place.frame, 0, scratch);
    let sequence = segment.unlock(place.frame);
    segment.set_clean(place, sequence);
    Ok(())
}

/// Writes a page back if it is dirty, for [`Effect::WriteBack`](crate::node::Effect::WriteBack).
///
/// # Errors
/// Errors of the store. The page stays dirty.
pub fn write_back(
    segment: &Segment,
    store: &impl Store,
    page: PageId,
    place: Place,
    scratch: &mut [u8],
) -> Result<()> {
    if !segment.is_dirty(place) {
        return Ok(());
    }
    let sequence = loop {
        match segment.read(place, scratch) {
            Ok(sequence) => break sequence,
            Err(Frame::Stale) => {
                let context = format!(
                    "write-back of {page}: frame {} holds another page",
                    place.frame
                );
                return Err(Error::new(ErrorKind::Corrupt, context));
            }
            Err(_) => std::thread::yield_now(),
        }
    };
    store.write_page(page, scratch)?;
    segment.set_clean(place, sequence);
    Ok(())
}
