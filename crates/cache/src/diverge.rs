//! A volume goes on without a cache that has failed in service: in the modes that leave nothing dirty, and in all modes where
//! that was agreed to beforehand.
//!
//! Rules 5 and 6: before the first write bypasses the failed cache, the volume's epoch is raised beside the cache, durably. The
//! failed cache takes no note of that. Two records say which of its copies are stale:
//!
//! - The list of all that is dirty. No write touches that, and nothing else in the cache counts at the next attach.
//! - Where writes may take the place of dirty data: the log of ranges, in which each range stands before it is written.
//!
//! In memory, written granules count as absent, so that reads go to the backing device. Dirty data that was not written over is
//! served from the cache, while that can be read. docs/internals/degraded.md argues it.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;

use forebay_block::{BlockDevice, Error, ErrorKind, Op, Request, Result};
use forebay_io::rt;
use forebay_io::sync::Semaphore;
use forebay_policy::BlockId;

use crate::engine::{Attached, Engine, Job};
use crate::geometry::{Piece, Stretch};
use crate::map::{CLEANING, DYING, NO_RECORD, PENDING, UNFLUSHED};
use crate::open::Cache;
use crate::options::Mode;
use crate::plant::{Fault, planted};
use crate::queue::Entry;

/// In which modes a volume goes on at its backing device alone, should its cache fail in service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fallback {
    /// In the modes that leave nothing dirty: `wt`, `wa`, `wi` and `pt`. Dirty data of an earlier mode is kept, and a write that
    /// touches it is an error.
    CleanModes,
    /// In all modes. A write of whole granules takes the place of dirty data, which the next attach gives up.
    AllModes,
}

/// What a volume leaves in its cache when it goes on without that.
#[derive(Clone)]
pub struct Remains {
    /// The volume's backing device.
    pub backing: Rc<dyn BlockDevice>,
    /// All that is dirty, bytes of the volume in ascending order: no write touches it, and nothing else in the cache counts any
    /// more. None if writes may take the place of dirty data: then each range is to be logged before it is written.
    pub dirty: Option<Vec<Range<u64>>>,
}

type Begun = Pin<Box<dyn Future<Output = Result<Rc<dyn BlockDevice>>>>>;

/// A volume's agreement to go on without its cache.
pub(crate) struct Divergence {
    fallback: Fallback,
    begin: Box<dyn Fn(Remains) -> Begun>,
    beginning: Semaphore,
    begun: Cell<bool>,
    /// Dirty data that no write may touch, bytes of the volume in ascending order.
    kept: RefCell<Option<Vec<Range<u64>>>>,
    /// What no flush covers, bytes of the volume; none until somebody asks.
    owed: RefCell<Option<Vec<Range<u64>>>>,
}

impl std::fmt::Debug for Divergence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Divergence")
            .field("fallback", &self.fallback)
            .field("begun", &self.begun)
            .finish_non_exhaustive()
    }
}

impl Divergence {
    /// Where dirty data that is kept lies in a range of bytes; none if there is none.
    fn first_kept(&self, range: &Range<u64>) -> Option<u64> {
        if planted(Fault::WriteOverKept) {
            return None;
        }
        let kept = self.kept.borrow();
        let kept = kept.as_deref().unwrap_or_default();
        let at = kept.partition_point(|dirty| dirty.end <= range.start);
        let dirty = kept.get(at).filter(|dirty| dirty.start < range.end)?;
        Some(dirty.start.max(range.start))
    }
}

impl Cache {
    /// Has a volume go on without this cache, should that fail in service: what is written then goes to the backing device
    /// alone. Before the first such write `begin` raises the epoch, durably, with the list of what is dirty, or returns the
    /// backing device as one that logs each range, durably, before it is written ([`Remains`]). It is asked again if it fails.
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
        let volume = self.engine.volume_by_name(name)?;
        let divergence = Divergence {
            fallback,
            begin: Box::new(move |remains| Box::pin(begin(remains))),
            beginning: Semaphore::new(1),
            begun: Cell::new(false),
            kept: RefCell::new(None),
            owed: RefCell::new(None),
        };
        let agreed = volume.divergence.set(divergence);
        agreed.map_err(|_| {
            let what =
                format!("volume {name:?} goes on without its cache already, should that fail");
            Error::new(ErrorKind::InvalidInput, what)
        })
    }
}

impl Attached {
    /// Whether it is being written without its cache.
    pub(crate) fn has_diverged(&self) -> bool {
        let divergence = self.divergence.get();
        divergence.is_some_and(|divergence| divergence.begun.get())
    }

    /// Whether it goes on without its cache, should that fail now.
    pub(crate) fn falls_back(&self) -> bool {
        self.falls_back_in(self.mode.get())
    }

    /// Whether it goes on without its cache in a mode.
    pub(crate) fn falls_back_in(&self, mode: Mode) -> bool {
        let divergence = self.divergence.get();
        divergence.is_some_and(|divergence| {
            divergence.fallback == Fallback::AllModes || !mode.makes_dirty()
        })
    }

    /// Before the first write that bypasses a failed cache.
    async fn begin_to_diverge(self: &Rc<Self>, engine: &Engine) -> Result<()> {
        let divergence = self.divergence.get().expect("agreed to");
        if divergence.begun.get() {
            return Ok(());
        }
        if planted(Fault::DivergeUnannounced) {
            engine.owe(self, false);
            return Ok(());
        }
        divergence.beginning.acquire(1).await;
        let result = self.begin_alone(engine, divergence).await;
        divergence.beginning.release(1);
        result.map_err(|error| {
            error.context(format!(
                "volume {:?} cannot go on without its cache, which has failed",
                self.name
            ))
        })
    }

    /// Refuses to write what is dirty in the cache and kept there.
    fn refuse_kept(&self, range: &Range<u64>) -> Result<()> {
        let divergence = self.divergence.get().expect("agreed to");
        let Some(at) = divergence.first_kept(range) else {
            return Ok(());
        };
        Err(Error::new(
            ErrorKind::Io,
            format!(
                "volume {}: {} bytes at {} touch what is dirty at {at} in the cache, which has failed: restart to recover that",
                self.name,
                range.end - range.start,
                range.start,
            ),
        ))
    }

    /// This was written past the cache.
    fn owes_no_more(&self, written: Range<u64>) {
        let divergence = self.divergence.get().expect("agreed to");
        let mut owed = divergence.owed.borrow_mut();
        let Some(owed) = owed.as_mut().filter(|owed| !owed.is_empty()) else {
            return;
        };
        *owed = (owed.drain(..))
            .flat_map(|range| {
                let before = range.start..range.end.min(written.start);
                let behind = range.start.max(written.end)..range.end;
                [before, behind].into_iter().filter(|rest| !rest.is_empty())
            })
            .collect();
    }

    async fn begin_alone(self: &Rc<Self>, engine: &Engine, divergence: &Divergence) -> Result<()> {
        if divergence.begun.get() {
            return Ok(());
        }
        let is_kept = engine.keeps_dirty(self, divergence);
        let dirty = is_kept.then(|| {
            let slots: Vec<BlockId> = engine.map.borrow().of_volume(self.id).collect();
            engine.dirty_ranges(slots.into_iter())
        });
        // After a beginning that failed, less may be dirty than then.
        divergence.owed.take();
        engine.owe(self, is_kept);
        divergence.kept.replace(dirty.clone());
        let bytes = dirty.iter().flatten().map(|range| range.end - range.start);
        let kept_bytes: u64 = bytes.sum();
        let remains = Remains {
            backing: Rc::clone(&self.backing.device),
            dirty,
        };
        let begun = (divergence.begin)(remains);
        let device = match planted(Fault::DivergeUnawaited) {
            true => {
                rt::spawn(async { drop(begun.await) });
                Rc::clone(&self.backing.device)
            }
            false => begun.await?,
        };
        self.backing.log_through(device);
        divergence.begun.set(true);
        tracing::error!(
            volume = self.name,
            kept_bytes,
            "GOES ON WITHOUT ITS CACHE, which has failed: what is written goes to the backing device alone"
        );
        Ok(())
    }
}

impl Engine {
    /// Whether what is written to a volume bypasses the cache, which has failed.
    pub(crate) fn diverges(&self, volume: &Attached) -> bool {
        !self.commit.is_alive() && !self.commit.stopping.get() && volume.falls_back()
    }

    /// Whether the cache has failed, and a volume refuses writes for that.
    pub(crate) fn refuses_writes(&self, volume: &Attached) -> bool {
        !self.commit.is_alive() && !self.commit.stopping.get() && !volume.falls_back()
    }

    /// Whether no write is to take the place of what is dirty of a volume.
    fn keeps_dirty(&self, volume: &Attached, divergence: &Divergence) -> bool {
        let nothing_is = self.map.borrow().share(volume.id).dirty_bytes == 0;
        nothing_is || divergence.fallback == Fallback::CleanModes
    }

    /// After a write failed: whether the cache has failed, and the volume goes on without it. A device that has vanished shows
    /// when it is asked to keep something, which it is: once more that the cache is open.
    pub(crate) async fn diverges_after_all(&self, volume: &Attached) -> bool {
        let divergence = volume.divergence.get();
        // In the other modes a write fails for what it asks the cache to keep, or goes to the backing device.
        let asks = divergence.is_some_and(|divergence| divergence.fallback == Fallback::AllModes);
        if asks && self.commit.is_alive() && !self.commit.stopping.get() {
            self.queue_entry(Entry::Open);
            // If it fails, that is what is asked next.
            let _ = self.commit().await;
        }
        self.diverges(volume)
    }

    /// What the cache has of a piece gives way to what is about to be written. Nothing is being written back there any
    /// more on return: that would be older. Returns whether something is dirty, which may be durable and will be given up
    /// for what is written: that has to be durable as well before it is acknowledged.
    ///
    /// # Errors
    /// Where a part of a dirty granule would be written.
    async fn give_way(&self, volume: &Attached, slot: BlockId, piece: &Piece) -> Result<bool> {
        if !planted(Fault::DivergeBesideCleaner) {
            let is_over = || !self.map.borrow().has(slot, CLEANING);
            self.cleaners.ended.until(is_over).await;
        }
        let divergence = volume.divergence.get().expect("agreed to");
        if divergence.kept.borrow().is_some() {
            // Nothing that is kept is touched. A write that found the cache failed may have called the rest dirty.
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
        // After an error nobody knows which of old and new the backing device holds, and it alone says so.
        self.drop_from_map(slot, touched & !entry.dirty);
        Ok(touched & entry.dirty != 0)
    }

    /// Once: notes what of a volume is not durable in the cache, which has failed, and that nobody can make durable there.
    ///
    /// That is what is dirty without a durable record. And what was written in its place since the last flush, clean or not:
    /// the device may have what was there before, under a record, a mark or a bit that calls it dirty, and then the next
    /// process writes that over what the backing device got since. A kill that is not durable changes nothing of that; what
    /// has no record yet is dead after power loss. Where the list of dirty data `is_kept`, the next process takes nothing else
    /// for dirty.
    fn owe(&self, volume: &Attached, is_kept: bool) {
        let divergence = volume.divergence.get().expect("agreed to");
        if divergence.owed.borrow().is_some() {
            return;
        }
        let mut owed = Vec::new();
        // With `sync`, what was acknowledged is durable.
        if !self.sync_durability() && !planted(Fault::FlushDiverged) {
            let map = self.map.borrow();
            let not_flushed = self.commit.not_flushed();
            let log = self.commit.log.borrow();
            for slot in map.of_volume(volume.id) {
                let entry = map.slot(slot);
                let block = entry.block();
                let limit = volume.limit(self.geometry, block);
                let at = |byte| self.geometry.backing_offset(block, byte);
                let recorded = entry.record_at != NO_RECORD;
                let overwritten = entry.has(UNFLUSHED) || not_flushed.contains(&slot);
                let is_on_its_way = log.in_flight(entry.record_at) || entry.has(PENDING);
                let is_durable = recorded && (!is_on_its_way || self.regions.is_repeated(slot));
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
        *divergence.owed.borrow_mut() = Some(owed);
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

/// A part of a write that the cache did not take, for this error: past it, if it has failed. The part's lock is held.
pub(crate) async fn write(
    engine: &Rc<Engine>,
    volume: &Rc<Attached>,
    job: Job<Stretch>,
    error: Error,
) -> Result<()> {
    if !engine.diverges_after_all(volume).await {
        return Err(error);
    }
    volume.begin_to_diverge(engine).await?;
    engine
        .each_piece(volume, job, |engine, volume, found, job| async move {
            let part = &job.part;
            let offset = engine.geometry.backing_offset(part.block, part.start);
            let range = offset..offset + part.len() as u64;
            volume.refuse_kept(&range)?;
            let mut durable = job.durable;
            if let Some(slot) = found {
                durable |= engine.give_way(&volume, slot, &job.part).await?;
            }
            volume.counters.write_misses.add(1);
            volume.counters.bypassed_writes.add(1);
            (volume.backing)
                .write(offset, job.buf.clone(), durable)
                .await?;
            if let Some(slot) = found {
                engine.drop_from_map(slot, engine.geometry.touched(part));
            }
            volume.owes_no_more(range);
            Ok(())
        })
        .await
}

/// Zeroes what lies in these parts, which the cache did not do, for this error: past it, if it has failed. A discard may leave
/// what was there, and does. The parts' locks are held.
pub(crate) async fn zero(
    engine: &Rc<Engine>,
    volume: &Rc<Attached>,
    parts: &[Stretch],
    request: Request,
    mut durable: bool,
    error: Error,
) -> Result<()> {
    if !engine.diverges_after_all(volume).await {
        return Err(error);
    }
    if request.op == Op::Discard {
        return Ok(());
    }
    volume.begin_to_diverge(engine).await?;
    let zeroed = request.offset..request.offset + request.len;
    volume.refuse_kept(&zeroed)?;
    let mut given_way = Vec::new();
    for part in parts {
        let units = engine.geometry.units(part);
        let found: Vec<_> = {
            let map = engine.map.borrow();
            map.overlapping(volume.id, part.region, units).collect()
        };
        for (slot, span) in found {
            let piece = engine.geometry.piece(part, span);
            durable |= engine.give_way(volume, slot, &piece).await?;
            given_way.push((slot, engine.geometry.touched(&piece)));
        }
    }
    volume.backing.change(request, durable).await?;
    for (slot, granules) in given_way {
        engine.drop_from_map(slot, granules);
    }
    volume.owes_no_more(zeroed);
    Ok(())
}

/// What was written past the cache is flushed. What was written to it before and that no flush covered is not durable, and
/// nobody can make it so: until it is written again, past the cache, no flush succeeds (rule 9).
pub(crate) async fn flush(engine: &Rc<Engine>, volume: &Rc<Attached>) -> Result<()> {
    volume.backing.check()?;
    let divergence = volume.divergence.get().expect("agreed to");
    let is_kept = match divergence.begun.get() {
        true => divergence.kept.borrow().is_some(),
        false => engine.keeps_dirty(volume, divergence),
    };
    // The next process must not take for dirty what power loss leaves in slots.
    if is_kept && !planted(Fault::FlushUnannounced) {
        volume.begin_to_diverge(engine).await?;
    }
    if volume.backing.owes_clients() {
        engine.flush_backing(volume).await?;
    }
    engine.owe(volume, is_kept);
    let owed = divergence.owed.borrow();
    let Some((first, others)) = owed.as_ref().and_then(|owed| owed.split_first()) else {
        return Ok(());
    };
    let beside = match others.len() {
        0 => "",
        _ => " and others",
    };
    let remedy = match divergence.kept.borrow().is_some() {
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
