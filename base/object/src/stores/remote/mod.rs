//! S3, Google Cloud Storage and Azure Blob Storage as object stores.
//!
//! The crate `object_store` has the protocols, on tokio. A store has one thread with a runtime of
//! its own, which a queue gives the requests. Outcomes that arrive before the reactor's next turn
//! wake it once.
//!
//! An object is created by one PUT under the condition that there is none (`If-None-Match: *`). The
//! crate retries a request once: the volume above retries it for as long as necessary.
//!
//! Each request has a limit of time, since a connection may hang: 30 s, and the time that its data
//! need at 70 KB/s. A read counts the data that it has. So it ends soon if nothing arrives. A list
//! has its limit for each page.

mod build;
mod failure;

use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use forebay_block::{Context as _, Error, ErrorKind, Result};
use forebay_io::answer;
use futures_util::{Stream, TryStreamExt as _};
use object_store::path::Path;
use object_store::{
    GetOptions, GetRange, ObjectStore, ObjectStoreExt as _, PutMode, PutOptions, PutPayload,
};
use tokio::runtime::Builder;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::address::{Address, Bucket, Provider};
use super::check_name;
use super::credentials::Credentials;
use crate::store::{Answer, Creation, Listed, Progress, Store, transfer_time};
use failure::{Failure, has_answer};

/// Time limit for an answer, without the time that data take.
const ANSWER: Duration = Duration::from_secs(30);

/// Failure of a request.
enum Flaw {
    Store(object_store::Error),
    /// There was no answer for this time.
    Silence(Duration),
}

type Outcome<T> = Result<T, Flaw>;
type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A folder of a bucket or container.
pub(super) struct RemoteStore {
    /// The folder for messages.
    name: String,
    folder: String,
    /// Length of the longest object that one request can create, bytes.
    max_bytes: u64,
    failure: Arc<Failure>,
    store: Arc<dyn ObjectStore>,
    tasks: UnboundedSender<Task>,
}

impl RemoteStore {
    /// Prepares requests. Sends none.
    ///
    /// # Errors
    /// `InvalidInput` for incomplete settings or credentials of another provider; the system's
    /// error if no thread can be started.
    pub(super) fn open(
        address: &Address,
        bucket: &Bucket,
        credentials: Option<&Credentials>,
    ) -> Result<Self> {
        let name = address.to_string();
        let (store, secrets) = build::build(bucket, credentials)
            .map_err(|error| error.context(format!("object store {name}")))?;
        let (tasks, queue) = unbounded_channel();
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .context(|| format!("a runtime for {name}"))?;
        std::thread::Builder::new()
            .name("object-remote".to_owned())
            .spawn(move || {
                runtime.block_on(run(queue));
                // A look-up of a name may hang.
                runtime.shutdown_background();
            })
            .context(|| format!("a thread for {name}"))?;
        Ok(Self {
            failure: Arc::new(Failure::new(bucket, name.clone(), secrets)),
            name,
            folder: bucket.folder.clone(),
            max_bytes: max_bytes(bucket.provider),
            store,
            tasks,
        })
    }

    /// Carries out `request`, which has limits of time.
    fn ask<'a, T, F>(
        &'a self,
        action: &'static str,
        name: &str,
        request: impl FnOnce(Arc<dyn ObjectStore>, Path) -> F + Send + 'static,
    ) -> Answer<'a, T>
    where
        T: Send + 'static,
        F: Future<Output = Outcome<T>> + Send + 'static,
    {
        let name = name.to_owned();
        Box::pin(async move {
            check_name(&name)?;
            let path = Path::from(format!("{}/{name}", self.folder));
            let (answer, failure) = (answer::Answer::default(), Arc::clone(&self.failure));
            let (given, store) = (answer.clone(), Arc::clone(&self.store));
            let task = async move {
                let outcome = request(store, path).await;
                given.give(outcome.map_err(|flaw| match flaw {
                    Flaw::Store(error) => failure.describe(action, &name, &error),
                    Flaw::Silence(limit) => failure.silence(action, &name, limit),
                }));
            };
            let over = |_| {
                let what = format!("{}: its thread has ended", self.name);
                Error::new(ErrorKind::ShuttingDown, what)
            };
            self.tasks.send(Box::pin(task)).map_err(over)?;
            answer.get().await
        })
    }
}

/// Returns the length of the longest object that one request can create, bytes.
const fn max_bytes(provider: Provider) -> u64 {
    match provider {
        Provider::S3 => 5 << 30,
        Provider::Google => 5 << 40,
        Provider::Azure => 5000 << 20,
    }
}

/// Waits for a request for at most `limit`.
async fn within<T>(
    limit: Duration,
    request: impl Future<Output = object_store::Result<T>>,
) -> Outcome<T> {
    match tokio::time::timeout(limit, request).await {
        Ok(outcome) => outcome.map_err(Flaw::Store),
        Err(_) => Err(Flaw::Silence(limit)),
    }
}

/// Receives the data of a read. Gives up when data arrive `patience` later than at the minimum
/// rate.
async fn receive(
    mut parts: impl Stream<Item = object_store::Result<Bytes>> + Unpin,
    patience: Duration,
) -> Outcome<Bytes> {
    let begin = Instant::now();
    let mut content = Vec::new();
    loop {
        let limit = patience + transfer_time(content.len() as u64);
        let left = limit.saturating_sub(begin.elapsed());
        match within(left, parts.try_next()).await {
            Ok(Some(part)) => content.extend_from_slice(&part),
            Ok(None) => return Ok(content.into()),
            Err(Flaw::Silence(_)) => return Err(Flaw::Silence(limit)),
            Err(error) => return Err(error),
        }
    }
}

/// Starts tasks until the store is dropped. Tasks that have not ended then are given up.
async fn run(mut queue: UnboundedReceiver<Task>) {
    while let Some(task) = queue.recv().await {
        tokio::spawn(task);
    }
}

impl std::fmt::Debug for RemoteStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("RemoteStore").field(&self.name).finish()
    }
}

impl Store for RemoteStore {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn create<'a>(&'a self, name: &'a str, content: Bytes) -> Answer<'a, Creation> {
        let len = content.len() as u64;
        if len > self.max_bytes {
            let error = self.failure.too_long(name, len, self.max_bytes);
            return Box::pin(std::future::ready(Err(error)));
        }
        self.ask("creating", name, move |store, path| async move {
            let options = PutOptions::from(PutMode::Create);
            let put = store.put_opts(&path, PutPayload::from_bytes(content), options);
            let refused = match within(ANSWER + transfer_time(len), put).await {
                Ok(_) => return Ok(Creation::Created),
                Err(Flaw::Store(error @ object_store::Error::AlreadyExists { .. })) => error,
                Err(error) => return Err(error),
            };
            // Another conflict has the same error, such as another creation or a deletion in
            // progress. That is a failed request, which is repeated.
            match within(ANSWER, store.head(&path)).await {
                Ok(_) => Ok(Creation::Exists),
                Err(Flaw::Store(object_store::Error::NotFound { .. })) => Err(Flaw::Store(refused)),
                Err(error) => Err(error),
            }
        })
    }

    fn read<'a>(&'a self, name: &'a str, bytes: Range<u64>) -> Answer<'a, Bytes> {
        if bytes.is_empty() {
            return Box::pin(async { Ok(Bytes::new()) });
        }
        self.ask("reading", name, |store, path| async move {
            let start = bytes.start;
            let options = GetOptions::new().with_range(Some(GetRange::Bounded(bytes)));
            let refused = match within(ANSWER, store.get_opts(&path, options)).await {
                Ok(found) => return receive(found.into_stream(), ANSWER).await,
                Err(Flaw::Store(error)) if has_answer(&error) => error,
                Err(error) => return Err(error),
            };
            // `object_store` does not classify the answer to a range beyond the end of the object.
            match within(ANSWER, store.head(&path)).await?.size <= start {
                true => Ok(Bytes::new()),
                false => Err(Flaw::Store(refused)),
            }
        })
    }

    fn list_with<'a>(&'a self, prefix: &'a str, progress: Progress) -> Answer<'a, Vec<Listed>> {
        let begin = self.folder.len() + 1;
        self.ask("listing", prefix, move |store, path| async move {
            let mut objects = store.list(Some(&path));
            let mut named = Vec::new();
            // Objects of a page that has arrived come at once.
            while let Some(object) = within(ANSWER, objects.try_next()).await? {
                progress.step();
                if let Some(name) = object.location.as_ref().get(begin..) {
                    named.push(Listed {
                        name: name.to_owned(),
                        bytes: object.size,
                    });
                }
            }
            named.sort_unstable_by(|one, other| one.name.cmp(&other.name));
            Ok(named)
        })
    }

    fn delete<'a>(&'a self, name: &'a str) -> Answer<'a, ()> {
        self.ask("deleting", name, |store, path| async move {
            match within(ANSWER, store.delete(&path)).await {
                Err(Flaw::Store(object_store::Error::NotFound { .. })) => Ok(()),
                other => other,
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use futures_util::stream::{StreamExt as _, iter, pending};

    use super::*;

    const PATIENCE: Duration = Duration::from_millis(200);

    /// Receives `parts` of 70 KB, one every 100 ms, and then `rest`.
    fn received(
        parts: u32,
        rest: impl Stream<Item = object_store::Result<Bytes>> + Send + 'static,
    ) -> (Outcome<Bytes>, Duration) {
        let runtime = Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(async {
            let slow = iter(0..parts).then(|_| async {
                tokio::time::sleep(Duration::from_millis(100)).await;
                Ok(Bytes::from_static(&[7; 70_000]))
            });
            let begin = Instant::now();
            let outcome = receive(Box::pin(slow.chain(rest)), PATIENCE).await;
            (outcome, begin.elapsed())
        })
    }

    #[test]
    fn a_slow_read_goes_on_as_long_as_data_arrive() {
        let (outcome, _) = received(8, iter([]));
        assert_eq!(outcome.ok().expect("in time").len(), 560_000);
        let (outcome, after) = received(0, pending());
        assert!(matches!(outcome, Err(Flaw::Silence(PATIENCE))));
        assert!(after >= PATIENCE && after < Duration::from_secs(10));
        let (outcome, after) = received(1, pending());
        assert!(matches!(outcome, Err(Flaw::Silence(_))));
        assert!(after >= PATIENCE + Duration::from_secs(1), "{after:?}");
    }
}
