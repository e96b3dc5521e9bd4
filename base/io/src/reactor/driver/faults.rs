//! Faults of a device, for monitoring: their number, the last one, and whether its file was
//! removed.

use std::cell::{Cell, RefCell};
use std::os::fd::RawFd;
use std::path::Path;

use forebay_block::{Error, ErrorKind};

/// Failures of operations on one file or device since it was opened. Refusals of invalid requests
/// do not count.
#[derive(Debug, Default)]
pub struct Faults {
    /// Number of operations that failed.
    count: Cell<u64>,
    /// Last failure.
    last: RefCell<Option<Error>>,
    /// Message about the removal of the file, once it was noticed.
    removed: RefCell<Option<Error>>,
}

impl Faults {
    /// Returns the number of operations that failed.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count.get()
    }

    /// Returns the last failure.
    #[must_use]
    pub fn last(&self) -> Option<Error> {
        self.last.borrow().clone()
    }

    /// Returns a message if the file was noticed to be removed. Its operations still succeed, and
    /// its data is gone when it is closed.
    #[must_use]
    pub fn removed(&self) -> Option<Error> {
        self.removed.borrow().clone()
    }

    /// Counts a failure.
    pub fn note(&self, error: &Error) {
        self.count.set(self.count.get() + 1);
        *self.last.borrow_mut() = Some(error.clone());
    }

    /// Counts the removal of the file, once. The open file `fd` still has its data.
    pub(crate) fn note_removed(&self, path: &Path, fd: RawFd) {
        if self.removed.borrow().is_some() {
            return;
        }
        let error = Error::new(
            ErrorKind::Lost,
            format!(
                "{} was REMOVED while it is in use: all its DATA IS LOST when this process ends\n\
                 help: copy it while the process runs: cp --sparse=always /proc/{}/fd/{fd} NEW",
                path.display(),
                std::process::id()
            ),
        );
        self.note(&error);
        *self.removed.borrow_mut() = Some(error);
    }
}
