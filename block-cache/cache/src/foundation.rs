//! The state that the parts of an engine stand on, as handles.

use std::cell::RefCell;
use std::rc::Rc;

use crate::checksum::Checksums;
use crate::devices::CacheDevices;
use crate::geometry::Geometry;
use crate::lock::LockTable;
use crate::map::Map;
use crate::map::marks::Marks;
use crate::options::Settings;
use crate::service_state::ServiceState;
use crate::signals::Signals;
use crate::stats::Stats;
use crate::volume::Volumes;

/// Handles of the state that belongs to no part alone. A part keeps those that it uses.
#[derive(Clone, Debug)]
pub(crate) struct Foundation {
    /// Sizes of blocks, and where data lies.
    pub(crate) geometry: Geometry,
    /// Units of the cache, as the superblock counts them.
    pub(crate) units: u32,
    /// Devices of the cache.
    pub(crate) devices: Rc<CacheDevices>,
    /// Settings of this opening.
    pub(crate) settings: Rc<Settings>,
    /// Cached blocks and free slots.
    pub(crate) map: Rc<RefCell<Map>>,
    /// Marks of regions, as the log has them.
    pub(crate) marks: Rc<Marks>,
    /// Locks of granules.
    pub(crate) locks: Rc<LockTable>,
    /// Checksums of cached data, if the cache was formatted with them.
    pub(crate) checksums: Option<Rc<Checksums>>,
    /// Volumes that are attached.
    pub(crate) volumes: Rc<Volumes>,
    /// Counters of the cache.
    pub(crate) stats: Rc<Stats>,
    /// Wait lists between the reclaimer, the cleaner and writers.
    pub(crate) signals: Rc<Signals>,
    /// Whether the cache is in service.
    pub(crate) service: Rc<ServiceState>,
}
