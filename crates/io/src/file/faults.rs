//! What has gone wrong with a file: a count and the last of it, for whoever watches.

use std::cell::{Cell, RefCell};

use forebay_block::Error;

/// Failures of operations on one file since it was opened. Requests that were refused because they
/// make no sense are none.
#[derive(Debug, Default)]
pub struct Faults {
    count: Cell<u64>,
    last: RefCell<Option<Error>>,
}

impl Faults {
    /// Number of operations that failed.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count.get()
    }

    /// The last failure.
    #[must_use]
    pub fn last(&self) -> Option<Error> {
        self.last.borrow().clone()
    }

    pub(super) fn note(&self, error: &Error) {
        self.count.set(self.count.get() + 1);
        *self.last.borrow_mut() = Some(error.clone());
    }
}
