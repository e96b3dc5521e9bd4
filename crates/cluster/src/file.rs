//! Files for programs: read, write, append, map and fsync through the cache.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_block::{Error, ErrorKind, Result};
use forebay_pagecache::client::View;
use forebay_pagecache::message::{LockRange, PageId};

use crate::PAGE_BYTES;
use crate::link::Way;
use crate::node::Inner;
use crate::tree::Tree;

/// A page's only copy, where it is.
pub type PageView<'a> = View<'a, Tree, Way>;

/// A file that is open on a node. Closed when it is dropped: what the node holds of it unpublished is seen by others
/// then.
#[derive(Debug)]
pub struct File {
    node: Arc<Inner>,
    inode: u64,
    /// What the file has at least: files do not get shorter.
    size_bytes: AtomicU64,
}

impl File {
    pub(crate) fn new(node: Arc<Inner>, inode: u64) -> Result<Self> {
        let size_bytes = node.client().store().size_bytes(inode)?;
        let pages = size_bytes.div_ceil(PAGE_BYTES as u64);
        node.client().open(inode, pages);
        Ok(Self {
            node,
            inode,
            size_bytes: AtomicU64::new(size_bytes),
        })
    }

    /// Bytes in the file now.
    ///
    /// # Errors
    /// What the store says.
    pub fn size_bytes(&self) -> Result<u64> {
        let size_bytes = self.node.client().store().size_bytes(self.inode)?;
        self.size_bytes.fetch_max(size_bytes, Ordering::Relaxed);
        Ok(size_bytes)
    }

    /// Reads from `offset` on until `out` is full or the file ends; how many bytes. Each page is read from one moment.
    ///
    /// # Errors
    /// What the store says, or `Disconnected`.
    pub fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<usize> {
        let mut size = self.size_bytes.load(Ordering::Relaxed);
        if offset.saturating_add(out.len() as u64) > size {
            size = self.size_bytes()?;
        }
        let len = size.saturating_sub(offset).min(out.len() as u64);
        let len = usize::try_from(len).unwrap_or(out.len());
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
    /// What the store says, or `Disconnected`; some of the pages may be written then.
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let end = offset.checked_add(bytes.len() as u64).ok_or_else(|| {
            let context = format!("a write at {offset}: it ends behind all that files can have");
            Error::new(ErrorKind::OutOfRange, context)
        })?;
        if end > self.size_bytes.load(Ordering::Relaxed) {
            self.sized(|tree| tree.grow(self.inode, end))?;
            self.size_bytes.fetch_max(end, Ordering::Relaxed);
        }
        self.store(offset, bytes)
    }

    /// Writes `bytes` behind the end of the file, where no other node or thread writes; returns the offset.
    ///
    /// # Errors
    /// As [`File::write_at`].
    pub fn append(&self, bytes: &[u8]) -> Result<u64> {
        let offset = self.sized(|tree| {
            let offset = tree.size_bytes(self.inode)?;
            tree.grow(self.inode, offset + bytes.len() as u64)?;
            Ok(offset)
        })?;
        self.store(offset, bytes)?;
        Ok(offset)
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
    /// `Lost` if the store refused something, or a node died that held it; said once to those who wait at that time.
    pub fn fsync(&self) -> Result<()> {
        self.node.client().fsync(self.inode)
    }

    /// Does something with the file's size while nobody else does, on any node.
    fn sized<T>(&self, body: impl FnOnce(&Tree) -> Result<T>) -> Result<T> {
        // No page has this number: it stands for the size.
        let range = LockRange {
            inode: self.inode,
            start: u64::MAX - 1,
            end: u64::MAX,
            exclusive: true,
        };
        let client = self.node.client();
        client.locked(range, || body(client.store()))
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
    }
}
