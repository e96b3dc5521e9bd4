//! Namespaces of a subsystem: its volumes, under identifiers that name the data behind them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};

use forebay_block::{DeviceInfo, Error, ErrorKind, Persistence, Result};
use forebay_io::system::random;
use forebay_volume::VolumeHandle;

/// Maximum number of namespaces of a subsystem.
pub(super) const MAX_NAMESPACES: u32 = 1024;

/// A volume as a namespace.
#[derive(Clone)]
pub(super) struct Namespace {
    pub(super) nsid: u32,
    pub(super) volume: VolumeHandle,
    /// UUID of the volume and the disk behind it.
    pub(super) uuid: [u8; 16],
    /// UUID of earlier versions, which is derived from the volume only.
    pub(super) former_uuid: [u8; 16],
}

/// The namespaces, and the names from which their identifiers derive. They may change while hosts
/// use them.
pub(super) struct Namespaces {
    nqn: String,
    serial: String,
    origin: Vec<u8>,
    /// Namespaces; the index is the NSID less 1.
    list: RwLock<Vec<Option<Namespace>>>,
    /// Number of changes of the list.
    generation: AtomicU64,
    started: Instant,
}

/// FNV-1a of 128 bits (Fowler, Noll, Vo). It must never change, and needs no other property.
fn hash(parts: &[&[u8]]) -> u128 {
    const BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0100_0000_0000_0000_0000_013b;
    let mut hash = BASIS;
    for part in parts {
        // Lengths are included, so that different lists of parts are different bytes.
        let len = (part.len() as u64).to_le_bytes();
        for byte in len.iter().chain(*part) {
            hash = (hash ^ u128::from(*byte)).wrapping_mul(PRIME);
        }
    }
    hash
}

/// Creates a UUID of version 8, variant 10b (RFC 9562), from these parts.
fn uuid(parts: &[&[u8]]) -> [u8; 16] {
    let mut uuid = hash(parts).to_be_bytes();
    uuid[6] = uuid[6] & 0x0f | 0x80;
    uuid[8] = uuid[8] & 0x3f | 0x80;
    uuid
}

/// Returns bytes that distinguish the disk behind a volume and stay the same when it is served
/// again. Memory of this process is never served again. Returns nothing for an unidentified disk.
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

impl Namespaces {
    /// Creates an empty list for the subsystem called `nqn` of the target with this `origin`.
    pub(super) fn new(nqn: &str, origin: &[u8]) -> Self {
        Self {
            nqn: nqn.to_owned(),
            serial: format!("{:016x}", hash(&[origin, nqn.as_bytes()]) >> 64),
            origin: origin.to_vec(),
            list: RwLock::default(),
            generation: AtomicU64::new(1),
            started: Instant::now(),
        }
    }

    /// Adds a volume as the next namespace. Returns its NSID.
    ///
    /// # Errors
    /// `Busy` if the volume is a namespace already, `NoSpace` if the subsystem is full.
    pub(super) fn add(&self, volume: VolumeHandle) -> Result<u32> {
        let mut list = self.list.write().unwrap_or_else(PoisonError::into_inner);
        if list
            .iter()
            .flatten()
            .any(|n| n.volume.name() == volume.name())
        {
            let what = format!(
                "volume {} is already a namespace of {}",
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
                "{} has {MAX_NAMESPACES} namespaces, which is the limit",
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

    /// Removes the volume called `name`. Commands on it fail from now on, and hosts are notified.
    /// Returns whether it existed. NSIDs of other volumes stay the same.
    pub(super) fn remove(&self, name: &str) -> bool {
        let mut list = self.list.write().unwrap_or_else(PoisonError::into_inner);
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

    /// Returns the name of the subsystem.
    pub(super) fn nqn(&self) -> &str {
        &self.nqn
    }

    /// Returns the serial number of the subsystem.
    pub(super) fn serial(&self) -> &str {
        &self.serial
    }

    /// Returns the time since the creation of the subsystem.
    pub(super) fn uptime(&self) -> Duration {
        self.started.elapsed()
    }

    /// Returns the number of changes of the list.
    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    fn read(&self) -> RwLockReadGuard<'_, Vec<Option<Namespace>>> {
        self.list.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a namespace.
    pub(super) fn get(&self, nsid: u32) -> Option<Namespace> {
        let index = usize::try_from(nsid.checked_sub(1)?).ok()?;
        self.read().get(index)?.clone()
    }

    /// Returns all namespaces, in the order of their NSIDs.
    pub(super) fn list(&self) -> Vec<Namespace> {
        self.read().iter().flatten().cloned().collect()
    }
}
