//! Changes of ranges without data of programs: allocation and zeroes.

use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::sync::atomic::{Ordering, fence};

use forebay_block::{Error, ErrorKind, Result};
use forebay_io::blocks::Change;
use forebay_pagecache::message::PageId;

use super::{File, ZEROES, end_of};
use crate::PAGE_BYTES;

/// Most bytes that the source allocates at once, while this node's other writes wait.
const ALLOCATE_BYTES: u64 = 256 << 20;

impl File {
    /// Changes a range of the file, as fallocate(2) does. It extends the file, unless `keeps_size`.
    /// [`Change::Punch`] writes zeroes to pages with data and releases no blocks: a page in memory
    /// may be written back at any moment.
    ///
    /// # Errors
    /// - `Unsupported` if the source cannot allocate blocks.
    /// - `NoSpace` if the source is full. A part of the range may be allocated then.
    /// - Others as for [`File::write_at`].
    pub fn change_range(&self, change: Change, range: Range<u64>, keeps_size: bool) -> Result<()> {
        end_of(range.end, &[])?;
        if change != Change::Punch {
            self.allocate_range(range.clone())?;
        }
        // Appends of other programs come before the growth, or at the new end.
        let before = match keeps_size {
            true => self.size_bytes()?,
            false => self.grow(range.end)?,
        };
        if change != Change::Allocate {
            self.zero(range.start..range.end.min(before))?;
        }
        if change != Change::Allocate || (!keeps_size && range.end > before) {
            // The file may have any length by now.
            self.finish_write(0)?;
        }
        Ok(())
    }

    /// Extends the file to at least this length. Returns its earlier one.
    fn grow(&self, size_bytes: u64) -> Result<u64> {
        let before = self.with_size_locked(|tree| {
            let before = tree.size_bytes(self.inode)?;
            tree.grow(self.inode, size_bytes)?;
            Ok(before)
        })?;
        self.size_bytes.fetch_max(size_bytes, Ordering::Relaxed);
        Ok(before)
    }

    fn allocate_range(&self, range: Range<u64>) -> Result<()> {
        let tree = self.node.client().store();
        let mut start = range.start;
        while start < range.end {
            let end = range.end.min(start.saturating_add(ALLOCATE_BYTES));
            if !tree.allocate(self.inode, start..end)? {
                let context = "the source cannot allocate blocks";
                let number = io::Error::from_raw_os_error(libc::EOPNOTSUPP);
                return Err(Error::with_source(ErrorKind::Unsupported, context, number));
            }
            start = end;
        }
        Ok(())
    }

    /// Writes zeroes to a range, where there is other data. Pages that are in no memory and that
    /// the source does not have are zeroes.
    fn zero(&self, range: Range<u64>) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        self.require_second_name()?;
        let size = PAGE_BYTES as u64;
        let mut throttle = self.node.client().throttle();
        let mut zero = |index: u64| {
            let part = range.start.max(index * size)..range.end.min((index + 1) * size);
            let len = usize::try_from(part.end - part.start).expect("at most a page");
            self.store(part.start, &ZEROES[..len], || throttle.wait())
        };
        // No frame holds pages that only their writers have.
        self.node.client().publish_everywhere(self.inode)?;
        // Memory first: a page that leaves it after this look is in the source at the next one.
        let resident = self.resident(range.start / size..range.end.div_ceil(size));
        for index in &resident {
            if !self.is_zero(*index)? {
                zero(*index)?;
            }
        }
        let tree = self.node.client().store();
        let mut rest = range.clone();
        while let Some(data) = tree.next_data(self.inode, rest)? {
            for index in data.start / size..data.end.div_ceil(size) {
                if !resident.contains(&index) {
                    zero(index)?;
                }
            }
            rest = data.end.next_multiple_of(size)..range.end;
        }
        Ok(())
    }

    /// Returns the pages of a range that frames hold, and perhaps others.
    fn resident(&self, pages: Range<u64>) -> BTreeSet<u64> {
        let segment = self.node.client().segment();
        // As for truncation: looking up one page costs about as much.
        if (pages.end - pages.start).saturating_mul(256) < u64::from(segment.frames()) {
            return pages.collect();
        }
        // Earlier writes have named their pages.
        fence(Ordering::SeqCst);
        let pages_in_frames = (0..segment.frames()).filter_map(|frame| segment.page_in(frame));
        let ours = pages_in_frames.filter(|page| page.inode == self.inode);
        let indexes = ours.map(|page| page.index);
        indexes.filter(|index| pages.contains(index)).collect()
    }

    fn is_zero(&self, index: u64) -> Result<bool> {
        let mut page = ZEROES;
        let inode = self.inode;
        self.node
            .client()
            .read(PageId { inode, index }, &mut page)?;
        Ok(page == ZEROES)
    }
}
