//! S3, Google Cloud Storage and Azure Blob Storage as object stores.
//!
//! The crate `object_store` has the protocols, on tokio. A store has one thread with a runtime of
//! its own, which a queue gives the requests. Outcomes that arrive before the reactor's next turn
//! wake it once.
//!
//! An object is created by one PUT under the condition that there is none (`If-None-Match: *`). The
//! crate retries a request once: the volume above retries it for as long as necessary. Each request
//! has a limit of time, since a connection may hang.

mod build;
mod failure;

use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use forebay_block::{Context as _, Error, ErrorKind, Result};
use forebay_io::answer;
use futures_util::TryStreamExt as _;
use object_store::path::Path;
use object_store::{
    GetOptions, GetRange, ObjectStore, ObjectStoreExt as _, PutMode, PutOptions, PutPayload,
};
use tokio::runtime::Builder;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::address::{Address, Bucket};
use super::check_name;
use super::credentials::Credentials;
use crate::store::{Answer, Creation, Listed, Store};
use failure::{Failure, has_answer};

/// Time limit for a creation: 8 MiB at 70 KB/s.
const CREATE: Duration = Duration::from_secs(120);
/// Time limit for other requests.
const OTHER: Duration = Duration::from_secs(30);

type Outcome<T> = Result<T, object_store::Error>;
type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A folder of a bucket or container.
pub(super) struct RemoteStore {
    /// The folder for messages.
    name: String,
    folder: String,
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
            store,
            tasks,
        })
    }

    /// Carries out `request` within `limit`.
    fn ask<'a, T, F>(
        &'a self,
        action: &'static str,
        name: &str,
        limit: Duration,
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
                let outcome = tokio::time::timeout(limit, request(store, path)).await;
                given.give(match outcome {
                    Ok(outcome) => outcome.map_err(|error| failure.describe(action, &name, &error)),
                    Err(_) => Err(failure.silence(action, &name, limit)),
                });
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
        self.ask("creating", name, CREATE, |store, path| async move {
            let options = PutOptions::from(PutMode::Create);
            let payload = PutPayload::from_bytes(content);
            match store.put_opts(&path, payload, options).await {
                Ok(_) => Ok(Creation::Created),
                // Another conflict has the same error, such as a deletion in progress.
                Err(object_store::Error::AlreadyExists { .. }) => {
                    store.head(&path).await.map(|_| Creation::Exists)
                }
                Err(error) => Err(error),
            }
        })
    }

    fn read<'a>(&'a self, name: &'a str, bytes: Range<u64>) -> Answer<'a, Bytes> {
        if bytes.is_empty() {
            return Box::pin(async { Ok(Bytes::new()) });
        }
        self.ask("reading", name, OTHER, |store, path| async move {
            let start = bytes.start;
            let options = GetOptions::new().with_range(Some(GetRange::Bounded(bytes)));
            let read = match store.get_opts(&path, options).await {
                Ok(found) => return found.bytes().await,
                Err(error) => error,
            };
            // A range behind the end is an error of no kind of its own.
            match has_answer(&read) && store.head(&path).await?.size <= start {
                true => Ok(Bytes::new()),
                false => Err(read),
            }
        })
    }

    fn list<'a>(&'a self, prefix: &'a str) -> Answer<'a, Vec<Listed>> {
        let begin = self.folder.len() + 1;
        self.ask("listing", prefix, OTHER, move |store, path| async move {
            let found: Vec<_> = store.list(Some(&path)).try_collect().await?;
            let named = found.into_iter().filter_map(|object| {
                Some(Listed {
                    name: object.location.as_ref().get(begin..)?.to_owned(),
                    bytes: object.size,
                })
            });
            let mut named: Vec<_> = named.collect();
            named.sort_unstable_by(|one, other| one.name.cmp(&other.name));
            Ok(named)
        })
    }

    fn delete<'a>(&'a self, name: &'a str) -> Answer<'a, ()> {
        self.ask("deleting", name, OTHER, |store, path| async move {
            match store.delete(&path).await {
                Err(object_store::Error::NotFound { .. }) => Ok(()),
                other => other,
            }
        })
    }
}
