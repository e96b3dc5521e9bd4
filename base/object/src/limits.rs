//! Limits of an open volume. Tests have smaller ones.

/// Limits of an open volume.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Maximum payload of a batch, sectors.
    pub(crate) batch_sectors: u32,
    /// Least length of the log, since a checkpoint, at which the next one is due, bytes.
    pub(crate) checkpoint_bytes: u64,
    /// The same length in lengths of the last checkpoint; the larger one counts. So checkpoints are
    /// at most 1/40 of the log.
    pub(crate) checkpoint_ratio: u64,
    /// Number of objects after which a checkpoint is due. A longer checkpoint raises it.
    pub(crate) checkpoint_objects: u64,
    /// Garbage that is always allowed, bytes.
    pub(crate) slack_bytes: u64,
    /// Length below which an object is small, bytes.
    pub(crate) small_bytes: u64,
    /// Number of small objects above which they are merged.
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
