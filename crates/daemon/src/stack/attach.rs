//! A volume meets its cache, or is served without it.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use forebay_block::{BlockDevice, Context as _, Error, ErrorKind, Result};
use forebay_cache::VolumeOptions;
use forebay_io::sync::Semaphore;
use forebay_volume::Volume;

use super::cache::OpenCache;
use super::transit::Around;
use super::{Served, Stack, Wishes, devices, offload};
use crate::config::{self, Config, DeviceKind};
use crate::state::decide::{self, Meeting};
use crate::state::{CacheId, LoggedDevice, Record};

impl Stack {
    /// Opens the backing device of a volume of the configuration and serves the volume.
    pub(super) async fn attach(
        &self,
        config: &Config,
        volume: &config::Volume,
        wishes: &Wishes,
    ) -> Result<()> {
        let name = &volume.name;
        let around = Around {
            state: &self.state,
            accept_loss: wishes.accept_journal_loss,
        };
        let watched = devices::open(config, &volume.backing, "backing", &around).await?;
        let backing = watched.device.clone();
        self.refuse_twin(config, &watched)
            .context(|| format!("{}: volume {name:?}", config.place(volume.line)))?;
        if let Some(warning) = devices::odd_end(config, &volume.backing, backing.as_ref()) {
            tracing::warn!("{warning}");
        }
        self.devices.borrow_mut().push(watched);
        let cache = self
            .cache
            .as_ref()
            .filter(|_| !wishes.without_cache.contains(name));
        let met = self
            .meet_others(name, &backing, cache.map(|cache| cache.id), wishes)
            .await;
        let attached = match (met, cache) {
            (Err(error), _) => Err(error),
            (Ok(()), Some(cache)) => self.attach_to(cache, volume, backing, wishes).await,
            (Ok(()), None) => self.attach_without(name, backing).await,
        };
        let (device, record) =
            attached.context(|| format!("{}: volume {name:?}", config.place(volume.line)))?;
        let presented = Volume::new(name.as_str(), Rc::clone(&device), volume.read_only);
        presented.limit(volume.limits);
        presented.time_out(volume.timeout);
        let served = Served {
            config: volume.clone(),
            volume: presented,
            device,
            backing: volume.backing.clone(),
            cached: cache.is_some(),
            mode: Cell::new(volume.mode),
            record: Cell::new(record),
            remembering: Semaphore::new(1),
        };
        let served = Rc::new(served);
        if wishes.accept_divergence {
            self.accept_divergence(&served)?;
        }
        self.volumes.borrow_mut().push(served);
        Ok(())
    }

    /// A medium of another machine has one user here, however it is reached; files are locked.
    fn refuse_twin(&self, config: &Config, opened: &devices::Watched) -> Result<()> {
        let leaf = config.stack(&opened.name).pop();
        if !leaf.is_some_and(|leaf| matches!(leaf.kind, DeviceKind::NvmeTcp { .. })) {
            return Ok(());
        }
        let identity = opened.device.info().identity;
        let devices = self.devices.borrow();
        let is_same = |other: &&devices::Watched| other.device.info().identity == identity;
        match identity.and_then(|_| devices.iter().find(is_same)) {
            None => Ok(()),
            Some(twin) => {
                let what = format!(
                    "devices {:?} and {:?} are one and the same: give each a medium of its own",
                    twin.name, opened.name
                );
                Err(Error::new(ErrorKind::Busy, what))
            }
        }
    }

    /// The backing device may have been served under another name: that volume's record must not say that
    /// nothing happened since.
    async fn meet_others(
        &self,
        name: &str,
        backing: &Rc<dyn BlockDevice>,
        cache: Option<CacheId>,
        wishes: &Wishes,
    ) -> Result<()> {
        let identity = backing.info().identity.unwrap_or(0);
        let (state, volume) = (Arc::clone(&self.state), name.to_owned());
        let others = offload(move || state.others(&volume, identity)).await?;
        let adopt = wishes.adopt.iter().any(|adopted| adopted == name);
        for (other, record) in others {
            let Some(changed) = decide::renamed(name, cache, adopt, &other, record)? else {
                continue;
            };
            tracing::warn!(
                volume = name,
                former = other,
                "the backing device was served under another name, through cache {}: what that cache holds of it is taken for older from now on",
                record.cache
            );
            self.store(&other, changed).await?;
            // Where it is written is not known.
            let state = Arc::clone(&self.state);
            offload(move || state.remove_ranges(&other)).await?;
        }
        Ok(())
    }

    async fn attach_to(
        &self,
        cache: &OpenCache,
        volume: &config::Volume,
        backing: Rc<dyn BlockDevice>,
        wishes: &Wishes,
    ) -> Result<(Rc<dyn BlockDevice>, Record)> {
        cache.check_mode(&volume.name, volume.mode)?;
        let (state, name) = (Arc::clone(&self.state), volume.name.clone());
        let (record, ranges) =
            offload(move || Ok((state.load(&name)?, state.ranges(&name)?))).await?;
        let known = cache.epochs.iter().find(|(name, _)| *name == volume.name);
        let plan = decide::attach(&Meeting {
            volume: &volume.name,
            record,
            ranges,
            cache: cache.id,
            cache_epoch: known.map(|(_, epoch)| *epoch),
            adopt: wishes.adopt.contains(&volume.name),
            dirty_mode: volume.mode.keeps_dirty_data(),
            backing: backing.info().identity.unwrap_or(0),
        })?;
        if let Some(note) = &plan.note {
            tracing::warn!("{note}");
        }
        self.store(&volume.name, plan.before).await?;
        let options = VolumeOptions {
            promotion: volume.promotion.into(),
            sequential_cutoff_bytes: volume.sequential_cutoff_bytes,
            epoch: plan.epoch,
            written_elsewhere: plan.stale,
            discard_stale_dirty: wishes.discard_stale_dirty.contains(&volume.name),
            adopt: wishes.adopt.contains(&volume.name),
            ..VolumeOptions::new(volume.mode.into())
        };
        let attached = cache.cache.attach(&volume.name, backing, options).await;
        let device = attached.map_err(|error| match error.kind() {
            ErrorKind::Busy => error.context(format!(
                "start with --discard-stale-dirty {name} to give up what is older, or with \
                 --without-cache {name}",
                name = volume.name
            )),
            _ => error,
        })?;
        let raised = cache.cache.volume_epoch(&volume.name);
        if raised != Some(plan.after.epoch) {
            return Err(Error::new(
                ErrorKind::Corrupt,
                format!(
                    "the cache raised the epoch to {raised:?} and not to {}; report this",
                    plan.after.epoch
                ),
            ));
        }
        self.store(&volume.name, plan.after).await?;
        let (state, name) = (Arc::clone(&self.state), volume.name.clone());
        offload(move || state.remove_ranges(&name)).await?;
        Ok((device, plan.after))
    }

    async fn attach_without(
        &self,
        name: &str,
        backing: Rc<dyn BlockDevice>,
    ) -> Result<(Rc<dyn BlockDevice>, Record)> {
        let (state, owned) = (Arc::clone(&self.state), name.to_owned());
        let record = offload(move || state.load(&owned)).await?;
        let identity = backing.info().identity.unwrap_or(0);
        let plan = decide::without_cache(name, record, identity);
        if let Some(note) = &plan.note {
            tracing::warn!("{note}");
        }
        if plan.fresh_log {
            let (state, owned) = (Arc::clone(&self.state), name.to_owned());
            offload(move || state.remove_ranges(&owned)).await?;
        }
        self.store(name, plan.record).await?;
        let device = match plan.record.cache {
            CacheId::Uuid(_) => LoggedDevice::new(backing, &self.state.ranges_path(name))?,
            CacheId::None | CacheId::Memory => backing,
        };
        Ok((device, plan.record))
    }

    async fn store(&self, name: &str, record: Record) -> Result<()> {
        let (state, name) = (Arc::clone(&self.state), name.to_owned());
        offload(move || state.store(&name, &record)).await
    }
}
