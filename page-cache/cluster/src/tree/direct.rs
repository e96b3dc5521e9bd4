//! Direct reads of pages by io_uring. A thread of the node has many of them in flight.
//!
//! They end in private memory, and not in frames. A read may still be in flight when its process
//! has ended, and the frame may hold another page by then.

use std::fs;
use std::ops::Deref;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use forebay_io::direct::{self, DirectReads};
use forebay_pagecache::message::PageId;
use forebay_pagecache::store::{Interrupt, Reads};

use super::Tree;
use crate::PAGE_BYTES;

/// Maximum number of reads in flight.
const READS_MAX: usize = 128;
/// Maximum number of pages of a read. Threads read more pages at once.
const PAGES_MAX: usize = 8;
/// Number of reads by threads after which a file is opened for direct reads.
const OPEN_AFTER: u32 = 2;
/// Unit of direct reads: only the end of a file is inside of one.
const SECTOR_BYTES: usize = 512;

/// An open file of the source.
#[derive(Debug)]
pub(super) struct SourceFile {
    file: fs::File,
    /// Number of reads by threads.
    reads: AtomicU32,
    /// The file, open for direct reads, if it can be.
    direct: OnceLock<Option<Arc<fs::File>>>,
}

impl SourceFile {
    pub(super) const fn new(file: fs::File) -> Self {
        Self {
            file,
            reads: AtomicU32::new(0),
            direct: OnceLock::new(),
        }
    }
}

impl Deref for SourceFile {
    type Target = fs::File;

    fn deref(&self) -> &fs::File {
        &self.file
    }
}

impl Tree {
    /// Creates direct reads, unless the system forbids io_uring.
    pub(super) fn direct_reads(&self) -> Option<(Box<dyn Reads + '_>, Interrupt)> {
        let bytes_max = PAGES_MAX * PAGE_BYTES;
        let reads = direct::Interrupt::new().and_then(|interrupt| {
            let reads = DirectReads::new(READS_MAX, bytes_max, &interrupt)?;
            Ok(reads.map(|reads| (reads, interrupt)))
        });
        // One thread of the node creates direct reads, once.
        let _ = self.has_ring.set(matches!(reads, Ok(Some(_))));
        match reads {
            Ok(Some((reads, interrupt))) => {
                let reads = TreeReads { tree: self, reads };
                Some((Box::new(reads), Box::new(move || interrupt.interrupt())))
            }
            Ok(None) => None,
            Err(error) => {
                tracing::warn!(
                    "page cache: threads read the source, which costs more: {}",
                    error.report()
                );
                None
            }
        }
    }

    /// Opens a file for direct reads, after threads have read it. Opens none before the node has
    /// created direct reads.
    pub(super) fn prepare_direct(&self, inode: u64) {
        let Ok(file) = self.file(inode) else {
            return;
        };
        let reads = file.reads.fetch_add(1, Ordering::Relaxed) + 1;
        let may_open = self.has_ring.get() == Some(&true) && self.submits.get() != Some(&false);
        if reads < OPEN_AFTER || !may_open {
            return;
        }
        file.direct.get_or_init(|| {
            let unit_bytes = u32::try_from(PAGE_BYTES).expect("a small constant");
            let file = direct::open_direct(&file, unit_bytes)?;
            let submits = || direct::is_submitted_at_once(&file, PAGE_BYTES);
            self.submits.get_or_init(submits).then(|| Arc::new(file))
        });
    }

    /// Returns whether io_uring is known to read its files directly. Then it is a local file
    /// system, and attributes of open files are in memory.
    pub(crate) fn submits(&self) -> bool {
        self.submits.get() == Some(&true)
    }

    /// Returns a file that is open for direct reads.
    pub(crate) fn opened_direct(&self, inode: u64) -> Option<Arc<fs::File>> {
        let state = self.lock();
        let opened = state.opened.get(&inode).map(|(file, _)| file);
        let file = opened.or_else(|| state.used.get(&inode))?;
        file.direct.get()?.clone()
    }
}

/// Direct reads of a tree.
struct TreeReads<'a> {
    tree: &'a Tree,
    reads: DirectReads,
}

impl Reads for TreeReads<'_> {
    fn capacity(&self) -> usize {
        self.reads.capacity()
    }

    fn pages_max(&self) -> usize {
        PAGES_MAX
    }

    fn begin(&mut self, number: usize, first: PageId, pages: usize) -> bool {
        let Some(file) = self.tree.opened_direct(first.inode) else {
            return false;
        };
        let start = first.index * PAGE_BYTES as u64;
        self.reads.begin(number, file, start, pages * PAGE_BYTES);
        true
    }

    fn turn(&mut self, limit: Option<Duration>, ended: &mut dyn FnMut(usize, Option<&[u8]>)) {
        self.reads.turn(limit, |number, read| {
            ended(
                number,
                read.ok().and_then(|(bytes, count)| whole(bytes, count)),
            );
        });
    }
}

/// Returns pages of which `count` bytes were read. Bytes beyond the end of the file are zeroes.
/// Returns `None` if the file may not end there.
fn whole(bytes: &mut [u8], count: usize) -> Option<&[u8]> {
    let rest = bytes.get_mut(count..)?;
    let is_end = count == 0 || !count.is_multiple_of(SECTOR_BYTES);
    if !rest.is_empty() && !is_end {
        return None;
    }
    rest.fill(0);
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_ends_inside_of_a_sector_or_where_nothing_is_read() {
        let read = |count| {
            let mut bytes = [7; 2 * PAGE_BYTES];
            whole(&mut bytes, count).map(|bytes| bytes.iter().filter(|byte| **byte == 7).count())
        };
        assert_eq!(read(2 * PAGE_BYTES), Some(2 * PAGE_BYTES));
        assert_eq!(read(0), Some(0));
        assert_eq!(read(1), Some(1));
        assert_eq!(read(PAGE_BYTES + 100), Some(PAGE_BYTES + 100));
        // A read may be short elsewhere.
        assert_eq!(read(512), None);
        assert_eq!(read(PAGE_BYTES), None);
        assert_eq!(read(3 * PAGE_BYTES), None, "more than was requested");
    }
}
