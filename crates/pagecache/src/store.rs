//! Where pages come from and go to.

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
}

/// Fills a frame from the store: the work of a node that is told to fill.
///
/// # Errors
/// What the store says. The frame is as it was.
pub fn fill(
    segment: &Segment,
    store: &impl Store,
    node: NodeId,
    page: PageId,
    place: Place,
    scratch: &mut [u8],
) -> Result<()> {
    store.read_page(page, scratch)?;
    segment.fill(page, place, node, scratch, true);
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
