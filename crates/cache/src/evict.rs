//! Free slots, ahead of need (rule 2).
//!
//! Blocks that are cold and clean are killed in batches: their deaths are logged together, and only
//! when that is durable are the slots free. Until then the blocks stay in the index under their
//! exclusive locks, so that nobody can take them for absent.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use forebay_block::Result;
use forebay_io::rt;
use forebay_io::sync::WaitList;
use forebay_policy::{Ahead, BlockId, BlockKey, BlockSizes, Leave};

use crate::commit::Ticket;
use crate::commit::queue::Entry;
use crate::engine::Engine;
use crate::geometry::Block;
use crate::map::{CLEANING, Candidate, TRACED};
use crate::volume::AttachedVolume;

/// How long kills wait for somebody else's round of commits.
const PATIENCE: Duration = Duration::from_millis(5);
/// After a round that found nothing, the next one is not worth its time for so long.
const RETRY: Duration = Duration::from_millis(1);

/// Whether blocks that are dirty are written back to make room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dirty {
    /// If they are colder than some that are clean. Nobody has lacked room yet: what is given up may not be in need of
    /// being so, and a cache that the working set just fills would lose a part of it.
    Beside,
    /// Ahead of need: somebody waits, or has waited, for room.
    Wanted,
    /// Writes that lack room go round the cache instead.
    Spared,
}

/// State of the reclaimer.
#[derive(Debug)]
pub(crate) struct Reclaimer {
    ahead: RefCell<Ahead>,
    kick: WaitList,
    freed: WaitList,
    /// How many wait for that.
    waiting: Cell<u32>,
    /// Kills wait for this round, for which nobody has asked yet.
    waits_for: Cell<Option<Ticket>>,
    /// The last round found nothing that could be evicted.
    stuck: Cell<bool>,
    /// Something could have been, had it been written back, which was not asked for.
    spared: Cell<bool>,
    dirty: Cell<Dirty>,
    /// When it ended.
    ended: Cell<Duration>,
    busy: Cell<bool>,
}

impl Reclaimer {
    pub(crate) fn new(sizes: BlockSizes, units: u32, dirty: Dirty) -> Self {
        Self {
            ahead: RefCell::new(Ahead::new(sizes, units)),
            kick: WaitList::new(),
            freed: WaitList::new(),
            waiting: Cell::new(0),
            waits_for: Cell::new(None),
            stuck: Cell::new(false),
            spared: Cell::new(false),
            dirty: Cell::new(dirty),
            ended: Cell::new(Duration::ZERO),
            busy: Cell::new(false),
        }
    }

    pub(crate) fn wake(&self) {
        self.kick.wake_all();
        self.freed.wake_all();
    }

    /// A slot is free.
    pub(crate) fn made_room(&self) {
        self.freed.wake_all();
    }

    /// Units that room is made for at a time.
    pub(crate) fn batch(&self) -> u32 {
        self.ahead.borrow().batch()
    }

    /// Something changed that may let blocks be evicted.
    pub(crate) fn hint(&self) {
        if self.stuck.replace(false) {
            self.look_again();
        }
    }

    /// The cleaner has done what it was asked for.
    pub(crate) fn look_again(&self) {
        self.kick.wake_all();
    }
}

impl Engine {
    /// Whether it is time to make room.
    fn is_low(&self) -> bool {
        self.map.borrow().is_low(&self.reclaim.ahead.borrow())
    }

    /// Blocks that wait to be written back are colder than what else could go: as long as nothing presses,
    /// they are waited for.
    fn is_time_to_reclaim(&self) -> bool {
        let pressed = || {
            let ahead = self.reclaim.ahead.borrow();
            ahead.is_pressed(self.map.borrow().table())
        };
        !self.reclaim.stuck.get() && self.is_low() && (!self.is_clean_wanted() || pressed())
    }

    /// Whether so little room is left that kills should not wait for somebody else's round.
    fn is_scarce(&self, class: u8) -> bool {
        let room = self.map.borrow().table().room(class);
        room < self.reclaim.ahead.borrow().low() / 2
    }

    /// A slot for a block that is not in the map, nor overlaps one that is, and whose units are locked.
    /// None if nothing can be evicted now: then the request goes round the cache.
    pub(crate) async fn allocate(&self, volume: u16, block: Block) -> Option<BlockId> {
        loop {
            let slot = self.allocate_now(volume, block);
            if slot.is_some() {
                return slot;
            }
            if self.committer.failure().is_some() || self.service.is_stopping() {
                return None;
            }
            if !self.want_room() {
                return None;
            }
            let waiting = &self.reclaim.waiting;
            waiting.set(waiting.get() + 1);
            self.reclaim.freed.wait().await;
            waiting.set(waiting.get() - 1);
        }
    }

    /// The same, if there is a slot at once. The reclaimer hears of it either way.
    pub(crate) fn allocate_now(&self, volume: u16, block: Block) -> Option<BlockId> {
        let slot = self.map.borrow_mut().allocate(volume, block);
        if let Some(slot) = slot {
            self.tracker.note_placed(slot);
        }
        self.ask_for_room(block.class);
        if (slot.is_none() || self.is_scarce(block.class))
            && let Some(round) = self.reclaim.waits_for.take()
        {
            self.committer.request(round);
        }
        slot
    }

    /// The reclaimer hears that blocks of a class are placed.
    pub(crate) fn ask_for_room(&self, class: u8) {
        self.reclaim.ahead.borrow_mut().ask(class);
        if !self.reclaim.busy.get() && self.is_low() {
            self.reclaim.kick.wake_all();
        }
    }

    /// Has room made, at the price of dirty blocks. False if that was tried in vain just now.
    pub(crate) fn want_room(&self) -> bool {
        self.reclaim.dirty.set(Dirty::Wanted);
        if self.reclaim.stuck.get() {
            if !self.reclaim.spared.replace(false) && rt::now() < self.reclaim.ended.get() + RETRY {
                return false;
            }
            self.reclaim.hint();
        }
        true
    }

    /// Writes that lack room go round the cache: what is dirty stays, unless somebody waits for room, or writes of some volume
    /// would rather.
    pub(crate) fn keep_dirty(&self) {
        if self.reclaim.waiting.get() > 0 || self.volumes.any(AttachedVolume::gives_up) {
            return;
        }
        if self.reclaim.dirty.replace(Dirty::Spared) == Dirty::Wanted {
            self.want_clean(Vec::new());
        }
    }

    /// The reclaimer's task.
    pub(crate) async fn reclaim_loop(self: Rc<Self>) {
        loop {
            self.reclaim
                .kick
                .until(|| self.service.is_stopping() || self.is_time_to_reclaim())
                .await;
            if self.service.is_stopping() || self.committer.failure().is_some() {
                self.reclaim.stuck.set(true);
                self.reclaim.freed.wake_all();
                return;
            }
            self.reclaim.busy.set(true);
            self.reclaim_round().await;
            self.reclaim.busy.set(false);
            self.reclaim.ended.set(rt::now());
            self.reclaim.freed.wake_all();
        }
    }

    /// Waits until what was queued is durable. A client's round takes the kills along for nothing; if none
    /// comes soon, or slots run out, one is asked for.
    async fn killed(self: &Rc<Self>, urgent: bool) -> Result<()> {
        let round = self.committer.next_round();
        if urgent {
            self.committer.request(round);
        } else {
            self.reclaim.waits_for.set(Some(round));
            let engine = Rc::clone(self);
            rt::spawn(async move {
                rt::sleep(PATIENCE).await;
                if engine.reclaim.waits_for.get() == Some(round) {
                    engine.reclaim.waits_for.set(None);
                    engine.committer.request(round);
                }
            });
        }
        let durable = self.committer.committed(round).await;
        self.reclaim.waits_for.set(None);
        durable
    }

    /// Whether a block can go: nobody is at it, and if it is dirty, somebody can write it back.
    fn can_leave(&self, block: Candidate) -> Leave {
        let Candidate {
            region,
            granules,
            dirty,
            flags,
        } = block;
        if dirty {
            let attached = self.volumes.contains(region.volume());
            return match attached && !self.locks.is_exclusive(region, granules) {
                true => Leave::Later,
                false => Leave::Never,
            };
        }
        match flags & CLEANING == 0 && self.locks.admits(region, granules, true) {
            true => Leave::Now,
            false => Leave::Never,
        }
    }

    async fn reclaim_round(self: &Rc<Self>) {
        let (urgent, picked) = {
            let mut ahead = self.reclaim.ahead.borrow_mut();
            let urgent = ahead.is_pressed(self.map.borrow().table());
            let mut map = self.map.borrow_mut();
            (urgent, map.pick(&mut ahead, |block| self.can_leave(block)))
        };
        let wanted = match self.reclaim.dirty.get() {
            Dirty::Beside => !picked.leaving.is_empty(),
            Dirty::Wanted => true,
            Dirty::Spared => false,
        };
        self.reclaim.spared.set(!wanted && !picked.dirty.is_empty());
        if wanted && !picked.dirty.is_empty() {
            self.want_clean(picked.dirty);
        }
        let victims = picked.leaving;
        if victims.is_empty() {
            self.reclaim.stuck.set(true);
            return;
        }
        // Nobody is at them, and nobody will be.
        let lock = |slot: &BlockId| {
            let (volume, region, span) = self.map.borrow().table().address(*slot);
            (BlockKey::new(volume, region), self.geometry.covers(span))
        };
        let locks: Vec<(BlockKey, u64)> = victims.iter().map(lock).collect();
        for (region, granules) in &locks {
            self.locks.take(*region, *granules, true);
        }
        let traced: Vec<u32> = {
            let map = self.map.borrow();
            let traced = victims.iter().filter(|slot| map.has(**slot, TRACED));
            traced.map(|slot| map.place(*slot)).collect()
        };
        for slot in &victims {
            // Nothing may log them behind their deaths, nor after they were let go without one.
            self.committer.kill_slot(*slot);
        }
        let mut durable = Ok(());
        if !traced.is_empty() {
            self.committer.queue_entry(Entry::Kill(traced));
            durable = self.killed(urgent).await;
        }
        if durable.is_ok() {
            self.stats.evictions.add(victims.len() as u64);
            for slot in victims {
                let (volume, region, span) = self.map.borrow().table().address(slot);
                self.note_evicted(volume, region, span);
                self.forget_slot(slot);
            }
        } else {
            for slot in victims {
                self.map.borrow_mut().stay(slot);
            }
        }
        for (region, granules) in locks {
            self.locks.release(region, granules, true);
        }
    }
}
