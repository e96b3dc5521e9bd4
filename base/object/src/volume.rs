//! A volume in object storage as a block device.

use std::fmt;
use std::rc::Rc;

use forebay_block::{BlockDevice, Completion, DeviceInfo, ErrorKind, Request, Result};

use crate::options::Options;
use crate::store::Store;
use crate::usage::Usage;

/// An open volume. It belongs to the reactor that it was opened on.
///
/// Dropping it ends its tasks. Writes that no flush covered may be lost then.
pub struct ObjectVolume {
    info: DeviceInfo,
}

impl ObjectVolume {
    /// Opens the volume in a folder of a store. To serve it, becomes its writer and fences an
    /// earlier one.
    ///
    /// # Errors
    /// - `NotFound` without a volume, if the options have no size or only look. Without a snapshot
    ///   of this name.
    /// - `InvalidInput` if the size is less than that of the volume, or no multiple of 4096.
    /// - `Busy` if another writer opens it at the same time.
    /// - `Unsupported` if the store replaces an object at a creation. Two writers could not be
    ///   fenced.
    /// - `Corrupt` for an object that does not verify.
    /// - Errors of the store.
    ///
    /// # Panics
    /// If this thread runs no reactor.
    pub async fn open(store: Rc<dyn Store>, options: Options) -> Result<Rc<Self>> {
        let _ = (store, options);
        Err(ErrorKind::Unsupported.into())
    }

    /// Returns whether it accepts no writes.
    #[must_use]
    pub fn read_only(&self) -> bool {
        false
    }

    /// Returns its use of the store.
    #[must_use]
    pub fn usage(&self) -> Usage {
        Usage::default()
    }

    /// Creates a snapshot with all writes that were acknowledged before. A name consists of 1 to 64
    /// lower-case letters, digits, `-` and `_`.
    ///
    /// # Errors
    /// - `InvalidInput` for another name.
    /// - `Busy` if there is a snapshot of this name, or if another writer has taken the volume.
    /// - `ReadOnly` for a volume that is not served.
    /// - Errors of the store.
    pub async fn snapshot(&self, name: &str) -> Result<()> {
        let _ = name;
        Err(ErrorKind::Unsupported.into())
    }

    /// Deletes a snapshot. Its space becomes free when the volume collects its garbage.
    ///
    /// # Errors
    /// - `NotFound` without a snapshot of this name.
    /// - `ReadOnly` for a volume that is not served.
    /// - Errors of the store.
    pub async fn delete_snapshot(&self, name: &str) -> Result<()> {
        let _ = name;
        Err(ErrorKind::Unsupported.into())
    }

    /// Makes all acknowledged writes durable, writes a checkpoint, and ends all tasks. Later
    /// requests fail.
    ///
    /// # Errors
    /// - `Busy` if another writer has taken the volume.
    /// - `Disconnected` if the store does not answer. The volume is closed all the same.
    pub async fn close(&self) -> Result<()> {
        Err(ErrorKind::Unsupported.into())
    }
}

impl BlockDevice for ObjectVolume {
    fn info(&self) -> DeviceInfo {
        self.info.clone()
    }

    fn submit(&self, _request: Request, done: Completion) {
        done.complete(Err(ErrorKind::Unsupported.into()));
    }
}

impl fmt::Debug for ObjectVolume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObjectVolume")
            .field("name", &self.info.name)
            .finish_non_exhaustive()
    }
}
