//! The end of a simulated process: state that its devices, which have no threads, share with
//! memories, which have.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Point at which a run stops. I/Os are writes, write-zeroes, discards and flushes on any device,
/// and stores, flushes and fences on any memory. They are counted in the order of their submission,
/// from one since the stop was set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// At the submission of the n-th I/O, which never arrives at its device.
    BeforeIo(u64),
    /// At the submission of the n-th I/O, after it has had all of its effect, unacknowledged.
    AfterIo(u64),
    /// Before the n-th time that any task runs, counted from one since the run began.
    BeforePoll(u64),
}

/// Counts I/Os, and stops the world at one of them. All orderings are relaxed: a run has one
/// thread.
#[derive(Debug, Default)]
pub(super) struct Cut {
    stop: Mutex<Option<Stop>>,
    stopped: AtomicBool,
    io_count: AtomicU64,
}

impl Cut {
    /// The same, without a stop.
    pub(super) fn fork(&self) -> Self {
        Self {
            stop: Mutex::default(),
            stopped: AtomicBool::new(self.is_stopped()),
            io_count: AtomicU64::new(self.io_count()),
        }
    }

    fn place(&self) -> std::sync::MutexGuard<'_, Option<Stop>> {
        self.stop.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets where the run is cut off, and counts I/Os from zero.
    pub(super) fn set(&self, stop: Option<Stop>) {
        *self.place() = stop;
        self.io_count.store(0, Ordering::Relaxed);
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    pub(super) fn restart(&self) {
        self.stopped.store(false, Ordering::Relaxed);
        *self.place() = None;
    }

    pub(super) fn io_count(&self) -> u64 {
        self.io_count.load(Ordering::Relaxed)
    }

    /// Counts an I/O. Whether the world stops before it.
    pub(super) fn stops_before_io(&self) -> bool {
        let nth = self.io_count.fetch_add(1, Ordering::Relaxed) + 1;
        self.stop_if(Stop::BeforeIo(nth))
    }

    pub(super) fn stops_after_io(&self) -> bool {
        self.stop_if(Stop::AfterIo(self.io_count()))
    }

    pub(super) fn stop_if(&self, here: Stop) -> bool {
        let stop = *self.place() == Some(here);
        if stop {
            self.stop();
        }
        stop
    }
}
