//! What a failed flush of a backing device may have lost is told, in this process and in the next.
//!
//! Clients are told by their own flushes while the volume stays attached. The superblock remembers it beyond that, so that a
//! later process, whose flush succeeds, does not take the device's word for what an earlier flush did not cover.

use forebay_block::{Error, Result};

use crate::backing::Backing;
use crate::engine::{Attached, Engine};
use crate::plant::{Fault, planted};

impl Engine {
    /// Notes durably that a flush failed, and whether clients' writes hung on it, before any of them is told.
    pub(crate) async fn note_failed_flush(&self, volume: &Attached) {
        let hung = volume.backing.take_note();
        if hung || volume.backing.take_first_failure() {
            let _ = self.set_flush_failed(volume.id, hung).await;
        }
    }

    async fn set_flush_failed(&self, id: u16, clients_hung_on_it: bool) -> Result<()> {
        self.change_superblock(|superblock| {
            let mut volumes = superblock.volumes.iter_mut();
            if let Some(entry) = volumes.find(|entry| entry.id == id) {
                entry.flush_failed |= clients_hung_on_it;
                entry.may_show_lost |= !planted(Fault::ForgetFailedFlush);
            }
        })
        .await
    }

    /// Whether what can be read from a volume's backing device may be lost with its next power loss, although it was flushed
    /// meanwhile: a flush failed, or may have failed as its process died, and what recovery found to be dirty has not been
    /// written again since.
    pub(crate) fn may_show_lost(&self, id: u16) -> bool {
        let superblock = self.superblock.borrow();
        let known = superblock.volumes.iter().find(|known| known.id == id);
        let told = known.is_some_and(|known| known.may_show_lost);
        self.recovering.get() > 0 && (told || !self.power_was_lost)
    }

    /// Before a volume is attached: what an earlier process left in its backing device's cache is flushed if `needed`, or if a
    /// flush failed then, which is told.
    ///
    /// # Errors
    /// The device's. That is remembered, too.
    pub(crate) async fn flush_what_was_left(
        &self,
        name: &str,
        id: u16,
        backing: &Backing,
        needed: bool,
    ) -> Result<()> {
        let failed = {
            let superblock = self.superblock.borrow();
            let known = superblock.volumes.iter().find(|known| known.id == id);
            known.is_some_and(|known| known.flush_failed)
        };
        if needed || failed {
            let flushed = backing.flush().await;
            if let Err(error) = flushed {
                if !failed {
                    self.set_flush_failed(id, true).await?;
                }
                let what = "what was written before may be lost";
                return Err(Error::context(error, format!("volume {name:?}: {what}")));
            }
        }
        if failed {
            tracing::error!(
                volume = name,
                "A FLUSH OF ITS BACKING DEVICE FAILED before this start: what was written to that since the last good one, and is not dirty in the cache, MAY BE LOST; compare what matters with a copy"
            );
            backing.lost.set(true);
        }
        Ok(())
    }
}

impl Backing {
    /// What clients wrote may be lost: why, in words.
    pub(crate) fn loss(&self) -> Option<String> {
        match self.check() {
            Err(error) => Some(error.report()),
            Ok(()) => self.lost.get().then(|| {
                "a flush failed before this start: what was written since the last good one may be lost"
                    .to_owned()
            }),
        }
    }
}
