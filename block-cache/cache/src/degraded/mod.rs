//! Service of a volume without its cache, after the cache failed in service. Modes that leave
//! nothing dirty allow it; other modes only if the volume agreed to it beforehand.
//!
//! Rules 5 and 6: before the first write bypasses the failed cache, the volume's epoch is raised
//! beside the cache, durably. The failed cache does not record that. Two records say which of its
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
use crate::volume::fallback::{Divergence, Fallback, Remains};

impl Cache {
    /// Allows a volume to continue without this cache if the cache fails in service. Writes then go
    /// only to the backing device. `begin` runs before the first such write. It raises the epoch,
    /// durably, with the list of dirty data. Or it returns the backing device as one that logs each
    /// range, durably, before it is written ([`Remains`]). It is called again if it fails.
    ///
    /// # Errors
    /// `NotFound` for an unknown volume, `InvalidInput` for one that agreed already.
    pub fn accept_divergence<F>(
        &self,
        name: &str,
        fallback: Fallback,
        begin: impl Fn(Remains) -> F + 'static,
    ) -> Result<()>
    where
        F: Future<Output = Result<Rc<dyn BlockDevice>>> + 'static,
    {
        let volume = self.engine.volumes.named(name)?;
        if volume.accept_divergence(Divergence::new(fallback, begin)) {
            return Ok(());
        }
        let what = format!("volume {name:?} goes on without its cache already, should that fail");
        Err(Error::new(ErrorKind::InvalidInput, what))
    }
}

/// Returns the agreement of a volume that goes on without its cache.
fn agreement(volume: &AttachedVolume) -> &Divergence {
    volume.divergence().expect("agreed to")
}

/// Refuses a write to data that is dirty in the cache and must stay there.
fn check_kept(volume: &AttachedVolume, range: &Range<u64>) -> Result<()> {
    let Some(at) = agreement(volume).first_kept(range) else {
        return Ok(());
    };
    Err(Error::new(
        ErrorKind::Io,
        format!(
            "volume {}: {} bytes at {} touch what is dirty at {at} in the cache, which has failed: restart to recover that",
            volume.name,
            range.end - range.start,
            range.start,
        ),
    ))
}

impl Engine {
    /// Begins to serve a volume without its cache, before the first write that bypasses it.
    async fn begin_degraded(&self, volume: &AttachedVolume) -> Result<()> {
        let divergence = agreement(volume);
        if divergence.has_begun() {
            return Ok(());
        }
        if planted(Fault::DivergeUnannounced) {
            self.note_owed(volume, false);
            return Ok(());
        }
        divergence.turn().acquire(1).await;
        let result = self.begin_alone(volume, divergence).await;
        divergence.turn().release(1);
        result.map_err(|error| {
            error.context(format!(
                "volume {:?} cannot go on without its cache, which has failed",
                volume.name
            ))
        })
    }

    async fn begin_alone(&self, volume: &AttachedVolume, divergence: &Divergence) -> Result<()> {
        if divergence.has_begun() {
            return Ok(());
        }
        let is_kept = self.keeps_dirty(volume, divergence);
        let dirty = is_kept.then(|| {
            let slots: Vec<BlockId> = self.map.borrow().of_volume(volume.id).collect();
            self.dirty_ranges(slots.into_iter())
        });
        // After a beginning that failed, less may be dirty than then.
        divergence.set_owed(None);
        self.note_owed(volume, is_kept);
        divergence.keep(dirty.clone());
        let bytes = dirty.iter().flatten().map(|range| range.end - range.start);
        let kept_bytes: u64 = bytes.sum();
        let remains = Remains {
            backing: Rc::clone(volume.backing.device()),
            dirty,
        };
        let begun = divergence.begin(remains);
        let device = match planted(Fault::DivergeUnawaited) {
            true => {
                rt::spawn(async { drop(begun.await) });
                Rc::clone(volume.backing.device())
            }
            false => begun.await?,
        };
        volume.backing.log_through(device);
        divergence.set_begun();
        tracing::error!(
            volume = volume.name,
            kept_bytes,
            "GOES ON WITHOUT ITS CACHE, which has failed: what is written goes to the backing device alone"
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
    fn keeps_dirty(&self, volume: &AttachedVolume, divergence: &Divergence) -> bool {
        let nothing_is = self.map.borrow().share(volume.id).dirty_bytes == 0;
        nothing_is || divergence.fallback() == Fallback::CleanModes
    }

    /// After a write failed: whether the cache has failed, and the volume goes on without it. A
    /// device that has vanished shows when it is asked to keep something, which it is: once more
    /// that the cache is open.
    pub(crate) async fn is_degraded_now(&self, volume: &AttachedVolume) -> bool {
        let divergence = volume.divergence();
        // In the other modes a write fails for what it asks the cache to keep, or goes to the
        // backing device.
        let asks = divergence.is_some_and(|divergence| divergence.fallback() == Fallback::AllModes);
        if asks && self.committer.is_alive() && !self.committer.is_stopping() {
            self.committer.queue_entry(Entry::Open);
            // If it fails, that is what is asked next.
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
        slot: BlockId,
        piece: &Piece,
    ) -> Result<bool> {
        if !planted(Fault::DivergeBesideCleaner) {
            let is_over = || !self.map.borrow().has(slot, CLEANING);
            self.signals.until_cleaned(is_over).await;
        }
        if agreement(volume).keeps_dirty() {
            // Dirty data that must stay is not touched. A write that found the cache failed may
            // have marked the rest dirty.
            self.drop_from_map(slot, self.geometry.touched(piece));
            return Ok(false);
        }
        let limit = volume.limit(self.geometry, piece.block);
        let (touched, covered) = (
            self.geometry.touched(piece),
            self.geometry.covered(piece, limit),
        );
        let entry = self.map.borrow().slot(slot);
        if touched & !covered & entry.dirty != 0 {
            return Err(Error::new(
                ErrorKind::Io,
                format!(
                    "volume {}: {} bytes at {} would be written over a part of what is dirty in the cache, which has failed: write whole blocks of {} bytes",
                    volume.name,
                    piece.len(),
                    self.geometry.backing_offset(piece.block, piece.start),
                    self.geometry.granule_bytes(piece.block.class),
                ),
            ));
        }
        // After an error it is unknown whether the backing device holds the old data or the new.
        // Reads must go there from now on.
        self.drop_from_map(slot, touched & !entry.dirty);
        Ok(touched & entry.dirty != 0)
    }

    /// Records once which data of a volume is not durable in the failed cache, where it can no
    /// longer become durable.
    ///
    /// This is the dirty data without a durable record. It is also the data that replaced such data
    /// since the last flush, clean or not. The device may hold the earlier data, under a record, a
    /// mark or a bit that calls it dirty. The next process would then write that over newer data on
    /// the backing device. A kill that is not durable does not change this. Data without any record
    /// is lost after power loss. If the list of dirty data `is_kept`, the next process takes
    /// nothing else for dirty.
    fn note_owed(&self, volume: &AttachedVolume, is_kept: bool) {
        let divergence = agreement(volume);
        if divergence.knows_owed() {
            return;
        }
        let mut owed = Vec::new();
        // With `sync`, acknowledged data is durable.
        if !self.committer.is_sync() && !planted(Fault::FlushDiverged) {
            let map = self.map.borrow();
            let not_flushed = self.committer.not_flushed();
            for slot in map.of_volume(volume.id) {
                let entry = map.slot(slot);
                let block = entry.block();
                let limit = volume.limit(self.geometry, block);
                let at = |byte| self.geometry.backing_offset(block, byte);
                let recorded = entry.record_at != NO_RECORD;
                let overwritten = entry.has(UNFLUSHED) || not_flushed.contains(&slot);
                let is_on_its_way =
                    self.committer.is_in_flight(entry.record_at) || entry.has(PENDING);
                let is_durable = recorded && (!is_on_its_way || self.marks.is_repeated(slot));
                let hides_older = overwritten && (recorded || entry.has(DYING)) && !is_kept;
                if hides_older && !planted(Fault::OweDirtyAlone) {
                    owed.push(at(0)..at(limit));
                } else if overwritten || !is_durable {
                    let runs = self.geometry.runs(entry.class, entry.dirty, 0..limit);
                    owed.extend(runs.map(|run| at(run.start)..at(run.end)));
                }
            }
            owed.sort_unstable_by_key(|range| range.start);
        }
        divergence.set_owed(Some(owed));
    }

    /// Granules are not there any more, as far as this process goes.
    fn drop_from_map(&self, slot: BlockId, granules: u64) {
        if planted(Fault::ServeDiverged) {
            return;
        }
        let mut map = self.map.borrow_mut();
        let entry = map.slot(slot);
        map.set(slot, entry.valid & !granules, entry.dirty & !granules);
    }
}

/// A part of a write that the cache did not take, for this error: past it, if it has failed. The
/// part's lock is held.
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
            check_kept(&volume, &range)?;
            let mut durable = job.durable;
            if let Some(slot) = found {
                durable |= engine.drop_cached(&volume, slot, &job.part).await?;
            }
            volume.counters.write_misses.add(1);
            volume.counters.bypassed_writes.add(1);
            (volume.backing)
                .write(offset, job.buf.clone(), durable)
                .await?;
            if let Some(slot) = found {
                engine.drop_from_map(slot, engine.geometry.touched(part));
            }
            agreement(&volume).pay(&range);
            Ok(())
        })
        .await
}

/// Zeroes what lies in these parts, which the cache did not do, for this error: past it, if it has
/// failed. A discard may leave what was there, and does. The parts' locks are held.
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
    check_kept(volume, &zeroed)?;
    let mut given_way = Vec::new();
    for part in parts {
        let units = engine.geometry.units(part);
        let found: Vec<_> = {
            let map = engine.map.borrow();
            map.overlapping(volume.id, part.region, units).collect()
        };
        for (slot, span) in found {
            let piece = engine.geometry.piece(part, span);
            durable |= engine.drop_cached(volume, slot, &piece).await?;
            given_way.push((slot, engine.geometry.touched(&piece)));
        }
    }
    volume.backing.change(request, durable).await?;
    for (slot, granules) in given_way {
        engine.drop_from_map(slot, granules);
    }
    agreement(volume).pay(&zeroed);
    Ok(())
}

/// Flushes the data that was written past the cache. Data that was written to the failed cache and
/// not covered by a flush can no longer become durable there. No flush succeeds until that data is
/// rewritten past the cache (rule 9).
pub(crate) async fn flush(engine: &Rc<Engine>, volume: &Rc<AttachedVolume>) -> Result<()> {
    volume.backing.check()?;
    let divergence = agreement(volume);
    let is_kept = match divergence.has_begun() {
        true => divergence.keeps_dirty(),
        false => engine.keeps_dirty(volume, divergence),
    };
    // The next process must not take for dirty what power loss leaves in slots.
    if is_kept && !planted(Fault::FlushUnannounced) {
        engine.begin_degraded(volume).await?;
    }
    if volume.backing.owes_clients() {
        engine.failures.flush_backing(volume).await?;
    }
    engine.note_owed(volume, is_kept);
    let Some((first, has_others)) = divergence.first_owed() else {
        return Ok(());
    };
    let beside = match has_others {
        false => "",
        true => " and others",
    };
    let remedy = match divergence.keeps_dirty() {
        true => "restart",
        false => "write that again, or restart",
    };
    Err(Error::new(
        ErrorKind::Io,
        format!(
            "volume {}: the cache has failed before a flush covered what was written to it, {} bytes at {}{beside}: {remedy}",
            volume.name,
            first.end - first.start,
            first.start
        ),
    ))
}
