//! Snapshots of a volume.

use std::time::Duration;

use forebay_block::{ErrorKind, Result};

use crate::store::Store;

/// A snapshot of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Name.
    pub name: String,
    /// Time of its creation, since 1970.
    pub time: Duration,
    /// Size of the volume at that time, bytes.
    pub size_bytes: u64,
}

/// Returns the snapshots of the volume in this folder, by name in ascending order.
///
/// # Errors
/// `NotFound` if there is no volume. Errors of the store.
pub async fn list_snapshots(store: &dyn Store) -> Result<Vec<Snapshot>> {
    let _ = store;
    Err(ErrorKind::Unsupported.into())
}

/// Deletes a snapshot. Its space becomes free when a writer of the volume opens it again. An open
/// volume frees it earlier with [`ObjectVolume::delete_snapshot`](crate::ObjectVolume).
///
/// # Errors
/// `NotFound` without a snapshot of this name. Errors of the store.
pub async fn delete_snapshot(store: &dyn Store, name: &str) -> Result<()> {
    let _ = (store, name);
    Err(ErrorKind::Unsupported.into())
}
