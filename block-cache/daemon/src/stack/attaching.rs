//! Attaches volumes to their cache, and raises their epochs in the state directory.

use std::rc::Rc;
use std::sync::Arc;

use forebay_block::{BlockDevice, Error, ErrorKind, Result};
use forebay_cache::{Announcement, Cache, Fallback, OpeningVolume, UNREPORTED_LOSS, VolumeOptions};
use forebay_io::Stop;

use super::cache::OpenCache;
use super::claiming::Claiming;
use super::forget::{make_room, note_clean};
use super::{Served, degraded, note_lost, offload};
use crate::state::decide;
use crate::state::{CacheId, Record, StateDirectory};

/// A volume that can be served.
pub(super) struct Attached {
    pub(super) device: Rc<dyn BlockDevice>,
    pub(super) record: Record,
    /// Device that serves the volume until the cache is open, and the attach to complete then.
    pub(super) pending: Option<(Rc<OpeningVolume>, PlannedAttach)>,
}

/// A checked volume with the plan of its attach.
pub(super) struct PlannedAttach {
    pub(super) state: Arc<StateDirectory>,
    pub(super) cache: Rc<OpenCache>,
    pub(super) name: String,
    pub(super) backing: Rc<dyn BlockDevice>,
    /// Claim that the backing device still needs.
    pub(super) claiming: Option<Claiming>,
    pub(super) options: VolumeOptions,
    pub(super) plan: decide::Attach,
    /// New records of other volumes that were served from the backing device.
    pub(super) renamed: Vec<(String, Record)>,
    /// Ends the wait for the cache.
    pub(super) stop: Stop,
}

impl PlannedAttach {
    /// Attaches the volume, or serves it while its cache is being opened.
    pub(super) async fn attach(self) -> Result<Attached> {
        let opens_later = self.claiming.is_none() && !self.cache.wait_briefly().await;
        let opening = match opens_later {
            false => None,
            true => OpeningVolume::new(
                &self.cache.devices,
                &self.cache.found,
                self.cache.durability,
                &self.name,
                Rc::clone(&self.backing),
                &self.options,
                Some(&self.cache.opening_map),
            ),
        };
        if let Some(opening) = opening {
            return Ok(Attached {
                device: Rc::clone(&opening) as Rc<dyn BlockDevice>,
                record: self.plan.before,
                pending: Some((opening, self)),
            });
        }
        Ok(Attached {
            device: self.attach_when_open().await?,
            record: self.plan.after,
            pending: None,
        })
    }

    /// Waits until the cache is open, and checks its data of the volume, as the attach does.
    ///
    /// # Errors
    /// The refusal of the attach.
    pub(super) async fn check_data(&self) -> Result<()> {
        let opened = self.cache.opened_unless_stopped(&self.stop).await?;
        let info = self.backing.info();
        opened.cache.check_logical_blocks(&info)?;
        let device = (info.identity, info.size_bytes);
        (opened.cache).check_device(&self.name, device, &self.options)?;
        opened.cache.check_stale(&self.name, &self.options)
    }

    /// Claims a backing device in object storage. Before the claim, the state directory names the
    /// writer, and says whether another daemon wrote the device. After it, the log of the device
    /// shows only this daemon.
    async fn claim(&self) -> Result<()> {
        let Some(claiming) = &self.claiming else {
            return Ok(());
        };
        if let Some(record) = self.plan.announced {
            let (state, name) = (Arc::clone(&self.state), self.name.clone());
            let is_after_other = self.plan.is_after_other;
            offload(move || {
                if is_after_other {
                    state.remove_ranges(&name)?;
                }
                state.store(&name, &record)
            })
            .await?;
        }
        claiming.carry_out().await
    }

    /// Attaches the volume once the cache is open, and stores the new record in the state
    /// directory.
    async fn attach_when_open(&self) -> Result<Rc<dyn BlockDevice>> {
        let opened = self.cache.opened_unless_stopped(&self.stop).await?;
        self.cache.room.acquire(1).await;
        let attached = self.attach_with_room(&opened.cache).await;
        self.cache.room.release(1);
        let device = attached?;
        let raised = opened.cache.volume_epoch(&self.name);
        if raised != Some(self.plan.after.epoch) {
            return Err(Error::new(
                ErrorKind::Corrupt,
                format!(
                    "the cache has epoch {} of the volume after the attach, not {}\n    \
                     help: report this as a bug of Forebay",
                    raised.unwrap_or(0),
                    self.plan.after.epoch
                ),
            ));
        }
        // The cache has the new epoch, so the log of ranges is obsolete. It goes first: a log whose
        // record does not name it shows that the record is older.
        let (state, name) = (Arc::clone(&self.state), self.name.clone());
        offload(move || state.remove_history(&name)).await?;
        self.store(self.plan.after).await?;
        Ok(device)
    }

    async fn attach_with_room(&self, cache: &Cache) -> Result<Rc<dyn BlockDevice>> {
        make_room(&self.state, &self.cache, cache, &self.name).await?;
        self.claim().await?;
        let (backing, options) = (Rc::clone(&self.backing), self.options.clone());
        let announce = async |announcement| self.announce(announcement).await;
        cache
            .attach_announced(&self.name, backing, options, announce)
            .await
    }

    /// Records the attach in the state directory, before the cache does and after the last check
    /// that may refuse it. So the record of a refused volume keeps the device that the cache has
    /// dirty data for. The attach forgets lost writes to the backing device, so they are recorded,
    /// too, for these names and the new one. Volumes that the cache forgets are recorded as clean:
    /// their next attach needs no decision.
    async fn announce(&self, announcement: Announcement) -> Result<()> {
        let Announcement {
            mut lost,
            has_unreported_loss,
            forgotten,
        } = announcement;
        if has_unreported_loss {
            // The start that found the loss may have had another state directory.
            let (state, name) = (Arc::clone(&self.state), self.name.clone());
            offload(move || state.note_disk_gap(&name, Some(UNREPORTED_LOSS), true)).await?;
        }
        if !lost.is_empty() {
            lost.push(self.name.clone());
            note_lost(&self.state, lost).await?;
        }
        for other in &forgotten {
            note_clean(&self.state, other, self.cache.id).await?;
        }
        for (other, record) in self.renamed.iter().cloned() {
            if record.cache != CacheId::None {
                tracing::warn!(
                    volume = self.name,
                    former = other,
                    "the backing device was served under another name, through cache {}: data of \
                     it in that cache counts as stale now",
                    record.cache
                );
            }
            let state = Arc::clone(&self.state);
            offload(move || {
                state.store(&other, &record)?;
                // The written ranges are unknown.
                state.remove_ranges(&other)
            })
            .await?;
        }
        let (log, path) = (self.plan.log, self.state.ranges_path(&self.name));
        offload(move || log.carry_out(&path)).await?;
        self.store(self.plan.before).await
    }

    /// As [`PlannedAttach::attach_when_open`], for a volume that is being served.
    pub(super) async fn attach_in_background(
        &self,
        served: &Rc<Served>,
        fallback: Fallback,
    ) -> Result<Rc<dyn BlockDevice>> {
        let device = self.attach_when_open().await?;
        served.record.set(self.plan.after);
        let opened = self.cache.opened().await?;
        degraded::accept(Arc::clone(&self.state), &opened.cache, served, fallback)?;
        Ok(device)
    }

    async fn store(&self, record: Record) -> Result<()> {
        let (state, name) = (Arc::clone(&self.state), self.name.clone());
        offload(move || state.store(&name, &record)).await
    }
}
