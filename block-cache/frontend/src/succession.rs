//! Clients that outlive this process and go on with the next one: by what that one knows the volume again, and whether it
//! may serve them.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher as _, Hasher as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use forebay_block::Persistence;
use forebay_volume::VolumeHandle;

/// What this process is to those before it that served a volume to virtual machines.
#[derive(Clone, Debug)]
pub struct Succession {
    /// What the volume is told apart by from others, and from what it was before it lacked writes.
    pub(crate) note: u64,
    /// The volume was taken out of service for good: no later process has what is left over.
    over: Arc<AtomicBool>,
}

impl Succession {
    /// `origin` is what this volume is told apart by from others of its name, and from itself before it lacked writes that were
    /// acknowledged. One whose contents end with the process is told apart from that of any other process too.
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

    /// The volume is taken out of service for good: what comes from now on ends with an error, and is not left to a later process.
    pub fn end(&self) {
        self.over.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }
}

/// What tells this process from all others; not 0.
fn process() -> u64 {
    static PROCESS: OnceLock<u64> = OnceLock::new();
    *PROCESS.get_or_init(|| RandomState::new().build_hasher().finish() | 1)
}

/// FNV-1a of both, with a byte between that is in neither.
pub(crate) fn note(origin: &[u8], name: &str) -> u64 {
    let bytes = b"forebay\0".iter().chain(origin).chain(b"\0");
    let bytes = bytes.chain(name.as_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
