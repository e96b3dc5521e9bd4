//! Backing store of pages.

use std::sync::atomic::{Ordering, fence};

use forebay_block::{Error, ErrorKind, Result};

use crate::message::{NodeId, PageId, Place};
use crate::segment::{Frame, Segment};

/// A store of file pages that all nodes reach.
///
/// After [`Store::write_pages`] returns, the pages are in the store whichever process dies, and
/// every later reader gets them. After [`Store::sync`] they also survive a power loss. The store
/// must refuse requests of a dead node before the directory is notified of its death.
pub trait Store {
    /// Reads consecutive whole pages of a file, of which `first` is the first. Bytes beyond the end
    /// of the file are zeroes.
    ///
    /// # Errors
    /// Errors of the store.
    fn read_pages(&self, first: PageId, into: &mut [u8]) -> Result<()>;

    /// Writes consecutive whole pages of a file, of which `first` is the first.
    ///
    /// # Errors
    /// Errors of the store. Each page is then old or new in the store.
    fn write_pages(&self, first: PageId, from: &[u8]) -> Result<()>;

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

/// Fills the frames of consecutive pages from the store, for
/// [`Effect::Fill`](crate::node::Effect::Fill). The frames name the pages before the store is read.
/// So a program that changes the store and then checks all frames ([`Segment::page_in`]) finds
/// every page that may be older.
///
/// # Errors
/// Errors of the store. The frames stay open, unusable for other nodes until they are refilled.
pub fn fill(
    segment: &Segment,
    store: &impl Store,
    node: NodeId,
    run: &[(PageId, Place)],
    scratch: &mut Vec<u8>,
) -> Result<()> {
    for (page, place) in run {
        segment.open(*page, *place, node);
    }
    // Visible to every program that changes the store from now on.
    fence(Ordering::SeqCst);
    let size = segment.page_size_bytes();
    scratch.resize(run.len() * size, 0);
    let Some((first, _)) = run.first() else {
        return Ok(());
    };
    store.read_pages(*first, scratch)?;
    for ((_, place), bytes) in run.iter().zip(scratch.chunks_exact(size)) {
        segment.store(place.frame, 0, bytes);
        let sequence = segment.unlock(place.frame);
        segment.set_clean(*place, sequence);
    }
    Ok(())
}

/// Writes the dirty ones of consecutive pages back, for
/// [`Effect::WriteBack`](crate::node::Effect::WriteBack).
///
/// # Errors
/// Errors of the store. Pages that it did not accept stay dirty.
pub fn write_back(
    segment: &Segment,
    store: &impl Store,
    run: &[(PageId, Place)],
    scratch: &mut Vec<u8>,
) -> Result<()> {
    for dirty in run.split(|(_, place)| !segment.is_dirty(*place)) {
        let Some((first, _)) = dirty.first() else {
            continue;
        };
        scratch.resize(dirty.len() * segment.page_size_bytes(), 0);
        let mut sequences = Vec::with_capacity(dirty.len());
        let copies = scratch.chunks_exact_mut(segment.page_size_bytes());
        for ((page, place), copy) in dirty.iter().zip(copies) {
            sequences.push(copy_steady(segment, *page, *place, copy)?);
        }
        store.write_pages(*first, scratch)?;
        for ((_, place), sequence) in dirty.iter().zip(sequences) {
            segment.set_clean(*place, sequence);
        }
    }
    Ok(())
}

/// Copies a page after the end of the store that is in progress. Returns its sequence number.
fn copy_steady(segment: &Segment, page: PageId, place: Place, copy: &mut [u8]) -> Result<u64> {
    loop {
        match segment.read(place, copy) {
            Ok(sequence) => return Ok(sequence),
            Err(Frame::Stale) => {
                let context = format!(
                    "write-back of {page}: frame {} holds another page",
                    place.frame
                );
                return Err(Error::new(ErrorKind::Corrupt, context));
            }
            Err(_) => std::thread::yield_now(),
        }
    }
}
