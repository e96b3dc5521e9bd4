//! The life of a cache: open, serve, close.

use std::rc::Rc;

use forebay_block::{Buf, Error, ErrorKind, Result};
use forebay_io::rt;
use forebay_metadata::Media;
use forebay_metadata::journal::Journal;
use forebay_metadata::superblock::{Service, Superblock, VolumeEntry};
use forebay_policy::cleaning::Cleaning;

use crate::cache_options::CacheOptions;
use crate::commit::queue::Entry;
use crate::devices::CacheDevices;
use crate::engine::{Engine, Sources};
use crate::format::{check_fit, check_parts};
use crate::media::media_of;
use crate::media::missing::note_shrunk;
use crate::options::{Devices, Mode};
use crate::recover::{OrphanRecord, RecoveredMap, poison_own_journal, recover};
use crate::recovery_report::RecoveryReport;
use crate::stats::{CacheStats, VolumeStats};

/// An open cache. Clones are handles to the same one.
#[derive(Clone, Debug)]
pub struct Cache {
    pub(crate) engine: Rc<Engine>,
}

impl Cache {
    /// Opens the cache on these devices. It reads the map and makes the writes of the process
    /// journal durable. It logs that the cache is open, which revokes the mark of an earlier clean
    /// shutdown. Then it starts the background tasks on this reactor.
    ///
    /// # Errors
    /// `NotFound`, `Corrupt` or `Unsupported` from the superblock. `InvalidInput` for devices in
    /// wrong roles or too small a journal. `Lost` if the journal is gone and held acknowledged
    /// writes. The devices' own errors.
    pub async fn open(devices: Devices, options: CacheOptions) -> Result<(Self, RecoveryReport)> {
        let metadata = Rc::clone(devices.metadata.as_ref().unwrap_or(&devices.data));
        let mut superblock = Superblock::read(metadata.as_ref()).await?;
        let data_superblock = check_parts(&devices, &superblock).await?;
        if let Err(error) = check_fit(&devices, &superblock) {
            let poison = || {
                if devices.metadata.is_none() {
                    poison_own_journal(&devices, &superblock, &options);
                }
            };
            note_shrunk(&devices, &superblock, poison).await?;
            return Err(error);
        }
        let RecoveredMap {
            map,
            marks,
            log,
            stale,
            orphans,
            unrecorded,
            recorded,
            tracking,
            sums,
            is_sparse,
            report,
        } = recover(&devices, &mut superblock, &options).await?;
        // The opening forgets this, and its process may die.
        let found_last = RecoveryReport {
            cut: report.cut.clone(),
            unnamed_overwrites: report.unnamed_overwrites.clone(),
            ..RecoveryReport::default()
        };
        if let (Some(sink), Some(_)) = (&options.report_sink, found_last.losers().next()) {
            sink.receive(&found_last).await?;
        }
        let media = media_of(&devices);
        let sources = Sources {
            devices: CacheDevices::new(devices.data, metadata),
            settings: options.settings(),
            map,
            marks,
            log,
            checksums: sums,
            tracking,
            presumed: (report.doubtful_blocks, recorded),
            power_was_lost: report.power_was_lost,
            superblock,
            data_superblock,
        };
        let engine = Engine::wire(sources);
        engine.tracker.restore_tracking(&unrecorded);
        for id in stale {
            engine.committer.queue_record(id);
        }
        if !orphans.is_empty() {
            engine.committer.queue_entry(Entry::Kill(
                orphans.iter().map(|orphan| orphan.slot).collect(),
            ));
        }
        rt::spawn(Rc::clone(&engine.committer).commit_loop());
        // Recovered state becomes durable before the old journal is dropped. Only then is the new
        // generation logged. So there is no moment at which the journal is gone and its records are
        // not durable.
        let opened = engine
            .go_into_service(orphans, media, is_sparse, &report)
            .await;
        if let Err(error) = opened {
            if engine.committer.flush_failed()
                && let Some(buf) = &engine.settings.journal
            {
                let uuid = engine.superblock.current().uuid;
                Journal::poison_remains(buf, &uuid, &engine.settings.boot_id);
            }
            engine.committer.stop();
            return Err(error);
        }
        rt::spawn(Rc::clone(&engine.committer).commit_timer());
        rt::spawn(Rc::clone(&engine.regions).mark_timer());
        rt::spawn(Rc::clone(&engine.tracker).tree_timer());
        rt::spawn(Rc::clone(&engine.zones).run_timer());
        rt::spawn(Rc::clone(&engine.cleaner).run_timer());
        rt::spawn(Rc::clone(&engine.reclaimer).reclaim_loop());
        Ok((Self { engine }, report))
    }

    /// Writes the dirty data of one volume, or of all, back to the backing devices.
    ///
    /// # Errors
    /// `NotFound` for an unknown volume; the backing device's own, or `TimedOut` if nothing gets on
    /// for a minute, and then the data stays dirty.
    pub async fn write_back(&self, name: Option<&str>) -> Result<()> {
        let ids: Vec<u16> = match name {
            Some(name) => vec![self.engine.volumes.named(name)?.id],
            None => self
                .engine
                .volumes
                .all()
                .iter()
                .map(|volume| volume.id)
                .collect(),
        };
        for id in ids {
            self.engine.write_back_in_time(id, false).await?;
        }
        // After this the caller may use a backing device without the cache.
        self.engine.committer.commit_all().await
    }

    /// Changes a volume's mode, from the next piece of a request on. Data that is dirty under the
    /// old mode is written back in the background.
    ///
    /// # Errors
    /// As [`Cache::check_mode`].
    pub fn set_mode(&self, name: &str, mode: Mode) -> Result<()> {
        self.check_mode(name, mode)?;
        self.engine.volumes.named(name)?.set_mode(mode);
        self.engine.signals.kick_cleaners();
        Ok(())
    }

    /// Checks that a volume's mode can be changed.
    ///
    /// # Errors
    /// `NotFound` for an unknown volume; `Busy` if the cache has failed, and the volume would no
    /// longer continue without it.
    pub fn check_mode(&self, name: &str, mode: Mode) -> Result<()> {
        let volume = self.engine.volumes.named(name)?;
        if !mode.makes_dirty() || !self.engine.is_degraded(&volume) || volume.falls_back_in(mode) {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Busy,
            format!(
                "the cache has failed, and volume {name:?} would refuse writes in mode {mode}\n\
                 help: repair the cache device, and restart"
            ),
        ))
    }

    /// Flushes data that an earlier process left in the caches of the backing devices. The attaches
    /// did not flush it if the durability requires a flush and
    /// [`CacheOptions::hold_write_back`](crate::CacheOptions) was set. Call this before any volume
    /// is served.
    ///
    /// # Errors
    /// That of the first device that fails. The superblock records it.
    pub async fn flush_attached(&self) -> Result<()> {
        if !self.engine.committer.is_sync() {
            return Ok(());
        }
        let volumes: Vec<_> = self.engine.volumes.all();
        let mut result = Ok(());
        for volume in volumes {
            if volume.backing.has_flushed() {
                continue;
            }
            let flushed = self.engine.failures.flush_backing(&volume).await;
            result = result.and(flushed.map_err(|error| {
                let what = "UNFLUSHED WRITES OF EARLIER PROCESSES MAY BE LOST";
                error.context(format!("volume {:?}: {what}", volume.name))
            }));
        }
        result
    }

    /// Lets the cleaners of all volumes begin, where
    /// [`CacheOptions::hold_write_back`](crate::CacheOptions) made them wait.
    pub fn allow_write_back(&self) {
        self.engine.service.allow_write_back();
        self.engine.signals.kick_cleaners();
    }

    /// Forgets, durably, that attached volumes lost data before this opening or during it. Call
    /// this when the losses have been reported. The next openings no longer name these volumes in
    /// [`RecoveryReport::unreported`].
    ///
    /// # Errors
    /// The error of the cache device.
    pub async fn forget_reported_losses(&self) -> Result<()> {
        let engine = &self.engine;
        let is_attached = |entry: &VolumeEntry| engine.volumes.contains(entry.id);
        engine.superblock.forget_losses(is_attached).await
    }

    /// Changes the thresholds of write-back for all volumes, until the cache is next opened.
    pub fn set_cleaning(&self, cleaning: Cleaning) {
        self.engine.cleaner.set_policy(cleaning);
    }

    /// Returns the epoch of an attached volume. The state directory must store it before the volume
    /// is served.
    #[must_use]
    pub fn volume_epoch(&self, name: &str) -> Option<u64> {
        self.engine
            .volumes
            .named(name)
            .ok()
            .map(|volume| volume.epoch)
    }

    /// Checks whether a device of the cache was truncated since the last check. Lost data is
    /// reported by name and reads as an error from then on; the cache takes no more writes. Lost
    /// metadata is rewritten when the device has its length back.
    ///
    /// Returns whether the cache reports a truncation: in the log, by its failure, or by
    /// [`Cache::metadata_trouble`].
    pub async fn look_for_cut(&self) -> bool {
        self.engine.truncation.look().await;
        let is_metadata_cut = self.engine.metadata.look().await;
        is_metadata_cut || self.engine.truncation.is_cut()
    }

    /// Returns why metadata is missing on its device now; none if it is complete.
    #[must_use]
    pub fn metadata_trouble(&self) -> Option<Error> {
        self.engine.metadata.trouble()
    }

    /// Which opening this is, and on which devices.
    #[must_use]
    pub fn service(&self) -> Service {
        self.engine.superblock.current().service
    }

    /// Whether the cache knows a volume of this name, attached or not.
    #[must_use]
    pub fn knows(&self, name: &str) -> bool {
        let superblock = self.engine.superblock.current();
        superblock.volumes.iter().any(|volume| volume.name == name)
    }

    /// The cache's identity.
    #[must_use]
    pub fn uuid(&self) -> [u8; 16] {
        self.engine.superblock.current().uuid
    }

    /// The counters and sizes.
    #[must_use]
    pub fn stats(&self) -> CacheStats {
        let engine = &self.engine;
        let map = engine.map.borrow();
        let (stats, volumes) = (&engine.stats, engine.volumes.all());
        CacheStats {
            block_size_bytes: engine.geometry.unit_bytes(),
            block_sizes: engine.geometry.sizes().to_string(),
            blocks: u64::from(map.units()),
            cached_blocks: map.len() as u64,
            cached_bytes: u64::from(map.units() - map.free_units()) * engine.geometry.unit_bytes(),
            dirty_blocks: map.dirty_blocks(),
            free_blocks: u64::from(map.free_units()),
            marked_regions: engine.marks.len() as u64,
            log_used_records: engine.committer.log_used_records(),
            log_records: engine.committer.log_records(),
            log_bytes: stats.log_bytes.get(),
            commits: stats.commits.get(),
            commit_time_us: stats.commit_time_us.get(),
            marks: stats.marks.get(),
            cleaning: engine.cleaner.policy(),
            dirty_tracking: engine.superblock.current().dirty_tracking,
            checksums: engine.checksums.as_ref().map(|it| it.stats()),
            tree: engine.tracker.tree_stats(),
            recovery: engine.presumed.progress(stats),
            evictions: stats.evictions.get(),
            promotions: stats.promotions.get(),
            write_backs: stats.write_backs.get(),
            write_back_bytes: stats.write_back_bytes.get(),
            write_back_errors: stats.write_back_errors.get(),
            cache_read_errors: stats.cache_read_errors.get(),
            memory_bytes: map.memory_bytes() as u64
                + engine.read_ahead.memory_bytes() as u64
                + engine.committer.memory_bytes() as u64
                + engine
                    .tracker
                    .tree_stats()
                    .map_or(0, |tree| tree.memory_bytes)
                + engine
                    .checksums
                    .as_ref()
                    .map_or(0, |sums| sums.memory_bytes() as u64)
                + (volumes.iter())
                    .map(|volume| volume.memory_bytes() as u64)
                    .sum::<u64>(),
            failure: engine.committer.failure().map(|error| error.report()),
            volumes: volumes
                .iter()
                .map(|volume| {
                    let share = map.share(volume.id);
                    let counters = &volume.counters;
                    VolumeStats {
                        name: volume.name.clone(),
                        mode: volume.mode(),
                        epoch: volume.epoch,
                        size_bytes: volume.size_bytes(),
                        cached_blocks: share.blocks,
                        cached_bytes: share.bytes,
                        dirty_bytes: share.dirty_bytes,
                        read_hits: counters.read_hits.get(),
                        read_misses: counters.read_misses.get(),
                        write_hits: counters.write_hits.get(),
                        write_misses: counters.write_misses.get(),
                        bypassed_reads: counters.bypassed_reads.get(),
                        bypassed_writes: counters.bypassed_writes.get(),
                        split_reads: counters.split_reads.get(),
                        bypassed_for_room: counters.bypassed_for_room.get(),
                        loss: volume.loss(),
                        diverged: volume.is_served_degraded(),
                        refuses_writes: engine.refuses_writes(volume),
                    }
                })
                .collect(),
        }
    }
}

impl Engine {
    async fn go_into_service(
        &self,
        orphans: Vec<OrphanRecord>,
        media: Media,
        is_sparse: bool,
        report: &RecoveryReport,
    ) -> Result<()> {
        let uuid = self.superblock.current().uuid;
        let boot_id = &self.settings.boot_id;
        let begin = |buf: &Buf| -> Result<Option<Journal>> {
            let (tie, place) = (self.superblock.tie(media), self.superblock.place());
            let journal = Journal::create_tied(buf.clone(), &uuid, boot_id, &tie, &place)?;
            journal.reached(self.committer.log_batch());
            Ok(Some(journal))
        };
        // If there is no journal, the new one begins before anything is logged. Otherwise, after a
        // clean shutdown and a crash during this start, the log would look as if its process
        // journal had been lost.
        let old = (self.settings.journal.as_ref())
            .and_then(|buf| Some((buf, Journal::recover(buf, &uuid, boot_id)?.tie)));
        // A process died between two that agree. Another announcement would end the agreement.
        let is_announced = old.is_some_and(|(_, tie)| self.superblock.has_announced(tie));
        self.superblock.secure_data_generation().await?;
        // The new journal and the commit below remove the evidence of the losses.
        self.superblock.note_losses(report).await?;
        if !is_announced {
            self.superblock
                .raise_generation(media, is_sparse, old.map(|(buf, _)| buf))
                .await?;
        }
        let mut journal = match (&self.settings.journal, old) {
            (Some(buf), None) => begin(buf)?,
            _ => None,
        };
        self.committer.commit().await?;
        let service = self.superblock.current().service;
        if service.cut_bytes != 0 || service.was_cut {
            // The commit above dropped the blocks beyond the cut, durably.
            self.superblock
                .change(|superblock| {
                    superblock.service.cut_bytes = 0;
                    superblock.service.was_cut = false;
                })
                .await?;
        }
        self.truncation.begin(!is_sparse);
        self.metadata.begin();
        self.zones.write_found().await?;
        for orphan in orphans.iter().filter(|orphan| orphan.held) {
            self.map.borrow_mut().release(orphan.slot, orphan.class);
        }
        if let Some((buf, _)) = old {
            journal = begin(buf)?;
            if is_announced {
                // A copy of the devices with that generation may exist.
                self.superblock
                    .raise_generation(media, is_sparse, Some(buf))
                    .await?;
                journal = begin(buf)?;
            }
        }
        self.committer.set_journal(journal);
        self.committer.queue_entry(Entry::Open);
        self.committer.commit().await
    }

    /// Returns whether a write-back of an attached volume is in flight.
    pub(crate) fn is_cleaning(&self) -> bool {
        let map = self.map.borrow();
        map.ids().any(|id| {
            map.has(id, crate::map::CLEANING) && self.volumes.contains(map.table().address(id).0)
        })
    }
}
