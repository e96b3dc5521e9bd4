//! Options of an open volume.

use std::time::Duration;

/// Use of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It is read and written. This process becomes its writer, and fences an earlier one.
    Serve,
    /// It is read, and going to be served. It is checked as for [`Access::Serve`], and has its
    /// later size. A writer elsewhere stays the writer until
    /// [`ObjectVolume::claim`](crate::ObjectVolume::claim), which also creates a new volume.
    Prepare,
    /// It is read, and nothing in the store changes. A writer elsewhere stays the writer.
    Look,
}

/// Options of an open volume.
#[derive(Clone, Debug)]
pub struct Options {
    /// Size of the volume, bytes. Creates the volume, or extends it. `None` for the size that it
    /// has.
    pub size_bytes: Option<u64>,
    /// Use of the volume.
    pub access: Access,
    /// Name of a snapshot to open in place of the volume. It is read-only.
    pub snapshot: Option<String>,
    /// Time limits.
    pub times: Times,
}

impl Options {
    /// Returns options for a use of a volume that exists.
    #[must_use]
    pub fn new(access: Access) -> Self {
        Self {
            size_bytes: None,
            access,
            snapshot: None,
            times: Times::default(),
        }
    }
}

/// Time limits of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// Time without an answer until requests fail: 60 s.
    pub patience: Duration,
    /// Pause before the first repetition of a failed operation: 100 ms. It doubles with each.
    pub first_pause: Duration,
    /// Longest pause before a repetition: 5 s.
    pub longest_pause: Duration,
}

impl Default for Times {
    fn default() -> Self {
        Self {
            patience: Duration::from_secs(60),
            first_pause: Duration::from_millis(100),
            longest_pause: Duration::from_secs(5),
        }
    }
}
