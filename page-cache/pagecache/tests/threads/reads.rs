//! Reads of a shelf that occupy no thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use forebay_pagecache::message::PageId;
use forebay_pagecache::store::{Interrupt, Reads, Store as _};

use crate::cluster::{PAGE, Shelf};

/// Maximum number of pages of a read that occupies no thread.
pub(crate) const PAGES_MAX: usize = 4;
/// Maximum number of such reads.
pub(crate) const READS_MAX: usize = 8;
/// Longest sleep between two looks for work.
const LONG: Duration = Duration::from_secs(60);

/// Reads that occupy no thread.
pub(crate) struct ShelfReads {
    shelf: Shelf,
    begun: [Option<(PageId, usize)>; READS_MAX],
    is_interrupted: Arc<AtomicBool>,
}

impl ShelfReads {
    /// Creates reads of a shelf, and the function that interrupts their wait.
    pub(crate) fn create(shelf: &Shelf) -> (Box<dyn Reads>, Interrupt) {
        let reads = Self {
            shelf: shelf.clone(),
            begun: [None; READS_MAX],
            is_interrupted: Arc::default(),
        };
        let (stalled, flag) = (
            Arc::clone(&shelf.stalled),
            Arc::clone(&reads.is_interrupted),
        );
        let interrupt = move || {
            let _stalled = stalled.0.lock().expect("no thread panicked");
            flag.store(true, Ordering::Relaxed);
            stalled.1.notify_all();
        };
        (Box::new(reads), Box::new(interrupt))
    }

    /// Takes a read of a file that is not stalled.
    fn next(&mut self, stalled: Option<u64>) -> Option<(usize, PageId, usize)> {
        let ready = |begun: &Option<(PageId, usize)>| {
            begun.is_some_and(|(first, _)| Some(first.inode) != stalled)
        };
        let number = self.begun.iter().position(ready)?;
        let (first, pages) = self.begun[number].take()?;
        Some((number, first, pages))
    }
}

impl Reads for ShelfReads {
    fn capacity(&self) -> usize {
        READS_MAX
    }

    fn pages_max(&self) -> usize {
        PAGES_MAX
    }

    fn begin(&mut self, number: usize, first: PageId, pages: usize) -> bool {
        assert!(pages <= PAGES_MAX && self.begun[number].is_none());
        self.begun[number] = Some((first, pages));
        self.shelf.submitted.fetch_add(1, Ordering::Relaxed);
        true
    }

    fn turn(&mut self, limit: Option<Duration>, ended: &mut dyn FnMut(usize, Option<&[u8]>)) {
        let (begin, shelf) = (Instant::now(), self.shelf.clone());
        let (stalled, changed) = &*shelf.stalled;
        let mut file = stalled.lock().expect("no thread panicked");
        let (number, first, pages) = loop {
            if let Some(next) = self.next(*file) {
                break next;
            }
            let is_late = limit.is_some_and(|limit| begin.elapsed() >= limit);
            if self.is_interrupted.swap(false, Ordering::Relaxed) || is_late {
                return;
            }
            let waited = changed.wait_timeout(file, limit.unwrap_or(LONG));
            file = waited.expect("no thread panicked").0;
        };
        drop(file);
        let mut bytes = vec![0; pages * PAGE];
        let read = shelf.read_pages(first, &mut bytes);
        ended(number, read.ok().map(|()| &*bytes));
    }
}
