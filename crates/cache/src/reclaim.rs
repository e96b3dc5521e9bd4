//! Free slots, ahead of need (rule 2).
//!
//! Blocks that are cold and clean are killed in batches: their deaths are logged together, and only
//! when that is durable are the slots free. Until then the blocks stay in the index under their
//! exclusive locks, so that nobody can take them for absent.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use forebay_block::Result;
use forebay_io::rt;
use forebay_io::sync::WaitList;
use forebay_policy::{BlockId, BlockKey, BlockSizes};

use crate::commit::Ticket;
use crate::engine::Engine;
use crate::geometry::Block;
use crate::map::{CLEANING, TRACED};
use crate::queue::Entry;

/// Candidates looked at for each slot that is wanted.
const LOOK_AT: usize = 16;
/// How long kills wait for somebody else's round of commits.
const PATIENCE: Duration = Duration::from_millis(5);
/// After a round that found nothing, the next one is not worth its time for so long.
const RETRY: Duration = Duration::from_millis(1);

/// State of the reclaimer.
#[derive(Debug)]
pub(crate) struct Reclaimer {
    /// Room below which it starts, units.
    low: u32,
    /// Units killed in one round, about.
    batch: u32,
    /// Blocks of each class that were asked for since the last round.
    asked: [Cell<u32>; 8],
    kick: WaitList,
    freed: WaitList,
    /// Kills wait for this round, for which nobody has asked yet.
    waits_for: Cell<Option<Ticket>>,
    /// The last round found nothing that could be evicted.
    stuck: Cell<bool>,
    /// When it ended.
    ended: Cell<Duration>,
    busy: Cell<bool>,
}

impl Reclaimer {
    pub(crate) fn new(sizes: BlockSizes, units: u32) -> Self {
        let (low, batch) = if sizes.top() == 0 {
            let low = (units / 64).clamp(128.min(units / 8).max(1), 2048);
            (low, (units / 32).clamp(2, 4096))
        } else {
            // Whole groups: one for each size, at least where there are enough.
            let groups = units >> sizes.top();
            let classes = sizes.mask().count_ones();
            let low = (groups / 64).clamp(classes.min(groups / 8).max(1), 256);
            let batch = (groups / 32).clamp(1, 128);
            (low << sizes.top(), batch << sizes.top())
        };
        Self {
            low,
            batch,
            asked: Default::default(),
            kick: WaitList::new(),
            freed: WaitList::new(),
            waits_for: Cell::new(None),
            stuck: Cell::new(false),
            ended: Cell::new(Duration::ZERO),
            busy: Cell::new(false),
        }
    }

    pub(crate) fn wake(&self) {
        self.kick.wake_all();
        self.freed.wake_all();
    }

    /// Something changed that may let blocks be evicted.
    pub(crate) fn hint(&self) {
        if self.stuck.replace(false) {
            self.kick.wake_all();
        }
    }
}

impl Engine {
    /// Room that any block can use, units.
    fn room(&self) -> u32 {
        let map = self.map.borrow();
        match self.geometry.sizes().top() {
            0 => map.free_units(),
            top => (map.table().free_groups() as u32) << top,
        }
    }

    /// A slot for a block that is not in the map, nor overlaps one that is, and whose units are locked.
    /// None if nothing can be evicted now: then the request goes round the cache.
    pub(crate) async fn allocate(&self, volume: u16, block: Block) -> Option<BlockId> {
        let asked = &self.reclaim.asked[usize::from(block.class)];
        asked.set(asked.get().saturating_add(1));
        loop {
            let slot = self.map.borrow_mut().allocate(volume, block);
            let free = self.room();
            if free < self.reclaim.low && !self.reclaim.busy.get() {
                self.reclaim.kick.wake_all();
            }
            if (free < self.reclaim.low / 2 || slot.is_none())
                && let Some(round) = self.reclaim.waits_for.take()
            {
                self.request(round);
            }
            if slot.is_some() {
                return slot;
            }
            if self.commit.failure().is_some() || self.stopping.get() {
                return None;
            }
            if self.reclaim.stuck.get() {
                if rt::now() < self.reclaim.ended.get() + RETRY {
                    return None;
                }
                self.reclaim.hint();
            }
            self.reclaim.freed.wait().await;
        }
    }

    /// The reclaimer's task.
    pub(crate) async fn reclaim_loop(self: Rc<Self>) {
        loop {
            self.reclaim
                .kick
                .until(|| {
                    self.stopping.get()
                        || !self.reclaim.stuck.get() && self.room() < self.reclaim.low
                })
                .await;
            if self.stopping.get() || self.commit.failure().is_some() {
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
    async fn killed(self: &Rc<Self>) -> Result<()> {
        let round = self.next_round();
        let free = self.room();
        if free == 0 || free < self.reclaim.low / 2 {
            self.request(round);
        } else {
            self.reclaim.waits_for.set(Some(round));
            let engine = Rc::clone(self);
            rt::spawn(async move {
                rt::sleep(PATIENCE).await;
                if engine.reclaim.waits_for.get() == Some(round) {
                    engine.reclaim.waits_for.set(None);
                    engine.request(round);
                }
            });
        }
        let durable = self.committed(round).await;
        self.reclaim.waits_for.set(None);
        durable
    }

    async fn reclaim_round(self: &Rc<Self>) {
        let mut picked = Picked::default();
        if self.geometry.sizes().top() == 0 {
            self.pick_blocks(&mut picked);
        } else {
            self.pick_on_two_levels(&mut picked);
        }
        let Picked { victims, dirty, .. } = picked;
        if dirty > victims.len() {
            self.cleaner.want_clean(self.reclaim.batch as usize);
        }
        if victims.is_empty() {
            self.reclaim.stuck.set(true);
            return;
        }
        let locks: Vec<(BlockKey, u64)> = victims
            .iter()
            .map(|slot| self.lock_of(&self.map.borrow().slot(*slot)))
            .collect();
        let traced: Vec<u32> = {
            let map = self.map.borrow();
            let traced = victims.iter().filter(|slot| map.has(**slot, TRACED));
            traced.map(|slot| map.place(*slot)).collect()
        };
        for slot in &victims {
            // Nothing may log them behind their deaths, nor after they were let go without one.
            self.kill_slot(*slot);
        }
        let mut durable = Ok(());
        if !traced.is_empty() {
            self.queue_entry(Entry::Kill(traced));
            durable = self.killed().await;
        }
        if durable.is_ok() {
            self.stats.evictions.add(victims.len() as u64);
            for slot in victims {
                self.forget_slot(slot);
            }
        }
        for (region, units) in locks {
            self.locks.release(region, units, true);
        }
    }

    /// Takes a block's lock and makes it a victim, if it is clean and nobody is at it.
    fn pick(&self, slot: BlockId, picked: &mut Picked) {
        let entry = self.map.borrow().slot(slot);
        if entry.dirty != 0 {
            picked.dirty += 1;
            return;
        }
        let (region, units) = self.lock_of(&entry);
        if !entry.has(CLEANING) && self.locks.admits(region, units, true) {
            self.locks.take(region, units, true);
            picked.victims.push(slot);
            picked.units += 1 << entry.class;
        }
    }

    /// The coldest blocks.
    fn pick_blocks(&self, picked: &mut Picked) {
        let wanted = self.reclaim.batch;
        let map = self.map.borrow();
        for slot in map.coldest().take(wanted as usize * LOOK_AT) {
            self.pick(slot, picked);
            if picked.units >= wanted {
                break;
            }
        }
    }

    /// Replacement on two levels (AdaCache, section III-D), ahead of need: the coldest blocks as long as
    /// they have a size that was asked for lately, then the coldest groups.
    fn pick_on_two_levels(&self, picked: &mut Picked) {
        let wanted = self.reclaim.batch;
        let map = self.map.borrow();
        let asked: Vec<Cell<u32>> = self
            .reclaim
            .asked
            .iter()
            .map(|asked| Cell::new(asked.take()))
            .collect();
        for slot in map.coldest() {
            let left = &asked[usize::from(map.table().class(slot))];
            if left.get() == 0 || picked.units >= wanted {
                break;
            }
            left.set(left.get() - 1);
            self.pick(slot, picked);
        }
        for group in map.table().coldest_groups().take(wanted as usize * LOOK_AT) {
            if picked.units >= wanted {
                break;
            }
            for slot in map.table().blocks_of(group) {
                self.pick(slot, picked);
            }
        }
    }
}

/// What a round of the reclaimer takes.
#[derive(Debug, Default)]
struct Picked {
    victims: Vec<BlockId>,
    units: u32,
    /// Dirty blocks that were passed over.
    dirty: usize,
}
