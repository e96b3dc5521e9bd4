//! Read-ahead: a miss at the end of the last read-ahead doubles the next one.

use std::ops::Range;

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

    /// Looks up all pages of a read that covers several, and those that a sequential reader will
    /// need next. The read then waits for one page after the other, while all are being filled.
    pub fn look_up_range(&mut self, inode: u64, pages: Range<u64>, out: &mut Vec<Effect>) {
        let mut missed = None;
        for index in pages.clone() {
            if self.is_unknown(PageId { inode, index }) {
                missed.get_or_insert(index);
                self.look_up(PageId { inode, index }, Access::Read, out);
            }
        }
        if let Some(missed) = missed {
            self.read_ahead(inode, missed..pages.end, out);
        }
    }

    /// Looks up the pages that a sequential reader will need after `missed`, which it waits for.
    pub(super) fn read_ahead(&mut self, inode: u64, missed: Range<u64>, out: &mut Vec<Effect>) {
        let Some(stream) = self.files.get_mut(&inode) else {
            return;
        };
        stream.window = match missed.start == stream.next {
            true => (stream.window * 2).max(missed.end - missed.start),
            false => 0,
        };
        stream.window = stream.window.min(self.config.read_ahead_pages);
        let end = missed.end.saturating_add(stream.window).min(stream.pages);
        stream.next = end.max(missed.end);
        for index in missed.end..end {
            let ahead = PageId { inode, index };
            if self.is_unknown(ahead) {
                self.counts.read_ahead += 1;
                self.look_up(ahead, Access::Read, out);
            }
        }
    }

    /// Returns whether a page is neither at hand nor looked up.
    fn is_unknown(&self, page: PageId) -> bool {
        self.mapped.find(page).is_none()
            && !self.unpublished.contains_key(&page)
            && !self.pending.contains_key(&page)
    }
}
