//! Operations of a store with repetitions, time limits and counters.

use std::cell::Cell;
use std::future::Future;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use forebay_block::{Error, ErrorKind, Result};
use forebay_io::rt;

use crate::options::Times;
use crate::store::{Creation, Listed, Progress, Store, transfer_time};
use crate::usage::Usage;

/// Length of one read of a long object, bytes.
const READ_BYTES: u64 = 16 << 20;
/// Time without success after which repetitions are logged.
const LOG_AFTER: Duration = Duration::from_secs(2);

/// A store, shared or borrowed.
#[derive(Clone)]
enum Handle<'a> {
    Shared(Rc<dyn Store>),
    Borrowed(&'a dyn Store),
}

/// A store with repetitions.
#[derive(Clone)]
pub(crate) struct Link<'a> {
    handle: Handle<'a>,
    pub(crate) times: Times,
    counts: Cell<Usage>,
    /// Time of the last log message on a repetition.
    logged: Cell<Option<Duration>>,
}

impl<'a> Link<'a> {
    pub(crate) fn new(store: Rc<dyn Store>, times: Times) -> Self {
        Self::of(Handle::Shared(store), times)
    }

    /// Returns a link with the usual time limits, for a task that ends before the store does.
    pub(crate) fn borrowed(store: &'a dyn Store) -> Self {
        Self::of(Handle::Borrowed(store), Times::default())
    }

    fn of(handle: Handle<'a>, times: Times) -> Self {
        Self {
            handle,
            times,
            counts: Cell::default(),
            logged: Cell::default(),
        }
    }

    fn store(&self) -> &dyn Store {
        match &self.handle {
            Handle::Shared(store) => &**store,
            Handle::Borrowed(store) => *store,
        }
    }

    /// Returns the name of the folder.
    pub(crate) fn name(&self) -> String {
        self.store().name()
    }

    /// Returns the counters of operations and bytes.
    pub(crate) fn counts(&self) -> Usage {
        self.counts.get()
    }

    fn count(&self, change: impl FnOnce(&mut Usage)) {
        let mut counts = self.counts.get();
        change(&mut counts);
        self.counts.set(counts);
    }

    /// Creates an object, in one attempt. The attempt is given up after four times the patience and
    /// the time that a slow line needs for the content.
    pub(crate) async fn create_once(&self, name: &str, content: &Bytes) -> Result<Creation> {
        self.count(|it| {
            it.creations += 1;
            it.uploaded_bytes += content.len() as u64;
        });
        let attempt = self.store().create(name, content.clone());
        let limit = 4 * self.times.patience + transfer_time(content.len() as u64);
        self.limited(limit, attempt).await
    }

    /// Creates an object. Repeats failed attempts.
    pub(crate) async fn create(&self, name: &str, content: &Bytes) -> Result<Creation> {
        self.repeat(|| self.create_once(name, content)).await
    }

    /// Reads bytes of an object. Repeats failed attempts.
    pub(crate) async fn read(&self, name: &str, bytes: Range<u64>) -> Result<Bytes> {
        self.repeat(async || {
            self.count(|it| it.reads += 1);
            let attempt = self.store().read(name, bytes.clone());
            let limit = self.times.patience + transfer_time(bytes.end - bytes.start);
            let content = self.limited(limit, attempt).await?;
            self.count(|it| it.downloaded_bytes += content.len() as u64);
            Ok(content)
        })
        .await
    }

    /// Reads a whole object. Repeats failed attempts.
    pub(crate) async fn read_whole(&self, name: &str) -> Result<Bytes> {
        let first = self.read(name, 0..READ_BYTES).await?;
        if (first.len() as u64) < READ_BYTES {
            return Ok(first);
        }
        let mut content = Vec::from(first);
        loop {
            let at = content.len() as u64;
            let next = self.read(name, at..at + READ_BYTES).await?;
            content.extend_from_slice(&next);
            if (next.len() as u64) < READ_BYTES {
                return Ok(content.into());
            }
        }
    }

    /// Lists objects. Repeats failed attempts. An attempt is given up if it makes no progress for
    /// the patience.
    pub(crate) async fn list(&self, prefix: &str) -> Result<Vec<Listed>> {
        let patience = self.times.patience;
        self.repeat(async || {
            self.count(|it| it.lists += 1);
            let progress = Progress::default();
            let mut attempt = self.store().list_with(prefix, progress.clone());
            loop {
                let before = progress.steps();
                let answer = rt::at_most(patience, &mut attempt).await;
                if answer.is_some() || progress.steps() == before {
                    return self.answered(answer, patience);
                }
            }
        })
        .await
    }

    /// Deletes an object. Repeats failed attempts.
    pub(crate) async fn delete(&self, name: &str) -> Result<()> {
        self.repeat(|| {
            self.count(|it| it.deletions += 1);
            self.limited(self.times.patience, self.store().delete(name))
        })
        .await
    }

    async fn limited<T>(
        &self,
        limit: Duration,
        attempt: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        self.answered(rt::at_most(limit, attempt).await, limit)
    }

    /// Returns the outcome of an attempt with this limit.
    fn answered<T>(&self, answer: Option<Result<T>>, limit: Duration) -> Result<T> {
        let answer = answer.unwrap_or_else(|| {
            let what = format!("the store did not answer within {} s", limit.as_secs());
            Err(Error::new(ErrorKind::TimedOut, what))
        });
        if answer
            .as_ref()
            .is_err_and(|it| it.kind() != ErrorKind::NotFound)
        {
            self.count(|it| it.failures += 1);
        }
        answer
    }

    /// Repeats an operation until it has an answer, for at most the patience.
    async fn repeat<T>(&self, operation: impl AsyncFn() -> Result<T>) -> Result<T> {
        let begin = rt::now();
        let mut pause = Pause::new(self.times);
        loop {
            let error = match operation().await {
                Ok(value) => return Ok(value),
                Err(error) => error,
            };
            if is_final(error.kind()) {
                return Err(error);
            }
            if rt::now() - begin >= self.times.patience {
                return Err(self.silent(error));
            }
            if rt::now() - begin >= LOG_AFTER {
                self.log_repetition(&error);
            }
            pause.wait().await;
        }
    }

    /// Logs that an operation is repeated, unless that was logged during the last patience.
    fn log_repetition(&self, cause: &Error) {
        let (now, patience) = (rt::now(), self.times.patience);
        if self.logged.get().is_some_and(|last| now - last < patience) {
            return;
        }
        self.logged.set(Some(now));
        tracing::warn!(
            "object store {}: an operation fails, and is repeated for {} s: {}",
            self.name(),
            patience.as_secs(),
            cause.report()
        );
    }

    /// Error of a store that has not done an operation for the patience.
    pub(crate) fn silent(&self, cause: Error) -> Error {
        let (name, seconds) = (self.name(), self.times.patience.as_secs());
        let what = match cause.kind() {
            ErrorKind::TimedOut | ErrorKind::Unreachable => format!(
                "object store {name}: no answer for {seconds} s\n\
                 help: see whether the store can be reached; requests succeed when it answers"
            ),
            _ => format!(
                "object store {name}: all attempts of {seconds} s have failed\n\
                 help: remove the cause, which follows; requests succeed then"
            ),
        };
        Error::with_source(ErrorKind::Unreachable, what, cause)
    }
}

/// Returns whether a repetition has the same outcome.
const fn is_final(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::NotFound
            | ErrorKind::Permission
            | ErrorKind::ReadOnly
            | ErrorKind::InvalidInput
            | ErrorKind::Unsupported
            | ErrorKind::Corrupt
    )
}

/// Pauses between repetitions. Each is twice as long as the one before.
pub(crate) struct Pause {
    next: Duration,
    longest: Duration,
}

impl Pause {
    pub(crate) const fn new(times: Times) -> Self {
        Self {
            next: times.first_pause,
            longest: times.longest_pause,
        }
    }

    pub(crate) async fn wait(&mut self) {
        rt::sleep(self.next).await;
        self.next = (self.next * 2).min(self.longest);
    }
}
