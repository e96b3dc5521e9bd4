//! Attaches a volume to its cache, or serves it without the cache.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use forebay_block::{BlockDevice, Context as _, Error, ErrorKind, Result};
use forebay_cache::{BlockSizes, Fallback, VolumeOptions, check_volume_size};
use forebay_io::sync::{Promise, Semaphore};
use forebay_io::{Stop, rt};
use forebay_volume::Volume;

use super::attaching::PlannedAttach;
use super::backing::{judge_identity, shared_bytes, warning_of};
use super::cache::OpenCache;
use super::claiming::Claiming;
use super::fence::{Failure, fence_after};
use super::transit::Start;
use super::uncached::Uncached;
use super::watched::Watched;
use super::{Served, Stack, Wishes, await_attaches, degraded, devices, offload, place_of_volume};
use crate::config::{self, Config};
use crate::state::decide::{self, AttachRequest};
use crate::state::{CacheId, Record};

impl Stack {
    /// Opens the backing device of a configured volume and serves the volume. Returns a volume in
    /// object storage unserved, with all checks passed that do not need its cache open.
    pub(super) async fn attach(
        &self,
        config: &Config,
        volume: &config::Volume,
        wishes: &Wishes,
        start: &Start<'_>,
    ) -> Result<Option<Checked>> {
        let name = &volume.name;
        let watched = devices::open(config, &volume.backing, "backing", start).await?;
        let backing = watched.device.clone();
        let objects = watched.objects.clone();
        let withheld = watched.withheld_in_words();
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
        if let Some(objects) = objects.as_ref().filter(|objects| objects.is_served) {
            let record = self.state.load(name)?;
            let older = objects.refuse_older(name, record).await;
            older.context(|| place_of_volume(config, volume))?;
        }
        let former = self.others(name, &backing).await?;
        let claiming = Claiming::of(objects, &former).await;
        let claiming = claiming.context(|| place_of_volume(config, volume))?;
        let older = self.refuse_older_slots(name, &backing, claiming.as_ref(), &former, withheld);
        older.await.context(|| place_of_volume(config, volume))?;
        let is_object = claiming.is_some();
        let way = match cache {
            Some(cache) => {
                let planned = self.check(cache, volume, backing, claiming, wishes, start.stop);
                planned.await.map(|planned| Way::Cached(Box::new(planned)))
            }
            None => {
                let checked = self.check_without(name, backing, claiming, wishes).await;
                checked.map(|uncached| Way::Without(Box::new(uncached)))
            }
        };
        let checked = Checked {
            config: volume.clone(),
            place: place_of_volume(config, volume),
            way: way.context(|| place_of_volume(config, volume))?,
            former,
            fallback: match wishes.allow_degraded {
                true => Fallback::AllModes,
                false => Fallback::CleanModes,
            },
        };
        if is_object {
            return Ok(Some(checked));
        }
        self.serve(checked).await.map(|()| None)
    }

    /// Serves a volume whose checks have passed.
    pub(super) async fn serve(&self, checked: Checked) -> Result<()> {
        let Checked {
            config: volume,
            place,
            way,
            former,
            fallback,
        } = checked;
        let cache = way.cache().cloned();
        let attached = match way {
            Way::Cached(planned) => planned.attach().await,
            Way::Without(uncached) => uncached.serve().await,
        };
        let (cache_of, place_of) = (cache.clone(), place);
        let in_place = move |error: Error| in_place(&place_of, cache_of.as_deref(), error);
        let attached = attached.map_err(in_place.clone())?;
        self.note_written_as(&volume.name, former).await?;
        let device = attached.device;
        let presented = Volume::new(volume.name.as_str(), Rc::clone(&device), volume.read_only);
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
        if let Some(failure) = self.failure_of(&served.backing) {
            rt::spawn(fence_after(failure, Rc::downgrade(&served)));
        }
        let Some((opening, planned)) = attached.pending else {
            return match cache {
                Some(cache) => {
                    let state = Arc::clone(&self.state);
                    degraded::accept(state, &cache.opened().await?.cache, &served, fallback)
                }
                None => Ok(()),
            };
        };
        let (own, all) = (Promise::new(), self.attached.clone());
        (self.pending.borrow_mut()).push((volume.name.clone(), own.clone()));
        rt::spawn(async move {
            let attached = planned.attach_in_background(&served, fallback).await;
            let attached = attached.map_err(in_place);
            own.set(attached.as_ref().map(|_| ()).map_err(Clone::clone));
            let is_late = all.is_set();
            if let (Err(error), true) = (&attached, is_late)
                && error.kind() != ErrorKind::ShuttingDown
            {
                // The start did not wait for this attach and continues.
                tracing::error!("{}", error.report());
            }
            let all = all.get().await;
            if let (Ok(_), Ok(()), Some(cache), true) = (&attached, &all, cache, is_late) {
                cache.forget_reported_losses().await;
            }
            opening.hand_over(attached.and_then(|device| all.map(|()| device)));
        });
        Ok(())
    }

    /// Returns how a backing device fails for good, if another machine can take it over.
    fn failure_of(&self, backing: &str) -> Option<Failure> {
        let devices = self.devices.borrow();
        let device = devices.iter().find(|device| device.name == backing)?;
        device.failure.clone()
    }

    /// Serves volumes in object storage after all others. All volumes are checked before the first
    /// is claimed.
    ///
    /// # Errors
    /// The first refusal.
    pub(super) async fn serve_objects(
        &self,
        config: &Config,
        checked: Vec<Checked>,
        stop: &Stop,
    ) -> Result<()> {
        if checked.is_empty() {
            return Ok(());
        }
        let pending = self.pending.borrow().clone();
        let attaches = stop.wait_for("all other volumes to be attached");
        await_attaches(&pending).await?;
        drop(attaches);
        for volume in &checked {
            if let Way::Cached(planned) = &volume.way {
                let checked = planned.check_data().await;
                checked.map_err(|error| volume.in_place(error))?;
            }
        }
        for volume in checked {
            self.serve(volume).await?;
        }
        let mut volumes = self.volumes.borrow_mut();
        volumes.sort_by_key(|served| {
            let mut configured = config.volumes.iter();
            configured.position(|volume| volume.name == served.config.name)
        });
        Ok(())
    }

    /// Waits until the cache is open and its volumes are attached.
    ///
    /// # Errors
    /// The reason why a cache or volume could not be opened.
    pub async fn ready(&self) -> Result<()> {
        self.attached.get().await?;
        let pending = self.pending.borrow().clone();
        for (_, attach) in pending {
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

    /// Refuses data of an earlier process in transit caches, which this describes, if another
    /// daemon has served the backing device since.
    async fn refuse_older_slots(
        &self,
        name: &str,
        backing: &Rc<dyn BlockDevice>,
        claiming: Option<&Claiming>,
        former: &[(String, Record)],
        withheld: Option<String>,
    ) -> Result<()> {
        let (Some(claiming), Some(withheld)) = (claiming, withheld) else {
            return Ok(());
        };
        let (state, owned) = (Arc::clone(&self.state), name.to_owned());
        let record = offload(move || state.load(&owned)).await?;
        let info = backing.info();
        let sized = (info.identity, info.size_bytes);
        match claiming.claim.is_after_other_on(sized, record, former) {
            true => {
                tracing::warn!("volume {name:?}: {}", claiming.other_in_words());
                Err(Error::new(ErrorKind::Busy, withheld))
            }
            false => Ok(()),
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

    /// Decides how to attach a volume to a cache.
    async fn check(
        &self,
        cache: &Rc<OpenCache>,
        volume: &config::Volume,
        backing: Rc<dyn BlockDevice>,
        claiming: Option<Claiming>,
        wishes: &Wishes,
        stop: &Stop,
    ) -> Result<PlannedAttach> {
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
        let plan = decide::attach(&AttachRequest {
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
            claim: claiming.as_ref().map(|claiming| claiming.claim),
        })?;
        if let Some(note) = &plan.note {
            tracing::warn!("{note}");
        }
        if let (Some(claiming), true) = (&claiming, plan.is_after_other) {
            tracing::warn!("volume {:?}: {}", volume.name, claiming.other_in_words());
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
        Ok(PlannedAttach {
            state: Arc::clone(&self.state),
            cache: Rc::clone(cache),
            name: volume.name.clone(),
            backing,
            claiming,
            options,
            plan,
            renamed,
            stop: stop.clone(),
        })
    }

    /// Checks that a volume may be served without a cache.
    async fn check_without(
        &self,
        name: &str,
        backing: Rc<dyn BlockDevice>,
        claiming: Option<Claiming>,
        wishes: &Wishes,
    ) -> Result<Uncached> {
        let (state, owned) = (Arc::clone(&self.state), name.to_owned());
        let record = offload(move || state.load(&owned)).await?;
        let others = self.others(name, &backing).await?;
        let is_asked = wishes.without_cache.iter().any(|named| named == name);
        if !is_asked {
            let own = record.map(|record| (name.to_owned(), record));
            for (last, record) in own.iter().chain(&others) {
                decide::check_without(name, last, *record)?;
            }
        }
        Ok(Uncached {
            state: Arc::clone(&self.state),
            name: name.to_owned(),
            backing,
            claiming,
            record,
            // Service under another name may have written ranges that a new log lacks.
            may_be_cached: is_asked && others.is_empty(),
            others,
        })
    }
}

/// A volume whose checks have passed, as far as they do not need its cache open.
pub(super) struct Checked {
    pub(super) config: config::Volume,
    /// Place of the volume in the configuration, and its name.
    pub(super) place: String,
    pub(super) way: Way,
    /// Records of other volumes that were served from the backing device.
    former: Vec<(String, Record)>,
    fallback: Fallback,
}

impl Checked {
    /// Adds the place of the volume to an error.
    pub(super) fn in_place(&self, error: Error) -> Error {
        in_place(&self.place, self.way.cache().map(|cache| &**cache), error)
    }
}

/// Adds the place of a volume to an error.
fn in_place(place: &str, cache: Option<&OpenCache>, error: Error) -> Error {
    match cache {
        // An error of opening the cache names its own place in the configuration.
        Some(cache) if cache.has_failed_with(&error) => error,
        _ => error.context(place.to_owned()),
    }
}

/// Way to serve a volume.
pub(super) enum Way {
    Cached(Box<PlannedAttach>),
    Without(Box<Uncached>),
}

impl Way {
    fn cache(&self) -> Option<&Rc<OpenCache>> {
        match self {
            Self::Cached(planned) => Some(&planned.cache),
            Self::Without(_) => None,
        }
    }
}
