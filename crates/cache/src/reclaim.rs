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
use forebay_policy::{BlockKey, BlockId};

use crate::commit::Ticket;
use crate::engine::Engine;
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
    /// Free slots below which it starts.
    low: usize,
    /// Slots killed in one round at most.
    batch: usize,
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
    pub(crate) fn new(slots: usize) -> Self {
        Self {
            low: (slots / 64).clamp(128.min(slots / 8).max(1), 2048),
            batch: (slots / 32).clamp(2, 4096),
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
    /// A slot for `key`, which is not in the map and whose exclusive lock is held. None if nothing can
    /// be evicted now: then the request goes round the cache.
    pub(crate) async fn allocate(&self, key: BlockKey) -> Option<BlockId> {
        loop {
            let slot = self.map.borrow_mut().allocate(key);
            let free = self.map.borrow().free_slots();
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
                        || !self.reclaim.stuck.get()
                            && self.map.borrow().free_slots() < self.reclaim.low
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
        let free = self.map.borrow().free_slots();
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
        let wanted = self.reclaim.batch;
        let mut dirty = 0;
        let mut victims: Vec<BlockId> = Vec::new();
        {
            let map = self.map.borrow();
            for slot in map.coldest().take(wanted * LOOK_AT) {
                let entry = map.slot(slot);
                if entry.dirty != 0 {
                    dirty += 1;
                } else if !entry.has(CLEANING) && self.locks.admits(entry.key, true) {
                    self.locks.take(entry.key, true);
                    victims.push(slot);
                    if victims.len() >= wanted {
                        break;
                    }
                }
            }
        }
        if dirty > victims.len() {
            self.cleaner.want_clean(wanted);
        }
        if victims.is_empty() {
            self.reclaim.stuck.set(true);
            return;
        }
        let keys: Vec<BlockKey> = victims
            .iter()
            .map(|slot| self.map.borrow().slot(*slot).key)
            .collect();
        let traced: Vec<BlockId> = victims
            .iter()
            .copied()
            .filter(|slot| self.map.borrow().slot(*slot).has(TRACED))
            .collect();
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
        for key in keys {
            self.locks.release(key, true);
        }
    }
}
