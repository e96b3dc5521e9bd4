//! Writes dirty blocks back to their backing devices. [`cleaner`](crate::clean::cleaner) decides
//! when, and which blocks. Client writes in write-back mode are in [`write`](crate::write).
//!
//! Rule 4: a block turns clean only when its data is on the backing device and a flush there
//! covered it. The block must not have been rewritten meanwhile. The cleaner holds no lock while it
//! works, so clients never wait for the backing device. A write during that time sets `REWRITTEN`,
//! and the block stays dirty. The cleaner then does not write the data that it read, which may be
//! half old and half new.
//!
//! The cleaner may read slots whose data is still in the cache device's volatile cache. Reading
//! them is safe as long as no flush of that device failed. The dirty record stays until the copy is
//! durable on the backing device.

use std::rc::Rc;

use forebay_block::{Buf, Error, ErrorKind, Result};
use forebay_io::rt;
use forebay_policy::cleaning::WIDEST;
use forebay_policy::{BlockId, BlockKey, clean_with};

use super::Cleaner;
use crate::clean::compare::{OnBacking, Run};
use crate::failpoints::{Fault, planted};
use crate::geometry::{Block, Spread};
use crate::lock::lock_of;
use crate::map::{CLEANED, CLEANING, COMPARED, Flags, LIVE, Map, REWRITTEN};
use crate::parallel;
use crate::volume::AttachedVolume;

/// Blocks written back between two flushes of the backing device.
pub(crate) const BATCH: usize = WIDEST;

/// Granules of a block that are written back.
#[derive(Clone, Copy, Debug)]
struct Part {
    id: BlockId,
    block: Block,
    granules: u64,
}

/// Result of the write-back of one block.
#[derive(Clone, Debug)]
struct WrittenBack {
    id: BlockId,
    volume: u16,
    granules: u64,
    /// Session of the backing device when it began.
    session: u64,
    result: Result<()>,
}

/// Clears `REWRITTEN`: earlier writes do not count as concurrent with this write-back. The block no
/// longer counts as it was found by recovery, however.
pub(crate) fn forget_rewrite(map: &mut Map, id: BlockId) {
    if map.has(id, REWRITTEN) {
        let compared = match planted(Fault::CompareChanged) {
            true => Flags::default(),
            false => COMPARED,
        };
        map.clear_flags(id, REWRITTEN | compared);
    }
}

impl Cleaner {
    /// Writes blocks back and flushes their backing devices. Blocks that were not rewritten
    /// meanwhile turn clean. Those that are still dirty return to the queue.
    ///
    /// Returns the first error of a write-back. The other blocks are cleaned nevertheless.
    pub(crate) async fn clean_batch(
        self: &Rc<Self>,
        blocks: &[BlockId],
        width: usize,
    ) -> Result<()> {
        let mut results: Vec<WrittenBack> = Vec::with_capacity(blocks.len());
        let windows = self.by_window(blocks);
        for chunk in windows.chunks(width) {
            if !self.committer.is_alive() {
                break;
            }
            let started: Vec<_> = chunk
                .iter()
                .filter_map(|blocks| self.start_write_back(blocks))
                .collect();
            results.extend(parallel::join(started).await.into_iter().flatten());
        }
        let mut volumes: Vec<u16> = results.iter().map(|done| done.volume).collect();
        volumes.sort_unstable();
        volumes.dedup();
        let mut error = None;
        for volume in volumes {
            let flushed = match self.volumes.get(volume) {
                Some(attached) => (self.failures.flush_backing(&attached).await)
                    .map(|()| attached.backing.session()),
                None => Err(ErrorKind::ShuttingDown.into()),
            };
            let failed = |done: &WrittenBack| done.volume == volume && done.result.is_err();
            if results.iter().any(failed)
                && let Some(attached) = self.volumes.get(volume)
            {
                self.failures.note_failure(&attached).await;
            }
            for done in results.iter_mut().filter(|done| done.volume == volume) {
                let flushed = match &flushed {
                    // A flush failed in between, so data that was written before it may be lost.
                    Ok(session) if *session != done.session => Err(interrupted()),
                    Ok(_) => Ok(()),
                    Err(error) => Err(error.clone()),
                };
                done.result = done.result.clone().and(flushed);
            }
        }
        for done in results {
            if let Err(found) = self.finish_write_back(&done) {
                error.get_or_insert(found);
            }
        }
        self.signals.end_write_backs();
        self.signals.hint();
        error.map_or(Ok(()), Err)
    }

    /// Blocks in backing order, window by window.
    fn by_window(&self, blocks: &[BlockId]) -> Vec<Vec<BlockId>> {
        let map = self.map.borrow();
        let window = |id: &BlockId| {
            let (volume, region, _) = map.table().address(*id);
            (volume, region / self.geometry.window_regions())
        };
        let windows = blocks.chunk_by(|one, next| window(one) == window(next));
        windows.map(<[BlockId]>::to_vec).collect()
    }

    /// Starts the write-back of the dirty blocks of a window, with neighbours (`clean_with`).
    /// Returns `None` if none of them is dirty, or all are in use.
    fn start_write_back(
        self: &Rc<Self>,
        blocks: &[BlockId],
    ) -> Option<impl Future<Output = Vec<WrittenBack>> + 'static> {
        let geometry = self.geometry;
        let (number, region, _) = self.map.borrow().table().address(*blocks.first()?);
        let volume = self.volumes.get(number)?;
        let regions = geometry.window_regions();
        let first = region / regions * regions;
        let (mut wanted, mut all) = (0, 0);
        let mut dirty: Vec<Part> = Vec::new();
        {
            let map = self.map.borrow();
            for region in first..first + regions {
                let shift = (region - first) * geometry.region_granule_count();
                for (id, span) in map.overlapping(number, region, u64::MAX) {
                    let entry = map.state(id);
                    let sound = entry.dirty & !self.slots.bad_granules(id);
                    if self.can_be_cleaned(&entry) && sound != 0 {
                        let granules = geometry.spread(sound, span, Spread::Any) << shift;
                        all |= granules;
                        wanted |= if blocks.contains(&id) { granules } else { 0 };
                        let block = geometry.block_in(region, span);
                        dirty.push(Part {
                            id,
                            block,
                            granules: sound,
                        });
                    }
                }
            }
        }
        let mut map = self.map.borrow_mut();
        for id in blocks {
            map.requeue_dirty(*id);
        }
        let chosen = clean_with(wanted, all);
        let mut parts = Vec::new();
        for part in dirty {
            let (span, region) = (
                geometry.span(part.block),
                geometry.region_of(part.block.unit),
            );
            let shift = (region - first) * geometry.region_granule_count();
            let granules = part.granules & geometry.gather(chosen >> shift, span);
            if granules != 0 {
                forget_rewrite(&mut map, part.id);
                map.add_flags(part.id, CLEANING);
                parts.push(Part { granules, ..part });
            }
        }
        if parts.is_empty() {
            return None;
        }
        let cleaner = Rc::clone(self);
        Some(async move {
            let session = volume.backing.session();
            let together = cleaner.write_back_parts(&volume, &parts).await;
            let mut written = Vec::with_capacity(parts.len());
            for part in &parts {
                let result = match &together {
                    // A block that cannot be read or written must not stop the others.
                    Err(_) if parts.len() > 1 => {
                        let alone = std::slice::from_ref(part);
                        cleaner.write_back_parts(&volume, alone).await
                    }
                    result => result.clone(),
                };
                written.push(WrittenBack {
                    id: part.id,
                    volume: volume.id,
                    granules: part.granules,
                    session,
                    result,
                });
            }
            written
        })
    }

    /// Writes granules of blocks back; runs that touch each other, whichever blocks hold them, are
    /// one write.
    async fn write_back_parts(&self, volume: &AttachedVolume, parts: &[Part]) -> Result<()> {
        volume.backing.check()?;
        let geometry = self.geometry;
        let mut runs: Vec<Run> = Vec::new();
        for part in parts {
            let limit = volume.limit(geometry, part.block);
            for run in geometry.runs(part.block.class, part.granules, 0..limit) {
                let at = geometry.backing_offset(part.block, run.start);
                runs.push((part.id, run.start, at..at + run.len() as u64));
            }
        }
        runs.sort_unstable_by_key(|(_, _, at)| at.start);
        for joined in runs.chunk_by(|one, next| one.2.end == next.2.start) {
            let (start, end) = (joined[0].2.start, joined[joined.len() - 1].2.end);
            let buf = Buf::scratch((end - start) as usize);
            for (id, from, at) in joined {
                let piece = (at.start - start) as usize..(at.end - start) as usize;
                self.slots.read(*id, *from, buf.slice(piece)).await?;
                self.truncation
                    .refuse(*id, *from, at.end - at.start)
                    .await?;
            }
            self.committer.flush_in_flight().await;
            let doubtful = |(id, ..): &Run| self.committer.is_in_doubt(*id);
            if joined.iter().any(doubtful) {
                return Err(in_doubt());
            }
            for (id, from, at) in joined {
                let piece = (at.start - start) as usize..(at.end - start) as usize;
                let piece = buf.slice(piece);
                self.slots
                    .verify_for_write_back(volume, *id, *from, &piece)
                    .await?;
            }
            let wanted = self.find_differences(volume, joined, &buf).await;
            // A writer sets `REWRITTEN` before its first byte.
            let is_whole = |id: BlockId| !self.map.borrow().has(id, REWRITTEN);
            let is_one = |one: &OnBacking, next: &OnBacking| {
                one.1.end == next.1.start && is_whole(one.0) == is_whole(next.0)
            };
            for whole in wanted.chunk_by(is_one) {
                let (from, to) = (whole[0].1.start, whole[whole.len() - 1].1.end);
                if is_whole(whole[0].0) {
                    let buf = buf.slice((from - start) as usize..(to - start) as usize);
                    volume.backing.write_back(from, buf).await?;
                    self.stats.write_back_bytes.add(to - from);
                }
            }
        }
        Ok(())
    }

    fn finish_write_back(&self, done: &WrittenBack) -> Result<()> {
        let mut map = self.map.borrow_mut();
        let entry = map.state(done.id);
        debug_assert!(entry.has(LIVE | CLEANING));
        map.clear_flags(done.id, CLEANING);
        drop(map);
        // A flush failed between the read and the write-back, so the content of the data that was
        // read is unknown.
        let doubt = || {
            if self.committer.is_in_doubt(done.id) {
                Err(in_doubt())
            } else {
                Ok(())
            }
        };
        let result = done.result.clone().and_then(|()| doubt());
        let mut map = self.map.borrow_mut();
        if let Err(error) = result {
            map.requeue_dirty(done.id);
            self.stats.write_back_errors.add(1);
            return Err(error);
        }
        self.stats.write_backs.add(1);
        if entry.has(REWRITTEN) && !planted(Fault::ForgetRewrite) {
            map.requeue_dirty(done.id);
            return Ok(());
        }
        map.set(done.id, entry.valid, entry.dirty & !done.granules);
        if entry.dirty & !done.granules != 0 {
            map.requeue_dirty(done.id);
        }
        map.add_flags(done.id, CLEANED);
        let is_clean = map.state(done.id).dirty == 0;
        drop(map);
        if is_clean {
            self.tracker.note_clean(done.id);
        }
        // This record may wait. Operations that rely on the clean block wait for this record or a
        // later one. A bypassing write waits in `settle`. An overwrite waits for its mark, an
        // eviction for the kill.
        self.committer.queue_later(done.id);
        Ok(())
    }

    /// Writes back all data of a volume that is dirty now. With `until_clean`, repeats until
    /// nothing is dirty; the volume must not take writes then.
    pub(crate) async fn write_back_volume(
        self: &Rc<Self>,
        volume: u16,
        until_clean: bool,
    ) -> Result<()> {
        let attached = self.volumes.get(volume);
        let suspend = |by: i32| {
            if let Some(attached) = &attached {
                attached.cleaner.suspend(by);
            }
        };
        suspend(1);
        let result = self.write_back_passes(volume, until_clean).await;
        suspend(-1);
        self.signals.kick_cleaners();
        result
    }

    async fn write_back_passes(self: &Rc<Self>, volume: u16, until_clean: bool) -> Result<()> {
        loop {
            let mut blocks: Vec<BlockId> = {
                let map = self.map.borrow();
                map.of_volume(volume)
                    .filter(|id| map.state(*id).dirty & !self.slots.bad_granules(*id) != 0)
                    .collect()
            };
            if blocks.is_empty() {
                self.committer.check_alive()?;
                return self.slots.bad_left(volume).map_or(Ok(()), Err);
            }
            let is_leaving = || (self.volumes.get(volume)).is_some_and(|v| v.is_detaching());
            if until_clean && !is_leaving() {
                // The caller has stopped waiting for it.
                return Err(ErrorKind::TimedOut.into());
            }
            blocks.sort_unstable_by_key(|id| self.map.borrow().state(*id).key);
            for chunk in blocks.chunks(BATCH) {
                self.committer.check_alive()?;
                self.clean_after_batch(chunk).await?;
                if !until_clean {
                    self.clean_busy(chunk).await?;
                }
            }
            if !until_clean {
                self.committer.check_alive()?;
                return self.slots.bad_left(volume).map_or(Ok(()), Err);
            }
            rt::yield_now().await;
        }
    }

    /// Cleans blocks, after a batch that the task had begun and that may still hold some of these.
    async fn clean_after_batch(self: &Rc<Self>, blocks: &[BlockId]) -> Result<()> {
        let is_over = || {
            let map = self.map.borrow();
            !blocks.iter().any(|id| map.has(*id, CLEANING))
        };
        self.signals.until_cleaned(is_over).await;
        if self.service.is_stopping() {
            return Err(ErrorKind::ShuttingDown.into());
        }
        self.clean_batch(blocks, BATCH).await.map_err(|error| {
            Error::with_source(
                error.kind(),
                "dirty data could not be written back; it stays in the cache",
                error,
            )
        })
    }

    /// Cleans blocks that an earlier pass skipped because they were in use and that are still
    /// dirty. Locks out changes meanwhile.
    async fn clean_busy(self: &Rc<Self>, blocks: &[BlockId]) -> Result<()> {
        let mut busy: Vec<BlockId> = Vec::new();
        let mut wanted: Vec<(BlockKey, u64)> = Vec::new();
        for id in blocks {
            let entry = self.map.borrow().state(*id);
            if entry.has(LIVE) && entry.dirty != 0 {
                busy.push(*id);
                wanted.push(lock_of(self.geometry, entry.key.volume(), entry.block()));
            }
        }
        // One lock a region, in ascending order, as all who hold locks and want more.
        wanted.sort_unstable_by_key(|(region, _)| *region);
        let mut locks = Vec::new();
        for same in wanted.chunk_by(|one, next| one.0 == next.0) {
            let granules = same.iter().fold(0, |all, (_, granules)| all | granules);
            locks.push(self.locks.shared(same[0].0, granules).await);
        }
        busy.retain(|id| self.map.borrow().state(*id).has(LIVE));
        self.clean_after_batch(&busy).await
    }
}

/// Why a block that was written back stays dirty.
fn interrupted() -> Error {
    let what = "a flush of the backing device failed since the write-back, which is repeated";
    Error::new(ErrorKind::Io, what)
}

/// Why a block is not written back.
fn in_doubt() -> Error {
    let what = "a flush of the cache device failed since the data was written: it is not written \
                back";
    Error::new(ErrorKind::Io, what)
}
