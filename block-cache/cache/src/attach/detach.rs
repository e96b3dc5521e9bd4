//! Detaches volumes and shuts a cache down.
//!
//! Neither waits for ever for a device that does not answer. After the time limit, unfinished work
//! is reported and continues in the background with its locks and buffers. Dirty data stays in the
//! cache unless the caller abandons it explicitly. Then the volume's number is removed from the
//! superblock first, durably. After that no process serves the abandoned data or writes it back.

use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use forebay_block::{Error, ErrorKind, Result};
use forebay_io::rt;
use forebay_io::sync::Promise;
use forebay_metadata::order::Site;
use forebay_policy::BlockId;

use crate::cache::Cache;
use crate::commit::queue::Entry;
use crate::engine::Engine;
use crate::failpoints::{Fault, planted};
use crate::format::shrunk;
use crate::geometry::Block;
use crate::lock::lock_of;
use crate::map::CLEANING;
use crate::volume::AttachedVolume;

/// Interval at which progress is checked.
const LOOK: Duration = Duration::from_secs(1);
/// Number of blocks that are forgotten before other tasks run.
const FORGOTTEN_AT_ONCE: usize = 1 << 16;

impl Cache {
    /// Writes all dirty data of a volume back and forgets the volume. New requests get
    /// `ShuttingDown` as soon as this begins.
    ///
    /// # Errors
    /// `NotFound` for an unknown volume, `Busy` if it is being detached already. If a write-back
    /// fails, the device's error. `TimedOut` if there is no progress for a minute. After an error
    /// the volume stays in service and nothing is lost.
    pub async fn detach(&self, name: &str) -> Result<()> {
        self.detach_noting(name, async { Ok(()) }).await
    }

    /// As [`Cache::detach`]. Runs `noted` when all data is written back and flushed, before the
    /// cache forgets the volume. The caller can record there that nothing is dirty.
    ///
    /// # Errors
    /// As [`Cache::detach`], or those of `noted`. After an error of `noted`, too, the volume stays
    /// in service.
    pub async fn detach_noting(
        &self,
        name: &str,
        noted: impl Future<Output = Result<()>>,
    ) -> Result<()> {
        let engine = &self.engine;
        let volume = engine.begin_detach(name)?;
        let clean = match engine.make_clean(&volume).await {
            Ok(()) => noted.await,
            failed => failed,
        };
        if let Err(error) = clean {
            volume.set_detaching(false);
            return Err(error);
        }
        engine.forget_volume_in_time(&volume).await
    }

    /// Returns the dirty byte ranges of a volume in ascending order. Adjacent ranges are merged.
    ///
    /// # Errors
    /// `NotFound` for an unknown volume.
    pub fn dirty_ranges(&self, name: &str) -> Result<Vec<Range<u64>>> {
        let engine = &self.engine;
        let volume = engine.volumes.named(name)?;
        let blocks: Vec<BlockId> = engine.map.borrow().of_volume(volume.id).collect();
        Ok(engine.dirty_ranges(blocks.into_iter()))
    }

    /// Forgets a volume with its dirty data: THAT DATA IS LOST. Returns the lost ranges, as
    /// [`Cache::dirty_ranges`]. From the call on, the cache sends none of it to the backing device.
    /// Writes that were sent before may still arrive.
    ///
    /// # Errors
    /// `NotFound` for an unknown volume, `Busy` if it is being detached already. The cache device's
    /// error, or `TimedOut` if that device does not answer. In both of these cases the volume is
    /// out of service, and the next start reports what became of its data.
    pub async fn abandon(&self, name: &str) -> Result<Vec<Range<u64>>> {
        let engine = &self.engine;
        let volume = engine.begin_detach(name)?;
        volume.backing.give_up();
        // Requests in flight should end first. If they do not, the volume is abandoned all the
        // same.
        let _ = engine.wait_until_idle(&volume, LOOK * 5).await;
        let lost = self.dirty_ranges(name)?;
        for Range { start, end } in &lost {
            tracing::warn!(
                volume = name,
                offset = start,
                len = end - start,
                "dirty data is discarded and LOST"
            );
        }
        engine.forget_volume_in_time(&volume).await?;
        Ok(lost)
    }

    /// Shuts the cache down cleanly: makes acknowledged writes durable, makes the map exact, and
    /// logs the mark by which the next open trusts the map. Dirty data stays in the cache. The
    /// caller must have stopped all requests.
    ///
    /// # Errors
    /// A failed flush of any device. `TimedOut`, with the unfinished work, if a device does not end
    /// it within a minute. After an error there is no clean mark, and the next open recovers as
    /// after a crash.
    pub async fn close(&self) -> Result<()> {
        self.close_with(true).await
    }

    /// Shuts down the cache of a start that was refused. Sends no backing device anything, not even
    /// a flush: it may be the wrong one. There is no clean mark, so that the next open recovers as
    /// after a crash.
    ///
    /// # Errors
    /// As [`Cache::close`].
    pub async fn close_unflushed(&self) -> Result<()> {
        self.close_with(false).await
    }

    async fn close_with(&self, flush: bool) -> Result<()> {
        let engine = &self.engine;
        let volumes: Vec<_> = engine.volumes.all();
        for volume in &volumes {
            volume.set_detaching(true);
        }
        let patience = engine.settings.patience;
        let until = rt::now() + patience;
        let mut result = Ok(());
        for volume in &volumes {
            result = result.and(
                engine
                    .wait_until_idle(volume, until.saturating_sub(rt::now()))
                    .await,
            );
        }
        engine.service.stop();
        engine.wake_all();
        // A batch of the cleaner that is under way ends first.
        let cleaned = async {
            while engine.is_cleaning() {
                rt::sleep(Duration::from_millis(1)).await;
            }
            // Nor may the superblock be written after the cache is closed.
            engine.zones.until_quiet().await;
        };
        let cleaned = rt::at_most(until.saturating_sub(rt::now()), cleaned).await;
        result = result.and(cleaned.ok_or_else(|| timeout_error("a write-back")));
        let (ending, is_quiet) = (Rc::clone(engine), result.is_ok());
        let ended = async move {
            match flush {
                true => ending.end_service(volumes, until, is_quiet).await,
                false => ending.end_uncleanly().await,
            }
        };
        // The cache device, too, has its time.
        let rest = until.saturating_sub(rt::now()) + patience;
        result = result.and(run_with_limit("a clean end of the cache", rest, ended).await);
        engine.committer.stop();
        engine.volumes.clear();
        result
    }
}

fn timeout_error(what: &str) -> Error {
    Error::new(
        ErrorKind::TimedOut,
        format!("the device did not complete {what} in time: the work continues in the background"),
    )
}

/// Runs `work` as a separate task and waits for it for a limited time.
async fn run_with_limit(
    what: &str,
    limit: Duration,
    work: impl Future<Output = Result<()>> + 'static,
) -> Result<()> {
    let ended = spawn_work(work);
    let ended = rt::at_most(limit, ended.get()).await;
    ended.unwrap_or_else(|| Err(timeout_error(what)))
}

fn spawn_work(work: impl Future<Output = Result<()>> + 'static) -> Promise<Result<()>> {
    let promise = Promise::new();
    let set = promise.clone();
    rt::spawn(async move { set.set(work.await) });
    promise
}

impl Engine {
    fn begin_detach(&self, name: &str) -> Result<Rc<AttachedVolume>> {
        let volume = self.volumes.named(name)?;
        if volume.set_detaching(true) {
            let what = format!(
                "volume {name:?} is being detached already\nhelp: wait for the end of the other \
                 `forebay detach`"
            );
            return Err(Error::new(ErrorKind::Busy, what));
        }
        Ok(volume)
    }

    /// Waits until no request of a volume is under way.
    async fn wait_until_idle(&self, volume: &AttachedVolume, limit: Duration) -> Result<()> {
        let idle = volume.wait_until_idle();
        let idle = rt::at_most(limit, idle).await;
        idle.ok_or_else(|| {
            let requests = volume.in_flight();
            timeout_error(&format!("volume {}: {requests} requests", volume.name))
        })
    }

    /// Writes back all dirty data of a volume that no longer takes writes.
    async fn make_clean(self: &Rc<Self>, volume: &Rc<AttachedVolume>) -> Result<()> {
        self.wait_until_idle(volume, self.settings.patience).await?;
        self.write_back_in_time(volume.id, true).await?;
        let (engine, flushed) = (Rc::clone(self), Rc::clone(volume));
        let what = format!("volume {}: a flush of its backing device", volume.name);
        let flush = async move { engine.failures.flush_backing(&flushed).await };
        run_with_limit(&what, self.settings.patience, flush).await
    }

    /// As [`Cleaner::write_back_volume`](crate::clean::Cleaner::write_back_volume), as long as it
    /// makes progress.
    pub(crate) async fn write_back_in_time(
        self: &Rc<Self>,
        volume: u16,
        until_clean: bool,
    ) -> Result<()> {
        let engine = Rc::clone(self);
        let cleaned =
            spawn_work(async move { engine.cleaner.write_back_volume(volume, until_clean).await });
        let done = || self.stats.write_backs.get() + self.stats.write_back_errors.get();
        let (mut seen, mut since) = (done(), rt::now());
        loop {
            if let Some(result) = rt::at_most(LOOK, cleaned.get()).await {
                return result;
            }
            if done() != seen {
                (seen, since) = (done(), rt::now());
            } else if rt::now() - since > self.settings.patience {
                return Err(timeout_error("a write-back"));
            }
        }
    }

    async fn forget_volume_in_time(self: &Rc<Self>, volume: &Rc<AttachedVolume>) -> Result<()> {
        let (engine, forgotten) = (Rc::clone(self), Rc::clone(volume));
        let work = async move { engine.forget_volume(&forgotten).await };
        let what = format!("volume {}: its removal from the cache", volume.name);
        let result = run_with_limit(&what, self.settings.patience, work).await;
        if let Err(error) = &result
            && error.kind() != ErrorKind::TimedOut
        {
            volume.set_detaching(false);
        }
        result
    }

    /// Forgets a volume that is not served any more, with its cached blocks.
    async fn forget_volume(self: &Rc<Self>, volume: &Rc<AttachedVolume>) -> Result<()> {
        self.forget_number(volume.id).await?;
        (self.stats.writes_of_detached).add(volume.counters.writes());
        Ok(())
    }

    /// Forgets the volume with this number, with its cached blocks. The volume is not served.
    pub(crate) async fn forget_number(self: &Rc<Self>, number: u16) -> Result<()> {
        // From here on the records of this number mean nothing, durably.
        if !planted(Fault::AbandonInMemory) {
            self.superblock
                .change(|superblock| {
                    superblock.volumes.retain(|entry| entry.id != number);
                })
                .await?;
        }
        self.volumes.remove(number);
        for (nth, (id, block)) in self.blocks_of(number).into_iter().enumerate() {
            if nth > 0 && nth.is_multiple_of(FORGOTTEN_AT_ONCE) {
                rt::next_turn().await;
            }
            if !self.try_forget(number, id, block) {
                rt::spawn(Rc::clone(self).forget_later(number, id, block));
            }
        }
        self.marks.forget_volume(number);
        self.wake_all();
        self.signals.hint();
        Ok(())
    }

    /// Forgets a block of a volume that is gone, unless the block is in use. Returns whether it
    /// did.
    fn try_forget(&self, volume: u16, id: BlockId, block: Block) -> bool {
        // The reclaimer may have had it first.
        if !self.is_block(volume, id, block) {
            return true;
        }
        let (region, granules) = lock_of(self.geometry, volume, block);
        let lock = self.locks.try_exclusive(Site::here(), region, granules);
        let free = lock.is_some() && !self.map.borrow().has(id, CLEANING);
        if free {
            self.slots.forget(id);
        }
        free
    }

    /// I/O on the block is still in flight, so its slot must not be reused until that I/O ends.
    async fn forget_later(self: Rc<Self>, volume: u16, id: BlockId, block: Block) {
        while !self.service.is_stopping() && !self.try_forget(volume, id, block) {
            rt::sleep(LOOK).await;
        }
        self.signals.hint();
    }

    async fn end_service(
        self: Rc<Self>,
        volumes: Vec<Rc<AttachedVolume>>,
        until: Duration,
        is_quiet: bool,
    ) -> Result<()> {
        let flush = |volume: &Rc<AttachedVolume>| {
            let (engine, volume) = (Rc::clone(&self), Rc::clone(volume));
            spawn_work(async move { engine.failures.flush_backing(&volume).await })
        };
        let flushing: Vec<_> = volumes.iter().map(flush).collect();
        let mut flushed = Ok(());
        for (ended, volume) in flushing.into_iter().zip(&volumes) {
            let ended = rt::at_most(until.saturating_sub(rt::now()), ended.get()).await;
            let what = || format!("volume {}: a flush of its backing device", volume.name);
            flushed = flushed.and(ended.unwrap_or_else(|| Err(timeout_error(&what()))));
        }
        // The clean mark says that what is cached is there.
        if let Some(cut) = self.truncation.reason().await {
            flushed = flushed.and(Err(cut));
        }
        self.metadata.search_next();
        self.metadata.look().await;
        if let Some(cut) = self.metadata.trouble() {
            flushed = flushed.and(Err(cut));
        }
        if let Some(shrunk) = shrunk(&self.superblock.current(), self.devices.data().as_ref()) {
            let what = format!(
                "{shrunk}: data beyond its end, also dirty data, IS LOST\n\
                 help: it was made smaller while it was in use: restore its length"
            );
            flushed = flushed.and(Err(Error::new(ErrorKind::Lost, what)));
        }
        if flushed.is_err() || !is_quiet {
            let ended = self.end_uncleanly().await;
            return flushed.and(ended);
        }
        self.regions.clear_all_marks().await?;
        self.committer.commit_all().await?;
        self.tracker.close_tracking().await?;
        let generation = self.superblock.announce_end().await?;
        self.committer.queue_entry(Entry::Close);
        self.committer.commit().await?;
        // Also records in the superblock how far the log reaches.
        self.superblock.end_generation(generation).await
    }

    /// The map is not exact in this case, but acknowledged writes must be durable all the same.
    async fn end_uncleanly(&self) -> Result<()> {
        self.committer.commit_all().await
    }
}
