//! Detection of a state directory that is removed or replaced while in use.

use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use super::StateDirectory;

/// Finding of the last comparison of a directory with its path.
#[derive(Debug, Default)]
pub(super) struct Removal {
    is_found: AtomicBool,
    /// Whether a comparison is in progress. It may wait for a file system.
    is_comparing: AtomicBool,
}

impl Removal {
    /// Compares the lock file in use with the file at its path. Does nothing while another
    /// comparison waits for the file system.
    pub(super) fn compare(&self, lock: &File, path: &Path) {
        if self.is_comparing.swap(true, Ordering::Acquire) {
            return;
        }
        let number = |found: Metadata| (found.dev(), found.ino());
        let held = lock.metadata().ok().map(number);
        let there = std::fs::metadata(path).ok().map(number);
        let is_present = held.is_some() && held == there;
        self.is_found.store(!is_present, Ordering::Relaxed);
        self.is_comparing.store(false, Ordering::Release);
    }

    /// Describes the problem that the last comparison found; `None` if there was none.
    pub(super) fn trouble(&self, directory: &Path) -> Option<String> {
        self.is_found.load(Ordering::Relaxed).then(|| {
            format!(
                "the state directory {} WAS REMOVED OR REPLACED while the daemon uses it: its \
                 records of the volumes ARE LOST\n    \
                 help: put it back. If it was moved, stop the daemon, and set `state` in [server] \
                 to its new path. If it is gone, stop the daemon, and start it once with --adopt \
                 VOLUME for each volume",
                directory.display()
            )
        })
    }
}

impl StateDirectory {
    /// Compares the directory in use with the one at its path. May wait for its file system, so no
    /// reactor calls it.
    pub fn compare_with_path(&self) {
        self.removal.compare(&self.lock, &self.path.join("lock"));
    }

    /// Describes the problem if the directory was removed or replaced, as the last
    /// [`StateDirectory::compare_with_path`] found.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        self.removal.trouble(&self.path)
    }
}
