//! Identity of volumes. A volume's name says which cached blocks belong to it. Its backing device
//! must be the one that it had at its last attach.

use std::rc::Rc;

use forebay_block::{Basis, Error, ErrorKind, Identity, Result};
use forebay_metadata::superblock::VolumeEntry;

use crate::cache::Cache;
use crate::engine::Engine;
use crate::failpoints::{Fault, planted};
use crate::format::inspect::Inspection;
use crate::options::VolumeOptions;
use crate::volume_size::{check_volume_size, shrank, shrunk_clean};

/// A backing device as it was recorded or is now, and its size in bytes.
type Sized = (Identity, u64);

fn another_device(name: &str, (was, was_bytes): Sized, (now, bytes): Sized, dirty: u64) -> Error {
    let how = match (was.start, now.start) {
        (Some(before), Some(start)) if was.medium == now.medium && before != start => format!(
            "; it is another part of the same medium: it began at byte {before}, and begins at \
             {start} now"
        ),
        _ if now.basis == Basis::Name => String::new(),
        _ if !was.differs_from(now) => {
            format!("; it has no serial number, and {bytes} bytes in place of {was_bytes}")
        }
        _ if now.basis == Basis::Path => {
            "; it is identified by its path, which has changed".to_owned()
        }
        _ if now.basis == Basis::Address => {
            "; it is identified by its URI, which has changed".to_owned()
        }
        _ => "; it has no serial number, and its place, driver or instance has changed".to_owned(),
    };
    Error::new(
        ErrorKind::InvalidInput,
        format!(
            "volume {name:?} has another backing device than before; {dirty} bytes of dirty data \
             are for that one\n\
             help: give it the former one back, or start with --adopt {name} if this is the same \
             data in another place{how}"
        ),
    )
}

/// Warning of an attach to another backing device.
const ANOTHER_DEVICE: &str =
    "another backing device than before: clean cached data of the former one is dropped";
/// Warning of an attach to a backing device that was served under another name.
const FORMER_NAME: &str = "the backing device was served under another name: clean data cached \
                           under that name is dropped";

fn attached_part(other: &str) -> Error {
    Error::new(
        ErrorKind::Busy,
        format!(
            "its backing device overlaps that of volume {other:?}, which is attached\n\
             help: give each a medium, or a part of one, of its own"
        ),
    )
}

fn another_name(former: &str, dirty_bytes: u64) -> Error {
    Error::new(
        ErrorKind::InvalidInput,
        format!(
            "its backing device was served as volume {former:?}, of which the cache has \
             {dirty_bytes} dirty bytes\n\
             help: serve it under that name, or detach {former:?} first (`forebay detach \
             {former}`, while it is served)"
        ),
    )
}

impl Inspection {
    /// Checks whether a volume of this name could be attached with the backing device that
    /// `identity` names, of so many bytes. `adopt` is [`VolumeOptions::adopt`].
    ///
    /// # Errors
    /// `InvalidInput` if there is dirty data of another backing device under this name. Also if
    /// there is dirty data of this device, or a part of it, under another name.
    pub fn check_identity(
        &self,
        name: &str,
        (identity, size_bytes): (Identity, u64),
        adopt: bool,
    ) -> Result<()> {
        let (own, others): (Vec<_>, Vec<_>) = (self.volumes.iter())
            .filter(|known| known.dirty_bytes > 0)
            .partition(|known| known.name == name);
        // First: no option of a start helps.
        for known in others {
            if (known.identity).overlaps(known.size_bytes, identity, size_bytes) {
                return Err(another_name(&known.name, known.dirty_bytes));
            }
        }
        for known in own.into_iter().filter(|_| !adopt) {
            let (was, was_bytes) = (known.identity, known.size_bytes);
            if was.is_replaced_by(was_bytes, identity, size_bytes) {
                let (was, now) = ((was, was_bytes), (identity, size_bytes));
                return Err(another_device(name, was, now, known.dirty_bytes));
            }
        }
        Ok(())
    }

    /// Records the backing device of a volume, as its attach does. Then the checks of later volumes
    /// compare with this device.
    pub fn note_attached(&mut self, name: &str, (identity, size_bytes): (Identity, u64)) {
        for known in self.volumes.iter_mut().filter(|known| known.name == name) {
            (known.identity, known.size_bytes) = (identity, size_bytes);
        }
    }

    /// Whether a volume of this name could be attached to a backing device of this size, bytes.
    ///
    /// # Errors
    /// `InvalidInput` if there is dirty data of it beyond, or as [`check_volume_size`].
    pub fn check_size(&self, name: &str, size_bytes: u64) -> Result<()> {
        check_volume_size(self.sizes, size_bytes)?;
        let mut volumes = self.volumes.iter();
        match volumes.find(|known| known.name == name && known.dirty_end_bytes > size_bytes) {
            Some(known) => Err(shrank(name, known.size_bytes, size_bytes)),
            None => Ok(()),
        }
    }

    /// Returns the warnings of an attach to this backing device, if it is smaller than before, or
    /// another one, or had another name. [`Inspection::check_identity`] and
    /// [`Inspection::check_size`] have allowed it.
    #[must_use]
    pub fn warnings_of_backing(
        &self,
        name: &str,
        identity: Identity,
        size_bytes: u64,
    ) -> Vec<String> {
        let known = self.volumes.iter().filter_map(|known| {
            let was_bytes = known.size_bytes;
            let is_own = known.name == name;
            if identity.is_known() && is_own {
                if (known.identity).is_replaced_by(was_bytes, identity, size_bytes) {
                    return Some(ANOTHER_DEVICE.to_owned());
                }
            } else if identity.is_known()
                && (known.identity).overlaps(was_bytes, identity, size_bytes)
            {
                return Some(format!("{FORMER_NAME} ({:?})", known.name));
            }
            (is_own && size_bytes < was_bytes).then(|| shrunk_clean(was_bytes, size_bytes))
        });
        known.collect()
    }
}

impl Cache {
    /// Checks an attach of this volume with these options. The cache must have no dirty data of
    /// another backing device under the volume's name, or of this device under another name. The
    /// device is given by its identity and size in bytes.
    ///
    /// # Errors
    /// `InvalidInput` as [`Cache::attach`].
    pub fn check_device(
        &self,
        name: &str,
        device: (Identity, u64),
        options: &VolumeOptions,
    ) -> Result<()> {
        if !device.0.is_known() {
            return Ok(());
        }
        let former = self.engine.former_volumes(name, device);
        self.engine.refuse_former(&former)?;
        match self.engine.known_volume(name) {
            Some(known) => self.engine.is_replaced(&known, device, options).map(drop),
            None => Ok(()),
        }
    }
}

impl Engine {
    /// Returns the volumes of other names that were served from this backing device, or from a part
    /// of it. The attach that succeeds forgets them.
    pub(crate) fn former_volumes(&self, name: &str, (identity, bytes): Sized) -> Vec<VolumeEntry> {
        let superblock = self.superblock.current();
        let is_former = |entry: &&VolumeEntry| {
            entry.name != name
                && (entry.identity).overlaps(entry.size_bytes, identity, bytes)
                && !planted(Fault::TrustBacking)
        };
        let former = superblock.volumes.iter().filter(is_former);
        former.cloned().collect()
    }

    /// Rule 6: cached data must not be mixed with another device's data. This covers another
    /// backing device under this volume's name, and this backing device under another name. Clean
    /// data is dropped. Dirty data makes the attach fail, because it is the only copy.
    pub(crate) async fn check_identity(
        self: &Rc<Self>,
        name: &str,
        known: Option<&VolumeEntry>,
        former: &[VolumeEntry],
        (identity, size_bytes): Sized,
        options: &VolumeOptions,
    ) -> Result<()> {
        if !identity.is_known() {
            return Ok(());
        }
        // First: no option of a start helps.
        self.refuse_former(former)?;
        if let Some(known) = known
            && self.is_replaced(known, (identity, size_bytes), options)?
        {
            tracing::warn!(volume = name, "{ANOTHER_DEVICE}");
            self.drop_clean_blocks(known.id).await?;
        }
        for other in former {
            tracing::warn!(volume = name, former = other.name, "{FORMER_NAME}");
            self.drop_clean_blocks(other.id).await?;
        }
        Ok(())
    }

    /// Refuses a backing device that is attached under another name, or has dirty data there.
    fn refuse_former(&self, former: &[VolumeEntry]) -> Result<()> {
        for other in former {
            if self.volumes.get(other.id).is_some() {
                return Err(attached_part(&other.name));
            }
            match self.dirty_bytes(other.id) {
                0 => {}
                dirty => return Err(another_name(&other.name, dirty)),
            }
        }
        Ok(())
    }

    /// Returns whether a volume has another backing device than before, and nothing dirty for that.
    ///
    /// # Errors
    /// `InvalidInput` if there is dirty data.
    fn is_replaced(
        &self,
        known: &VolumeEntry,
        (identity, size_bytes): Sized,
        options: &VolumeOptions,
    ) -> Result<bool> {
        let was = (known.identity, known.size_bytes);
        if !was.0.is_replaced_by(was.1, identity, size_bytes)
            || options.adopt
            || planted(Fault::TrustBacking)
        {
            return Ok(false);
        }
        match self.dirty_bytes(known.id) {
            0 => Ok(true),
            dirty => {
                let now = (identity, size_bytes);
                Err(another_device(&known.name, was, now, dirty))
            }
        }
    }

    fn dirty_bytes(&self, volume: u16) -> u64 {
        self.map.borrow().share(volume).dirty_bytes
    }

    /// Kills all that is cached of a volume that is not attached and has nothing dirty.
    async fn drop_clean_blocks(&self, volume: u16) -> Result<()> {
        let blocks = self.blocks_of(volume);
        self.kill(volume, blocks).await
    }
}
