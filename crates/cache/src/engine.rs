//! The engine: what the parts of the cache share, and how a request is cut into pieces.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use forebay_block::{
    BlockDevice, BlockDeviceExt, Buf, Completion, DeviceInfo, Error, ErrorKind, Op, Request, Result,
};
use forebay_io::rt;
use forebay_io::sync::{Promise, Semaphore, WaitList};
use forebay_metadata::order::{Ordered, Part, Site};
use forebay_metadata::superblock::Superblock;
use forebay_policy::{BlockKey, PromotionFilter, SequentialDetector, SlotId};

use crate::backing::Backing;
use crate::commit::Committer;
use crate::geometry::{Geometry, Piece};
use crate::lock::LockTable;
use crate::map::{LIVE, Map, UNRECORDED};
use crate::mode;
use crate::options::{CacheOptions, Durability, Mode};
use crate::region::Regions;
use crate::stats::{Stats, VolumeCounters};

/// Pieces of one request that are under way at a time.
const PIECES_IN_FLIGHT: usize = 32;

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
    /// One change of the superblock at a time.
    pub(crate) superblock_lock: Semaphore,
    /// One volume is attached at a time.
    pub(crate) attaching: Semaphore,
    pub(crate) map: RefCell<Map>,
    pub(crate) locks: LockTable,
    pub(crate) regions: Regions,
    pub(crate) commit: Committer,
    /// Slots whose clean granules wait for a backing flush.
    pub(crate) deferred: RefCell<Vec<SlotId>>,
    pub(crate) volumes: RefCell<BTreeMap<u16, Rc<Attached>>>,
    pub(crate) stats: Stats,
    pub(crate) stopping: Cell<bool>,
    pub(crate) reclaim: crate::reclaim::Reclaimer,
    pub(crate) cleaner: crate::clean::Cleaner,
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
    pub(crate) counters: VolumeCounters,
    pub(crate) in_flight: Cell<u64>,
    pub(crate) detaching: Cell<bool>,
    pub(crate) idle: WaitList,
}

impl Attached {
    pub(crate) fn key(&self, block: u64) -> BlockKey {
        BlockKey::new(self.id, block)
    }

    /// How far into `block` the volume reaches, bytes.
    pub(crate) fn limit(&self, geometry: Geometry, block: u64) -> u32 {
        let rest = self.size_bytes.get() - geometry.backing_offset(block, 0);
        u32::try_from(rest.min(geometry.block_bytes())).expect("at most a block")
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

/// What a piece of a request is to do.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) piece: Piece,
    pub(crate) buf: Buf,
    /// Force unit access, or every write under `sync`.
    pub(crate) durable: bool,
    /// Belongs to a sequential stream that goes round the cache.
    pub(crate) sequential: bool,
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
        self.cleaner.kick();
    }

    pub(crate) fn sync_durability(&self) -> bool {
        self.options.durability == Durability::Sync
    }

    /// Reads from a slot.
    pub(crate) async fn read_slot(&self, slot: SlotId, start: u32, buf: Buf) -> Result<()> {
        let offset = self.geometry.data_offset(slot, start);
        let block = u64::from(self.data_block);
        if offset.is_multiple_of(block) && (buf.len() as u64).is_multiple_of(block) {
            return self.data.read(offset, buf).await;
        }
        // The data device has larger blocks than the volume.
        let (from, wide) = self.widened(offset, buf.len());
        self.data.read(from, wide.clone()).await?;
        let skip = usize::try_from(offset - from).expect("less than a block");
        buf.copy_from_buf(&wide.slice(skip..skip + buf.len()));
        Ok(())
    }

    /// Writes to a slot.
    #[track_caller]
    pub(crate) fn write_slot(
        &self,
        slot: SlotId,
        start: u32,
        buf: Buf,
    ) -> impl Future<Output = Result<()>> + '_ {
        let site = Site::here();
        async move {
            let result = self.write_slot_data(site, slot, start, buf).await;
            self.slot_written(slot);
            result
        }
    }

    async fn write_slot_data(&self, site: Site, slot: SlotId, start: u32, buf: Buf) -> Result<()> {
        let offset = self.geometry.data_offset(slot, start);
        let block = u64::from(self.data_block);
        if offset.is_multiple_of(block) && (buf.len() as u64).is_multiple_of(block) {
            return Ordered::new(site, self.data.write(offset, buf)).await;
        }
        let (from, wide) = self.widened(offset, buf.len());
        self.data.read(from, wide.clone()).await?;
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
            volume.backing.flush().await?;
            if !volume.backing.unflushed() {
                self.release_deferred(volume.id);
            }
            Ok(())
        }
    }

    /// Takes a slot out of the map; its slot is free at once.
    pub(crate) fn forget_slot(&self, slot: SlotId) {
        let entry = self.map.borrow().slot(slot);
        debug_assert!(entry.has(LIVE));
        if entry.has(UNRECORDED) {
            self.regions.recorded(entry.key);
        }
        self.map.borrow_mut().remove(slot);
    }

    /// A clean slot's death is about to be logged, or a dirty one's that was given up by name: nothing
    /// may log the slot behind it, and its region's mark owes it nothing any more.
    pub(crate) fn kill_slot(&self, slot: SlotId) {
        let entry = self.map.borrow().slot(slot);
        self.map.borrow_mut().kill(slot);
        if entry.has(UNRECORDED) {
            self.map.borrow_mut().clear_flags(slot, UNRECORDED);
            self.regions.recorded(entry.key);
        }
    }

    /// A granule turned dirty in a slot whose record calls it clean, under the region's mark.
    pub(crate) fn note_unrecorded(&self, slot: SlotId) {
        let entry = self.map.borrow().slot(slot);
        if !entry.has(UNRECORDED) {
            self.map.borrow_mut().add_flags(slot, UNRECORDED);
            self.regions.unrecorded(entry.key);
        }
    }
}

/// A volume as a device: what `Cache::attach` returns.
pub(crate) struct CachedVolume {
    pub(crate) engine: Rc<Engine>,
    pub(crate) volume: Rc<Attached>,
}

impl BlockDevice for CachedVolume {
    fn info(&self) -> DeviceInfo {
        let backing = self.volume.backing.device.info();
        let data = self.engine.data.info();
        DeviceInfo {
            name: self.volume.name.clone(),
            size_bytes: self.volume.size_bytes.get(),
            logical_block_bytes: self.volume.logical_block,
            physical_block_bytes: u32::try_from(self.engine.geometry.granule_bytes())
                .unwrap_or(4096)
                .max(backing.physical_block_bytes.min(4096)),
            atomic_write_bytes: self.volume.logical_block,
            volatile_cache: !self.engine.sync_durability(),
            fua: true,
            byte_addressable: false,
            persistence: backing.persistence.min(data.persistence),
            discard: true,
            emulated: backing.emulated,
            identity: None,
        }
    }

    fn submit(&self, request: Request, done: Completion) {
        let (size, block) = (self.volume.size_bytes.get(), self.volume.logical_block);
        if let Err(error) = request.check(size, block) {
            return done.complete(Err(error));
        }
        if self.volume.detaching.get() {
            return done.complete(Err(ErrorKind::ShuttingDown.into()));
        }
        let Err((request, done)) = self.try_fast(request, done) else {
            return;
        };
        let (engine, volume) = (Rc::clone(&self.engine), Rc::clone(&self.volume));
        volume.enter();
        rt::spawn(async move {
            let result = engine.serve(&volume, request).await;
            volume.leave();
            done.complete(result);
        });
    }
}

impl Engine {
    pub(crate) async fn serve(
        self: &Rc<Self>,
        volume: &Rc<Attached>,
        request: Request,
    ) -> Result<()> {
        let sync = self.sync_durability();
        match request.op {
            Op::Flush => mode::flush(self, volume).await,
            Op::Discard => mode::zero(self, volume, request.offset, request.len, None, sync).await,
            Op::WriteZeroes { fua, unmap } => {
                let durable = fua || sync;
                mode::zero(
                    self,
                    volume,
                    request.offset,
                    request.len,
                    Some(unmap),
                    durable,
                )
                .await
            }
            Op::Read | Op::Write { .. } => {
                let buf = request.buf.expect("checked on submission");
                let write = request.op != Op::Read;
                let fua = request.op == Op::Write { fua: true };
                let sequential = volume
                    .streams
                    .borrow_mut()
                    .request(request.offset, request.len);
                let job = move |piece: Piece, buf: Buf| Job {
                    piece,
                    buf,
                    durable: write && (fua || sync),
                    sequential,
                };
                let mut pieces = self.geometry.pieces(request.offset, request.len);
                let first = pieces.next().expect("a request has a piece");
                if first.len() == buf.len() {
                    return self.run(volume, job(first, buf), write).await;
                }
                let pieces = std::iter::once(first).chain(pieces);
                self.run_all(volume, pieces, &buf, job, write).await
            }
        }
    }

    async fn run(self: &Rc<Self>, volume: &Rc<Attached>, job: Job, write: bool) -> Result<()> {
        if write {
            self.check_alive()?;
            mode::write(self, volume, job).await
        } else {
            mode::read(self, volume, job).await
        }
    }

    /// Runs the pieces of a request that spans blocks, several at a time. The first error is the
    /// request's; all pieces end before it is told.
    async fn run_all(
        self: &Rc<Self>,
        volume: &Rc<Attached>,
        pieces: impl Iterator<Item = Piece>,
        buf: &Buf,
        job: impl Fn(Piece, Buf) -> Job,
        write: bool,
    ) -> Result<()> {
        struct Shared {
            running: Cell<usize>,
            error: RefCell<Option<Error>>,
            changed: WaitList,
        }
        let shared = Rc::new(Shared {
            running: Cell::new(0),
            error: RefCell::new(None),
            changed: WaitList::new(),
        });
        let mut at = 0;
        for piece in pieces {
            let part = buf.slice(at..at + piece.len());
            at += piece.len();
            shared
                .changed
                .until(|| shared.running.get() < PIECES_IN_FLIGHT)
                .await;
            shared.running.set(shared.running.get() + 1);
            let (engine, volume) = (Rc::clone(self), Rc::clone(volume));
            let (job, shared) = (job(piece, part), Rc::clone(&shared));
            rt::spawn(async move {
                if let Err(error) = engine.run(&volume, job, write).await {
                    shared.error.borrow_mut().get_or_insert(error);
                }
                shared.running.set(shared.running.get() - 1);
                shared.changed.wake_all();
            });
        }
        shared.changed.until(|| shared.running.get() == 0).await;
        let error = shared.error.borrow_mut().take();
        error.map_or(Ok(()), Err)
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
