//! Attaches a volume to its cache, or serves it without the cache.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use forebay_block::{BlockDevice, Context as _, Error, ErrorKind, Result};
use forebay_cache::{
    Announcement, BlockSizes, Cache, Fallback, OpeningVolume, VolumeOptions, check_volume_size,
};
use forebay_io::sync::{Promise, Semaphore};
use forebay_io::{Stop, rt};
use forebay_volume::Volume;

use super::backing::{judge_identity, shared_bytes, warning_of};
use super::cache::OpenCache;
use super::degraded::go_without;
use super::forget::{make_room, note_clean};
use super::transit::Start;
use super::watched::Watched;
use super::{Served, Stack, Wishes, degraded, devices, note_lost, offload};
use crate::config::{self, Config};
use crate::state::decide::{self, Meeting};
use crate::state::{CacheId, Record, StateDirectory};

impl Stack {
    /// Opens the backing device of a configured volume and serves the volume.
    pub(super) async fn attach(
        &self,
        config: &Config,
        volume: &config::Volume,
        wishes: &Wishes,
        start: &Start<'_>,
    ) -> Result<()> {
        let name = &volume.name;
        let watched = devices::open(config, &volume.backing, "backing", start).await?;
        let backing = watched.device.clone();
        let overlap = self.refuse_overlap(&watched);
        // A start that fails closes it.
        self.devices.borrow_mut().push(watched);
        overlap.context(|| format!("{}: volume {name:?}", config.place(volume.line)))?;
        let odd = devices::odd_end(config, &volume.backing, backing.as_ref());
        let cache = self
            .cache
            .as_ref()
            .filter(|_| !wishes.without_cache.contains(name));
        let unnamed = match cache {
            Some(_) => judge_identity(volume, volume.mode, &backing.info())
                .context(|| format!("{}: volume {name:?}", config.place(volume.line)))?
                .map(|what| format!("{}: volume {name:?}: {what}", config.place(volume.line))),
            None => None,
        };
        for warning in
            (odd.into_iter().chain(unnamed)).chain(warning_of(config, volume, &backing).await)
        {
            tracing::warn!("{warning}");
        }
        let former = self.others(name, &backing).await?;
        let attached = match cache {
            Some(cache) => {
                self.attach_to(cache, volume, backing, wishes, start.stop)
                    .await
            }
            None => self.attach_without(name, backing, wishes).await,
        };
        let place = format!("{}: volume {name:?}", config.place(volume.line));
        let cache_of = cache.cloned();
        // An error of opening the cache names its own place in the configuration.
        let in_place = move |error: Error| match cache_of {
            Some(cache) if cache.has_failed_with(&error) => error,
            _ => error.context(place),
        };
        let attached = attached.map_err(in_place.clone())?;
        self.note_written_as(name, former).await?;
        let device = attached.device;
        let presented = Volume::new(name.as_str(), Rc::clone(&device), volume.read_only);
        presented.limit(volume.limits);
        presented.time_out(volume.timeout);
        let served = Rc::new(Served {
            config: volume.clone(),
            volume: presented,
            device,
            backing: volume.backing.clone(),
            cached: cache.is_some(),
            mode: Cell::new(volume.mode),
            record: Cell::new(attached.record),
            leaving: Cell::new(false),
            is_unexported: Cell::new(false),
            is_detaching: Cell::new(false),
            remembering: Semaphore::new(1),
        });
        self.volumes.borrow_mut().push(Rc::clone(&served));
        let fallback = match wishes.allow_degraded {
            true => Fallback::AllModes,
            false => Fallback::CleanModes,
        };
        let Some((opening, meeting)) = attached.behind else {
            return match cache {
                Some(cache) => {
                    let state = Arc::clone(&self.state);
                    degraded::accept(state, &cache.opened().await?.cache, &served, fallback)
                }
                None => Ok(()),
            };
        };
        let (own, all) = (Promise::new(), self.attached.clone());
        (self.behind.borrow_mut()).push((volume.name.clone(), own.clone()));
        rt::spawn(async move {
            let met = meeting.meet_behind(&served, fallback).await;
            let met = met.map_err(in_place);
            own.set(met.as_ref().map(|_| ()).map_err(Clone::clone));
            if let (Err(error), true) = (&met, all.is_set())
                && error.kind() != ErrorKind::ShuttingDown
            {
                // The start did not wait for this attach and continues.
                tracing::error!("{}", error.report());
            }
            let all = all.get().await;
            opening.hand_over(met.and_then(|device| all.map(|()| device)));
        });
        Ok(())
    }

    /// Waits until the cache is open and its volumes are attached.
    ///
    /// # Errors
    /// The reason why a cache or volume could not be opened.
    pub async fn ready(&self) -> Result<()> {
        self.attached.get().await?;
        let behind = self.behind.borrow().clone();
        for (_, attach) in behind {
            attach.get().await?;
        }
        Ok(())
    }

    /// Refuses a device that shares bytes with another device of the stack, whichever paths lead to
    /// them. Files and whole disks have locks. Parts of disks, several paths to one disk and media
    /// of other machines have none.
    fn refuse_overlap(&self, opened: &Watched) -> Result<()> {
        let info = opened.device.info();
        let devices = self.devices.borrow();
        let overlaps = |other: &&Watched| {
            let other = other.device.info();
            (other.identity).overlaps(other.size_bytes, info.identity, info.size_bytes)
        };
        match devices.iter().find(overlaps) {
            None => Ok(()),
            Some(other) => Err(Error::new(
                ErrorKind::Busy,
                shared_bytes(&other.name, &other.device.info(), &opened.name, &info),
            )),
        }
    }

    /// As [`judge_identity`], for a served volume whose mode is about to change.
    pub(super) fn check_identity_for(&self, served: &Served, mode: config::Mode) -> Result<()> {
        let devices = self.devices.borrow();
        let watched = devices.iter().find(|it| it.name == served.backing);
        let judged = watched.map(|it| judge_identity(&served.config, mode, &it.device.info()));
        judged.unwrap_or(Ok(None)).map(|_| ())
    }

    /// Records durably that clients of these former volumes do not see writes to their backing
    /// device, which is served as `name` now.
    async fn note_written_as(&self, name: &str, former: Vec<(String, Record)>) -> Result<()> {
        let why = format!("its backing device was served as volume {name:?}");
        let state = Arc::clone(&self.state);
        let mut former = former.into_iter().map(|(other, _)| other);
        offload(move || former.try_for_each(|other| state.note_disk_gap(&other, Some(&why), true)))
            .await
    }

    /// Returns the records of other volumes that were served from this backing device.
    async fn others(
        &self,
        name: &str,
        backing: &Rc<dyn BlockDevice>,
    ) -> Result<Vec<(String, Record)>> {
        let info = backing.info();
        let (state, volume) = (Arc::clone(&self.state), name.to_owned());
        offload(move || state.others(&volume, info.identity, info.size_bytes)).await
    }

    /// Returns the new records of `others`, volumes that were served from the same backing device.
    /// Otherwise they would not show that the device is written under this name.
    ///
    /// # Errors
    /// As [`decide::renamed`].
    fn renamed(
        name: &str,
        others: &[(String, Record)],
        cache: CacheId,
        wishes: &Wishes,
    ) -> Result<Vec<(String, Record)>> {
        let adopt = wishes.adopt.iter().any(|adopted| adopted == name);
        let mut renamed = Vec::new();
        for (other, record) in others {
            let Some(changed) = decide::renamed(name, cache, adopt, other, *record)? else {
                continue;
            };
            renamed.push((other.clone(), changed));
        }
        Ok(renamed)
    }

    async fn attach_to(
        &self,
        cache: &Rc<OpenCache>,
        volume: &config::Volume,
        backing: Rc<dyn BlockDevice>,
        wishes: &Wishes,
        stop: &Stop,
    ) -> Result<Attached> {
        let others = self.others(&volume.name, &backing).await?;
        let renamed = Self::renamed(&volume.name, &others, cache.id, wishes)?;
        cache.check_mode(&volume.name, volume.mode)?;
        let found = &cache.found;
        let sizes = BlockSizes::from_mask(found.block_size_bytes, found.classes);
        check_volume_size(sizes, backing.info().size_bytes)?;
        let (state, name) = (Arc::clone(&self.state), volume.name.clone());
        let (record, ranges, dirty) = offload(move || {
            let record = state.load(&name)?;
            let dirty = match record {
                Some(record) if record.dirty_listed => state.dirty(&name)?,
                _ => None,
            };
            Ok((record, state.ranges(&name)?, dirty))
        })
        .await?;
        let info = backing.info();
        let plan = decide::attach(&Meeting {
            volume: &volume.name,
            record,
            ranges,
            dirty,
            cache: cache.id,
            cache_epoch: cache.epoch_of(&volume.name),
            adopt: wishes.adopt.contains(&volume.name),
            dirty_mode: volume.mode.keeps_dirty_data(),
            backing: info.identity,
            backing_bytes: info.size_bytes,
            served_as: decide::served_as(&others, cache.id),
        })?;
        if let Some(note) = &plan.note {
            tracing::warn!("{note}");
        }
        let options = VolumeOptions {
            promotion: volume.promotion.into(),
            sequential_cutoff_bytes: volume.sequential_cutoff_bytes,
            epoch: plan.epoch,
            written_elsewhere: plan.stale.clone(),
            dirty_at_failure: plan.dirty.clone(),
            discard_stale_dirty: wishes.discard_stale_dirty.contains(&volume.name),
            adopt: wishes.adopt.contains(&volume.name),
            ..VolumeOptions::new(volume.mode.into())
        };
        let opening = match cache.opens_soon().await {
            true => None,
            false => OpeningVolume::new(
                &cache.devices,
                &cache.found,
                cache.durability,
                &volume.name,
                Rc::clone(&backing),
                &options,
                Some(&cache.opening_map),
            ),
        };
        let record = plan.before;
        let meeting = Met {
            state: Arc::clone(&self.state),
            cache: Rc::clone(cache),
            name: volume.name.clone(),
            backing,
            options,
            plan,
            renamed,
            stop: stop.clone(),
        };
        if let Some(opening) = opening {
            return Ok(Attached {
                device: Rc::clone(&opening) as Rc<dyn BlockDevice>,
                record,
                behind: Some((opening, meeting)),
            });
        }
        Ok(Attached {
            device: meeting.meet().await?,
            record: meeting.plan.after,
            behind: None,
        })
    }

    /// Serves the backing device without a cache. Writes are recorded for each cache that may hold
    /// data of the device under any name.
    async fn attach_without(
        &self,
        name: &str,
        backing: Rc<dyn BlockDevice>,
        wishes: &Wishes,
    ) -> Result<Attached> {
        let (state, owned) = (Arc::clone(&self.state), name.to_owned());
        let record = offload(move || state.load(&owned)).await?;
        let others = self.others(name, &backing).await?;
        if !wishes.without_cache.iter().any(|named| named == name) {
            let own = record.map(|record| (name.to_owned(), record));
            for (last, record) in own.iter().chain(&others) {
                decide::check_without(name, last, *record)?;
            }
        }
        let info = backing.info();
        let sized = (info.identity, info.size_bytes);
        // Service under another name may have written ranges that a new log lacks.
        let may_be_cached = wishes.without_cache.iter().any(|it| it == name) && others.is_empty();
        let mut device = backing;
        let is_logged =
            |record: &Record| matches!(record.cache, CacheId::Uuid(_)) || record.logs_every_write();
        for (other, record) in others.into_iter().filter(|(_, record)| is_logged(record)) {
            let plan = decide::written_without_cache(&other, record);
            if let Some(note) = &plan.note {
                tracing::warn!("the backing device is served as volume {name:?}: {note}");
            }
            let position = decide::position(record.backing, info.identity);
            device = go_without(&self.state, &other, &plan, position, device).await?;
        }
        let plan = decide::without_cache(name, record, sized, may_be_cached);
        if let Some(note) = &plan.note {
            tracing::warn!("{note}");
        }
        // The log is of the volume's own device, of which this one may be another part.
        let had = record.filter(|it| it.backing.overlaps(it.backing_bytes, sized.0, sized.1));
        let position = had.map_or(Some(0), |it| decide::position(it.backing, sized.0));
        let position = position.filter(|position| *position == 0);
        let device = go_without(&self.state, name, &plan, position, device).await?;
        Ok(Attached {
            device,
            record: plan.record,
            behind: None,
        })
    }
}

/// A volume that can be served.
struct Attached {
    device: Rc<dyn BlockDevice>,
    record: Record,
    /// Attach to complete once the cache is open, if it is not.
    behind: Option<(Rc<OpeningVolume>, Met)>,
}

/// A volume that may be attached to its cache.
struct Met {
    state: Arc<StateDirectory>,
    cache: Rc<OpenCache>,
    name: String,
    backing: Rc<dyn BlockDevice>,
    options: VolumeOptions,
    plan: decide::Attach,
    /// New records of other volumes that were served from the backing device.
    renamed: Vec<(String, Record)>,
    /// Ends the wait for the cache.
    stop: Stop,
}

impl Met {
    /// Attaches the volume once the cache is open, and stores the new record in the state
    /// directory.
    async fn meet(&self) -> Result<Rc<dyn BlockDevice>> {
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
                    "the cache raised the epoch to {raised:?} and not to {}; report this",
                    self.plan.after.epoch
                ),
            ));
        }
        // The cache has the new epoch, so the log does not count. A log beside a record without it
        // shows that the record is older.
        let (state, name) = (Arc::clone(&self.state), self.name.clone());
        offload(move || state.remove_history(&name)).await?;
        self.store(self.plan.after).await?;
        Ok(device)
    }

    async fn attach_with_room(&self, cache: &Cache) -> Result<Rc<dyn BlockDevice>> {
        make_room(&self.state, &self.cache, cache, &self.name).await?;
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
            forgotten,
        } = announcement;
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

    /// As [`Met::meet`], for a volume that is being served.
    async fn meet_behind(
        &self,
        served: &Rc<Served>,
        fallback: Fallback,
    ) -> Result<Rc<dyn BlockDevice>> {
        let device = self.meet().await?;
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
