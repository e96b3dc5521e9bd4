//! Clients that outlive this process and continue with the next one: identification of the volume,
//! and whether the next process may serve them.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher as _, Hasher as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use forebay_block::Persistence;
use forebay_volume::VolumeHandle;

/// Relation of this process to earlier ones that served a volume to virtual machines.
#[derive(Clone, Debug)]
pub struct Succession {
    /// Identifies the volume, and its state before acknowledged writes were lost.
    pub(crate) note: u64,
    /// Whether the volume was taken out of service for good: no later process inherits unfinished
    /// requests.
    over: Arc<AtomicBool>,
}

impl Succession {
    /// `origin` identifies this volume among others of its name. It also changes when acknowledged
    /// writes were lost. A volume whose contents end with the process gets a different identity in
    /// each process.
    #[must_use]
    pub fn new(volume: &VolumeHandle, origin: &[u8]) -> Self {
        let volatile = volume.info().persistence == Persistence::Process;
        Self::of(volume.name(), origin, volatile.then(process))
    }

    pub(crate) fn of(name: &str, origin: &[u8], process: Option<u64>) -> Self {
        Self {
            note: note(origin, name) ^ process.unwrap_or(0),
            over: Arc::default(),
        }
    }

    /// Takes the volume out of service for good. Later requests fail, and no later process inherits
    /// them.
    pub fn end(&self) {
        self.over.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }
}

/// Returns a number that differs in each process and is not 0.
fn process() -> u64 {
    static PROCESS: OnceLock<u64> = OnceLock::new();
    *PROCESS.get_or_init(|| RandomState::new().build_hasher().finish() | 1)
}

/// Returns FNV-1a of both, with a separator byte that neither contains.
pub(crate) fn note(origin: &[u8], name: &str) -> u64 {
    let bytes = b"forebay\0".iter().chain(origin).chain(b"\0");
    let bytes = bytes.chain(name.as_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
