//! A subsystem: volumes as namespaces, the hosts that may use them, and the controllers that serve these.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};

use forebay_auth::Secrets;
use forebay_block::{DeviceInfo, Error, ErrorKind, Persistence, Result};
use forebay_io::rt;
use forebay_io::system::random;
use forebay_volume::VolumeHandle;
use forebay_wire::nvme::Status;
use forebay_wire::nvme::fabrics::check_nqn;

use super::auth::Chap;
use super::connection;
use super::controller::{Controller, Role};

/// Most namespaces of a subsystem.
pub(super) const MAX_NAMESPACES: u32 = 1024;
/// Controllers of a subsystem at a time.
const MAX_CONTROLLERS: usize = 1024;
/// Largest identifier that a controller gets: those above have meanings of their own (Base 6.3).
const MAX_CONTROLLER_ID: u16 = 0xffef;
/// How long a host's commands on an older association may take to end, before what of them waits for data
/// is discarded.
const SETTLE_TIME: Duration = Duration::from_secs(5);
/// How long a new association waits for older ones in all, before its host is asked to come again.
const BUSY_TIME: Duration = Duration::from_secs(20);
/// How often it looks.
const SETTLE_POLL: Duration = Duration::from_millis(1);

/// A volume as a namespace.
#[derive(Clone)]
pub(super) struct Namespace {
    pub(super) nsid: u32,
    pub(super) volume: VolumeHandle,
    /// Names the volume and the disk behind it.
    pub(super) uuid: [u8; 16],
    /// What earlier versions reported as the UUID: it names the volume alone.
    pub(super) former_uuid: [u8; 16],
}

/// A subsystem; several listeners may offer it. Its namespaces may change while hosts use it.
pub struct Subsystem {
    nqn: String,
    serial: String,
    origin: Vec<u8>,
    hosts: Option<Vec<String>>,
    /// What hosts authenticate themselves by, if they have to.
    secrets: Option<Secrets>,
    /// At their NSID, less 1.
    namespaces: RwLock<Vec<Option<Namespace>>>,
    /// Grows with each change of the namespaces.
    generation: AtomicU64,
    controllers: Mutex<Controllers>,
    started: Instant,
}

#[derive(Default)]
struct Controllers {
    last_id: u16,
    list: Vec<Arc<Controller>>,
}

impl std::fmt::Debug for Subsystem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Subsystem")
            .field("nqn", &self.nqn)
            .finish_non_exhaustive()
    }
}

/// FNV-1a of 128 bits (Fowler, Noll, Vo): stable for ever, which is all that is asked of it.
fn hash(parts: &[&[u8]]) -> u128 {
    const BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0100_0000_0000_0000_0000_013b;
    let mut hash = BASIS;
    for part in parts {
        // Lengths go in, so that no two lists of parts are the same bytes.
        let len = (part.len() as u64).to_le_bytes();
        for byte in len.iter().chain(*part) {
            hash = (hash ^ u128::from(*byte)).wrapping_mul(PRIME);
        }
    }
    hash
}

/// A UUID of version 8, variant 10b (RFC 9562), made of these parts.
fn uuid(parts: &[&[u8]]) -> [u8; 16] {
    let mut uuid = hash(parts).to_be_bytes();
    uuid[6] = uuid[6] & 0x0f | 0x80;
    uuid[8] = uuid[8] & 0x3f | 0x80;
    uuid
}

/// Returns what tells the disk behind a volume from others, and stays the same when it is served again. Memory of this
/// process is never served again. Nothing of a disk of which nothing is known.
fn disk_name(info: &DeviceInfo) -> Vec<u8> {
    let identity = info.identity;
    if !identity.is_known() {
        return match info.persistence {
            Persistence::Process => {
                let mut once = vec![0; 16];
                random(&mut once);
                once
            }
            Persistence::Machine | Persistence::Media => Vec::new(),
        };
    }
    let start = identity.start.unwrap_or(0);
    [identity.medium, identity.birth, start]
        .iter()
        .flat_map(|number| number.to_be_bytes())
        .collect()
}

impl Subsystem {
    /// A subsystem called `nqn`, for the hosts with these names or for all.
    ///
    /// `origin` tells this target from others that use the same names for other data: it goes into serial
    /// numbers and UUIDs, by which hosts notice that what they reach by two paths is not the same. So does the disk behind
    /// a volume: a host that comes back and finds another one there finds another UUID.
    ///
    /// # Errors
    /// `InvalidInput` if `nqn` or a host's name is no qualified name, or is that of discovery.
    pub fn new(nqn: &str, hosts: Option<Vec<String>>, origin: &[u8]) -> Result<Arc<Self>> {
        Self::with_secrets(nqn, hosts, None, origin)
    }

    /// The same for hosts that have a secret, which they prove to know on each queue before they may use it.
    ///
    /// # Errors
    /// As [`Subsystem::new`].
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
            nqn: nqn.to_owned(),
            serial: format!("{:016x}", hash(&[origin, nqn.as_bytes()]) >> 64),
            origin: origin.to_vec(),
            hosts,
            secrets,
            namespaces: RwLock::default(),
            generation: AtomicU64::new(1),
            controllers: Mutex::default(),
            started: Instant::now(),
        }))
    }

    /// Adds a volume as the next namespace; returns its NSID.
    ///
    /// # Errors
    /// `Busy` if the volume is a namespace already; `NoSpace` if there are as many as there may be.
    pub fn add(&self, volume: VolumeHandle) -> Result<u32> {
        let mut list = self
            .namespaces
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        if list
            .iter()
            .flatten()
            .any(|n| n.volume.name() == volume.name())
        {
            let what = format!(
                "volume {} is a namespace of {} already",
                volume.name(),
                self.nqn
            );
            return Err(Error::new(ErrorKind::Busy, what));
        }
        let nsid = u32::try_from(list.len())
            .unwrap_or(u32::MAX)
            .saturating_add(1);
        if nsid > MAX_NAMESPACES {
            let what = format!(
                "{} has {MAX_NAMESPACES} namespaces, the most there may be",
                self.nqn
            );
            return Err(Error::new(ErrorKind::NoSpace, what));
        }
        let disk = disk_name(&volume.info());
        let parts = [&self.origin, self.nqn.as_bytes(), volume.name().as_bytes()];
        let [origin, nqn, name] = parts;
        list.push(Some(Namespace {
            nsid,
            uuid: uuid(&[origin, nqn, name, &disk]),
            former_uuid: uuid(&parts),
            volume,
        }));
        drop(list);
        self.generation.fetch_add(1, Ordering::Release);
        Ok(nsid)
    }

    /// Removes the volume called `name`: commands on it are refused from now on, and hosts are told. Whether
    /// it was there. NSIDs of others stay.
    pub fn remove(&self, name: &str) -> bool {
        let mut list = self
            .namespaces
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        let found = list
            .iter_mut()
            .find(|slot| slot.as_ref().is_some_and(|n| n.volume.name() == name));
        let there = found.map(Option::take).is_some();
        drop(list);
        if there {
            self.generation.fetch_add(1, Ordering::Release);
        }
        there
    }

    /// The subsystem's name.
    #[must_use]
    pub fn nqn(&self) -> &str {
        &self.nqn
    }

    pub(super) fn serial(&self) -> &str {
        &self.serial
    }

    pub(super) fn uptime(&self) -> Duration {
        self.started.elapsed()
    }

    pub(super) fn admits(&self, host: &str) -> bool {
        let listed = |hosts: &Vec<String>| hosts.iter().any(|known| known == host);
        let known = |secrets: &Secrets| secrets.knows(host);
        self.hosts.as_ref().is_none_or(listed) && self.secrets.as_ref().is_none_or(known)
    }

    /// The authentication of a host that is admitted. None if none is asked for.
    pub(super) fn authentication(&self, host: &str) -> Option<Chap> {
        Chap::new(self.secrets.as_ref()?, host, &self.nqn)
    }

    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    fn read(&self) -> RwLockReadGuard<'_, Vec<Option<Namespace>>> {
        self.namespaces
            .read()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn namespace(&self, nsid: u32) -> Option<Namespace> {
        let index = usize::try_from(nsid.checked_sub(1)?).ok()?;
        self.read().get(index)?.clone()
    }

    pub(super) fn namespaces(&self) -> Vec<Namespace> {
        self.read().iter().flatten().cloned().collect()
    }

    fn controllers(&self) -> MutexGuard<'_, Controllers> {
        self.controllers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn controller(&self, id: u16) -> Option<Arc<Controller>> {
        let controllers = self.controllers();
        let found = controllers.list.iter().find(|c| c.id() == id);
        found.cloned()
    }

    /// An identifier for a controller that is to be made.
    pub(super) fn next_controller(&self) -> u16 {
        let mut controllers = self.controllers();
        // Identifiers come round late: whoever still uses an old one is told that it is gone.
        loop {
            let next = controllers.last_id % MAX_CONTROLLER_ID + 1;
            controllers.last_id = next;
            if controllers.list.iter().all(|c| c.id() != next) {
                return next;
            }
        }
    }

    /// Makes controller `id` for a host, once all that its older associations have asked for has ended.
    ///
    /// # Errors
    /// [`Status::CONNECT_BUSY`] if it has not in time, if there are as many controllers as there may be, or if the
    /// identifier has come round since it was given out.
    pub(super) async fn associate(
        self: &Arc<Self>,
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
        let role = Role::Io(Arc::clone(self));
        let controller = Controller::new(id, role, host, host_id, keep_alive_ms);
        controllers.list.push(Arc::clone(&controller));
        Ok(controller)
    }

    pub(super) fn forget(&self, id: u16) {
        self.controllers().list.retain(|c| c.id() != id);
    }

    /// Waits until what a host's older associations have asked for up to now has ended. A host that comes back has
    /// given up what it was not answered, and will repeat it: were the old write still on its way, it could
    /// land on a newer one.
    async fn settle(&self, host: &str, host_id: [u8; 16]) -> Result<(), Status> {
        let of_host = |c: &&Arc<Controller>| c.host() == host && c.host_id() == host_id;
        let list = self.controllers().list.clone();
        let older: Vec<_> = list.iter().filter(of_host).cloned().collect();
        let pending = Arc::new(AtomicUsize::new(0));
        for (reactor, connection) in older.iter().flat_map(|c| c.connections()) {
            let one = Pending::new(&pending);
            reactor.call(move || {
                rt::spawn(async move {
                    connection::settle(connection).await;
                    drop(one);
                });
            });
        }
        let begin = rt::now();
        let mut patient = true;
        while pending.load(Ordering::Acquire) > 0 {
            let waited = rt::now() - begin;
            if patient && waited >= SETTLE_TIME {
                // Whose data has not come by now belongs to a host that is not there any more.
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

/// Counts what has not settled yet, also what was dropped with its reactor.
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
