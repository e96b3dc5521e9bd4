//! Whose data it is: a volume's name says which cached blocks belong to it, and the backing device that it
//! had last must be the one that it has now.

use std::rc::Rc;

use forebay_block::{Error, ErrorKind, Identity, Result};
use forebay_metadata::superblock::VolumeEntry;

use crate::engine::Engine;
use crate::format::Inspection;
use crate::options::VolumeOptions;
use crate::size::{check_volume_size, shrank};

fn another_device(name: &str, dirty_bytes: u64) -> Error {
    Error::new(
        ErrorKind::InvalidInput,
        format!(
            "volume {name:?} has another backing device than before, and the cache holds {dirty_bytes} bytes of dirty data for the one that it had: give it that one back, or start with --adopt {name} if this is the same data in another place"
        ),
    )
}

fn another_name(name: &str, former: &str, dirty_bytes: u64) -> Error {
    Error::new(
        ErrorKind::InvalidInput,
        format!(
            "the backing device of volume {name:?} was served as volume {former:?}, and the cache holds {dirty_bytes} bytes of dirty data for it: serve it under that name, or detach {former:?} first (`forebay detach {former}`, while it is served)"
        ),
    )
}

impl Inspection {
    /// Whether a volume of this name could be attached with the backing device that `identity` names.
    ///
    /// # Errors
    /// `InvalidInput` if there is dirty data of another backing device under this name, or of this one under
    /// another name.
    pub fn check_identity(&self, name: &str, identity: Identity) -> Result<()> {
        let dirty = self.volumes.iter().filter(|known| known.dirty_bytes > 0);
        for known in dirty {
            if known.name == name && known.identity.differs_from(identity) {
                return Err(another_device(name, known.dirty_bytes));
            }
            if known.name != name && known.identity.is_same_as(identity) {
                return Err(another_name(name, &known.name, known.dirty_bytes));
            }
        }
        Ok(())
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
}

impl Engine {
    /// Rule 6: what is cached of another backing device, under this volume's name, or of this backing
    /// device, under another name, is not mixed with what this volume holds. Clean data goes; dirty data
    /// is somebody's, and refuses.
    pub(crate) async fn check_identity(
        self: &Rc<Self>,
        name: &str,
        known: Option<&VolumeEntry>,
        identity: Identity,
        options: &VolumeOptions,
    ) -> Result<()> {
        if !identity.is_known() {
            return Ok(());
        }
        if let Some(known) = known
            && known.identity.differs_from(identity)
            && !options.adopt
        {
            let dirty = self.dirty_bytes(known.id);
            if dirty > 0 {
                return Err(another_device(name, dirty));
            }
            tracing::warn!(
                volume = name,
                "another backing device than before: what was cached of the former one is dropped"
            );
            self.drop_clean_slots(known.id).await?;
        }
        let others: Vec<VolumeEntry> = {
            let superblock = self.superblock.borrow();
            let same =
                |entry: &&VolumeEntry| entry.identity.is_same_as(identity) && entry.name != name;
            superblock.volumes.iter().filter(same).cloned().collect()
        };
        for other in others {
            let dirty = self.dirty_bytes(other.id);
            if dirty > 0 {
                return Err(another_name(name, &other.name, dirty));
            }
            if self.volume_by_id(other.id).is_some() {
                continue;
            }
            tracing::warn!(
                volume = name,
                former = other.name,
                "the backing device was served under another name: what was cached under it is dropped"
            );
            self.drop_clean_slots(other.id).await?;
            self.change_superblock(|superblock| {
                superblock.volumes.retain(|entry| entry.id != other.id);
            })
            .await?;
            self.regions.forget_volume(other.id);
        }
        Ok(())
    }

    fn dirty_bytes(&self, volume: u16) -> u64 {
        self.map.borrow().share(volume).dirty_bytes
    }

    /// Kills all that is cached of a volume that is not attached and has nothing dirty.
    async fn drop_clean_slots(&self, volume: u16) -> Result<()> {
        let slots = self.slots_of(volume);
        self.kill(volume, slots).await
    }
}
