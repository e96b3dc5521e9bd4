//! A block device that nodes share, for example a cached volume with many readers.
//!
//! Each node opens the device itself, and each page has its one copy in the pool. The device must
//! not be changed outside the cache. A file system on it must support mounts on several hosts; most
//! file systems do so only read-only.

mod fence;
mod store;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay_block::{BlockDevice, Error, ErrorKind, Result};
use forebay_pagecache::client::View;
use forebay_pagecache::message::PageId;
use forebay_pagecache::node::Counts;

use crate::PAGE_BYTES;
use crate::link::DirectoryLink;
use crate::node::{Inner, Options, join};
pub use fence::InFlight;
pub use store::DeviceStore;

/// A page's only copy, in its frame.
pub type DeviceView<'a> = View<'a, DeviceStore, DirectoryLink>;

/// A node of a pool whose source is a block device, in this process.
#[derive(Debug)]
pub struct DeviceNode {
    inner: Arc<Inner<DeviceStore>>,
    frames: u32,
    /// Reason why nodes do not write, if there is one.
    unfenced: Option<String>,
}

impl DeviceNode {
    /// Joins the cluster of a pool. `open` opens the device on a reactor of its own, given the path
    /// of the pool's source: that device, or another path to it. `in_flight` is the fate of writes
    /// on that path.
    ///
    /// A source with a server behind it is read-only on all nodes.
    ///
    /// # Errors
    /// As for [`Node::join`](crate::Node::join), and errors of `open`. `Unsupported` if the other
    /// nodes write and writes on this path are not fenced.
    pub fn join(
        options: Options,
        in_flight: InFlight,
        open: impl AsyncFnOnce(PathBuf) -> Result<Rc<dyn BlockDevice>> + Send + 'static,
    ) -> Result<Self> {
        Self::join_fenced(options, in_flight, fence::unfenced, open)
    }

    fn join_fenced(
        options: Options,
        in_flight: InFlight,
        fence: impl FnOnce(&Path) -> Option<String>,
        open: impl AsyncFnOnce(PathBuf) -> Result<Rc<dyn BlockDevice>> + Send + 'static,
    ) -> Result<Self> {
        let mut unfenced = None;
        let (inner, frames) = join(options, |source, _| {
            unfenced = fence(source);
            if unfenced.is_none() && in_flight == InFlight::MayLand {
                let context = format!(
                    "{}: a late write by way of a server may overwrite newer data of others\n\
                     help: open it by its path, or share it read-only from the server on all nodes",
                    source.display()
                );
                return Err(Error::new(ErrorKind::Unsupported, context));
            }
            let source = source.to_owned();
            DeviceStore::open(async move || open(source).await)
        })?;
        Ok(Self {
            inner,
            frames,
            unfenced,
        })
    }

    /// Leaves. Returns false if the node ends with pages in its memory, which are lost then. The
    /// log has the reason.
    #[must_use]
    pub fn leave(self) -> bool {
        let has_left = self.inner.has_left();
        drop(self);
        has_left.load(Ordering::Acquire)
    }

    /// Returns the reason why the source is read-only, if it is.
    #[must_use]
    pub fn read_only(&self) -> Option<&str> {
        self.unfenced.as_deref()
    }

    /// Returns the number of offered frames that the directory accepted, within its budget.
    #[must_use]
    pub const fn frames(&self) -> u32 {
        self.frames
    }

    /// Returns the size of the device, bytes.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.inner.client().store().info().size_bytes
    }

    /// Reads from `offset` until `out` is full or the device ends. Returns the number of bytes.
    /// Each page is read as of one moment.
    ///
    /// # Errors
    /// Errors of the device, `Disconnected`, or `TimedOut` if the device does not answer
    /// ([`Options::limit`]).
    pub fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<usize> {
        let left = self.size_bytes().saturating_sub(offset);
        let len = usize::try_from(left).unwrap_or(usize::MAX).min(out.len());
        let mut done = 0;
        while done < len {
            let (page, inside) = place(offset + done as u64);
            let count = (len - done).min(PAGE_BYTES - inside);
            let mut whole = [0; PAGE_BYTES];
            self.inner.client().read(page, &mut whole)?;
            out[done..done + count].copy_from_slice(&whole[inside..inside + count]);
            done += count;
        }
        Ok(len)
    }

    /// Writes `bytes` at `offset`. The part in each page is atomic for all readers.
    ///
    /// # Errors
    /// - `ReadOnly` if the source is read-only ([`DeviceNode::read_only`]).
    /// - `OutOfRange` beyond the end of the device.
    /// - Errors of the device, `Disconnected`, or `TimedOut` as for [`DeviceNode::read_at`]: some
    ///   pages may be written then.
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        if let Some(why) = &self.unfenced {
            let context = format!(
                "writing through the page cache: {why}\n\
                 help: write to the device itself while no pool has it, or share a disk of this \
                 machine, an image or a tree"
            );
            return Err(Error::new(ErrorKind::ReadOnly, context));
        }
        let end = offset.checked_add(bytes.len() as u64);
        if end.is_none_or(|end| end > self.size_bytes()) {
            let context = format!(
                "{} bytes at {offset}: the device has {} bytes",
                bytes.len(),
                self.size_bytes()
            );
            return Err(Error::new(ErrorKind::OutOfRange, context));
        }
        let client = self.inner.client();
        let (mut done, mut throttle) = (0, client.throttle());
        while done < bytes.len() {
            let (page, inside) = place(offset + done as u64);
            let count = (bytes.len() - done).min(PAGE_BYTES - inside);
            client.write(page, inside, &bytes[done..done + count])?;
            throttle.wait();
            done += count;
        }
        Ok(())
    }

    /// Returns a view of one page's only copy. It costs no message and no system call once this
    /// node has used the page.
    ///
    /// # Errors
    /// `OutOfRange` beyond the end of the device. Others as for [`DeviceNode::read_at`].
    pub fn map(&self, page: u64) -> Result<DeviceView<'_>> {
        if page >= self.size_bytes().div_ceil(PAGE_BYTES as u64) {
            let context = format!("page {page} is behind the end of the device");
            return Err(Error::new(ErrorKind::OutOfRange, context));
        }
        let inode = store::INODE;
        self.inner.client().map(PageId { inode, index: page })
    }

    /// Makes this node's writes durable.
    ///
    /// # Errors
    /// - `Lost` if the device refused a write, or a node died that held one.
    /// - `TimedOut` if the device accepts no page ([`Options::limit`]). The data stays in memory
    ///   and is written back later.
    /// - `Disconnected`.
    pub fn fsync(&self) -> Result<()> {
        self.inner.client().fsync(store::INODE)
    }

    /// Returns the node's counters.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.inner.client().counts()
    }

    /// Returns the error that all operations return, if the node is broken.
    #[must_use]
    pub fn broken(&self) -> Option<Error> {
        self.inner.client().broken()
    }
}

/// Returns the page at an offset, and the offset in it.
fn place(offset: u64) -> (PageId, usize) {
    let (inode, index) = (store::INODE, offset / PAGE_BYTES as u64);
    let inside = usize::try_from(offset % PAGE_BYTES as u64).expect("below a page");
    (PageId { inode, index }, inside)
}
