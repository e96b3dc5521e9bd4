//! Clients that outlive this process and go on with the next one: by what that one knows the volume again, and whether it
//! may serve them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_block::Persistence;
use forebay_volume::VolumeHandle;

/// What this process is to those before it that served a volume.
#[derive(Clone, Debug)]
pub struct Succession {
    /// What the volume is told apart by from others, and from what other programs serve.
    pub(crate) note: u64,
    /// Why this process may lack writes that one before it acknowledged, if it may.
    pub(crate) gap: Option<String>,
    /// The volume was taken out of service for good: no later process has what is left over.
    over: Arc<AtomicBool>,
}

impl Succession {
    /// `origin` is what this volume is told apart by from others of its name; `gap` is why this process may lack writes that
    /// the one before acknowledged, if it may.
    #[must_use]
    pub fn new(volume: &VolumeHandle, origin: &[u8], gap: Option<String>) -> Self {
        let volatile = volume.info().persistence == Persistence::Process;
        let volatile = volatile.then(|| "its contents end with the process".to_owned());
        Self {
            note: note(origin, volume.name()),
            gap: volatile.or(gap),
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

/// FNV-1a of both, with a byte between that is in neither.
fn note(origin: &[u8], name: &str) -> u64 {
    let bytes = b"forebay\0".iter().chain(origin).chain(b"\0");
    let bytes = bytes.chain(name.as_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
