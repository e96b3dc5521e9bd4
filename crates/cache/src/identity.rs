//! Whose data it is: a volume's name says which cached blocks belong to it, and the backing device that it
//! had last must be the one that it has now.

use std::rc::Rc;

use forebay_block::{Error, ErrorKind, Result};
use forebay_metadata::superblock::VolumeEntry;

use crate::engine::Engine;
use crate::options::VolumeOptions;

impl Engine {
    /// Rule 6: what is cached of another backing device, under this volume's name, or of this backing
    /// device, under another name, is not mixed with what this volume holds. Clean data goes; dirty data
    /// is somebody's, and refuses.
    pub(crate) async fn check_identity(
        self: &Rc<Self>,
        name: &str,
        known: Option<&VolumeEntry>,
        identity: u64,
        options: &VolumeOptions,
    ) -> Result<()> {
        if identity == 0 {
            return Ok(());
        }
        if let Some(known) = known
            && known.identity != 0
            && known.identity != identity
            && !options.adopt
        {
            let dirty = self.dirty_bytes(known.id);
            if dirty > 0 {
                return Err(Error::new(
                    ErrorKind::InvalidInput,
                    format!(
                        "volume {name:?} has another backing device than before, and the cache holds {dirty} bytes of dirty data for the one that it had: give it that one back, or start with --adopt {name} if this is the same data in another place"
                    ),
                ));
            }
            tracing::warn!(
                volume = name,
                "another backing device than before: what was cached of the former one is dropped"
            );
            self.drop_clean_slots(known.id).await?;
        }
        let others: Vec<VolumeEntry> = {
            let superblock = self.superblock.borrow();
            let same = |entry: &&VolumeEntry| entry.identity == identity && entry.name != name;
            superblock.volumes.iter().filter(same).cloned().collect()
        };
        for other in others {
            let dirty = self.dirty_bytes(other.id);
            if dirty > 0 {
                return Err(Error::new(
                    ErrorKind::InvalidInput,
                    format!(
                        "the backing device of volume {name:?} was served as volume {:?}, and the cache holds {dirty} bytes of dirty data for it: serve it under that name, or detach {:?} first (`forebay detach {}`, while it is served)",
                        other.name, other.name, other.name
                    ),
                ));
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
