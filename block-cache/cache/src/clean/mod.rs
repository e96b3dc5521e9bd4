//! Write-back of dirty data. [`cleaner`] decides when and which blocks, [`write_back`] writes them.
//! After a crash [`compare`] skips data that the backing device already has.

pub(crate) mod cleaner;
pub(crate) mod compare;
pub(crate) mod write_back;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use forebay_policy::cleaning::Cleaning;

use crate::backing_failures::BackingFailures;
use crate::checksum::Checksums;
use crate::commit::Committer;
use crate::foundation::Foundation;
use crate::geometry::Geometry;
use crate::intent::dirty_tracking::DirtyTracker;
use crate::lock::LockTable;
use crate::map::Map;
use crate::media::truncation::TruncationWatch;
use crate::options::Settings;
use crate::presumed_dirty::PresumedDirty;
use crate::service_state::ServiceState;
use crate::signals::Signals;
use crate::slots::SlotIo;
use crate::stats::Stats;
use crate::volume::Volumes;

/// The part that writes dirty blocks back.
#[derive(Debug)]
pub(crate) struct Cleaner {
    geometry: Geometry,
    settings: Rc<Settings>,
    map: Rc<RefCell<Map>>,
    locks: Rc<LockTable>,
    committer: Rc<Committer>,
    volumes: Rc<Volumes>,
    failures: Rc<BackingFailures>,
    presumed: Rc<PresumedDirty>,
    tracker: Rc<DirtyTracker>,
    truncation: Rc<TruncationWatch>,
    checksums: Option<Rc<Checksums>>,
    slots: Rc<SlotIo>,
    signals: Rc<Signals>,
    service: Rc<ServiceState>,
    stats: Rc<Stats>,
    policy: Cell<Cleaning>,
}

impl Cleaner {
    /// Returns the cleaner, wired to the parts that it uses.
    pub(crate) fn new(
        base: &Foundation,
        committer: Rc<Committer>,
        failures: Rc<BackingFailures>,
        presumed: Rc<PresumedDirty>,
        tracker: Rc<DirtyTracker>,
        truncation: Rc<TruncationWatch>,
        slots: Rc<SlotIo>,
    ) -> Self {
        Self {
            policy: Cell::new(base.settings.cleaning),
            geometry: base.geometry,
            settings: Rc::clone(&base.settings),
            map: Rc::clone(&base.map),
            locks: Rc::clone(&base.locks),
            committer,
            volumes: Rc::clone(&base.volumes),
            failures,
            presumed,
            tracker,
            truncation,
            checksums: base.checksums.clone(),
            slots,
            signals: Rc::clone(&base.signals),
            service: Rc::clone(&base.service),
            stats: Rc::clone(&base.stats),
        }
    }

    /// Returns the policy of all volumes.
    pub(crate) const fn policy(&self) -> Cleaning {
        self.policy.get()
    }

    /// Changes the policy of all volumes.
    pub(crate) fn set_policy(&self, policy: Cleaning) {
        self.policy.set(policy);
        self.volumes
            .for_each(|volume| volume.cleaner.set_policy(policy));
        self.signals.kick_cleaners();
    }
}
