//! Use of the store by one open volume.

/// Use of the store by one open volume, since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Creations, with repetitions.
    pub creations: u64,
    /// Reads of objects, with repetitions.
    pub reads: u64,
    /// Lists of objects, with repetitions.
    pub lists: u64,
    /// Deletions, with repetitions.
    pub deletions: u64,
    /// Operations that failed. Most were repeated.
    pub failures: u64,
    /// Content of all creations, bytes.
    pub uploaded_bytes: u64,
    /// Content of all reads, bytes.
    pub downloaded_bytes: u64,
    /// Bytes that the objects of the log would have without garbage. An estimate: each object's
    /// data is taken to compress evenly.
    pub live_bytes: u64,
    /// Bytes of the objects of the log in the store, with those of snapshots.
    pub stored_bytes: u64,
    /// Number of these objects.
    pub objects: u64,
    /// Bytes of the volume that have data.
    pub mapped_bytes: u64,
}
