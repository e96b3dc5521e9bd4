//! Whether the cache is in service: whether it is being closed and whether cleaners may begin.

use std::cell::Cell;

/// State of the service that all tasks look at.
#[derive(Debug)]
pub(crate) struct ServiceState {
    stopping: Cell<bool>,
    /// Whether cleaners wait for [`Cache::allow_write_back`](crate::Cache::allow_write_back).
    holds_write_back: Cell<bool>,
}

impl ServiceState {
    /// Returns the state of a cache that begins its service.
    pub(crate) const fn new(holds_write_back: bool) -> Self {
        Self {
            stopping: Cell::new(false),
            holds_write_back: Cell::new(holds_write_back),
        }
    }

    /// Returns whether the cache is being closed: tasks end.
    pub(crate) const fn is_stopping(&self) -> bool {
        self.stopping.get()
    }

    /// Begins to close the cache.
    pub(crate) fn stop(&self) {
        self.stopping.set(true);
    }

    /// Returns whether no backing device may be changed yet.
    pub(crate) const fn holds_write_back(&self) -> bool {
        self.holds_write_back.get()
    }

    /// Lets cleaners begin.
    pub(crate) fn allow_write_back(&self) {
        self.holds_write_back.set(false);
    }
}
