//! The operations that a volume needs of an object store.
//!
//! Objects are immutable: a store creates, reads, lists and deletes them. A store is strongly
//! consistent. After the answer to a creation, every read and every list shows the object.

use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use forebay_block::Result;

/// Answer of a store.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + 'a>>;

/// Outcome of a creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Creation {
    /// The object was created, and is durable.
    Created,
    /// An object of this name exists. It is unchanged. An earlier attempt of the same caller, of
    /// which it got no answer, may have created it.
    Exists,
}

/// Name and length of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Name, relative to the folder of the store.
    pub name: String,
    /// Length, bytes.
    pub bytes: u64,
}

/// Rate that the limits of requests allow for, bytes a second. 8 MiB take two minutes.
const MIN_RATE: u64 = 70_000;

/// Returns the time that `bytes` take at the minimum rate, in whole seconds.
pub(crate) const fn transfer_time(bytes: u64) -> Duration {
    Duration::from_secs(bytes / MIN_RATE)
}

/// Progress of a list, which may need many requests.
#[derive(Clone, Debug, Default)]
pub struct Progress(Arc<AtomicU64>);

impl Progress {
    /// Notes an answer.
    pub fn step(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of answers.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A folder of an object store. Names are relative to it, and consist of lower-case letters,
/// digits, `-`, `_`, `.` and `/`.
///
/// Futures belong to the reactor that asks. Dropping one does not undo the operation: a creation
/// may take effect later.
pub trait Store {
    /// Returns the folder for messages, such as `s3://bucket/volumes/db`, without secrets.
    fn name(&self) -> String;

    /// Creates an object if there is none of this name, atomically and durably.
    ///
    /// # Errors
    /// `Unsupported` if the store takes no object of this length. Other errors of the store. The
    /// object may exist all the same, now or later.
    fn create<'a>(&'a self, name: &'a str, content: Bytes) -> Answer<'a, Creation>;

    /// Reads bytes of an object. Returns fewer bytes at the end of the object.
    ///
    /// # Errors
    /// `NotFound` if there is no such object. Errors of the store.
    fn read<'a>(&'a self, name: &'a str, bytes: Range<u64>) -> Answer<'a, Bytes>;

    /// Returns all objects whose name starts with `prefix`, by name in ascending order. The prefix
    /// ends with `/`. Notes each answer in `progress`.
    ///
    /// # Errors
    /// Errors of the store.
    fn list_with<'a>(&'a self, prefix: &'a str, progress: Progress) -> Answer<'a, Vec<Listed>>;

    /// As [`Store::list_with`], without a look at the progress.
    ///
    /// # Errors
    /// Errors of the store.
    fn list<'a>(&'a self, prefix: &'a str) -> Answer<'a, Vec<Listed>> {
        self.list_with(prefix, Progress::default())
    }

    /// Deletes an object, durably: objects of the log are deleted after the snapshot that needed
    /// them. A missing object is no error.
    ///
    /// # Errors
    /// Errors of the store.
    fn delete<'a>(&'a self, name: &'a str) -> Answer<'a, ()>;
}
