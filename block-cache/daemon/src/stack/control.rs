//! Operations on an open stack: write back, change a mode, detach, grow, record.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use forebay_block::{BlockDeviceExt as _, Context as _, Error, ErrorKind, Result};

use forebay_cache::Cleaning;
use forebay_io::rt;
use forebay_volume::record::Recorder;

use super::cache::OpenCache;
use super::close::CLOSE;
use super::forget::{NAMED_RANGES, ranges_in_words};
use super::watched::Watched;
use super::{Served, Stack, offload};
use crate::config::Mode;
use crate::state::{Record, with_help};
use forebay_terminal::size::human_bytes;

impl Stack {
    fn cache_of(&self, served: &Served) -> Result<&OpenCache> {
        let cache = self.cache.as_deref().filter(|_| served.cached);
        cache.ok_or_else(|| {
            Error::new(
                ErrorKind::InvalidInput,
                format!(
                    "volume {:?} is served without a cache\n\
                     help: restart the daemon without --without-cache for it, with a [cache] in \
                     the configuration",
                    served.config.name
                ),
            )
        })
    }

    /// Returns the dirty data of one volume, or of all, bytes.
    #[must_use]
    pub fn dirty_bytes(&self, name: Option<&str>) -> u64 {
        let Some(opened) = self.cache.as_ref().and_then(|cache| cache.if_open()) else {
            return 0;
        };
        let stats = opened.cache.stats();
        let volumes = stats.volumes.iter();
        volumes
            .filter(|volume| name.is_none_or(|name| volume.name == name))
            .map(|volume| volume.dirty_bytes)
            .sum()
    }

    /// Writes back the dirty data of one volume, or of all. Makes all acknowledged writes durable
    /// in the backing device. Returns a description of the result.
    ///
    /// # Errors
    /// `NotFound` for an unknown volume. An error of the backing device. Data that could not be
    /// written back stays dirty.
    pub async fn write_back(&self, name: Option<&str>) -> Result<String> {
        if let Some(name) = name {
            let served = self.served(name)?;
            if !served.cached {
                self.check_not_removed(Some(name))?;
                served.device.flush().await?;
                return Ok(format!(
                    "volume {name:?} has no cache; its device is flushed"
                ));
            }
        }
        self.ready().await?;
        self.check_not_removed(name)?;
        if self.bypasses_cache {
            self.flush_devices(name).await?;
            let what = "all backing devices are flushed; the cache is bypassed (--without-cache), \
                        and its dirty data stays in it";
            return Ok(what.to_owned());
        }
        let before = human_bytes(self.dirty_bytes(name));
        if let Some(cache) = &self.cache {
            cache.opened().await?.cache.write_back(name).await?;
        }
        self.flush_devices(name).await?;
        Ok(match (name, self.unserved()) {
            (Some(name), _) => format!("wrote {before} of volume {name:?} back"),
            (None, None) => format!("wrote {before} of all volumes back"),
            (None, Some(unserved)) => {
                format!("wrote {before} of all volumes that are served back; {unserved}")
            }
        })
    }

    /// Flushes the backing device of one volume, or of all. Writes that bypassed the cache may be
    /// in a volatile cache there, or in the memory of this process.
    ///
    /// # Errors
    /// The first error, after all flushes.
    async fn flush_devices(&self, name: Option<&str>) -> Result<()> {
        let volumes = self.volumes.borrow().clone();
        let mut outcome = Ok(());
        for served in volumes {
            if name.is_none_or(|name| served.config.name == name) {
                let flushed = served.device.flush().await;
                outcome =
                    outcome.and(flushed.context(|| format!("volume {:?}", served.config.name)));
            }
        }
        outcome
    }

    /// Changes a volume's mode. Returns a description of the result.
    ///
    /// # Errors
    /// `NotFound` for an unknown volume. `InvalidInput` for one without a cache, or for a mode that
    /// would lose data on a cache in memory.
    pub async fn set_mode(&self, name: &str, mode: Mode) -> Result<String> {
        let served = self.served(name)?;
        let cache = self.cache_of(&served)?;
        cache.check_mode(name, mode)?;
        self.check_identity_for(&served, mode)?;
        self.ready().await?;
        let was = served.mode.get();
        // First, since the state directory records the mode before the cache does.
        (cache.opened().await?.cache).check_mode(name, mode.into())?;
        if mode.keeps_dirty_data() {
            let may_be_dirty = true;
            let changed = |record| Record {
                may_be_dirty,
                ..record
            };
            self.remember(&served, changed).await?;
        }
        cache.opened().await?.cache.set_mode(name, mode.into())?;
        served.mode.set(mode);
        let dirty = self.dirty_bytes(Some(name));
        let tail = match dirty {
            0 => String::new(),
            _ => format!("; {} are still to be written back", human_bytes(dirty)),
        };
        Ok(format!(
            "volume {name:?} is now in mode {mode} ({}), it was in {was}{tail}",
            mode.long_name()
        ))
    }

    /// Changes the cleaning policy until the daemon ends. Returns a description of the result.
    ///
    /// # Errors
    /// `InvalidInput` for an unknown policy, or without a cache.
    pub fn set_cleaning(&self, policy: &str) -> Result<String> {
        let Some(cleaning) = Cleaning::named(policy) else {
            let what =
                format!("there is no cleaning policy {policy:?}\nhelp: use auto, alru, acp or nop");
            return Err(Error::new(ErrorKind::InvalidInput, what));
        };
        let Some(cache) = &self.cache else {
            let what = match self.bypasses_cache {
                true => {
                    "the cache is bypassed: nothing is written back\n\
                     help: restart the daemon without --without-cache"
                }
                false => {
                    "there is no [cache] in the configuration: nothing is ever dirty\n\
                     help: add a [cache], and restart the daemon"
                }
            };
            return Err(Error::new(ErrorKind::InvalidInput, what));
        };
        let Some(opened) = cache.if_open() else {
            let what = "the cache is being opened\n\
                        help: repeat the command when it is open (`forebay status`)";
            return Err(Error::new(ErrorKind::Busy, what));
        };
        let was = opened.cache.stats().cleaning;
        opened.cache.set_cleaning(cleaning);
        Ok(format!(
            "dirty data is now written back by {cleaning}, it was by {was}"
        ))
    }

    /// Checks that a volume can be detached, before clients lose access.
    ///
    /// # Errors
    /// `NotFound` for an unknown volume, `InvalidInput` for one without a cache. An error of the
    /// state directory, which must record the detach.
    pub async fn check_detach(&self, name: &str) -> Result<()> {
        let served = self.served(name)?;
        self.cache_of(&served)?;
        served.refuse_second_detach()?;
        self.ready().await?;
        served.remembering.acquire(1).await;
        let (state, owned, record) = (
            Arc::clone(&self.state),
            name.to_owned(),
            served.record.get(),
        );
        let stored = offload(move || state.store(&owned, &record)).await;
        served.remembering.release(1);
        stored.context(|| {
            format!("volume {name:?} is not detached: the state directory cannot record it")
        })
    }

    /// Begins a detach, which ends when the result is dropped. The exports of the volume are
    /// withdrawn.
    ///
    /// # Errors
    /// `NotFound` for an unknown volume, `Busy` during another detach of it.
    pub(crate) fn begin_detach(&self, name: &str) -> Result<Detaching> {
        let served = self.served(name)?;
        served.refuse_second_detach()?;
        served.is_unexported.set(true);
        served.is_detaching.set(true);
        Ok(Detaching(served))
    }

    /// Checks that no file under the cache or under `volume` was removed. `None` stands for all
    /// volumes. Data in a removed file is lost when this process ends.
    ///
    /// # Errors
    /// `Lost` for a removed file, `NotFound` for an unknown volume.
    pub(super) fn check_not_removed(&self, volume: Option<&str>) -> Result<()> {
        let backing = match volume {
            Some(name) => Some(self.served(name)?.backing.clone()),
            None => None,
        };
        let devices = self.devices.borrow();
        let concerned = |watched: &&Watched| {
            watched.role != "backing" || backing.as_ref().is_none_or(|name| *name == watched.name)
        };
        devices
            .iter()
            .filter(concerned)
            .try_for_each(Watched::check_not_removed)
    }

    /// Stops serving a volume, writes back all of its dirty data and removes it from the cache.
    /// Returns a description of the result.
    ///
    /// # Errors
    /// `NotFound` for an unknown volume, `InvalidInput` for one without a cache. An error of the
    /// backing device: the cache then keeps the remaining dirty data, and clients are not served.
    pub async fn detach(&self, name: &str) -> Result<String> {
        let served = self.served(name)?;
        let cache = self.cache_of(&served)?;
        self.ready().await?;
        self.check_not_removed(Some(name))?;
        let opened = cache.opened().await?;
        let before = human_bytes(self.dirty_bytes(Some(name)));
        // Most dirty data is written back while clients are still served.
        opened.cache.write_back(Some(name)).await.map_err(|error| {
            let context = format!("volume {name:?} is not written back");
            let help =
                format!("to give its dirty data up: `forebay detach --abandon-dirty {name}`");
            with_help(&error, &context, &help)
        })?;
        // Requests end within the volume's timeout, in an error at the worst.
        served.volume.drain().await;
        self.note_detached(name).await?;
        // The state directory records that nothing is dirty before the cache forgets the volume. A
        // crash between the two loses nothing: the cache then has clean data and the right epoch.
        let is_noted = Cell::new(false);
        served.leaving.set(true);
        let noted = async {
            let noted = self.remember(&served, Record::clean).await;
            is_noted.set(noted.is_ok());
            noted.context(
                || "all of it is written back, but the state directory has no record of that",
            )
        };
        let detached = opened.cache.detach_noting(name, noted).await;
        detached.map_err(|error| {
            let cause = match is_noted.get() {
                true => "the cache",
                false => "the backing device or the state directory, as the cause says",
            };
            let context = format!(
                "volume {name:?} is not served any more, but the cache still has data of it"
            );
            let help = format!(
                "repair {cause}, or give that data up with `forebay detach --abandon-dirty {name}`"
            );
            with_help(&error, &context, &help)
        })?;
        // The record in the state directory is sufficient for the next start.
        if let Err(error) = self.remember(&served, Record::forgotten).await {
            tracing::warn!(
                "volume {name:?} is detached, but the state directory has no record of that: {}",
                error.report()
            );
        }
        self.forget(&served, rt::now() + CLOSE).await?;
        Ok(format!(
            "volume {name:?} is detached ({before} written back): its backing device alone has the \
             data; take the volume out of the configuration before the next start"
        ))
    }

    /// Stops serving a volume and makes the cache forget it with its dirty data, which is LOST.
    /// Returns a description of the result, range by range. The state directory has the list before
    /// the cache forgets.
    ///
    /// # Errors
    /// `NotFound` for an unknown volume, `InvalidInput` for one without a cache. An error of the
    /// state directory or the cache device; clients are not served then.
    pub async fn abandon(&self, name: &str) -> Result<String> {
        let served = self.served(name)?;
        let cache = self.cache_of(&served)?;
        self.ready().await?;
        let opened = cache.opened().await?;
        served.volume.drain().await;
        let ranges = opened.cache.dirty_ranges(name)?;
        let (state, owned) = (Arc::clone(&self.state), name.to_owned());
        let (epoch, listed) = (served.record.get().epoch, ranges.clone());
        let list = offload(move || state.note_abandoned(&owned, epoch, &listed)).await?;
        self.note_detached(name).await?;
        // The abandoned data blocks no later start. So the cache may forget it after this call has
        // ended.
        self.remember(&served, Record::clean).await?;
        served.leaving.set(true);
        let lost = opened.cache.abandon(name).await.context(|| {
            format!(
                "volume {name:?} is not served any more\n\
                 help: restart the daemon to see the data that the cache still has of it"
            )
        })?;
        self.forget_detached(&served).await?;
        let bytes: u64 = lost.iter().map(|range| range.end - range.start).sum();
        let mut text = format!(
            "volume {name:?} is detached; {} of dirty data ABANDONED, listed in {}",
            human_bytes(bytes),
            list.display()
        );
        text.push_str(&ranges_in_words(&lost, NAMED_RANGES));
        Ok(text)
    }

    /// From here on other programs may write to the backing device. Clients that outlive this
    /// process must not continue with the volume.
    async fn note_detached(&self, name: &str) -> Result<()> {
        let (state, name) = (Arc::clone(&self.state), name.to_owned());
        offload(move || state.note_disk_gap(&name, Some("it was detached"), true)).await
    }

    /// Records that the cache has no data of a volume any more.
    async fn forget_detached(&self, served: &Rc<Served>) -> Result<()> {
        self.remember(served, Record::forgotten).await?;
        self.forget(served, rt::now() + CLOSE).await
    }

    /// Applies the present size of a volume's backing device. Returns a description of the result.
    ///
    /// # Errors
    /// `NotFound` for an unknown volume, `InvalidInput` or `Busy` for a device that has shrunk.
    pub async fn grow(&self, name: &str) -> Result<String> {
        let served = self.served(name)?;
        let before = served.volume.handle().info().size_bytes;
        if let Ok(cache) = self.cache_of(&served) {
            self.ready().await?;
            cache.opened().await?.cache.grow(name).await?;
        }
        let after = served.volume.grow()?;
        // Volumes on other parts of this medium are compared with the recorded size.
        let grown = |record: Record| Record {
            backing_bytes: record.backing_bytes.max(after),
            ..record
        };
        self.remember(&served, grown).await?;
        if after == before {
            return Ok(format!(
                "volume {name:?} stays at {}: its backing device has not grown",
                human_bytes(after)
            ));
        }
        Ok(format!(
            "volume {name:?} grew from {} to {}; NBD clients see it when they connect again",
            human_bytes(before),
            human_bytes(after)
        ))
    }

    /// Starts to record the requests of the named volumes, or of all. Returns the volumes by their
    /// numbers in the recording.
    ///
    /// # Errors
    /// `NotFound` for an unknown volume.
    pub fn record(&self, names: &[String], recorder: Recorder) -> Result<Vec<String>> {
        let named = names.iter().map(|name| self.served(name));
        let mut recorded = named.collect::<Result<Vec<_>>>()?;
        if recorded.is_empty() {
            recorded.clone_from(&self.volumes.borrow());
        }
        let recorder = Rc::new(recorder);
        for (number, served) in (0..).zip(&recorded) {
            let to = Some((Rc::clone(&recorder), number));
            served.volume.record(to);
        }
        let names = recorded.iter().map(|served| served.config.name.clone());
        Ok(names.collect())
    }

    /// Ends the recording.
    pub fn end_recording(&self) {
        for served in self.volumes.borrow().iter() {
            served.volume.record(None);
        }
    }
}

/// A detach in progress.
pub(crate) struct Detaching(Rc<Served>);

impl Drop for Detaching {
    fn drop(&mut self) {
        self.0.is_detaching.set(false);
    }
}

impl Served {
    fn refuse_second_detach(&self) -> Result<()> {
        if !self.is_detaching.get() {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Busy,
            format!(
                "volume {:?} is being detached by another command\n\
                 help: wait for the end of that: see `forebay status`",
                self.config.name
            ),
        ))
    }
}
