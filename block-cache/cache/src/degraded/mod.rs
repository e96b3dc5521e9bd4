//! Service of a volume without its cache, after the cache failed in service. Modes that leave
//! nothing dirty allow it; other modes only if the volume agreed to it beforehand.
//!
//! Rules 5 and 6: before the first write bypasses the failed cache, the volume's epoch is raised
//! outside the cache, durably. The failed cache does not record that. Two records say which of its
//! copies are stale:
//!
//! - The list of all dirty data. Writes do not touch that data, and nothing else in the cache
//!   counts at the next attach.
//! - A log of ranges, if writes may replace dirty data. Each range is logged before it is written.
//!
//! In memory, written granules count as absent, so reads go to the backing device. Dirty data that
//! was not overwritten is served from the cache while it can be read. docs/internals/degraded.md
//! argues it.

use std::ops::Range;
use std::rc::Rc;

use forebay_block::{BlockDevice, Error, ErrorKind, Op, Request, Result};
use forebay_io::rt;
use forebay_policy::BlockId;

use crate::cache::Cache;
use crate::commit::queue::Entry;
use crate::engine::Engine;
use crate::failpoints::{Fault, planted};
use crate::geometry::{Extent, Piece};
use crate::job::Job;
use crate::map::{CLEANING, DYING, NO_RECORD, PENDING, UNFLUSHED};
use crate::volume::AttachedVolume;
use crate::volume::fallback::{DegradedService, Fallback, Remains};

impl Cache {
    /// Allows a volume to continue without this cache if the cache fails in service. Writes then go
    /// only to the backing device. `begin` runs before the first such write. It raises the epoch,
    /// durably, with the list of dirty data. Or it returns the backing device as one that logs each
    /// range, durably, before it is written ([`Remains`]). If it fails, it is called once more.
    ///
    /// # Errors
    /// `NotFound` for an unknown volume, `InvalidInput` for one that agreed already.
    pub fn allow_degraded<F>(
        &self,
        name: &str,
        fallback: Fallback,
        begin: impl Fn(Remains) -> F + 'static,
    ) -> Result<()>
    where
        F: Future<Output = Result<Rc<dyn BlockDevice>>> + 'static,
    {
        let volume = self.engine.volumes.named(name)?;
        if volume.allow_degraded(DegradedService::new(fallback, begin)) {
            return Ok(());
        }
        let what = format!("volume {name:?} already has an agreement for degraded service");
        Err(Error::new(ErrorKind::InvalidInput, what))
    }
}

/// Returns the agreement of a volume that continues without its cache.
fn agreement(volume: &AttachedVolume) -> &DegradedService {
    volume.degraded_service().expect("agreed to")
}

/// Refuses a write to data that is dirty in the cache and must stay there.
fn check_preserved(volume: &AttachedVolume, range: &Range<u64>) -> Result<()> {
    let Some(at) = agreement(volume).first_preserved(range) else {
        return Ok(());
    };
    Err(Error::new(
        ErrorKind::Io,
        format!(
            "volume {}: {} bytes at {} overlap dirty data at {at} in the cache, which has failed\n\
             help: restart to recover that data",
            volume.name,
            range.end - range.start,
            range.start,
        ),
    ))
}

impl Engine {
    /// Begins to serve a volume without its cache, before the first write that bypasses it.
    async fn begin_degraded(&self, volume: &AttachedVolume) -> Result<()> {
        let service = agreement(volume);
        if service.has_begun() {
            return Ok(());
        }
        if planted(Fault::DegradeUnannounced) {
            self.note_owed(volume, false);
            return Ok(());
        }
        service.turn().acquire(1).await;
        let result = self.begin_alone(volume, service).await;
        service.turn().release(1);
        result.map_err(|error| {
            error.context(format!(
                "volume {:?} cannot continue without its cache, which has failed",
                volume.name
            ))
        })
    }

    async fn begin_alone(&self, volume: &AttachedVolume, service: &DegradedService) -> Result<()> {
        if service.has_begun() {
            return Ok(());
        }
        let is_preserved = self.keeps_dirty(volume, service);
        let dirty = is_preserved.then(|| {
            let blocks: Vec<BlockId> = self.map.borrow().of_volume(volume.id).collect();
            self.dirty_ranges(blocks.into_iter())
        });
        // After a beginning that failed, less may be dirty than then.
        service.set_owed(None);
        self.note_owed(volume, is_preserved);
        service.preserve(dirty.clone());
        let bytes = dirty.iter().flatten().map(|range| range.end - range.start);
        let dirty_bytes: u64 = bytes.sum();
        let remains = Remains {
            backing: Rc::clone(volume.backing.device()),
            dirty,
        };
        let begun = service.begin(remains);
        let device = match planted(Fault::DegradeUnawaited) {
            true => {
                rt::spawn(async { drop(begun.await) });
                Rc::clone(volume.backing.device())
            }
            false => begun.await?,
        };
        volume.backing.log_through(device);
        service.set_begun();
        tracing::error!(
            volume = volume.name,
            kept_bytes = dirty_bytes,
            "CONTINUES WITHOUT ITS CACHE, which has failed: writes go to the backing \
             device alone"
        );
        Ok(())
    }
}

impl Engine {
    /// Returns whether writes to a volume bypass the cache, which has failed.
    pub(crate) fn is_degraded(&self, volume: &AttachedVolume) -> bool {
        !self.committer.is_alive() && !self.committer.is_stopping() && volume.falls_back()
    }

    /// Returns whether the cache has failed and a volume refuses writes for that reason.
    pub(crate) fn refuses_writes(&self, volume: &AttachedVolume) -> bool {
        !self.committer.is_alive() && !self.committer.is_stopping() && !volume.falls_back()
    }

    /// Returns whether no write may replace a volume's dirty data.
    fn keeps_dirty(&self, volume: &AttachedVolume, service: &DegradedService) -> bool {
        let nothing_is = self.map.borrow().share(volume.id).dirty_bytes == 0;
        nothing_is || service.fallback() == Fallback::CleanModes
    }

    /// Returns, after a failed write, whether the cache has failed and the volume is served without
    /// it. A device that vanished shows only at a durable write. So this logs once more that the
    /// cache is open.
    pub(crate) async fn is_degraded_now(&self, volume: &AttachedVolume) -> bool {
        let service = volume.degraded_service();
        // In the other modes, a write fails if it needs the cache device. Otherwise it goes to the
        // backing device.
        let asks = service.is_some_and(|service| service.fallback() == Fallback::AllModes);
        if asks && self.committer.is_alive() && !self.committer.is_stopping() {
            self.committer.queue_entry(Entry::Open);
            // The next check sees a failure.
            let _ = self.committer.commit().await;
        }
        self.is_degraded(volume)
    }

    /// Drops the cached copies of a piece that is about to be written. On return no write-back of
    /// that piece is in flight, which would be older. Returns whether dirty data was dropped that
    /// may be durable in the cache. Then the write that replaces it must be durable before it is
    /// acknowledged.
    ///
    /// # Errors
    /// If the write covers part of a dirty granule.
    async fn drop_cached(
        &self,
        volume: &AttachedVolume,
        id: BlockId,
        piece: &Piece,
    ) -> Result<bool> {
        if !planted(Fault::DegradeDuringWriteBack) {
            let is_over = || !self.map.borrow().has(id, CLEANING);
            self.signals.until_cleaned(is_over).await;
        }
        if agreement(volume).keeps_dirty() {
            // Dirty data that must stay is not touched. A write that found the cache failed may
            // have marked the rest dirty.
            self.drop_from_map(id, self.geometry.touched(piece));
            return Ok(false);
        }
        let limit = volume.limit(self.geometry, piece.block);
        let (touched, covered) = (
            self.geometry.touched(piece),
            self.geometry.covered(piece, limit),
        );
        let entry = self.map.borrow().state(id);
        if touched & !covered & entry.dirty != 0 {
            return Err(Error::new(
                ErrorKind::Io,
                format!(
                    "volume {}: {} bytes at {} would overwrite a part of a dirty granule in the \
                     cache, which has failed\n\
                     help: write whole blocks of {} bytes",
                    volume.name,
                    piece.len(),
                    self.geometry.backing_offset(piece.block, piece.start),
                    self.geometry.granule_bytes(piece.block.class),
                ),
            ));
        }
        // After an error it is unknown whether the backing device holds the old data or the new.
        // Reads must go there from now on.
        self.drop_from_map(id, touched & !entry.dirty);
        Ok(touched & entry.dirty != 0)
    }

    /// Records once which data of a volume is not durable in the failed cache, where it can no
    /// longer become durable.
    ///
    /// This is the dirty data without a durable record. It is also the data that replaced such data
    /// since the last flush, clean or not. The device may hold the earlier data, under a record, a
    /// mark or a bit that calls it dirty. The next process would then write that over newer data on
    /// the backing device. A kill that is not durable does not change this. Data without any record
    /// is lost after power loss. If the list of dirty data `is_preserved`, the next process takes
    /// nothing else for dirty.
    fn note_owed(&self, volume: &AttachedVolume, is_preserved: bool) {
        let service = agreement(volume);
        if service.knows_owed() {
            return;
        }
        let mut owed = Vec::new();
        // With `sync`, acknowledged data is durable.
        if !self.committer.is_sync() && !planted(Fault::FlushBehindDegraded) {
            let map = self.map.borrow();
            let not_flushed = self.committer.not_flushed();
            for id in map.of_volume(volume.id) {
                let entry = map.state(id);
                let block = entry.block();
                let limit = volume.limit(self.geometry, block);
                let at = |byte| self.geometry.backing_offset(block, byte);
                let recorded = entry.record_at != NO_RECORD;
                let overwritten = entry.has(UNFLUSHED) || not_flushed.contains(&id);
                let is_being_logged =
                    self.committer.is_in_flight(entry.record_at) || entry.has(PENDING);
                let is_durable = recorded && (!is_being_logged || self.marks.is_repeated(id));
                let hides_older = overwritten && (recorded || entry.has(DYING)) && !is_preserved;
                if hides_older && !planted(Fault::OweDirtyAlone) {
                    owed.push(at(0)..at(limit));
                } else if overwritten || !is_durable {
                    let runs = self.geometry.runs(entry.class, entry.dirty, 0..limit);
                    owed.extend(runs.map(|run| at(run.start)..at(run.end)));
                }
            }
            owed.sort_unstable_by_key(|range| range.start);
        }
        service.set_owed(Some(owed));
    }

    /// Removes granules from the map. Media still has them.
    fn drop_from_map(&self, id: BlockId, granules: u64) {
        if planted(Fault::ReadBehindDegraded) {
            return;
        }
        let mut map = self.map.borrow_mut();
        let entry = map.state(id);
        map.set(id, entry.valid & !granules, entry.dirty & !granules);
    }
}

/// Bypasses a failed cache with a part of a write that failed with `error`. The caller holds the
/// part's lock.
pub(crate) async fn write(
    engine: &Rc<Engine>,
    volume: &Rc<AttachedVolume>,
    job: Job<Extent>,
    error: Error,
) -> Result<()> {
    if !engine.is_degraded_now(volume).await {
        return Err(error);
    }
    engine.begin_degraded(volume).await?;
    engine
        .each_piece(volume, job, |engine, volume, found, job| async move {
            let part = &job.part;
            let offset = engine.geometry.backing_offset(part.block, part.start);
            let range = offset..offset + part.len() as u64;
            check_preserved(&volume, &range)?;
            let mut durable = job.durable;
            if let Some(id) = found {
                durable |= engine.drop_cached(&volume, id, &job.part).await?;
            }
            volume.counters.write_misses.add(1);
            volume.counters.bypassed_writes.add(1);
            (volume.backing)
                .write(offset, job.buf.clone(), durable)
                .await?;
            if let Some(id) = found {
                engine.drop_from_map(id, engine.geometry.touched(part));
            }
            agreement(&volume).pay(&range);
            Ok(())
        })
        .await
}

/// Bypasses a failed cache with a request that zeroes `parts` and failed with `error`. A discard
/// may leave the data unchanged, and does. The caller holds the locks of the parts.
pub(crate) async fn zero(
    engine: &Rc<Engine>,
    volume: &Rc<AttachedVolume>,
    parts: &[Extent],
    request: Request,
    mut durable: bool,
    error: Error,
) -> Result<()> {
    if !engine.is_degraded_now(volume).await {
        return Err(error);
    }
    if request.op == Op::Discard {
        return Ok(());
    }
    engine.begin_degraded(volume).await?;
    let zeroed = request.offset..request.offset + request.len;
    check_preserved(volume, &zeroed)?;
    let mut dropped = Vec::new();
    for part in parts {
        let units = engine.geometry.units(part);
        let found: Vec<_> = {
            let map = engine.map.borrow();
            map.overlapping(volume.id, part.region, units).collect()
        };
        for (id, span) in found {
            let piece = engine.geometry.piece(part, span);
            durable |= engine.drop_cached(volume, id, &piece).await?;
            dropped.push((id, engine.geometry.touched(&piece)));
        }
    }
    volume.backing.change(request, durable).await?;
    for (id, granules) in dropped {
        engine.drop_from_map(id, granules);
    }
    agreement(volume).pay(&zeroed);
    Ok(())
}

/// Flushes the data that was written past the cache. Data that was written to the failed cache and
/// not covered by a flush can no longer become durable there. No flush succeeds until that data is
/// rewritten past the cache (rule 9).
pub(crate) async fn flush(engine: &Rc<Engine>, volume: &Rc<AttachedVolume>) -> Result<()> {
    volume.backing.check()?;
    let service = agreement(volume);
    let is_preserved = match service.has_begun() {
        true => service.keeps_dirty(),
        false => engine.keeps_dirty(volume, service),
    };
    // The next process must not take for dirty what power loss leaves in slots.
    if is_preserved && !planted(Fault::FlushUnannounced) {
        engine.begin_degraded(volume).await?;
    }
    if volume.backing.owes_clients() {
        engine.failures.flush_backing(volume).await?;
    }
    engine.note_owed(volume, is_preserved);
    let Some((first, has_others)) = service.first_owed() else {
        return Ok(());
    };
    let others = match has_others {
        false => "",
        true => " and others",
    };
    let remedy = match service.keeps_dirty() {
        true => "restart",
        false => "write these ranges a second time, or restart",
    };
    Err(Error::new(
        ErrorKind::Io,
        format!(
            "volume {}: the cache has failed before a flush covered writes to it, {} bytes at \
             {}{others}\n\
             help: {remedy}",
            volume.name,
            first.end - first.start,
            first.start
        ),
    ))
}
