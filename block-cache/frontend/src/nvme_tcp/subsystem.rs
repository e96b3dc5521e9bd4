//! A subsystem: volumes as namespaces, the allowed hosts, and their controllers.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use forebay_auth::Secrets;
use forebay_block::{ErrorKind, Result};
use forebay_io::rt;
use forebay_volume::VolumeHandle;
use forebay_wire::nvme::Status;
use forebay_wire::nvme::fabrics::check_nqn;

use super::auth::Chap;
use super::controller::{Controller, Role};
use super::link;
use super::namespaces::Namespaces;

/// Maximum number of controllers of a subsystem at a time.
const MAX_CONTROLLERS: usize = 1024;
/// Largest controller identifier: those above are reserved (Base 6.3).
const MAX_CONTROLLER_ID: u16 = 0xffef;
/// Time for a host's commands on an older association to end. After it, commands that wait for data
/// are discarded.
const SETTLE_TIME: Duration = Duration::from_secs(5);
/// Total time that a new association waits for older ones. After it, the host must reconnect.
const BUSY_TIME: Duration = Duration::from_secs(20);
/// Interval between two checks.
const SETTLE_POLL: Duration = Duration::from_millis(1);

/// A subsystem, which several listeners may export. Its namespaces may change while hosts use it.
pub struct Subsystem {
    namespaces: Arc<Namespaces>,
    hosts: Option<Vec<String>>,
    /// Secrets of the hosts, if they must authenticate themselves.
    secrets: Option<Secrets>,
    controllers: Mutex<Controllers>,
}

#[derive(Default)]
struct Controllers {
    last_id: u16,
    list: Vec<Arc<Controller>>,
}

impl std::fmt::Debug for Subsystem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Subsystem")
            .field("nqn", &self.nqn())
            .finish_non_exhaustive()
    }
}

impl Subsystem {
    /// Creates a subsystem called `nqn`, for the hosts with these names or for all.
    ///
    /// `origin` distinguishes this target from others that use the same names for other data. It is
    /// part of serial numbers and UUIDs, by which hosts detect that two paths lead to different
    /// data. The disk behind a volume is part of them too: a host that reconnects to another disk
    /// finds another UUID.
    ///
    /// # Errors
    /// `InvalidInput` if `nqn` or a host's name is no qualified name, or is the discovery name.
    pub fn new(nqn: &str, hosts: Option<Vec<String>>, origin: &[u8]) -> Result<Arc<Self>> {
        Self::with_secrets(nqn, hosts, None, origin)
    }

    /// Like [`Subsystem::new`], for hosts that must authenticate themselves on each queue before
    /// they use it.
    ///
    /// # Errors
    /// As for [`Subsystem::new`].
    pub fn with_secrets(
        nqn: &str,
        hosts: Option<Vec<String>>,
        secrets: Option<Secrets>,
        origin: &[u8],
    ) -> Result<Arc<Self>> {
        for name in std::iter::once(nqn).chain(hosts.iter().flatten().map(String::as_str)) {
            check_nqn(name)?;
        }
        Ok(Arc::new(Self {
            namespaces: Arc::new(Namespaces::new(nqn, origin)),
            hosts,
            secrets,
            controllers: Mutex::default(),
        }))
    }

    /// Adds a volume as the next namespace. Returns its NSID.
    ///
    /// # Errors
    /// `Busy` if the volume is a namespace already, `NoSpace` if the subsystem is full.
    pub fn add(&self, volume: VolumeHandle) -> Result<u32> {
        self.namespaces.add(volume)
    }

    /// Removes the volume called `name`. Commands on it fail from now on, and hosts are notified.
    /// Returns whether it existed. NSIDs of other volumes stay the same.
    pub fn remove(&self, name: &str) -> bool {
        self.namespaces.remove(name)
    }

    /// Returns the name of the subsystem.
    #[must_use]
    pub fn nqn(&self) -> &str {
        self.namespaces.nqn()
    }

    pub(super) fn admits(&self, host: &str) -> bool {
        let listed = |hosts: &Vec<String>| hosts.iter().any(|known| known == host);
        let known = |secrets: &Secrets| secrets.knows(host);
        self.hosts.as_ref().is_none_or(listed) && self.secrets.as_ref().is_none_or(known)
    }

    /// Returns the authentication of an admitted host, or `None` if none is required.
    pub(super) fn authentication(&self, host: &str) -> Option<Chap> {
        Chap::new(self.secrets.as_ref()?, host, self.nqn())
    }

    /// Returns the controllers whose associations continue or have queues left.
    fn controllers(&self) -> MutexGuard<'_, Controllers> {
        let mut controllers = self
            .controllers
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        controllers.list.retain(|c| !c.is_gone());
        controllers
    }

    pub(super) fn controller(&self, id: u16) -> Option<Arc<Controller>> {
        let controllers = self.controllers();
        let found = controllers.list.iter().find(|c| c.id() == id);
        found.cloned()
    }

    /// Returns an identifier for a new controller.
    pub(super) fn next_controller(&self) -> u16 {
        let mut controllers = self.controllers();
        // Identifiers are reused as late as possible: a host with an old one learns that it is
        // gone.
        loop {
            let next = controllers.last_id % MAX_CONTROLLER_ID + 1;
            controllers.last_id = next;
            if controllers.list.iter().all(|c| c.id() != next) {
                return next;
            }
        }
    }

    /// Creates controller `id` for a host, once all commands of its older associations have ended.
    ///
    /// # Errors
    /// [`Status::CONNECT_BUSY`] if they have not ended in time, if there are too many controllers,
    /// or if the identifier was reused since it was assigned.
    pub(super) async fn associate(
        &self,
        id: u16,
        host: &str,
        host_id: [u8; 16],
        keep_alive_ms: u32,
    ) -> Result<Arc<Controller>, Status> {
        self.settle(host, host_id).await?;
        let mut controllers = self.controllers();
        let full = controllers.list.len() >= MAX_CONTROLLERS;
        if full || controllers.list.iter().any(|c| c.id() == id) {
            return Err(Status::CONNECT_BUSY);
        }
        let role = Role::Io(Arc::clone(&self.namespaces));
        let controller = Controller::new(id, role, host, host_id, keep_alive_ms);
        controllers.list.push(Arc::clone(&controller));
        Ok(controller)
    }

    /// Waits until all current commands of a host's older associations have ended. A host that
    /// reconnects gives up its unanswered commands and will repeat them. An old write that is still
    /// in flight could overwrite a newer one.
    async fn settle(&self, host: &str, host_id: [u8; 16]) -> Result<(), Status> {
        let of_host = |c: &&Arc<Controller>| c.host() == host && c.host_id() == host_id;
        let list = self.controllers().list.clone();
        let older: Vec<_> = list.iter().filter(of_host).cloned().collect();
        let pending = Arc::new(AtomicUsize::new(0));
        for (reactor, connection) in older.iter().flat_map(|c| c.connections()) {
            let one = Pending::new(&pending);
            reactor.call(move || {
                rt::spawn(async move {
                    link::settle(connection).await;
                    drop(one);
                });
            });
        }
        let begin = rt::now();
        let mut patient = true;
        while pending.load(Ordering::Acquire) > 0 {
            let waited = rt::now() - begin;
            if patient && waited >= SETTLE_TIME {
                // A host whose data has not arrived by now is gone.
                patient = false;
                for controller in &older {
                    let why = "its host has made a new association";
                    controller.end(ErrorKind::Disconnected, why);
                }
            }
            if waited >= BUSY_TIME {
                return Err(Status::CONNECT_BUSY);
            }
            rt::sleep(SETTLE_POLL).await;
        }
        Ok(())
    }
}

/// Counts unfinished waits. The count also drops if the reactor drops the task.
struct Pending(Arc<AtomicUsize>);

impl Pending {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(count))
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}
