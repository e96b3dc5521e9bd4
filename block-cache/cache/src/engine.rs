//! The engine: the parts of an open cache, and how they are wired. Requests enter in
//! [`request`](crate::request). [`Cache`](crate::Cache) opens and closes an engine.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use forebay_io::sync::Semaphore;
use forebay_metadata::log::Log;
use forebay_metadata::superblock::Superblock;
use forebay_policy::BlockId;

use crate::backing_failures::BackingFailures;
use crate::checksum::Checksums;
use crate::checksum::scrubber::Scrubber;
use crate::clean::Cleaner;
use crate::commit::Committer;
use crate::devices::CacheDevices;
use crate::evict::Reclaimer;
use crate::failpoints::{Fault, planted};
use crate::foundation::Foundation;
use crate::geometry::Geometry;
use crate::intent::dirty_tracking::{DirtyTracker, Tracking};
use crate::intent::regions::Regions;
use crate::intent::zones::Zones;
use crate::lock::LockTable;
use crate::map::Map;
use crate::map::marks::Marks;
use crate::measured_admission::AdmissionControl;
use crate::media::metadata::MetadataWatch;
use crate::media::truncation::TruncationWatch;
use crate::options::Settings;
use crate::presumed_dirty::PresumedDirty;
use crate::read_ahead::ReadAhead;
use crate::service_state::ServiceState;
use crate::signals::Signals;
use crate::slots::SlotIo;
use crate::stats::Stats;
use crate::superblock::SuperblockStore;
use crate::volume::Volumes;

/// The parts of an open cache.
pub(crate) struct Engine {
    /// The devices of the cache.
    pub(crate) devices: Rc<CacheDevices>,
    /// Sizes of blocks, and where data lies.
    pub(crate) geometry: Geometry,
    /// Settings of this opening.
    pub(crate) settings: Rc<Settings>,
    /// The superblock, on all devices.
    pub(crate) superblock: Rc<SuperblockStore>,
    /// Flushes of backing devices, and their failures.
    pub(crate) failures: Rc<BackingFailures>,
    /// Turn to attach or forget a volume.
    pub(crate) attaching: Semaphore,
    /// Cached blocks and free slots.
    pub(crate) map: Rc<RefCell<Map>>,
    /// Reads and writes of slots.
    pub(crate) slots: Rc<SlotIo>,
    /// Read-ahead: data that reads fetch in addition to the requested data.
    pub(crate) read_ahead: Rc<ReadAhead>,
    /// Which device serves a request.
    pub(crate) admission: AdmissionControl,
    /// Wait lists between the reclaimer, the cleaner and writers.
    pub(crate) signals: Rc<Signals>,
    /// Locks of granules.
    pub(crate) locks: Rc<LockTable>,
    /// The marks of regions, as the log has them.
    pub(crate) marks: Rc<Marks>,
    /// The service that sets and clears marks.
    pub(crate) regions: Rc<Regions>,
    /// Tracks which blocks may be overwritten in place.
    pub(crate) tracker: Rc<DirtyTracker>,
    /// Zones that may be dirty.
    pub(crate) zones: Rc<Zones>,
    /// Checksums of cached data, if the cache was formatted with them.
    pub(crate) checksums: Option<Rc<Checksums>>,
    /// State of the scrubber.
    pub(crate) scrubber: Scrubber,
    /// Blocks that count as dirty since recovery, though no record says so.
    pub(crate) presumed: Rc<PresumedDirty>,
    /// The log and its queues.
    pub(crate) committer: Rc<Committer>,
    /// The watch for a data device that is cut.
    pub(crate) truncation: Rc<TruncationWatch>,
    /// The watch for metadata that is cut off.
    pub(crate) metadata: MetadataWatch,
    /// The volumes that are attached.
    pub(crate) volumes: Rc<Volumes>,
    /// Counters of the cache.
    pub(crate) stats: Rc<Stats>,
    /// Whether the cache is in service.
    pub(crate) service: Rc<ServiceState>,
    /// Frees slots ahead of need.
    pub(crate) reclaimer: Rc<Reclaimer>,
    /// Writes dirty blocks back.
    pub(crate) cleaner: Rc<Cleaner>,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").finish_non_exhaustive()
    }
}

/// Results of a recovery, from which an engine is wired.
pub(crate) struct Sources {
    /// Open devices of the cache.
    pub(crate) devices: CacheDevices,
    /// Settings of this opening.
    pub(crate) settings: Settings,
    /// Recovered map.
    pub(crate) map: Map,
    /// Recovered marks of the regions.
    pub(crate) marks: Marks,
    /// Log, at the position of its next record.
    pub(crate) log: Log,
    /// Checksums of cached data, if the cache was formatted with them.
    pub(crate) checksums: Option<Checksums>,
    /// How the cache remembers overwritten blocks.
    pub(crate) tracking: Tracking,
    /// Number of blocks that are presumed dirty, and the granules that records call dirty in blocks
    /// that are dirty in part.
    pub(crate) presumed: (u64, HashMap<BlockId, u64>),
    /// Whether the cache was open last in an earlier boot of the machine.
    pub(crate) power_was_lost: bool,
    /// The superblock on the metadata device.
    pub(crate) superblock: Superblock,
    /// The superblock of a separate data device.
    pub(crate) data_superblock: Option<Superblock>,
}

impl Engine {
    /// Returns the parts of an open cache, wired to each other. No task runs yet.
    pub(crate) fn wire(sources: Sources) -> Rc<Self> {
        let base = Foundation {
            geometry: Geometry::of(&sources.superblock),
            units: sources.superblock.slots,
            devices: Rc::new(sources.devices),
            service: Rc::new(ServiceState::new(sources.settings.hold_write_back)),
            settings: Rc::new(sources.settings),
            map: Rc::new(RefCell::new(sources.map)),
            marks: Rc::new(sources.marks),
            locks: Rc::default(),
            checksums: sources.checksums.map(Rc::new),
            volumes: Rc::default(),
            stats: Rc::default(),
            signals: Rc::default(),
        };
        let (found, recorded) = sources.presumed;
        let power_was_lost = sources.power_was_lost || planted(Fault::CompareAfterProcessDeath);
        let presumed = Rc::new(PresumedDirty::new(found, power_was_lost, recorded));
        let committer = Rc::new(Committer::new(&base, sources.log));
        let commit = || Rc::clone(&committer);
        let superblock =
            SuperblockStore::new(&base, commit(), sources.superblock, sources.data_superblock);
        let superblock = Rc::new(superblock);
        let failures = BackingFailures::new(
            &base,
            Rc::clone(&superblock),
            commit(),
            Rc::clone(&presumed),
        );
        let failures = Rc::new(failures);
        let truncation = TruncationWatch::new(&base, commit(), Rc::clone(&superblock));
        let truncation = Rc::new(truncation);
        let tracker = DirtyTracker::new(&base, sources.tracking, commit(), Rc::clone(&presumed));
        let tracker = Rc::new(tracker);
        let track = || Rc::clone(&tracker);
        let metadata = MetadataWatch::new(&base, commit(), Rc::clone(&superblock), track());
        let regions = Rc::new(Regions::new(&base, commit(), Rc::clone(&failures), track()));
        let zones = Zones::new(
            &base,
            commit(),
            Rc::clone(&superblock),
            Rc::clone(&failures),
        );
        let zones = Rc::new(zones);
        let slots = Rc::new(SlotIo::new(&base, commit(), track(), Rc::clone(&regions)));
        let read_ahead = Rc::new(ReadAhead::new(&base, commit()));
        let (io, ahead) = (Rc::clone(&slots), Rc::clone(&read_ahead));
        let reclaimer = Rc::new(Reclaimer::new(&base, commit(), track(), io, ahead));
        let cleaner = Rc::new(Cleaner::new(
            &base,
            commit(),
            Rc::clone(&failures),
            Rc::clone(&presumed),
            track(),
            Rc::clone(&truncation),
            Rc::clone(&slots),
        ));
        let admission = AdmissionControl::new(&base, Rc::clone(&reclaimer), Rc::clone(&cleaner));
        let Foundation {
            geometry,
            devices,
            settings,
            map,
            marks,
            locks,
            checksums,
            volumes,
            stats,
            signals,
            service,
            ..
        } = base;
        let engine = Rc::new(Self {
            devices,
            geometry,
            settings,
            superblock,
            failures,
            attaching: Semaphore::new(1),
            map,
            slots,
            read_ahead,
            admission,
            signals,
            locks,
            marks,
            regions,
            tracker,
            zones,
            checksums,
            scrubber: Scrubber::default(),
            presumed,
            committer,
            truncation,
            metadata,
            volumes,
            stats,
            service,
            reclaimer,
            cleaner,
        });
        let weak = Rc::downgrade(&engine);
        engine.committer.on_round(move || {
            if let Some(engine) = weak.upgrade() {
                engine.tracker.unmark_clean();
            }
        });
        let weak = Rc::downgrade(&engine);
        engine.committer.on_failure(move || {
            if let Some(engine) = weak.upgrade() {
                engine.wake_all();
            }
        });
        engine
    }

    /// Wakes every task that waits for the cache's state to change, so that it sees a failure.
    pub(crate) fn wake_all(&self) {
        self.regions.wake();
        self.signals.wake_all();
        self.volumes.for_each(|volume| volume.cleaner.wake());
    }
}
