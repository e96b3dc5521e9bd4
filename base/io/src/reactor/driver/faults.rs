//! Faults of a file, for monitoring: their number and the last one.

use std::cell::{Cell, RefCell};
use std::os::fd::RawFd;
use std::path::Path;

use forebay_block::{Error, ErrorKind};

/// Failures of operations on one file since it was opened. Requests that were refused because they
/// make no sense are none.
#[derive(Debug, Default)]
pub struct Faults {
    count: Cell<u64>,
    last: RefCell<Option<Error>>,
    removed: RefCell<Option<Error>>,
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

    /// Returns a message if the file was removed, as far as that was seen. No operation fails then,
    /// and all data is gone when the file is closed.
    #[must_use]
    pub fn removed(&self) -> Option<Error> {
        self.removed.borrow().clone()
    }

    pub(crate) fn note(&self, error: &Error) {
        self.count.set(self.count.get() + 1);
        *self.last.borrow_mut() = Some(error.clone());
    }

    pub(crate) fn note_removed(&self, path: &Path, fd: RawFd) {
        if self.removed.borrow().is_some() {
            return;
        }
        let error = Error::new(
            ErrorKind::Lost,
            format!(
                "{} was REMOVED while it is in use: all that it holds is gone when this process \
                 ends\n    \
                 help: copy it while the process runs: cp --sparse=always /proc/{}/fd/{fd} NEW",
                path.display(),
                std::process::id()
            ),
        );
        self.note(&error);
        *self.removed.borrow_mut() = Some(error);
    }
}
