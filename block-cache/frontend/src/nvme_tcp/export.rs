//! Exports of a listener: subsystems by name, and their discovery log.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use forebay_block::{Error, ErrorKind, Result};
use forebay_wire::nvme::fabrics::{DISCOVERY_ENTRY_BYTES, DiscoveryEntry, discovery_header};

use super::ADMIN_QUEUE_SIZE;
use super::subsystem::Subsystem;

/// Subsystems that a listener exports. Any thread may change the list while it is in use.
#[derive(Debug, Default)]
pub struct Exports {
    list: RwLock<Vec<Arc<Subsystem>>>,
    generation: AtomicU64,
}

impl Exports {
    /// Creates an empty list.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            list: RwLock::new(Vec::new()),
            generation: AtomicU64::new(1),
        }
    }

    /// Exports a subsystem.
    ///
    /// # Errors
    /// `Busy` if its name is exported already.
    pub fn add(&self, subsystem: Arc<Subsystem>) -> Result<()> {
        let mut list = self.list.write().unwrap_or_else(PoisonError::into_inner);
        if list.iter().any(|known| known.nqn() == subsystem.nqn()) {
            let what = format!("a subsystem with the name {} exists", subsystem.nqn());
            return Err(Error::new(ErrorKind::Busy, what));
        }
        list.push(subsystem);
        self.generation.fetch_add(1, Ordering::Release);
        Ok(())
    }

    pub(super) fn find(&self, nqn: &str) -> Option<Arc<Subsystem>> {
        let list = self.list.read().unwrap_or_else(PoisonError::into_inner);
        list.iter().find(|known| known.nqn() == nqn).cloned()
    }

    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Returns the discovery log for a host that has connected to `address`: the subsystems that it
    /// may use.
    pub(super) fn discovery_log(&self, host: &str, address: SocketAddr) -> Vec<u8> {
        let generation = self.generation();
        let list = self.list.read().unwrap_or_else(PoisonError::into_inner);
        let mine: Vec<_> = list.iter().filter(|known| known.admits(host)).collect();
        let mut log = Vec::with_capacity((mine.len() + 1) * DISCOVERY_ENTRY_BYTES);
        log.extend(discovery_header(generation, mine.len() as u64));
        for subsystem in mine {
            let entry = DiscoveryEntry {
                subsystem: subsystem.nqn().to_owned(),
                address: address.ip().to_canonical(),
                port: address.port(),
                port_id: 1,
                admin_queue_size: ADMIN_QUEUE_SIZE,
            };
            log.extend(entry.encode());
        }
        log
    }
}
