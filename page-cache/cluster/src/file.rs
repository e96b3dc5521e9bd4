//! Files for programs: read, write, append, map and fsync through the cache.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use forebay_block::{Error, ErrorKind, Result};
use forebay_pagecache::client::{Heard, View};
use forebay_pagecache::message::PageId;

use crate::PAGE_BYTES;
use crate::link::Way;
use crate::node::Inner;
use crate::room::Room;
use crate::tree::Tree;

/// Longest file, bytes: as much as the system can say.
const SIZE_MAX: u64 = i64::MAX as u64 - 2;

/// A page's only copy, where it is.
pub type PageView<'a> = View<'a, Tree, Way>;

/// What is behind the end of files.
const ZEROES: [u8; PAGE_BYTES] = [0; PAGE_BYTES];

/// A file that is open on a node. Closed when it is dropped: what the node holds of it unpublished is seen by others
/// then.
#[derive(Debug)]
pub struct File {
    node: Arc<Inner>,
    inode: u64,
    /// The size that was seen last. If the file has become shorter since, that is found out.
    size_bytes: AtomicU64,
    /// What it was told of losses.
    heard: Heard,
    /// Blocks of the source that writes through this file allocated.
    room: Room,
}

impl File {
    /// Of an inode that was opened in the tree.
    pub(crate) fn new(node: Arc<Inner>, inode: u64) -> Result<Self> {
        let client = node.client();
        let size_bytes = match client.store().size_bytes(inode) {
            Ok(size_bytes) => size_bytes,
            Err(error) => {
                node.closed(inode);
                return Err(error);
            }
        };
        let heard = client.open(inode, size_bytes.div_ceil(PAGE_BYTES as u64));
        Ok(Self {
            node,
            inode,
            size_bytes: AtomicU64::new(size_bytes),
            heard,
            room: Room::default(),
        })
    }

    /// Its inode in the source.
    #[must_use]
    pub const fn inode(&self) -> u64 {
        self.inode
    }

    /// Bytes in the file now.
    ///
    /// # Errors
    /// What the store says.
    pub fn size_bytes(&self) -> Result<u64> {
        let size_bytes = self.node.client().store().size_bytes(self.inode)?;
        self.size_bytes.store(size_bytes, Ordering::Relaxed);
        Ok(size_bytes)
    }

    /// Reads from `offset` on until `out` is full or the file ends; how many bytes. Each page is read from one moment.
    ///
    /// # Errors
    /// What the store says, or `Disconnected`.
    pub fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<usize> {
        let len = self.size_bytes()?.saturating_sub(offset);
        let len = usize::try_from(len).unwrap_or(usize::MAX).min(out.len());
        let mut done = 0;
        while done < len {
            let (page, inside) = self.page(offset + done as u64);
            let count = (len - done).min(PAGE_BYTES - inside);
            let part = &mut out[done..done + count];
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

    /// Writes `bytes` at `offset`; the file grows if it ends before. The part in each page is one step for all who
    /// read.
    ///
    /// # Errors
    /// `OutOfRange` for a file that would be too long; `NoSpace` if the store is full, and then nothing is written;
    /// what the store says, or `Disconnected`; some of the pages may be written then.
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let end = end_of(offset, bytes)?;
        self.allocate(offset..end)?;
        if end > self.size_bytes.load(Ordering::Relaxed) {
            self.sized(|tree| tree.grow(self.inode, end))?;
            self.size_bytes.fetch_max(end, Ordering::Relaxed);
        }
        self.store(offset, bytes)?;
        if !self.written(end)? {
            // Somebody made the file shorter meanwhile: all of the write comes after that.
            self.sized(|tree| {
                tree.grow(self.inode, end)?;
                self.store(offset, bytes)
            })?;
            self.written(end)?;
        }
        Ok(())
    }

    /// Writes `bytes` behind the end of the file, where no other node or thread writes; returns the offset.
    ///
    /// # Errors
    /// As [`File::write_at`].
    pub fn append(&self, bytes: &[u8]) -> Result<u64> {
        loop {
            let offset = self.sized(|tree| {
                let offset = tree.size_bytes(self.inode)?;
                let end = end_of(offset, bytes)?;
                self.allocate(offset..end)?;
                tree.grow(self.inode, end)?;
                Ok(offset)
            })?;
            self.store(offset, bytes)?;
            // Else the place was cut off meanwhile, and there is a new end to write behind.
            if self.written(end_of(offset, bytes)?)? {
                return Ok(offset);
            }
        }
    }

    /// Makes the file `size_bytes` long: what was behind that is gone on all nodes, what is new is zeroes.
    ///
    /// # Errors
    /// As [`File::write_at`].
    pub fn truncate(&self, size_bytes: u64) -> Result<()> {
        end_of(size_bytes, &[])?;
        self.sized(|tree| {
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

    /// The last steps of making the file shorter, for whoever made it so.
    fn end_cut(&self, tree: &Tree, size_bytes: u64, before: u64) -> Result<()> {
        if size_bytes < before {
            self.clear(size_bytes, before)?;
        }
        tree.end_cut(self.inode)
    }

    /// Has zeroes in all copies from `start` to `end`, where the store has nothing any more.
    fn clear(&self, start: u64, end: u64) -> Result<()> {
        let client = self.node.client();
        let (inode, size) = (self.inode, PAGE_BYTES as u64);
        let (first, inside) = self.page(start);
        if inside > 0 {
            client.write(first, inside, &ZEROES[inside..])?;
        }
        let pages = start.div_ceil(size)..end.div_ceil(size);
        let frames = client.segment().frames();
        // A page that is looked up costs about as much as some hundred frames that are looked at.
        if (pages.end - pages.start).saturating_mul(256) < u64::from(frames) {
            for index in pages {
                client.write(PageId { inode, index }, 0, &ZEROES)?;
            }
            return Ok(());
        }
        // A fill that has read what is no more has named its page before.
        fence(Ordering::SeqCst);
        for frame in 0..frames {
            let page = client.segment().page_in(frame);
            let ours = |page: &PageId| page.inode == inode && pages.contains(&page.index);
            if let Some(page) = page.filter(ours) {
                client.write(page, 0, &ZEROES)?;
            }
        }
        Ok(())
    }

    /// After a write up to `end`: its time, and whether the file still is that long.
    fn written(&self, end: u64) -> Result<bool> {
        let tree = self.node.client().store();
        let metadata = tree.metadata(self.inode)?;
        if metadata.len() < end {
            return Ok(false);
        }
        tree.touch(self.inode, &metadata)?;
        Ok(true)
    }

    /// A view of one page's only copy, wherever it is. It costs no message and no system call once this node has used
    /// the page.
    ///
    /// # Errors
    /// `OutOfRange` behind the end of the file; what the store says, or `Disconnected`.
    pub fn map(&self, page: u64) -> Result<PageView<'_>> {
        let inside = |size: u64| page < size.div_ceil(PAGE_BYTES as u64);
        if !inside(self.size_bytes.load(Ordering::Relaxed)) && !inside(self.size_bytes()?) {
            let context = format!("page {page} is behind the end of the file");
            return Err(Error::new(ErrorKind::OutOfRange, context));
        }
        let inode = self.inode;
        let page = PageId { inode, index: page };
        self.node.client().map(page)
    }

    /// What this node wrote to the file is durable when this returns.
    ///
    /// # Errors
    /// `Lost` if the store refused something, or a node died that held it; said once to each who had the file open
    /// then.
    pub fn fsync(&self) -> Result<()> {
        self.node.client().fsync_for(self.inode, &self.heard)
    }

    /// Does something with the file's size while nobody else does, on any node.
    fn sized<T>(&self, body: impl FnOnce(&Tree) -> Result<T>) -> Result<T> {
        let client = self.node.client();
        client.alone(self.inode, || {
            let tree = client.store();
            // A node may have ended while it made the file shorter.
            if let Some(before) = tree.begun_cut(self.inode)? {
                self.end_cut(tree, tree.size_bytes(self.inode)?, before)?;
            }
            body(tree)
        })
    }

    /// Allocates blocks of the source for what is about to be written.
    fn allocate(&self, bytes: Range<u64>) -> Result<()> {
        let tree = self.node.client().store();
        self.room.allocate(tree, self.inode, bytes)
    }

    fn store(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let mut done = 0;
        while done < bytes.len() {
            let (page, inside) = self.page(offset + done as u64);
            let count = (bytes.len() - done).min(PAGE_BYTES - inside);
            let part = &bytes[done..done + count];
            self.node.client().write(page, inside, part)?;
            done += count;
        }
        Ok(())
    }

    /// The page at an offset, and where in it.
    fn page(&self, offset: u64) -> (PageId, usize) {
        let inode = self.inode;
        let index = offset / PAGE_BYTES as u64;
        let inside = usize::try_from(offset % PAGE_BYTES as u64).expect("below a page");
        (PageId { inode, index }, inside)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        // Of a node without a directory nothing is seen by others any more.
        let _ = self.node.client().close(self.inode);
        self.node.closed(self.inode);
    }
}

/// Where a write ends.
fn end_of(offset: u64, bytes: &[u8]) -> Result<u64> {
    let end = offset.checked_add(bytes.len() as u64);
    end.filter(|end| *end <= SIZE_MAX).ok_or_else(|| {
        let context = format!("{offset}: behind all that files can have");
        Error::new(ErrorKind::OutOfRange, context)
    })
}

#[cfg(test)]
mod tests;
