//! State of the scrubber, which [`scrub`](crate::repair::scrub) drives.

use std::cell::{Cell, RefCell};

/// Progress of a scrub, or result of the last one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScrubProgress {
    /// Whether it is running.
    pub running: bool,
    /// Whether it was stopped before its end.
    pub stopped: bool,
    /// Cached bytes that were read.
    pub read_bytes: u64,
    /// Blocks that were looked at, or are not there any more.
    pub blocks_done: u64,
    /// Blocks that it began with.
    pub blocks: u64,
    /// Number of clean pieces of 4 KiB that were corrupt and were replaced from the backing device.
    pub refetched: u64,
    /// Blocks with dirty data that is corrupt: the daemon's log names the ranges.
    pub corrupt_blocks: u64,
    /// Reads that failed.
    pub errors: u64,
    /// The first range that was found corrupt or unreadable, in words.
    pub first: Option<String>,
}

/// State of the scrubber.
#[derive(Debug, Default)]
pub(crate) struct Scrubber {
    progress: RefCell<Option<ScrubProgress>>,
    stop: Cell<bool>,
}

impl Scrubber {
    /// Returns the progress of the scrub, or of the last one; none if there was none.
    pub(crate) fn progress(&self) -> Option<ScrubProgress> {
        self.progress.borrow().clone()
    }

    /// Begins a scrub of this number of blocks.
    pub(crate) fn begin(&self, blocks: u64) {
        self.stop.set(false);
        *self.progress.borrow_mut() = Some(ScrubProgress {
            running: true,
            blocks,
            ..ScrubProgress::default()
        });
    }

    /// Stops a scrub.
    pub(crate) fn stop(&self) {
        self.stop.set(true);
    }

    /// Returns whether a scrub is to end.
    pub(crate) const fn is_stopping(&self) -> bool {
        self.stop.get()
    }

    /// Notes progress.
    pub(crate) fn note(&self, change: impl FnOnce(&mut ScrubProgress)) {
        if let Some(scrub) = &mut *self.progress.borrow_mut() {
            change(scrub);
        }
    }
}
