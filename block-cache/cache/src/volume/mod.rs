//! A volume that is served: its backing device, its mode, its counters and the requests in flight.
//!
//! This is the engine's state of a volume. The client's view, with limits and handles for other
//! reactors, is the crate `forebay-volume`.

pub(crate) mod backing;
pub(crate) mod cleaner;
pub(crate) mod fallback;

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use forebay_block::{DeviceInfo, Error, ErrorKind, Result};
use forebay_io::rt;
use forebay_io::sync::{Semaphore, WaitList};
use forebay_policy::cleaning::{Cleaning, IoDevice};
use forebay_policy::{BlockKey, Measured, PromotionFilter, Route, SequentialDetector, Split};

use crate::geometry::{Block, Geometry};
use crate::options::{Durability, Mode, VolumeOptions};
use crate::recovery_report::UNREPORTED_LOSS;
use crate::stats::VolumeCounters;
use backing::Backing;
use cleaner::VolumeCleaner;
use fallback::{DegradedService, Fallback};

/// Returns the device properties of a volume of this size over this backing device.
pub(crate) fn volume_info(
    name: String,
    size_bytes: u64,
    backing: &DeviceInfo,
    data: &DeviceInfo,
    geometry: Geometry,
    durability: Durability,
) -> DeviceInfo {
    DeviceInfo {
        name,
        size_bytes,
        logical_block_bytes: backing.logical_block_bytes,
        physical_block_bytes: u32::try_from(geometry.granule_bytes(0))
            .unwrap_or(4096)
            .max(backing.physical_block_bytes.min(4096)),
        atomic_write_bytes: backing.logical_block_bytes,
        volatile_cache: durability == Durability::Flush,
        buffers_in_process: backing.buffers_in_process,
        fua: true,
        byte_addressable: false,
        persistence: backing.persistence.min(data.persistence),
        discard: true,
        emulated: backing.emulated.clone(),
        // A volume has the properties of its backing device.
        identity: backing.identity,
    }
}

/// Identity of a volume and what was found of it when it was attached.
#[derive(Debug)]
pub(crate) struct Found {
    /// Number by which records name the volume.
    pub(crate) id: u16,
    /// Name by which clients and the superblock know the volume.
    pub(crate) name: String,
    /// Number of this attach.
    pub(crate) epoch: u64,
    /// Size in bytes.
    pub(crate) size_bytes: u64,
    /// Smallest unit of a request in bytes.
    pub(crate) logical_block: u32,
    /// Whether reads of the backing device may show what a failed flush lost.
    pub(crate) may_show_lost: bool,
    /// Whether an opening found data of the volume lost, and no start had reported that.
    pub(crate) has_unreported_loss: bool,
}

/// A volume that is being served.
#[derive(Debug)]
pub(crate) struct AttachedVolume {
    /// Number by which records name the volume.
    pub(crate) id: u16,
    /// Name by which clients and the superblock know the volume.
    pub(crate) name: String,
    /// Number of this attach.
    pub(crate) epoch: u64,
    /// Smallest unit of a request in bytes.
    pub(crate) logical_block: u32,
    /// The backing device and the writes that no flush covers.
    pub(crate) backing: Backing,
    /// Whether an opening found data of the volume lost, which this attach reports.
    has_reported_loss: bool,
    /// Counters of requests.
    pub(crate) counters: VolumeCounters,
    /// State of the cleaner's task.
    pub(crate) cleaner: VolumeCleaner,
    /// Size of the volume, bytes.
    size_bytes: Cell<u64>,
    /// Cache mode.
    mode: Cell<Mode>,
    /// Counts of misses, for promotion.
    filter: RefCell<PromotionFilter>,
    /// Sequential streams of the clients.
    streams: RefCell<SequentialDetector>,
    /// Measured costs of writes that lack room.
    measured: RefCell<Measured>,
    /// Shares of the two devices in clean hits.
    split: RefCell<Split>,
    /// Number of requests in flight.
    in_flight: Cell<u64>,
    /// Whether a detach has begun.
    detaching: Cell<bool>,
    /// Woken when the last request of a volume that is being detached has ended.
    idle: WaitList,
    /// The agreement to serve the volume without a failed cache.
    degraded_service: OnceCell<DegradedService>,
    /// Whether the backing device may show data that a power loss destroys.
    may_show_lost: Cell<bool>,
    /// Turn to note in the superblock whether clients' writes may be lost.
    pub(crate) noting: Semaphore,
    /// Turn to flush the backing device before the first comparison.
    first_flush: Semaphore,
}

impl AttachedVolume {
    /// Returns a volume of `blocks` cache blocks at most.
    pub(crate) fn new(
        found: Found,
        backing: Backing,
        options: &VolumeOptions,
        blocks: usize,
        measured: Measured,
        cleaning: Cleaning,
    ) -> Self {
        Self {
            id: found.id,
            name: found.name,
            epoch: found.epoch,
            logical_block: found.logical_block,
            backing,
            has_reported_loss: found.has_unreported_loss,
            counters: VolumeCounters::default(),
            cleaner: VolumeCleaner::new(cleaning),
            size_bytes: Cell::new(found.size_bytes),
            mode: Cell::new(options.mode),
            filter: RefCell::new(PromotionFilter::new(options.promotion, blocks)),
            streams: RefCell::new(SequentialDetector::new(options.sequential_cutoff_bytes)),
            measured: RefCell::new(measured),
            split: RefCell::default(),
            in_flight: Cell::new(0),
            detaching: Cell::new(false),
            idle: WaitList::new(),
            degraded_service: OnceCell::new(),
            may_show_lost: Cell::new(found.may_show_lost),
            noting: Semaphore::new(1),
            first_flush: Semaphore::new(1),
        }
    }

    /// Returns the reason why data of clients is lost, or may be, as a message.
    pub(crate) fn loss(&self) -> Option<String> {
        let found = || self.has_reported_loss.then(|| UNREPORTED_LOSS.to_owned());
        self.backing.loss().or_else(found)
    }

    /// Returns the name of `block` in the map.
    pub(crate) const fn key(&self, block: Block) -> BlockKey {
        block.key(self.id)
    }

    /// Returns the name of a region in the lock table.
    pub(crate) const fn region_key(&self, region: u64) -> BlockKey {
        BlockKey::new(self.id, region)
    }

    /// Returns the length of the part of `block` that lies in the volume, in bytes.
    pub(crate) fn limit(&self, geometry: Geometry, block: Block) -> u32 {
        let rest = self.size_bytes.get() - geometry.backing_offset(block, 0);
        u32::try_from(rest.min(geometry.block_bytes(block.class))).expect("at most a block")
    }

    /// Returns the size in bytes.
    #[inline]
    pub(crate) const fn size_bytes(&self) -> u64 {
        self.size_bytes.get()
    }

    /// Sets the size in bytes.
    pub(crate) fn set_size_bytes(&self, size_bytes: u64) {
        self.size_bytes.set(size_bytes);
    }

    /// Returns the cache mode.
    #[inline]
    pub(crate) const fn mode(&self) -> Mode {
        self.mode.get()
    }

    /// Sets the cache mode.
    pub(crate) fn set_mode(&self, mode: Mode) {
        self.mode.set(mode);
    }

    /// Notes that a request begins. The volume is not detached before that request ends.
    pub(crate) fn enter(&self) {
        self.in_flight.set(self.in_flight.get() + 1);
    }

    /// Notes that a request ends.
    pub(crate) fn leave(&self) {
        self.in_flight.set(self.in_flight.get() - 1);
        if self.in_flight.get() == 0 && self.detaching.get() {
            self.idle.wake_all();
        }
    }

    /// Returns the number of requests in flight.
    pub(crate) const fn in_flight(&self) -> u64 {
        self.in_flight.get()
    }

    /// Waits until no request is in flight. The volume is being detached.
    pub(crate) async fn wait_until_idle(&self) {
        self.idle.until(|| self.in_flight.get() == 0).await;
    }

    /// Returns whether the volume is being detached and takes no new requests.
    #[inline]
    pub(crate) const fn is_detaching(&self) -> bool {
        self.detaching.get()
    }

    /// Begins or ends a detach. Returns whether one was under way.
    pub(crate) const fn set_detaching(&self, detaching: bool) -> bool {
        self.detaching.replace(detaching)
    }

    /// Notes a miss of a block. Returns whether the block is admitted to the cache.
    pub(crate) fn promotes(&self, key: BlockKey) -> bool {
        self.filter.borrow_mut().miss(key)
    }

    /// Returns whether every missed block is admitted to the cache.
    pub(crate) fn admits_all(&self) -> bool {
        self.filter.borrow().admits_all()
    }

    /// Returns the memory of the promotion filter in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.filter.borrow().memory_bytes()
    }

    /// Notes a read or a write. Returns whether it belongs to a long sequential stream.
    #[inline(always)]
    pub(crate) fn note_request(&self, offset: u64, len: u64) -> bool {
        self.streams.borrow_mut().request(offset, len)
    }

    /// Returns the route of a write of `bytes` that finds no room.
    pub(crate) fn route_write(&self, bytes: u64) -> Route {
        self.measured.borrow_mut().route(bytes)
    }

    /// Notes the time that a write took; `at_once` where it did not wait for room.
    pub(crate) fn write_took(&self, bytes: u64, route: Route, at_once: bool, took: Duration) {
        self.measured.borrow_mut().took(bytes, route, at_once, took);
    }

    /// Returns whether writes of this volume would rather wait for room than bypass the cache.
    pub(crate) fn evicts_dirty(&self) -> bool {
        self.measured.borrow().evicts_dirty()
    }

    /// Returns the device that serves a clean hit of `bytes`.
    pub(crate) fn route_hit(&self, bytes: u64) -> Route {
        self.split.borrow_mut().route(bytes)
    }

    /// Notes the time that a clean hit took.
    pub(crate) fn hit_took(&self, bytes: u64, route: Route, took: Duration) {
        self.split.borrow_mut().took(bytes, route, took);
    }

    /// Runs an I/O that a client waits for and notes its time for the cleaner.
    pub(crate) async fn timed<T>(&self, device: IoDevice, io: impl Future<Output = T>) -> T {
        let begun = self.begin_io();
        let result = io.await;
        self.end_io(device, begun);
        result
    }

    /// Begins an I/O that a client waits for.
    pub(crate) fn begin_io(&self) -> (Duration, u64) {
        (rt::now(), self.cleaner.turns())
    }

    /// Ends an I/O that a client waits for.
    pub(crate) fn end_io(&self, device: IoDevice, begun: (Duration, u64)) {
        let (began, turns) = begun;
        let during_cleaning = self.cleaner.has_cleaned_since(turns);
        self.cleaner
            .note_io(device, rt::now() - began, during_cleaning);
    }

    /// Returns the time since the last request of a client.
    pub(crate) fn idle_time(&self) -> Duration {
        self.cleaner
            .idle_time(self.counters.requests(), self.in_flight.get())
    }

    /// Returns whether reads of the backing device may show what a failed flush lost.
    pub(crate) const fn may_show_lost(&self) -> bool {
        self.may_show_lost.get()
    }

    /// Notes whether reads of the backing device may show what a failed flush lost.
    pub(crate) fn set_may_show_lost(&self, may_show_lost: bool) {
        self.may_show_lost.set(may_show_lost);
    }

    /// Returns the turn to flush the backing device before the first comparison.
    pub(crate) const fn first_flush(&self) -> &Semaphore {
        &self.first_flush
    }

    /// Returns the agreement to serve the volume without a failed cache.
    pub(crate) fn degraded_service(&self) -> Option<&DegradedService> {
        self.degraded_service.get()
    }

    /// Notes the agreement to serve the volume without a failed cache. Returns false if there is
    /// one already.
    pub(crate) fn allow_degraded(&self, service: DegradedService) -> bool {
        self.degraded_service.set(service).is_ok()
    }

    /// Returns whether the volume is served without its cache.
    pub(crate) fn is_served_degraded(&self) -> bool {
        self.degraded_service()
            .is_some_and(DegradedService::has_begun)
    }

    /// Returns whether the volume continues without its cache, should that fail now.
    pub(crate) fn falls_back(&self) -> bool {
        self.falls_back_in(self.mode.get())
    }

    /// Returns whether the volume continues without its cache in a mode.
    pub(crate) fn falls_back_in(&self, mode: Mode) -> bool {
        self.degraded_service()
            .is_some_and(|service| service.fallback() == Fallback::AllModes || !mode.makes_dirty())
    }
}

/// The volumes that are attached, by number.
#[derive(Debug, Default)]
pub(crate) struct Volumes(RefCell<BTreeMap<u16, Rc<AttachedVolume>>>);

impl Volumes {
    /// Returns the volume with a number, if it is attached.
    pub(crate) fn get(&self, id: u16) -> Option<Rc<AttachedVolume>> {
        self.0.borrow().get(&id).cloned()
    }

    /// Returns the volume with a name.
    ///
    /// # Errors
    /// `NotFound` if none is attached.
    pub(crate) fn named(&self, name: &str) -> Result<Rc<AttachedVolume>> {
        let volumes = self.0.borrow();
        let found = volumes.values().find(|volume| volume.name == name);
        found.cloned().ok_or_else(|| {
            let what = format!(
                "no volume {name:?} is attached\nhelp: name one that is served (`forebay status`)"
            );
            Error::new(ErrorKind::NotFound, what)
        })
    }

    /// Returns all volumes, in the order of their numbers.
    pub(crate) fn all(&self) -> Vec<Rc<AttachedVolume>> {
        self.0.borrow().values().cloned().collect()
    }

    /// Returns whether the volume with a number is attached.
    pub(crate) fn contains(&self, id: u16) -> bool {
        self.0.borrow().contains_key(&id)
    }

    /// Returns whether this attach of a volume continues.
    pub(crate) fn is_served(&self, volume: &Rc<AttachedVolume>) -> bool {
        let volumes = self.0.borrow();
        (volumes.get(&volume.id)).is_some_and(|now| Rc::ptr_eq(now, volume))
    }

    /// Returns whether `is_one` holds for a volume.
    pub(crate) fn any(&self, is_one: impl Fn(&AttachedVolume) -> bool) -> bool {
        self.0.borrow().values().any(|volume| is_one(volume))
    }

    /// Calls `visit` for each volume, in the order of their numbers.
    pub(crate) fn for_each(&self, visit: impl FnMut(&Rc<AttachedVolume>)) {
        self.0.borrow().values().for_each(visit);
    }

    /// Adds a volume.
    pub(crate) fn insert(&self, volume: Rc<AttachedVolume>) {
        self.0.borrow_mut().insert(volume.id, volume);
    }

    /// Removes the volume with a number.
    pub(crate) fn remove(&self, id: u16) {
        self.0.borrow_mut().remove(&id);
    }

    /// Removes all volumes.
    pub(crate) fn clear(&self) {
        self.0.borrow_mut().clear();
    }
}
