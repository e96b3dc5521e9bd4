//! Dirty zones: durable bits that are known before the map is loaded
//! (compare rule 3, docs/durability.md).
//!
//! A zone is an aligned range of a volume, 64 MiB unless the format says otherwise. Its bit is
//! in the superblock. The bit becomes durable before the first byte of a write that makes data in
//! the zone dirty. It stays while any of that data is dirty. So if a bit is clear, the backing
//! device has all data of the zone. The next process may then read there while it reads the log
//! ([`online_open`](crate::online_open)).
//!
//! Bits are cleared lazily, when nothing in the zone was dirty for a while. A block turns clean in
//! the map after the backing device flushed its write-back, and so has all acknowledged data. A
//! record may still call the block dirty. Such a record does no harm once the content of its slot
//! is flushed on the cache device. The clearing waits for that flush. Both copies are then equal.
//! Both copies stay equal until the next write to the zone. That write sets the bit first, or it
//! bypasses the cache after a record that calls the block clean.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use forebay_block::Result;
use forebay_io::rt;
use forebay_io::sync::Semaphore;
use forebay_metadata::order::{Part, Site};
use forebay_metadata::superblock::DirtyZones;
use forebay_policy::BlockKey;

use crate::backing_failures::BackingFailures;
use crate::commit::Committer;
use crate::failpoints::{Fault, planted};
use crate::foundation::Foundation;
use crate::geometry::Geometry;
use crate::map::{LIVE, Map};
use crate::service_state::ServiceState;
use crate::superblock::SuperblockStore;

/// Interval of the timer. A bit is cleared after two ticks in a row without dirty data in its zone.
const TICK: Duration = Duration::from_secs(3);

/// State of zones that is known to be on media.
#[derive(Debug)]
pub(crate) struct Zones {
    geometry: Geometry,
    map: Rc<RefCell<Map>>,
    committer: Rc<Committer>,
    superblock: Rc<SuperblockStore>,
    failures: Rc<BackingFailures>,
    service: Rc<ServiceState>,
    /// Bits that are set durably and that no task is clearing.
    set: RefCell<DirtyZones>,
    /// Bits that a write waits for.
    wanted: RefCell<Vec<usize>>,
    /// Turn to change bits.
    turn: Semaphore,
}

/// Holds a zone's bit set until it is dropped.
#[must_use = "the bit may be cleared once it is dropped"]
#[derive(Debug)]
pub(crate) struct ZoneUse {
    map: Rc<RefCell<Map>>,
    bit: usize,
}

impl Drop for ZoneUse {
    fn drop(&mut self) {
        self.map.borrow_mut().release_zone(self.bit);
    }
}

impl Zones {
    /// Returns the zones of the superblock, or none if it has none.
    pub(crate) fn new(
        base: &Foundation,
        committer: Rc<Committer>,
        superblock: Rc<SuperblockStore>,
        failures: Rc<BackingFailures>,
    ) -> Self {
        let found = superblock.current().zones.clone();
        let set = found.unwrap_or_else(|| DirtyZones::new(base.geometry.zone_shift()));
        Self {
            geometry: base.geometry,
            map: Rc::clone(&base.map),
            committer,
            superblock,
            failures,
            service: Rc::clone(&base.service),
            set: RefCell::new(set),
            wanted: RefCell::default(),
            turn: Semaphore::new(1),
        }
    }

    /// Waits until media says that the zone of `key` may be dirty, and keeps it so for as long as
    /// the returned value lives.
    #[track_caller]
    pub(crate) fn enter(
        self: &Rc<Self>,
        key: BlockKey,
    ) -> impl Future<Output = Result<ZoneUse>> + '_ {
        let site = Site::here();
        let bit = self.geometry.zone_bit(key.volume(), key.block());
        // From now on no task clears it.
        self.map.borrow_mut().hold_zone(bit);
        let held = ZoneUse {
            map: Rc::clone(&self.map),
            bit,
        };
        async move {
            if self.set.borrow().has(bit) || site.lacks(Part::Step) {
                return Ok(held);
            }
            if site.lacks(Part::Wait) {
                let zones = Rc::clone(self);
                rt::spawn(async move { _ = zones.set_bit(bit).await });
                return Ok(held);
            }
            // Boxed, since it is seldom: every write's future would have room for it.
            Box::pin(self.set_bit(bit)).await?;
            Ok(held)
        }
    }

    /// Sets a bit durably, with the bits of all waiting tasks.
    async fn set_bit(&self, bit: usize) -> Result<()> {
        self.wanted.borrow_mut().push(bit);
        self.turn.acquire(1).await;
        // An earlier holder of the turn may have included this bit, or may have failed.
        let missing = !self.set.borrow().has(bit);
        let result = match self.committer.check_alive() {
            Ok(()) if missing => {
                let wanted = self.wanted.take();
                self.write(&wanted, true).await
            }
            alive => {
                // Another task has set it, or no bit is set any more.
                self.wanted.borrow_mut().retain(|wanted| *wanted != bit);
                alive
            }
        };
        self.turn.release(1);
        result
    }

    async fn write(&self, bits: &[usize], dirty: bool) -> Result<()> {
        let shift = self.geometry.zone_shift();
        let change = |set: &mut DirtyZones| bits.iter().for_each(|bit| set.set(*bit, dirty));
        if !dirty && !planted(Fault::ClearZoneBehind) {
            // A task that arrives from here on sets the bit once more, after this one.
            change(&mut self.set.borrow_mut());
        }
        self.superblock
            .change(|superblock| {
                change(
                    superblock
                        .zones
                        .get_or_insert_with(|| DirtyZones::new(shift)),
                );
            })
            .await?;
        change(&mut self.set.borrow_mut());
        Ok(())
    }

    /// Records on media, at the end of an opening, all blocks that count as dirty.
    pub(crate) async fn write_found(&self) -> Result<()> {
        let shift = self.geometry.zone_shift();
        let mut dirty = DirtyZones::new(shift);
        let mut lacks = self.superblock.current().zones.is_none();
        for bit in self.map.borrow().held_zones() {
            dirty.set(bit, true);
            lacks |= !self.set.borrow().has(bit);
        }
        if !lacks || planted(Fault::SkipFoundZones) {
            return Ok(());
        }
        let known = dirty.clone();
        self.superblock
            .change(|superblock| superblock.zones = Some(dirty))
            .await?;
        *self.set.borrow_mut() = known;
        Ok(())
    }

    /// Returns set bits of zones without dirty data and without unflushed writes to the cache.
    /// After power loss, a slot that was not flushed may hold older data than the backing device,
    /// with a record that calls it dirty.
    fn clean_bits(&self) -> Vec<usize> {
        let (map, set) = (self.map.borrow(), self.set.borrow());
        let not_flushed = self.committer.not_flushed();
        let doubtful = not_flushed.into_iter().filter(|id| map.has(*id, LIVE));
        let mut doubtful: Vec<usize> = doubtful
            .map(|id| map.state(id).key)
            .map(|key| self.geometry.zone_bit(key.volume(), key.block()))
            .collect();
        doubtful.sort_unstable();
        let is_flushed = |bit: &usize| {
            doubtful.binary_search(bit).is_err() || planted(Fault::ClearUnflushedZone)
        };
        let is_clean = |bit: &usize| {
            (map.is_zone_clean(*bit) && is_flushed(bit)) || planted(Fault::ClearDirtyZone)
        };
        set.dirty().filter(is_clean).collect()
    }

    /// Waits for changes of bits in flight. While the cache is closing, no new ones begin.
    pub(crate) async fn until_quiet(&self) {
        self.turn.acquire(1).await;
        self.turn.release(1);
    }

    /// The task that clears bits of zones that have been clean for a while.
    pub(crate) async fn run_timer(self: Rc<Self>) {
        let mut clean_before: Vec<usize> = Vec::new();
        loop {
            rt::sleep(TICK).await;
            if self.service.is_stopping() || !self.committer.is_alive() {
                return;
            }
            self.turn.acquire(1).await;
            if self.service.is_stopping() || !self.committer.is_alive() {
                self.turn.release(1);
                return;
            }
            let clean = self.clean_bits();
            let twice: Vec<usize> = (clean.iter().copied())
                .filter(|bit| clean_before.binary_search(bit).is_ok())
                .collect();
            if !twice.is_empty() {
                // The committer reports a cache that has failed meanwhile.
                let _ = self.write(&twice, false).await;
            }
            // Here, since the end of a cache waits for this turn: the superblock is not written
            // behind it.
            self.failures.forget_failures().await;
            self.turn.release(1);
            clean_before = clean;
        }
    }
}
