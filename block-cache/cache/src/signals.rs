//! Wait lists by which the reclaimer, the cleaner and writes that lack room wake each other.

use std::cell::Cell;

use forebay_io::sync::WaitList;

/// Signals between the parts that free room and those that need it.
#[derive(Debug, Default)]
pub(crate) struct Signals {
    /// Wakes the reclaimer.
    reclaim: WaitList,
    /// Woken when a slot may be free.
    freed: WaitList,
    /// Whether the last round of the reclaimer found nothing that could be evicted.
    stuck: Cell<bool>,
    /// Wakes the cleaners of all volumes.
    clean: WaitList,
    /// Woken when write-backs of blocks end.
    cleaned: WaitList,
}

impl Signals {
    /// Wakes all, so that they see a failure or the end of the cache.
    pub(crate) fn wake_all(&self) {
        self.reclaim.wake_all();
        self.freed.wake_all();
        self.clean.wake_all();
    }

    /// Wakes the reclaimer.
    pub(crate) fn kick_reclaimer(&self) {
        self.reclaim.wake_all();
    }

    /// Notes that something changed that may let blocks be evicted.
    pub(crate) fn hint(&self) {
        if self.stuck.replace(false) {
            self.reclaim.wake_all();
        }
    }

    /// Returns whether the last round of the reclaimer found nothing that could be evicted.
    pub(crate) const fn is_stuck(&self) -> bool {
        self.stuck.get()
    }

    /// Notes that a round of the reclaimer found nothing that could be evicted.
    pub(crate) fn set_stuck(&self) {
        self.stuck.set(true);
    }

    /// Waits until the reclaimer is woken and `is_due`.
    pub(crate) async fn until_reclaim(&self, is_due: impl Fn() -> bool) {
        self.reclaim.until(is_due).await;
    }

    /// Notes that a slot is free.
    pub(crate) fn made_room(&self) {
        self.freed.wake_all();
    }

    /// Waits until a slot may be free.
    pub(crate) async fn room(&self) {
        self.freed.wait().await;
    }

    /// Has the cleaners of all volumes look at once.
    pub(crate) fn kick_cleaners(&self) {
        self.clean.wake_all();
    }

    /// Waits until the cleaners are kicked.
    pub(crate) async fn cleaners_kicked(&self) {
        self.clean.wait().await;
    }

    /// Notes that write-backs ended.
    pub(crate) fn end_write_backs(&self) {
        self.cleaned.wake_all();
    }

    /// Waits for ends of write-backs until `is_over`.
    pub(crate) async fn until_cleaned(&self, is_over: impl Fn() -> bool) {
        self.cleaned.until(is_over).await;
    }
}
