//! The engine: what the parts of the cache share.

use std::cell::RefCell;
use std::rc::Rc;

use forebay_io::sync::Semaphore;

use crate::admission::AdmissionControl;
use crate::backing_failures::BackingFailures;
use crate::checksum::Checksums;
use crate::checksum::scrubber::Scrubber;
use crate::clean::Cleaner;
use crate::commit::Committer;
use crate::devices::CacheDevices;
use crate::evict::Reclaimer;
use crate::geometry::Geometry;
use crate::intent::dirty_tracking::DirtyTracker;
use crate::intent::regions::Regions;
use crate::intent::zones::Zones;
use crate::lock::LockTable;
use crate::map::Map;
use crate::map::marks::Marks;
use crate::media::truncation::TruncationWatch;
use crate::options::CacheOptions;
use crate::presumed_dirty::PresumedDirty;
use crate::read_ahead::ReadAhead;
use crate::service::ServiceState;
use crate::signals::Signals;
use crate::slots::SlotIo;
use crate::stats::Stats;
use crate::superblock::SuperblockStore;
use crate::volume::Volumes;

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
    pub(crate) slots: Rc<SlotIo>,
    pub(crate) read_ahead: Rc<ReadAhead>,
    pub(crate) admission: AdmissionControl,
    pub(crate) signals: Rc<Signals>,
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
    pub(crate) reclaimer: Rc<Reclaimer>,
    pub(crate) cleaner: Rc<Cleaner>,
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
        self.signals.wake_all();
        self.volumes.for_each(|volume| volume.cleaner.wake());
    }
}
