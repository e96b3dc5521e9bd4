//! Frees slots ahead of need (rule 2).
//!
//! Cold clean blocks are killed in batches. Their deaths are logged together, and the slots are
//! free only when that is durable. Until then the blocks stay in the index under exclusive locks,
//! so that no request takes them for absent.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use forebay_block::Result;
use forebay_io::rt;
use forebay_policy::cleaning::WIDEST;
use forebay_policy::{BlockId, BlockKey, Evictability, Slot, VictimSelector};

use crate::commit::queue::Entry;
use crate::commit::{Committer, Ticket};
use crate::foundation::Foundation;
use crate::geometry::{Block, Geometry};
use crate::intent::dirty_tracking::DirtyTracker;
use crate::lock::LockTable;
use crate::map::{CLEANING, Candidate, Map, TRACED};
use crate::options::Admission;
use crate::read_ahead::ReadAhead;
use crate::service_state::ServiceState;
use crate::signals::Signals;
use crate::slots::SlotIo;
use crate::stats::Stats;
use crate::volume::{AttachedVolume, Volumes};

/// Time that kills wait for a round of commits that a client starts.
const JOIN_TIMEOUT: Duration = Duration::from_millis(5);
/// Least pause after a round that found no victim.
const RETRY: Duration = Duration::from_millis(1);
/// Least pause after such a round, as a multiple of the time that the search took.
const RETRY_RATIO: u32 = 4;
/// Largest number of blocks to be written back at a time.
const WANTED: usize = 16 * WIDEST;

/// Policy for writing dirty blocks back to make room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DirtyVictims {
    /// Writes dirty blocks back only if they are colder than some clean blocks. No request has
    /// lacked room yet. Evicting more might be needless, and a cache that the working set just
    /// fills would lose a part of it.
    IfColder,
    /// Writes dirty blocks back ahead of need, since a request waits or has waited for room.
    WriteBack,
    /// Writes no dirty blocks back: writes that lack room bypass the cache instead.
    Keep,
}

/// The part that frees slots ahead of need.
#[derive(Debug)]
pub(crate) struct Reclaimer {
    geometry: Geometry,
    map: Rc<RefCell<Map>>,
    locks: Rc<LockTable>,
    committer: Rc<Committer>,
    volumes: Rc<Volumes>,
    tracker: Rc<DirtyTracker>,
    slots: Rc<SlotIo>,
    read_ahead: Rc<ReadAhead>,
    signals: Rc<Signals>,
    service: Rc<ServiceState>,
    stats: Rc<Stats>,
    ahead: RefCell<VictimSelector>,
    /// Number of writes that wait for room.
    waiting: Cell<u32>,
    /// Round for which kills wait and which was not requested yet.
    waits_for: Cell<Option<Ticket>>,
    /// Whether some block could have been evicted if its write-back had been requested.
    left_dirty: Cell<bool>,
    dirty: Cell<DirtyVictims>,
    /// End of the last round.
    ended: Cell<Duration>,
    /// Pause after the last round, if it found no victim.
    retry: Cell<Duration>,
    busy: Cell<bool>,
}

impl Reclaimer {
    /// Returns the reclaimer of a cache of `units`, wired to the parts that it uses.
    pub(crate) fn new(
        base: &Foundation,
        committer: Rc<Committer>,
        tracker: Rc<DirtyTracker>,
        slots: Rc<SlotIo>,
        read_ahead: Rc<ReadAhead>,
    ) -> Self {
        let ahead = VictimSelector::new(base.geometry.sizes(), base.units);
        let dirty = match base.settings.admission {
            Admission::Always => DirtyVictims::WriteBack,
            Admission::Measured => DirtyVictims::IfColder,
        };
        Self {
            geometry: base.geometry,
            map: Rc::clone(&base.map),
            locks: Rc::clone(&base.locks),
            committer,
            volumes: Rc::clone(&base.volumes),
            tracker,
            slots,
            read_ahead,
            signals: Rc::clone(&base.signals),
            service: Rc::clone(&base.service),
            stats: Rc::clone(&base.stats),
            ahead: RefCell::new(ahead),
            waiting: Cell::new(0),
            waits_for: Cell::new(None),
            left_dirty: Cell::new(false),
            dirty: Cell::new(dirty),
            ended: Cell::new(Duration::ZERO),
            retry: Cell::new(RETRY),
            busy: Cell::new(false),
        }
    }

    /// Returns the units that room is made for at a time.
    pub(crate) fn batch(&self) -> u32 {
        self.ahead.borrow().batch()
    }

    /// Returns whether it is time to make room.
    fn is_low(&self) -> bool {
        self.map.borrow().is_low(&self.ahead.borrow())
    }

    /// Returns whether to reclaim now. Blocks that wait for write-back are colder than the other
    /// candidates, so they are awaited unless room is urgent.
    fn is_time_to_reclaim(&self) -> bool {
        let pressed = || {
            let ahead = self.ahead.borrow();
            ahead.is_pressed(self.map.borrow().table())
        };
        !self.signals.is_stuck() && self.is_low() && (!self.is_clean_wanted() || pressed())
    }

    /// Returns whether so little room is left that kills must not wait for another round.
    fn is_scarce(&self, class: u8) -> bool {
        let room = self.map.borrow().table().room(class);
        room < self.ahead.borrow().low() / 2
    }

    /// Gives a block a number and a free slot. The block is not in the map and overlaps none there.
    /// The caller has locked the units of the block. Returns `None` if nothing can be evicted now;
    /// the request then bypasses the cache.
    pub(crate) async fn allocate(&self, volume: u16, block: Block) -> Option<BlockId> {
        loop {
            let id = self.allocate_now(volume, block);
            if id.is_some() {
                return id;
            }
            if self.committer.failure().is_some() || self.service.is_stopping() {
                return None;
            }
            if !self.want_room() {
                return None;
            }
            let waiting = &self.waiting;
            waiting.set(waiting.get() + 1);
            self.signals.room().await;
            waiting.set(waiting.get() - 1);
        }
    }

    /// Allocates as [`Reclaimer::allocate`], without a wait. Returns `None` if no slot is free.
    /// The reclaimer is notified either way.
    pub(crate) fn allocate_now(&self, volume: u16, block: Block) -> Option<BlockId> {
        let id = self.map.borrow_mut().allocate(volume, block);
        if let Some(id) = id {
            self.tracker.note_placed(id);
        }
        self.ask_for_room(block.class);
        if (id.is_none() || self.is_scarce(block.class))
            && let Some(round) = self.waits_for.take()
        {
            self.committer.request(round);
        }
        id
    }

    /// Notifies the reclaimer that blocks of a class are placed.
    pub(crate) fn ask_for_room(&self, class: u8) {
        self.ahead.borrow_mut().ask(class);
        if !self.busy.get() && self.is_low() {
            self.signals.kick_reclaimer();
        }
    }

    /// Requests room, at the price of dirty blocks. Returns false if that failed a moment ago.
    pub(crate) fn want_room(&self) -> bool {
        self.dirty.set(DirtyVictims::WriteBack);
        if self.signals.is_stuck() {
            if !self.left_dirty.replace(false) && rt::now() < self.ended.get() + self.retry.get() {
                return false;
            }
            self.signals.hint();
        }
        true
    }

    /// Stops write-back for room, because writes that lack room bypass the cache. Has no effect if
    /// a request waits for room, or if a volume's writes prefer to wait.
    pub(crate) fn keep_dirty(&self) {
        if self.waiting.get() > 0 || self.volumes.any(AttachedVolume::evicts_dirty) {
            return;
        }
        if self.dirty.replace(DirtyVictims::Keep) == DirtyVictims::WriteBack {
            self.want_clean(Vec::new());
        }
    }

    /// The reclaimer's task.
    pub(crate) async fn reclaim_loop(self: Rc<Self>) {
        loop {
            let is_due = || self.service.is_stopping() || self.is_time_to_reclaim();
            self.signals.until_reclaim(is_due).await;
            if self.service.is_stopping() || self.committer.failure().is_some() {
                self.signals.set_stuck();
                self.signals.made_room();
                return;
            }
            self.busy.set(true);
            self.reclaim_round().await;
            self.busy.set(false);
            self.ended.set(rt::now());
            self.signals.made_room();
        }
    }

    /// Waits until the queued kills are durable. A client's round of commits includes them at no
    /// extra cost. If there is none soon, or slots run out, this requests a round.
    async fn await_kills(self: &Rc<Self>, urgent: bool) -> Result<()> {
        let round = self.committer.next_round();
        if urgent {
            self.committer.request(round);
        } else {
            self.waits_for.set(Some(round));
            let reclaimer = Rc::clone(self);
            rt::spawn(async move {
                rt::sleep(JOIN_TIMEOUT).await;
                if reclaimer.waits_for.get() == Some(round) {
                    reclaimer.waits_for.set(None);
                    reclaimer.committer.request(round);
                }
            });
        }
        let durable = self.committer.committed(round).await;
        self.waits_for.set(None);
        durable
    }

    /// Returns whether a block can be evicted. It must not be in use. If it is dirty, its backing
    /// device must take its data. While the reclaimer requests write-back, it requests that of some
    /// blocks of a device that takes none. So the cleaner notices when the device takes data.
    fn classify_victim(&self, block: Candidate) -> Evictability {
        let Candidate {
            region,
            granules,
            dirty,
            flags,
        } = block;
        if dirty {
            let Some(volume) = self.volumes.get(region.volume()) else {
                return Evictability::Blocked;
            };
            let is_requested = self.dirty.get() == DirtyVictims::WriteBack;
            return match &volume.cleaner {
                cleaner if cleaner.is_blocked() && (cleaner.is_wanted() || !is_requested) => {
                    Evictability::Blocked
                }
                _ if self.locks.is_exclusive(region, granules) => Evictability::Never,
                _ => Evictability::Later,
            };
        }
        match !flags.has(CLEANING) && self.locks.admits(region, granules, true) {
            true => Evictability::Now,
            false => Evictability::Never,
        }
    }

    async fn reclaim_round(self: &Rc<Self>) {
        let began = rt::now();
        let (urgent, picked) = {
            let mut ahead = self.ahead.borrow_mut();
            let urgent = ahead.is_pressed(self.map.borrow().table());
            let mut map = self.map.borrow_mut();
            (
                urgent,
                map.pick(&mut ahead, |block| self.classify_victim(block)),
            )
        };
        let wanted = match self.dirty.get() {
            DirtyVictims::IfColder => !picked.leaving.is_empty(),
            DirtyVictims::WriteBack => true,
            DirtyVictims::Keep => false,
        };
        self.left_dirty.set(!wanted && !picked.dirty.is_empty());
        if wanted && !picked.dirty.is_empty() {
            self.want_clean(picked.dirty);
        }
        let victims = picked.leaving;
        if victims.is_empty() {
            // Many blocks may stay, such as those of a volume whose backing device is away. The
            // next search meets others.
            self.retry.set(RETRY.max((rt::now() - began) * RETRY_RATIO));
            self.signals.set_stuck();
            return;
        }
        // No request uses these blocks, and the locks keep requests out.
        let lock = |id: &BlockId| {
            let (volume, region, span) = self.map.borrow().table().address(*id);
            (BlockKey::new(volume, region), self.geometry.covers(span))
        };
        let locks: Vec<(BlockKey, u64)> = victims.iter().map(lock).collect();
        for (region, granules) in &locks {
            self.locks.take(*region, *granules, true);
        }
        let traced: Vec<Slot> = {
            let map = self.map.borrow();
            let traced = victims.iter().filter(|id| map.has(**id, TRACED));
            traced.map(|id| map.slot(*id)).collect()
        };
        for id in &victims {
            // Nothing may log them after their deaths, nor after they left without one.
            self.committer.kill_block(*id);
        }
        let mut durable = Ok(());
        if !traced.is_empty() {
            self.committer.queue_entry(Entry::Kill(traced));
            durable = self.await_kills(urgent).await;
        }
        if durable.is_ok() {
            self.stats.evictions.add(victims.len() as u64);
            for id in victims {
                let (volume, region, span) = self.map.borrow().table().address(id);
                self.read_ahead.note_evicted(volume, region, span);
                self.slots.forget(id);
            }
        } else {
            for id in victims {
                self.map.borrow_mut().stay(id);
            }
        }
        for (region, granules) in locks {
            self.locks.release(region, granules, true);
        }
    }

    /// Returns whether some of the reclaimer's wanted blocks were not tried yet.
    fn is_clean_wanted(&self) -> bool {
        self.volumes.any(|volume| volume.cleaner.is_wanted())
    }

    /// Replaces the list of blocks that the reclaimer wants clean.
    fn want_clean(&self, mut blocks: Vec<BlockId>) {
        let map = self.map.borrow();
        // The coldest come first; more of them than are written back soon would only take time to
        // sort.
        blocks.truncate(WANTED);
        blocks.sort_by_cached_key(|id| map.state(*id).key);
        (self.volumes).for_each(|volume| volume.cleaner.withdraw(blocks.is_empty()));
        for same in blocks.chunk_by(|one, next| map.volume(*one) == map.volume(*next)) {
            if let Some(volume) = self.volumes.get(map.volume(same[0])) {
                volume.cleaner.want(same);
            }
        }
        self.signals.kick_cleaners();
    }
}
