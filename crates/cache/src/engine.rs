//! The engine: what the parts of the cache share.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use forebay_block::{BlockDeviceExt, Buf, Result};
use forebay_io::rt;
use forebay_io::sync::{Promise, Semaphore};
use forebay_metadata::order::{Ordered, Site};
use forebay_policy::cleaning::Cleaning;
use forebay_policy::{BlockId, Footprint};

use crate::backing_failures::BackingFailures;
use crate::checksum::{Checksums, Scrubber};
use crate::commit::Committer;
use crate::devices::CacheDevices;
use crate::geometry::Geometry;
use crate::intent::dirty_tracking::DirtyTracker;
use crate::intent::regions::Regions;
use crate::intent::zones::Zones;
use crate::lock::LockTable;
use crate::map::marks::Marks;
use crate::map::{LIVE, Map, UNRECORDED};
use crate::media::truncation::TruncationWatch;
use crate::options::CacheOptions;
use crate::presumed_dirty::PresumedDirty;
use crate::service::ServiceState;
use crate::stats::Stats;
use crate::superblock::SuperblockStore;
use crate::volume::{AttachedVolume, Volumes};

/// Everything of an open cache.
pub(crate) struct Engine {
    /// The devices of the cache.
    pub(crate) devices: Rc<CacheDevices>,
    pub(crate) geometry: Geometry,
    pub(crate) options: Rc<CacheOptions>,
    pub(crate) superblock: Rc<SuperblockStore>,
    pub(crate) failures: Rc<BackingFailures>,
    /// One volume is attached at a time.
    pub(crate) attaching: Semaphore,
    pub(crate) map: Rc<RefCell<Map>>,
    /// What reads bring in.
    pub(crate) footprint: RefCell<Footprint>,
    /// Bytes on their way into the cache that nobody asked for.
    pub(crate) along_bytes: Cell<u64>,
    pub(crate) locks: Rc<LockTable>,
    /// The marks of regions, as the log has them.
    pub(crate) marks: Rc<Marks>,
    pub(crate) regions: Rc<Regions>,
    pub(crate) tracker: Rc<DirtyTracker>,
    pub(crate) zones: Rc<Zones>,
    /// Checksums of what is cached, if it has some.
    pub(crate) checksums: Option<Rc<Checksums>>,
    pub(crate) scrubber: Scrubber,
    /// Blocks that count as dirty since recovery, though no record says so.
    pub(crate) presumed: Rc<PresumedDirty>,
    pub(crate) committer: Rc<Committer>,
    /// The watch for a data device that is cut.
    pub(crate) truncation: Rc<TruncationWatch>,
    /// The volumes that are attached.
    pub(crate) volumes: Rc<Volumes>,
    pub(crate) stats: Rc<Stats>,
    pub(crate) service: Rc<ServiceState>,
    pub(crate) reclaim: crate::evict::Reclaimer,
    pub(crate) cleaners: crate::clean::cleaner::Cleaners,
    pub(crate) cleaning: Cell<Cleaning>,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").finish_non_exhaustive()
    }
}

impl Engine {
    /// Wakes every task that waits for the cache's state to change, so that it sees a failure.
    pub(crate) fn wake_everyone(&self) {
        self.regions.wake();
        self.reclaim.wake();
        self.cleaners.kick();
        self.volumes.for_each(|volume| volume.cleaner.wake());
    }

    /// Reads from a slot.
    pub(crate) async fn read_slot(&self, slot: BlockId, start: u32, buf: Buf) -> Result<()> {
        let offset = self
            .geometry
            .data_offset(self.map.borrow().place(slot), start);
        let block = u64::from(self.devices.data_block());
        if offset.is_multiple_of(block) && (buf.len() as u64).is_multiple_of(block) {
            return self.devices.data().read(offset, buf).await;
        }
        // The data device has larger blocks than the volume.
        let (from, wide) = self.widened(offset, buf.len());
        self.devices.data().read(from, wide.clone()).await?;
        self.committer.check_alive()?;
        let skip = usize::try_from(offset - from).expect("less than a block");
        buf.copy_from_buf(&wide.slice(skip..skip + buf.len()));
        Ok(())
    }

    /// Writes to a slot.
    #[track_caller]
    pub(crate) fn write_slot<'a>(
        &'a self,
        volume: &'a AttachedVolume,
        slot: BlockId,
        start: u32,
        buf: Buf,
    ) -> impl Future<Output = Result<()>> + 'a {
        let site = Site::here();
        async move {
            if let Some(sums) = &self.checksums {
                return self
                    .write_summed(site, sums, volume, slot, start, buf)
                    .await;
            }
            let result = self.write_slot_data(site, slot, start, buf).await;
            self.committer.slot_written(slot);
            result
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
        let block = u64::from(self.devices.data_block());
        // What a failed cache knows of its slots, and what is on media, are two things: its records may call clean what
        // would be overwritten here.
        self.committer.check_alive()?;
        if offset.is_multiple_of(block) && (buf.len() as u64).is_multiple_of(block) {
            return Ordered::new(site, self.devices.data().write(offset, buf)).await;
        }
        let (from, wide) = self.widened(offset, buf.len());
        self.devices.data().read(from, wide.clone()).await?;
        self.committer.check_alive()?;
        let skip = usize::try_from(offset - from).expect("less than a block");
        wide.slice(skip..skip + buf.len()).copy_from_buf(&buf);
        Ordered::new(site, self.devices.data().write(from, wide)).await
    }

    fn widened(&self, offset: u64, len: usize) -> (u64, Buf) {
        let block = u64::from(self.devices.data_block());
        let from = offset - offset % block;
        let end = (offset + len as u64).next_multiple_of(block);
        let wide = Buf::scratch(usize::try_from(end - from).expect("little more than the piece"));
        (from, wide)
    }

    /// Takes a slot out of the map; its slot is free at once.
    pub(crate) fn forget_slot(&self, slot: BlockId) {
        let entry = self.map.borrow().slot(slot);
        debug_assert!(entry.has(LIVE));
        if entry.has(UNRECORDED) {
            self.marks.recorded(entry.key);
        }
        self.tracker.note_gone(slot);
        self.forget_sums(slot);
        self.map.borrow_mut().remove(slot);
        // Who waits for room may have it, whatever made it: the reclaimer sees no need to run for them.
        self.reclaim.made_room();
    }
}

impl Engine {
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
