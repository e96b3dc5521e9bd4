//! Backing store of pages.

use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

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

    /// Creates reads that occupy no thread while they wait, and a function that interrupts their
    /// wait. The thread that calls this uses them. Returns `None` if the store has no such reads.
    fn reads(&self) -> Option<(Box<dyn Reads + '_>, Interrupt)> {
        None
    }

    /// Returns the name of a file for messages.
    fn name(&self, inode: u64) -> String {
        format!("inode {inode}")
    }
}

/// A function that ends the current wait of [`Reads`], or the next one.
pub type Interrupt = Box<dyn Fn() + Send + Sync>;

/// Reads of a store that occupy no thread while they wait. One thread uses them.
pub trait Reads {
    /// Returns the maximum number of reads at a time. They have the numbers below it.
    fn capacity(&self) -> usize;

    /// Returns the maximum number of pages of a read.
    fn pages_max(&self) -> usize;

    /// Begins to read consecutive whole pages of a file, and does not wait. Returns false if only
    /// [`Store::read_pages`] can read them.
    fn begin(&mut self, number: usize, first: PageId, pages: usize) -> bool;

    /// Passes begun reads to the system. Waits until one has ended, for an interrupt, or for the
    /// time `limit`. Passes the number and the bytes of each that has ended to `ended`. Without
    /// bytes, [`Store::read_pages`] has to read the pages, or has the error.
    fn turn(&mut self, limit: Option<Duration>, ended: &mut dyn FnMut(usize, Option<&[u8]>));
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
    begin_fill(segment, node, run.iter().copied());
    let size = segment.page_size_bytes();
    scratch.resize(run.len() * size, 0);
    let Some((first, _)) = run.first() else {
        return Ok(());
    };
    store.read_pages(*first, scratch)?;
    end_fill(segment, run.iter().map(|(_, place)| *place), scratch);
    Ok(())
}

/// Begins a [`fill`]: the frames name the pages. The store may be read after that.
pub(crate) fn begin_fill(
    segment: &Segment,
    node: NodeId,
    pages: impl Iterator<Item = (PageId, Place)>,
) {
    for (page, place) in pages {
        segment.open(page, place, node);
    }
    // Visible to every program that changes the store from now on.
    fence(Ordering::SeqCst);
}

/// Ends a [`fill`] with the bytes of its pages.
pub(crate) fn end_fill(segment: &Segment, places: impl Iterator<Item = Place>, bytes: &[u8]) {
    for (place, page) in places.zip(bytes.chunks_exact(segment.page_size_bytes())) {
        segment.store(place.frame, 0, page);
        let sequence = segment.unlock(place.frame);
        segment.set_clean(place, sequence);
    }
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
