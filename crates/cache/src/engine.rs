//! The engine: what the parts of the cache share.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use forebay_block::{BlockDevice, BlockDeviceExt, Buf, Error, ErrorKind, Result};
use forebay_io::rt;
use forebay_io::sync::{Promise, Semaphore, WaitList};
use forebay_io::told::Told;
use forebay_metadata::order::{Ordered, Part, Site};
use forebay_metadata::superblock::Superblock;
use forebay_policy::cleaning::Cleaning;
use forebay_policy::{
    BlockId, BlockKey, Footprint, Measured, PromotionFilter, SequentialDetector, Span, Split,
};

use crate::backing::Backing;
use crate::cleaner::Cleaner;
use crate::commit::Committer;
use crate::cut::Cut;
use crate::diverge::Divergence;
use crate::geometry::{Block, Geometry, Piece, Stretch};
use crate::integrity::{Scrubber, Sums};
use crate::lock::LockTable;
use crate::map::{LIVE, Map, Slot, UNRECORDED};
use crate::options::{CacheOptions, Durability, Mode};
use crate::region::Regions;
use crate::stats::{Stats, VolumeCounters};
use crate::tracking::Tracking;
use crate::tracts::TractBits;

/// Everything of an open cache.
pub(crate) struct Engine {
    pub(crate) data: Rc<dyn BlockDevice>,
    pub(crate) metadata: Rc<dyn BlockDevice>,
    pub(crate) data_volatile: bool,
    pub(crate) metadata_volatile: bool,
    pub(crate) metadata_fua: bool,
    pub(crate) data_block: u32,
    pub(crate) geometry: Geometry,
    pub(crate) options: CacheOptions,
    pub(crate) superblock: RefCell<Superblock>,
    /// The superblock on a data device whose metadata lies elsewhere.
    pub(crate) data_superblock: RefCell<Option<Superblock>>,
    /// One change of the superblock at a time.
    pub(crate) superblock_lock: Semaphore,
    /// One volume is attached at a time.
    pub(crate) attaching: Semaphore,
    pub(crate) map: RefCell<Map>,
    /// What reads bring in.
    pub(crate) footprint: RefCell<Footprint>,
    /// Bytes on their way into the cache that nobody asked for.
    pub(crate) along_bytes: Cell<u64>,
    pub(crate) locks: LockTable,
    pub(crate) regions: Regions,
    pub(crate) tracking: Tracking,
    pub(crate) tracts: TractBits,
    /// Checksums of what is cached, if it has some.
    pub(crate) sums: Option<Sums>,
    pub(crate) scrubber: Scrubber,
    /// Blocks that count as dirty since recovery, though no record says so.
    pub(crate) recovering: Cell<u64>,
    /// How many these were when it was opened.
    pub(crate) found_blocks: u64,
    /// The cache was open last in an earlier boot of the machine.
    pub(crate) power_was_lost: bool,
    /// Of blocks that recovery found dirty in a part that no record calls so: what their records do.
    pub(crate) recorded: RefCell<HashMap<BlockId, u64>>,
    pub(crate) opened: Duration,
    pub(crate) commit: Committer,
    /// What is known of a data device that was cut.
    pub(crate) cut: Cut,
    /// Slots whose clean granules wait for a backing flush.
    pub(crate) deferred: RefCell<Vec<BlockId>>,
    pub(crate) volumes: RefCell<BTreeMap<u16, Rc<Attached>>>,
    pub(crate) stats: Stats,
    pub(crate) stopping: Cell<bool>,
    pub(crate) reclaim: crate::reclaim::Reclaimer,
    pub(crate) cleaners: crate::cleaner::Cleaners,
    pub(crate) cleaning: Cell<Cleaning>,
    /// Whether cleaners wait for [`Cache::allow_write_back`](crate::Cache::allow_write_back).
    pub(crate) holds_write_back: Cell<bool>,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").finish_non_exhaustive()
    }
}

/// A volume that is being served.
#[derive(Debug)]
pub(crate) struct Attached {
    pub(crate) id: u16,
    pub(crate) name: String,
    pub(crate) epoch: u64,
    pub(crate) backing: Backing,
    pub(crate) size_bytes: Cell<u64>,
    pub(crate) logical_block: u32,
    pub(crate) mode: Cell<Mode>,
    pub(crate) filter: RefCell<PromotionFilter>,
    pub(crate) streams: RefCell<SequentialDetector>,
    pub(crate) measured: RefCell<Measured>,
    pub(crate) split: RefCell<Split>,
    pub(crate) counters: VolumeCounters,
    pub(crate) cleaner: Cleaner,
    pub(crate) in_flight: Cell<u64>,
    pub(crate) detaching: Cell<bool>,
    /// That it goes on without its cache, should that fail.
    pub(crate) divergence: OnceCell<Divergence>,
    /// The superblock says that what can be read from its backing device may be what that has lost.
    pub(crate) may_show_lost: Cell<bool>,
    /// Whose turn it is to flush that before the first comparison.
    pub(crate) first_flush: Semaphore,
    pub(crate) told: Told,
    pub(crate) idle: WaitList,
}

impl Attached {
    pub(crate) const fn key(&self, block: Block) -> BlockKey {
        block.key(self.id)
    }

    /// What the locks call a region.
    pub(crate) const fn region_key(&self, region: u64) -> BlockKey {
        BlockKey::new(self.id, region)
    }

    /// How far into `block` the volume reaches, bytes.
    pub(crate) fn limit(&self, geometry: Geometry, block: Block) -> u32 {
        let rest = self.size_bytes.get() - geometry.backing_offset(block, 0);
        u32::try_from(rest.min(geometry.block_bytes(block.class))).expect("at most a block")
    }

    /// A request begins: the volume is not detached before it ends.
    pub(crate) fn enter(&self) {
        self.in_flight.set(self.in_flight.get() + 1);
    }

    /// A request ends.
    pub(crate) fn leave(&self) {
        self.in_flight.set(self.in_flight.get() - 1);
        if self.in_flight.get() == 0 && self.detaching.get() {
            self.idle.wake_all();
        }
    }

    /// Whether a missed block is let in.
    pub(crate) fn promotes(&self, key: BlockKey) -> bool {
        self.filter.borrow_mut().miss(key)
    }
}

/// What a part of a request is to do: the part that lies in a region, or a piece of that in a block.
#[derive(Clone, Debug)]
pub(crate) struct Job<P> {
    pub(crate) part: P,
    pub(crate) buf: Buf,
    /// Force unit access, or every write under `sync`.
    pub(crate) durable: bool,
    /// Goes round the cache, where that does not hold it: it belongs to a sequential stream, or that is cheaper.
    pub(crate) around: bool,
}

impl Job<Stretch> {
    /// What of it lies in these bytes of its region.
    pub(crate) fn cut(&self, run: Range<u32>) -> Self {
        let at = (run.start - self.part.start) as usize;
        Self {
            part: Stretch {
                start: run.start,
                end: run.end,
                ..self.part
            },
            buf: self.buf.slice(at..at + run.len()),
            ..*self
        }
    }

    /// What of it lies in a block of its region.
    pub(crate) fn piece(&self, geometry: Geometry, span: Span) -> Job<Piece> {
        let part = geometry.piece(&self.part, span);
        let at = (geometry.block_start(span) + part.start - self.part.start) as usize;
        Job {
            buf: self.buf.slice(at..at + part.len()),
            part,
            durable: self.durable,
            around: self.around,
        }
    }
}

/// A write to a slot that failed.
#[derive(Debug)]
pub(crate) struct SlotWriteError {
    error: Error,
    /// Whether the slot may hold any mixture of old and new data. Else nothing was written to it.
    pub(crate) has_begun: bool,
}

impl SlotWriteError {
    /// Returns the error of a write that failed before its first byte.
    pub(crate) const fn not_begun(error: Error) -> Self {
        let has_begun = false;
        Self { error, has_begun }
    }
}

impl From<Error> for SlotWriteError {
    fn from(error: Error) -> Self {
        let has_begun = true;
        Self { error, has_begun }
    }
}

impl From<SlotWriteError> for Error {
    fn from(failed: SlotWriteError) -> Self {
        failed.error
    }
}

impl Engine {
    pub(crate) fn volume_by_id(&self, id: u16) -> Option<Rc<Attached>> {
        self.volumes.borrow().get(&id).cloned()
    }

    pub(crate) fn volume_by_name(&self, name: &str) -> Result<Rc<Attached>> {
        self.volumes
            .borrow()
            .values()
            .find(|volume| volume.name == name)
            .cloned()
            .ok_or_else(|| {
                Error::new(
                    ErrorKind::NotFound,
                    format!("no volume {name:?} is attached"),
                )
            })
    }

    /// Wakes every task that waits for the cache's state to change, so that it sees a failure.
    pub(crate) fn wake_everyone(&self) {
        self.regions.wake();
        self.reclaim.wake();
        self.cleaners.kick();
        for volume in self.volumes.borrow().values() {
            volume.cleaner.wake();
        }
    }

    pub(crate) fn sync_durability(&self) -> bool {
        self.options.durability == Durability::Sync
    }

    /// Reads from a slot.
    pub(crate) async fn read_slot(&self, slot: BlockId, start: u32, buf: Buf) -> Result<()> {
        let offset = self
            .geometry
            .data_offset(self.map.borrow().place(slot), start);
        let block = u64::from(self.data_block);
        if offset.is_multiple_of(block) && (buf.len() as u64).is_multiple_of(block) {
            return self.data.read(offset, buf).await;
        }
        // The data device has larger blocks than the volume.
        let (from, wide) = self.widened(offset, buf.len());
        self.data.read(from, wide.clone()).await?;
        self.check_alive()?;
        let skip = usize::try_from(offset - from).expect("less than a block");
        buf.copy_from_buf(&wide.slice(skip..skip + buf.len()));
        Ok(())
    }

    /// Writes to a slot.
    #[track_caller]
    pub(crate) fn write_slot<'a>(
        &'a self,
        volume: &'a Attached,
        slot: BlockId,
        start: u32,
        buf: Buf,
    ) -> impl Future<Output = Result<(), SlotWriteError>> + 'a {
        let site = Site::here();
        async move {
            if let Some(sums) = &self.sums {
                return self
                    .write_summed(site, sums, volume, slot, start, buf)
                    .await;
            }
            let result = self.write_slot_data(site, slot, start, buf).await;
            self.slot_written(slot);
            Ok(result?)
        }
    }

    pub(crate) async fn write_slot_data(
        &self,
        site: Site,
        slot: BlockId,
        start: u32,
        buf: Buf,
    ) -> Result<()> {
        let offset = self
            .geometry
            .data_offset(self.map.borrow().place(slot), start);
        let block = u64::from(self.data_block);
        // What a failed cache knows of its slots, and what is on media, are two things: its records may call clean what
        // would be overwritten here.
        self.check_alive()?;
        if offset.is_multiple_of(block) && (buf.len() as u64).is_multiple_of(block) {
            return Ordered::new(site, self.data.write(offset, buf)).await;
        }
        let (from, wide) = self.widened(offset, buf.len());
        self.data.read(from, wide.clone()).await?;
        self.check_alive()?;
        let skip = usize::try_from(offset - from).expect("less than a block");
        wide.slice(skip..skip + buf.len()).copy_from_buf(&buf);
        Ordered::new(site, self.data.write(from, wide)).await
    }

    fn widened(&self, offset: u64, len: usize) -> (u64, Buf) {
        let block = u64::from(self.data_block);
        let from = offset - offset % block;
        let end = (offset + len as u64).next_multiple_of(block);
        let wide = Buf::scratch(usize::try_from(end - from).expect("little more than the piece"));
        (from, wide)
    }

    /// Flushes a volume's backing device and lets the records go that waited for it.
    #[track_caller]
    pub(crate) fn flush_backing<'a>(
        &'a self,
        volume: &'a Attached,
    ) -> impl Future<Output = Result<()>> + 'a {
        let site = Site::here();
        async move {
            if site.lacks(Part::Step) {
                return Ok(());
            }
            if let Err(error) = volume.backing.flush().await {
                self.note_failure(volume).await;
                return Err(error);
            }
            if !volume.backing.unflushed() {
                self.release_deferred(volume.id);
            }
            Ok(())
        }
    }

    /// Takes a slot out of the map; its slot is free at once.
    pub(crate) fn forget_slot(&self, slot: BlockId) {
        let entry = self.map.borrow().slot(slot);
        debug_assert!(entry.has(LIVE));
        if entry.has(UNRECORDED) {
            self.regions.recorded(entry.key);
        }
        self.note_gone(slot);
        self.forget_sums(slot);
        self.map.borrow_mut().remove(slot);
        // Who waits for room may have it, whatever made it: the reclaimer sees no need to run for them.
        self.reclaim.made_room();
    }

    /// A clean slot's death is about to be logged, or a dirty one's that was given up by name: nothing
    /// may log the slot behind it, and its region's mark owes it nothing any more.
    pub(crate) fn kill_slot(&self, slot: BlockId) {
        let entry = self.map.borrow().slot(slot);
        self.map.borrow_mut().kill(slot);
        if entry.has(UNRECORDED) {
            self.map.borrow_mut().clear_flags(slot, UNRECORDED);
            self.regions.recorded(entry.key);
        }
    }

    /// A granule turned dirty in a slot whose record calls it clean, under the region's mark.
    pub(crate) fn note_unrecorded(&self, slot: BlockId) {
        let entry = self.map.borrow().slot(slot);
        if !entry.has(UNRECORDED) {
            self.map.borrow_mut().add_flags(slot, UNRECORDED);
            self.regions.unrecorded(entry.key);
        }
    }
}

impl Engine {
    /// What the locks call a block: its region, and its granules there.
    pub(crate) fn lock_of(&self, volume: u16, block: Block) -> (BlockKey, u64) {
        let region = self.geometry.region_of(block.unit);
        let granules = self.geometry.covers(self.geometry.span(block));
        (BlockKey::new(volume, region), granules)
    }

    /// Whether somebody is changing a block.
    pub(crate) fn is_being_changed(&self, entry: &Slot) -> bool {
        let (region, granules) = self.lock_of(entry.key.volume(), entry.block());
        self.locks.is_exclusive(region, granules)
    }

    /// Runs several futures as tasks and waits for all. Their results come in order.
    pub(crate) async fn join<T: Clone + 'static>(
        futures: Vec<impl Future<Output = T> + 'static>,
    ) -> Vec<T> {
        let promises: Vec<Promise<T>> = futures
            .into_iter()
            .map(|future| {
                let promise = Promise::new();
                let set = promise.clone();
                rt::spawn(async move { set.set(future.await) });
                promise
            })
            .collect();
        let mut results = Vec::with_capacity(promises.len());
        for promise in promises {
            results.push(promise.get().await);
        }
        results
    }
}
