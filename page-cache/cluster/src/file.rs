//! File interface for programs: read, write, append, map and fsync through the cache.

mod blocks;
mod reading;

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

use forebay_block::{Error, ErrorKind, Result};
use forebay_pagecache::client::{SeenLosses, View};
use forebay_pagecache::message::PageId;

use crate::PAGE_BYTES;
use crate::link::DirectoryLink;
use crate::node::{Inner, Node, WriteBack};
use crate::room::Room;
use crate::tree::Tree;
pub use reading::Reader;

/// Maximum length of a file, bytes: the limit of the system.
const SIZE_MAX: u64 = i64::MAX as u64 - 2;

/// A page's only copy, in its frame.
pub type PageView<'a> = View<'a, Tree, DirectoryLink>;

/// Most pages that a read looks up at once.
const REQUEST_PAGES: u64 = 64;

/// Content beyond the end of files.
const ZEROES: [u8; PAGE_BYTES] = [0; PAGE_BYTES];

/// An open file on a node, closed on drop. The close publishes the node's unpublished pages of it.
/// With [`WriteBack::Close`] it also writes back, and [`File::prepare_close`] before it reports
/// errors.
#[derive(Debug)]
pub struct File {
    node: Arc<Inner>,
    inode: u64,
    /// Last known size. An operation detects that the file has become shorter since.
    size_bytes: AtomicU64,
    /// Losses that this user was notified of.
    seen_losses: SeenLosses,
    /// Blocks of the source that were allocated by writes through this file.
    room: Room,
    /// Whether the file has its second name, for which a full source may have no room.
    is_named: AtomicBool,
    /// Number of writes through this file.
    writes: AtomicU64,
    /// Number of writes that a good [`File::prepare_close`] has written back.
    closed_writes: AtomicU64,
    /// Number of writes that a [`File::prepare_close`] has tried to write back.
    tried_writes: AtomicU64,
}

impl Node {
    /// Opens a file below the source, by its relative path.
    ///
    /// # Errors
    /// Errors of the system. `InvalidInput` for a path that leads out of the source.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<File> {
        let inode = self.inner().client().store().open(path.as_ref(), false)?;
        File::new(self.inner(), inode)
    }

    /// Like [`Node::open`], but creates the file if it does not exist.
    ///
    /// # Errors
    /// As for [`Node::open`].
    pub fn create(&self, path: impl AsRef<Path>) -> Result<File> {
        let inode = self.inner().client().store().open(path.as_ref(), true)?;
        File::new(self.inner(), inode)
    }
}

impl File {
    /// Wraps an inode that was opened in the tree.
    pub(crate) fn new(node: Arc<Inner>, inode: u64) -> Result<Self> {
        let client = node.client();
        let size_bytes = match client.store().size_bytes(inode) {
            Ok(size_bytes) => size_bytes,
            Err(error) => {
                node.closed(inode);
                return Err(error);
            }
        };
        let seen_losses = client.open(inode, size_bytes.div_ceil(PAGE_BYTES as u64));
        Ok(Self {
            node,
            inode,
            size_bytes: AtomicU64::new(size_bytes),
            seen_losses,
            room: Room::default(),
            is_named: AtomicBool::new(false),
            writes: AtomicU64::new(0),
            closed_writes: AtomicU64::new(0),
            tried_writes: AtomicU64::new(0),
        })
    }

    /// Returns its inode in the source.
    #[must_use]
    pub const fn inode(&self) -> u64 {
        self.inode
    }

    /// Returns the current size of the file, bytes.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn size_bytes(&self) -> Result<u64> {
        let size_bytes = self.node.client().store().size_bytes(self.inode)?;
        self.size_bytes.store(size_bytes, Ordering::Relaxed);
        Ok(size_bytes)
    }

    /// Reads from `offset` until `out` is full or the file ends. Returns the number of bytes. Each
    /// page is read as of one moment.
    ///
    /// # Errors
    /// Errors of the store, `Disconnected`, or `TimedOut` if the store does not answer
    /// ([`Options::limit`](crate::Options::limit)).
    pub fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<usize> {
        let len = self.available(offset, out.len())?;
        if !self.ensure_named()? {
            let store = self.node.client().store();
            return store.read(self.inode, offset, &mut out[..len]);
        }
        let end = (offset + len as u64).div_ceil(PAGE_BYTES as u64);
        let (mut done, mut requested) = (0, 0);
        while done < len {
            let (page, inside) = self.page(offset + done as u64);
            let count = (len - done).min(PAGE_BYTES - inside);
            let part = &mut out[done..done + count];
            requested = self.look_up_ahead(page.index, requested, end)?;
            if count == PAGE_BYTES {
                self.node.client().read(page, part)?;
            } else {
                let mut whole = [0; PAGE_BYTES];
                self.node.client().read(page, &mut whole)?;
                part.copy_from_slice(&whole[inside..inside + count]);
            }
            done += count;
        }
        Ok(len)
    }

    /// Writes `bytes` at `offset`, and extends the file if it ends before. The part in each page is
    /// atomic for all readers. Waits while this node has too much dirty data
    /// ([`Options::dirty_pages`](crate::Options::dirty_pages)).
    ///
    /// # Errors
    /// - `OutOfRange` if the file would be too long.
    /// - `NoSpace` if the store is full; nothing is written then.
    /// - Errors of the store, `Disconnected`, or `TimedOut` as for [`File::read_at`]: some of the
    ///   pages may be written then.
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let mut throttle = self.node.client().throttle();
        self.write_then(offset, bytes, || throttle.wait())
    }

    /// Does what [`File::write_at`] does, and calls `stored` after each page.
    fn write_then(&self, offset: u64, bytes: &[u8], stored: impl FnMut()) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let end = end_of(offset, bytes)?;
        let cuts = || self.node.client().segment().cuts(self.inode);
        let cuts_before = cuts();
        self.allocate(offset..end)?;
        if end > self.size_bytes.load(Ordering::Relaxed) {
            self.with_size_locked(|tree| tree.grow(self.inode, end))?;
            self.size_bytes.fetch_max(end, Ordering::Relaxed);
        }
        self.store(offset, bytes, stored)?;
        // The length is read first: a truncation is counted before the file can grow.
        if !self.finish_write(end)? || cuts() != cuts_before {
            // Another program made the file shorter meanwhile: the whole write takes effect after
            // that.
            self.with_size_locked(|tree| {
                tree.grow(self.inode, end)?;
                self.store(offset, bytes, || ())
            })?;
            self.finish_write(end)?;
        }
        Ok(())
    }

    /// Writes `bytes` at the end of the file, where no other node or thread writes. Returns the
    /// offset.
    ///
    /// # Errors
    /// As for [`File::write_at`].
    pub fn append(&self, bytes: &[u8]) -> Result<u64> {
        let mut throttle = self.node.client().throttle();
        throttle.wait();
        // Stored under the lock: after a truncation, another append may have this range.
        let offset = self.with_size_locked(|tree| {
            let offset = tree.size_bytes(self.inode)?;
            let end = end_of(offset, bytes)?;
            self.allocate(offset..end)?;
            tree.grow(self.inode, end)?;
            self.store(offset, bytes, || ())?;
            Ok(offset)
        })?;
        throttle.wait();
        // A truncation that came after it has removed it.
        self.finish_write(end_of(offset, bytes)?)?;
        Ok(offset)
    }

    /// Sets the length of the file. Bytes beyond it are removed on all nodes, and new bytes are
    /// zeroes.
    ///
    /// # Errors
    /// As for [`File::write_at`].
    pub fn truncate(&self, size_bytes: u64) -> Result<()> {
        end_of(size_bytes, &[])?;
        self.with_size_locked(|tree| {
            let before = tree.size_bytes(self.inode)?;
            if size_bytes >= before {
                return tree.resize(self.inode, size_bytes);
            }
            tree.begin_cut(self.inode, before)?;
            tree.resize(self.inode, size_bytes)?;
            self.end_cut(tree, size_bytes, before)
        })?;
        self.size_bytes.store(size_bytes, Ordering::Relaxed);
        self.room.clear();
        Ok(())
    }

    /// Completes a truncation, whichever node began it.
    fn end_cut(&self, tree: &Tree, size_bytes: u64, before: u64) -> Result<()> {
        if size_bytes < before {
            self.clear(size_bytes, before)?;
        }
        // A node that ends from here on has counted it.
        self.node.client().segment().count_cut(self.inode);
        tree.end_cut(self.inode)
    }

    /// Writes zeroes to all copies from `start` to `end`, where the store has no data any more.
    fn clear(&self, start: u64, end: u64) -> Result<()> {
        let client = self.node.client();
        let (inode, size) = (self.inode, PAGE_BYTES as u64);
        if !self.ensure_named()? {
            // No frame holds a page of it.
            return Ok(());
        }
        // No frame holds pages that only their writers have. A write that ends later finds that the
        // file is shorter.
        client.publish_everywhere(inode)?;
        let (first, inside) = self.page(start);
        if inside > 0 {
            client.write(first, inside, &ZEROES[inside..])?;
        }
        let pages = start.div_ceil(size)..end.div_ceil(size);
        let frames = client.segment().frames();
        // Looking up one page costs about as much as checking some hundred frames.
        if (pages.end - pages.start).saturating_mul(256) < u64::from(frames) {
            for index in pages {
                client.write(PageId { inode, index }, 0, &ZEROES)?;
            }
        } else {
            // A fill that has read the removed data has named its page before.
            fence(Ordering::SeqCst);
            for frame in 0..frames {
                let page = client.segment().page_in(frame);
                let ours = |page: &PageId| page.inode == inode && pages.contains(&page.index);
                if let Some(page) = page.filter(ours) {
                    client.write(page, 0, &ZEROES)?;
                }
            }
        }
        // These zeroes must not replace what nodes write after the truncation.
        client.publish(inode)
    }

    /// Completes a write up to `end`: sets its time, and returns whether the file still has that
    /// length.
    fn finish_write(&self, end: u64) -> Result<bool> {
        let tree = self.node.client().store();
        let metadata = tree.metadata(self.inode)?;
        if metadata.len() < end {
            return Ok(false);
        }
        tree.touch(self.inode, &metadata)?;
        Ok(true)
    }

    /// Returns a view of one page's only copy, wherever it is. It costs no message and no system
    /// call once this node has used the page.
    ///
    /// # Errors
    /// `OutOfRange` beyond the end of the file. `NoSpace` if a full source has no room for the
    /// file's second name. Others as for [`File::read_at`].
    pub fn map(&self, page: u64) -> Result<PageView<'_>> {
        let inside = |size: u64| page < size.div_ceil(PAGE_BYTES as u64);
        if !inside(self.size_bytes.load(Ordering::Relaxed)) && !inside(self.size_bytes()?) {
            let context = format!("page {page} is behind the end of the file");
            return Err(Error::new(ErrorKind::OutOfRange, context));
        }
        self.require_second_name()?;
        let inode = self.inode;
        let page = PageId { inode, index: page };
        self.node.client().map(page)
    }

    /// Makes this node's writes to the file durable.
    ///
    /// # Errors
    /// - `Lost` if the store refused a write, or a node died that held one. It is reported once to
    ///   each user that had the file open then.
    /// - `TimedOut` if the store accepts no page of it
    ///   ([`Options::limit`](crate::Options::limit)). The data stays in memory and
    ///   is written back later.
    /// - `Disconnected`.
    pub fn fsync(&self) -> Result<()> {
        self.node.client().fsync_for(self.inode, &self.seen_losses)
    }

    /// Makes this node's writes to the file visible to all nodes. They are at once with
    /// [`Consistency::Strong`](crate::Consistency).
    ///
    /// # Errors
    /// `Disconnected`, or `TimedOut` as for [`File::read_at`].
    pub fn publish(&self) -> Result<()> {
        self.node.client().publish(self.inode)
    }

    /// Publishes this node's writes to the file, as a close does, and reports errors. With
    /// [`WriteBack::Close`], also writes them to the store, if there were any through this open
    /// file. Makes nothing durable.
    ///
    /// # Errors
    /// As for [`File::fsync`].
    pub fn prepare_close(&self) -> Result<()> {
        let Some(writes) = self.writes_since(&self.closed_writes) else {
            return self.publish();
        };
        self.tried_writes.fetch_max(writes, Ordering::AcqRel);
        // Each close of a duplicate waits, and gets the error, until one succeeds.
        self.node
            .client()
            .close_for(self.inode, &self.seen_losses)?;
        self.closed_writes.fetch_max(writes, Ordering::AcqRel);
        Ok(())
    }

    /// Returns the number of writes, if closes write back and there are more than `closed`.
    fn writes_since(&self, closed: &AtomicU64) -> Option<u64> {
        let writes = self.writes.load(Ordering::Acquire);
        let is_new = writes != closed.load(Ordering::Acquire);
        (self.node.write_back == WriteBack::Close && is_new).then_some(writes)
    }

    /// Runs `body` with the file's size locked on all nodes.
    fn with_size_locked<T>(&self, body: impl FnOnce(&Tree) -> Result<T>) -> Result<T> {
        let client = self.node.client();
        client.alone(self.inode, || {
            let tree = client.store();
            // A node may have ended during a truncation.
            if let Some(before) = tree.begun_cut(self.inode)? {
                self.end_cut(tree, tree.size_bytes(self.inode)?, before)?;
            }
            body(tree)
        })
    }

    /// Gives the file its second name if it has none. Returns whether it has one now. Without a
    /// second name, no node has written to the file, and reads use no frames. Otherwise the inode
    /// of a removed file could be reused while frames hold its pages.
    fn ensure_named(&self) -> Result<bool> {
        if self.is_named.load(Ordering::Acquire) {
            return Ok(true);
        }
        let is_named = self.node.client().store().ensure_named(self.inode)?;
        self.is_named.store(is_named, Ordering::Release);
        Ok(is_named)
    }

    /// Gives the file its second name, which writes need.
    ///
    /// # Errors
    /// `NoSpace` if the source has no room for the name.
    fn require_second_name(&self) -> Result<()> {
        if self.ensure_named()? {
            return Ok(());
        }
        let context = "the source is full: it has no room for a name in .forebay/files\n\
                       help: free space in the source";
        let number = std::io::Error::from_raw_os_error(libc::ENOSPC);
        Err(Error::with_source(ErrorKind::NoSpace, context, number))
    }

    /// Names the file and allocates blocks of the source, before a write.
    fn allocate(&self, bytes: Range<u64>) -> Result<()> {
        self.require_second_name()?;
        let tree = self.node.client().store();
        self.room.allocate(tree, self.inode, bytes)
    }

    /// Stores the bytes, and calls `stored` after each page.
    fn store(&self, offset: u64, bytes: &[u8], mut stored: impl FnMut()) -> Result<()> {
        let mut done = 0;
        while done < bytes.len() {
            let (page, inside) = self.page(offset + done as u64);
            let left = bytes.len() - done;
            let client = self.node.client();
            let (count, written) = match inside == 0 && left >= 2 * PAGE_BYTES {
                true => {
                    let whole = &bytes[done..done + left - left % PAGE_BYTES];
                    let written = client.write_pages(page, whole, &mut stored);
                    (whole.len(), written)
                }
                false => {
                    let count = left.min(PAGE_BYTES - inside);
                    let written = client.write(page, inside, &bytes[done..done + count]);
                    (count, written.inspect(|()| stored()))
                }
            };
            self.writes.fetch_add(1, Ordering::Release);
            written?;
            done += count;
        }
        Ok(())
    }

    /// Returns the page at an offset, and the offset in it.
    fn page(&self, offset: u64) -> (PageId, usize) {
        let inode = self.inode;
        let index = offset / PAGE_BYTES as u64;
        let inside = usize::try_from(offset % PAGE_BYTES as u64).expect("below a page");
        (PageId { inode, index }, inside)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        if self.writes_since(&self.tried_writes).is_some() {
            // An error stays for the next flush to report.
            let _ = self.node.client().write_back(self.inode);
        }
        // Without a directory, a node can publish nothing.
        let _ = self.node.client().close(self.inode);
        self.node.closed(self.inode);
    }
}

/// Returns the end of a write.
fn end_of(offset: u64, bytes: &[u8]) -> Result<u64> {
    let end = offset.checked_add(bytes.len() as u64);
    end.filter(|end| *end <= SIZE_MAX).ok_or_else(|| {
        let context = format!("{offset}: beyond the maximum length of a file");
        Error::new(ErrorKind::OutOfRange, context)
    })
}

#[cfg(test)]
mod tests;
