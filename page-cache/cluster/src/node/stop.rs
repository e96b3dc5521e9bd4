//! The end of a node's threads.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Signals threads to end, and lets them sleep until then.
#[derive(Debug, Default)]
pub(super) struct Stop {
    set: AtomicBool,
    lock: Mutex<()>,
    changed: Condvar,
}

impl Stop {
    pub(super) fn set(&self) {
        let _lock = self.lock();
        self.set.store(true, Ordering::Release);
        self.changed.notify_all();
    }

    pub(super) fn is_set(&self) -> bool {
        self.set.load(Ordering::Acquire)
    }

    /// Sleeps. Returns true when it is time to end.
    pub(super) fn sleep(&self, time: Duration) -> bool {
        let lock = self.lock();
        if self.is_set() {
            return true;
        }
        // A thread that wakes too soon does its work sooner.
        drop(self.changed.wait_timeout(lock, time));
        self.is_set()
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
