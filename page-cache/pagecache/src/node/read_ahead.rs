//! Read-ahead: a miss at the end of the last read-ahead doubles the next one.

use super::{Effect, Node, PageId};
use crate::message::Access;

/// Read pattern of an open file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stream {
    /// Size of the file at its opening, pages: the limit of the read-ahead.
    pub(super) pages: u64,
    /// Page at which a sequential reader would miss next.
    next: u64,
    /// Length of the last read-ahead, pages.
    window: u64,
}

impl Node {
    /// Notes that a program has opened a file of `pages` pages. A second open updates the size.
    pub fn open(&mut self, inode: u64, pages: u64) {
        let stream = Stream {
            pages,
            next: 0,
            window: 0,
        };
        self.files.entry(inode).or_insert(stream).pages = pages;
    }

    /// Looks up the pages that a sequential reader will need after `page`, which it missed.
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
