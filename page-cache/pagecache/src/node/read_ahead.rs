//! Reading ahead: a miss where the last look ahead ended doubles the next one.

use super::{Effect, Node, PageId};
use crate::message::Access;

/// How a file that is open is read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stream {
    /// The file's size when it was opened: nothing is read ahead behind it.
    pub(super) pages: u64,
    /// The page at which a sequential reader would miss next.
    next: u64,
    /// How many were read ahead last.
    window: u64,
}

impl Node {
    /// A program opened a file of so many pages. Opened again, the size is as it is now.
    pub fn open(&mut self, inode: u64, pages: u64) {
        let stream = Stream {
            pages,
            next: 0,
            window: 0,
        };
        self.files.entry(inode).or_insert(stream).pages = pages;
    }

    /// The size of an open file, as it was when it was opened, pages.
    #[must_use]
    pub fn pages_when_opened(&self, inode: u64) -> Option<u64> {
        self.files.get(&inode).map(|stream| stream.pages)
    }

    /// Asks for what a sequential reader will want after `page`, which it missed.
    pub(super) fn read_ahead(&mut self, page: PageId, out: &mut Vec<Effect>) {
        let Some(stream) = self.files.get_mut(&page.inode) else {
            return;
        };
        let sequential = page.index == stream.next;
        stream.window = if sequential {
            (stream.window * 2).max(1)
        } else {
            0
        };
        stream.window = stream.window.min(self.config.read_ahead_pages);
        let first = page.index.saturating_add(1);
        let end = first.saturating_add(stream.window).min(stream.pages);
        stream.next = end.max(first);
        for index in first..end {
            let ahead = PageId { index, ..page };
            let known = self.mapped.find(ahead).is_some() || self.unpublished.contains_key(&ahead);
            if !known && !self.pending.contains_key(&ahead) {
                self.counts.read_ahead += 1;
                self.look_up(ahead, Access::Read, out);
            }
        }
    }
}
