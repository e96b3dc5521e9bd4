//! A cluster in memory with one image, `vms/db`, and a script for its requests.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::c_int;
use std::path::PathBuf;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use super::requests::Job;
use crate::rbd::Address;
use crate::rbd::api::FEATURE_EXCLUSIVE_LOCK;

/// Effect of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    None,
    Data,
    Zeroes { keeps_space: bool },
    Discard,
}

/// Fate of a request.
pub(super) enum Act {
    /// It is carried out at once.
    Answer,
    /// It is carried out after a time, on a thread of its own.
    Late(Duration),
    /// It ends with an error number, and has no effect.
    Fail(isize),
    /// It is carried out when the test says so.
    Hold,
}

type Script = Box<dyn FnMut(Change) -> Act + Send>;

/// Content of a cluster.
pub(super) struct State {
    pub(super) data: Vec<u8>,
    /// Size of the image, if it is another than that of the data.
    pub(super) size_bytes: Option<u64>,
    /// Identifier of the image.
    pub(super) image: String,
    pub(super) features: u64,
    /// Result of connections.
    pub(super) connects: c_int,
    /// Settings of the image, with their source.
    pub(super) settings: Vec<(String, String, c_int)>,
    /// Settings of the last client.
    pub(super) options: BTreeMap<String, String>,
    pub(super) notes: BTreeMap<String, String>,
    pub(super) owner: Option<String>,
    /// Clients that have the image open for writing.
    pub(super) watchers: Vec<(String, i64)>,
    pub(super) blocklist: BTreeSet<String>,
    /// Number of handles of the image.
    pub(super) open: usize,
    /// Requests that wait for the test.
    pub(super) held: Vec<Job>,
    /// Requests so far.
    pub(super) changes: Vec<Change>,
    script: Script,
}

/// A cluster that is found by the path of its configuration.
pub(super) struct Cluster {
    conf: String,
    pub(super) state: Mutex<State>,
}

static CLUSTERS: LazyLock<Mutex<BTreeMap<String, Arc<Cluster>>>> = LazyLock::new(Mutex::default);
static NUMBER: AtomicI64 = AtomicI64::new(100);

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Cluster {
    /// Creates a cluster whose image has `size` zeroes.
    pub(super) fn new(
        size: usize,
        script: impl FnMut(Change) -> Act + Send + 'static,
    ) -> Arc<Self> {
        let conf = format!("/fake/{}.conf", NUMBER.fetch_add(1, Ordering::Relaxed));
        let this = Arc::new(Self {
            conf: conf.clone(),
            state: Mutex::new(State {
                data: vec![0; size],
                size_bytes: None,
                image: "10a2".to_owned(),
                features: FEATURE_EXCLUSIVE_LOCK | 1,
                connects: 0,
                settings: vec![("rbd_cache".to_owned(), "false".to_owned(), 0)],
                options: BTreeMap::new(),
                notes: BTreeMap::new(),
                owner: None,
                watchers: Vec::new(),
                blocklist: BTreeSet::new(),
                open: 0,
                held: Vec::new(),
                changes: Vec::new(),
                script: Box::new(script),
            }),
        });
        lock(&CLUSTERS).insert(conf, Arc::clone(&this));
        this
    }

    /// Returns the address of the image.
    pub(super) fn address(&self) -> Address {
        Address {
            pool: "vms".to_owned(),
            image: "db".to_owned(),
            snapshot: None,
            client: "forebay".to_owned(),
            conf: PathBuf::from(&self.conf),
        }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Adds another client that holds the lock, and lives.
    pub(super) fn lock_by_another(&self) -> String {
        let id = NUMBER.fetch_add(1, Ordering::Relaxed);
        let address = format!("10.0.0.2:0/{id}");
        let mut state = self.state();
        state.owner = Some(address.clone());
        state.watchers.push((address.clone(), id));
        format!("client.{id} at {address}")
    }

    /// Breaks the lock of a client, and puts the client on the blocklist.
    pub(super) fn break_lock(&self, address: &str) {
        let mut state = self.state();
        state.owner.take_if(|owner| owner == address);
        state.blocklist.insert(address.to_owned());
    }

    /// Starts a request by the script.
    pub(super) fn start(&self, job: Job) {
        let act = {
            let mut state = self.state();
            state.changes.push(job.change);
            (state.script)(job.change)
        };
        match act {
            Act::Answer => job.end(0),
            Act::Fail(number) => job.end(number),
            Act::Hold => self.state().held.push(job),
            Act::Late(time) => {
                std::thread::spawn(move || {
                    std::thread::sleep(time);
                    job.end(0);
                });
            }
        }
    }

    /// Ends all requests that wait, the last one first, and lets further ones through.
    pub(super) fn release(&self) {
        let held = {
            let mut state = self.state();
            state.script = Box::new(|_| Act::Answer);
            std::mem::take(&mut state.held)
        };
        for job in held.into_iter().rev() {
            job.end(0);
        }
    }
}

/// A connection to a cluster.
pub(super) struct Client {
    pub(super) address: String,
    pub(super) id: i64,
    cluster: OnceLock<Arc<Cluster>>,
}

impl Client {
    pub(super) fn new(name: String) -> Self {
        assert_eq!(name, "client.forebay");
        let id = NUMBER.fetch_add(1, Ordering::Relaxed);
        Self {
            address: format!("10.0.0.1:0/{id}"),
            id,
            cluster: OnceLock::new(),
        }
    }

    /// Finds the cluster of a configuration.
    pub(super) fn find(&self, conf: &str) -> bool {
        let found = lock(&CLUSTERS).get(conf).cloned();
        found.is_some_and(|found| self.cluster.set(found).is_ok())
    }

    pub(super) fn cluster(&self) -> Arc<Cluster> {
        Arc::clone(self.cluster.get().expect("its configuration was read"))
    }
}
