//! Limits of an open volume. Tests have smaller ones.

/// Limits of an open volume.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Maximum payload of a batch, sectors.
    pub(crate) batch_sectors: u32,
    /// Log since a checkpoint, at least, until the next: bytes.
    pub(crate) checkpoint_bytes: u64,
    /// The same, as a multiple of the length of the last checkpoint. So checkpoints are at most
    /// 1/40 of the log.
    pub(crate) checkpoint_ratio: u64,
    /// Objects since a checkpoint until the next, for a map without extents.
    pub(crate) checkpoint_objects: u64,
    /// Garbage that is always allowed, bytes.
    pub(crate) slack_bytes: u64,
    /// Length below which an object is small, bytes.
    pub(crate) small_bytes: u64,
    /// Number of small objects until they are merged.
    pub(crate) small_objects: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            batch_sectors: 16384,
            checkpoint_bytes: 256 << 20,
            checkpoint_ratio: 40,
            checkpoint_objects: 4096,
            slack_bytes: 64 << 20,
            small_bytes: 1 << 20,
            small_objects: 1024,
        }
    }
}
