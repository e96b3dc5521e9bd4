//! Where pages come from and go to.

use std::sync::atomic::{Ordering, fence};

use forebay_block::{Error, ErrorKind, Result};

use crate::message::{NodeId, PageId, Place};
use crate::segment::{Frame, Segment};

/// A store of file pages that all nodes reach.
///
/// What [`Store::write_page`] returned for is in the store whichever process dies, and whoever reads the page later
/// gets it; after [`Store::sync`] it outlives the power too.
/// Before the directory is told that a node died, the store refuses whatever that node still asks of it.
pub trait Store {
    /// Reads a page whole. Behind the end of the file are zeroes.
    ///
    /// # Errors
    /// What the store says.
    fn read_page(&self, page: PageId, into: &mut [u8]) -> Result<()>;

    /// Writes a page whole.
    ///
    /// # Errors
    /// What the store says; the page is then old or new in the store.
    fn write_page(&self, page: PageId, from: &[u8]) -> Result<()>;

    /// Makes durable what any node has written of the file.
    ///
    /// # Errors
    /// What the store says. What was written since the last good one may be lost.
    fn sync(&self, inode: u64) -> Result<()>;

    /// What messages call a file.
    fn name(&self, inode: u64) -> String {
        format!("inode {inode}")
    }
}

/// Fills a frame from the store: the work of a node that is told to fill. The frame names the page before the store is
/// read, so that whoever changes the store and then looks at all frames ([`Segment::page_in`]) finds every page that
/// may be older.
///
/// # Errors
/// What the store says. The frame stays open, for nobody else until it is filled anew.
pub fn fill(
    segment: &Segment,
    store: &impl Store,
    node: NodeId,
    page: PageId,
    place: Place,
    scratch: &mut [u8],
) -> Result<()> {
    segment.open(page, place, node);
    // Seen by who changes the store from now on.
    fence(Ordering::SeqCst);
    store.read_page(page, scratch)?;
    segment.store(place.frame, 0, scratch);
    let sequence = segment.unlock(place.frame);
    segment.set_clean(place, sequence);
    Ok(())
}

/// Writes a page back if it is dirty: the work of an owner that is told to write back.
///
/// # Errors
/// What the store says. The page stays dirty.
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
