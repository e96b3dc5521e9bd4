//! The cleaner's tasks, one for each attached volume. A task asks the volume's policy
//! ([`forebay_policy::cleaning`]) for work, picks blocks, has [`clean`](crate::clean::write_back)
//! write them back, and rests. Volumes have tasks of their own so that a slow or stuck backing
//! device does not delay other volumes' write-back.

use std::rc::Rc;
use std::time::Duration;

use forebay_io::rt;
use forebay_policy::BlockId;
use forebay_policy::cleaning::{Ended, IDLE, PolicyInput, Turn};

use super::Cleaner;
use crate::clean::write_back::BATCH;
use crate::clean::write_back::forget_rewrite;
use crate::failpoints::{Fault, planted};
use crate::map::{BlockState, LIVE, Map, REWRITTEN};
use crate::options::Admission;
use crate::volume::AttachedVolume;
use crate::volume::cleaner::VolumeCleaner;

/// Interval at which an idle cleaner consults its policy.
const TICK: Duration = Duration::from_millis(500);
/// Time that the cleaner rests when it finds nothing to clean.
const REST: Duration = Duration::from_millis(5);
/// Wait after a failed write-back.
const BACK_OFF: Duration = Duration::from_secs(1);
/// Number of windows of a volume that are visited for a batch.
const LOOK_AT: usize = 16 * BATCH;

impl Cleaner {
    /// A volume's task.
    pub(crate) async fn clean_volume(self: Rc<Self>, volume: Rc<AttachedVolume>) {
        while self.is_serving(&volume) && self.committer.failure().is_none() {
            let (began, cleaner) = (rt::now(), &volume.cleaner);
            let is_stopping = || self.service.is_stopping();
            let turn = match self.must_wait(cleaner) {
                false => self.next_turn(&volume),
                true => None,
            };
            let blocks = turn.map(|turn| (turn, self.next_to_clean(&volume, &turn)));
            let Some((turn, blocks)) = blocks.filter(|(_, blocks)| !blocks.is_empty()) else {
                // Nothing is dirty, or all of it is locked. A kick unlocks nothing, so this waits.
                // Blocks that the reclaimer has named meanwhile were not tried yet.
                self.rest_after(&volume, began, true);
                self.finish_wanted(&volume);
                match cleaner.take_withdrawn() {
                    true => {
                        cleaner.rest(REST, is_stopping).await;
                    }
                    false => rt::sleep(REST).await,
                }
                if !cleaner.is_wanted() && self.is_serving(&volume) {
                    self.signals.cleaners_kicked().await;
                }
                continue;
            };
            cleaner.begin_turn();
            let failed = self.clean_batch(&blocks, turn.width).await.is_err();
            cleaner.end_turn(failed);
            if failed {
                cleaner.clear_wanted();
            }
            if cleaner.has_tried_all() {
                self.finish_wanted(&volume);
            }
            let rest = self.rest_after(&volume, began, false);
            if failed {
                rt::sleep(BACK_OFF).await;
            } else {
                self.rest(&volume, rest).await;
            }
        }
    }

    /// Rests after a batch. A long rest ends when the volume has no clients any more, or is not
    /// served.
    async fn rest(&self, volume: &Rc<AttachedVolume>, rest: Duration) {
        let end = rt::now() + rest;
        let is_stopping = || !self.is_serving(volume);
        loop {
            let left = end.saturating_sub(rt::now());
            let is_over = !volume.cleaner.rest(left.min(IDLE), is_stopping).await;
            if is_over || left <= IDLE || volume.idle_time() >= IDLE {
                return;
            }
        }
    }

    /// Returns whether a cleaner may not begin a turn.
    fn must_wait(&self, cleaner: &VolumeCleaner) -> bool {
        let is_held = self.service.holds_write_back() && !planted(Fault::CleanBeforeAllAttached);
        cleaner.is_suspended() || is_held
    }

    /// Returns whether a volume's task must continue.
    fn is_serving(&self, volume: &Rc<AttachedVolume>) -> bool {
        !self.service.is_stopping() && self.volumes.is_served(volume)
    }

    fn next_turn(&self, volume: &AttachedVolume) -> Option<Turn> {
        let input = PolicyInput {
            now: rt::now(),
            dirty_percent: self.dirty_percent(),
            low_percent: u64::from(self.settings.dirty_low_percent),
            high_percent: u64::from(self.settings.dirty_limit_percent),
            wanted: volume.cleaner.is_wanted(),
            idle: volume.idle_time(),
            rounds: self.map.borrow().dirty_rounds(volume.id),
        };
        volume.cleaner.next_turn(&input)
    }

    fn rest_after(&self, volume: &AttachedVolume, began: Duration, empty: bool) -> Duration {
        let now = rt::now();
        let took = now - began;
        let ended = Ended { now, took, empty };
        volume.cleaner.rest_after(&ended)
    }

    /// Makes the policies run at intervals, so that no data stays dirty for ever.
    pub(crate) async fn run_timer(self: Rc<Self>) {
        while !self.service.is_stopping() {
            rt::sleep(TICK).await;
            self.signals.kick_cleaners();
        }
    }

    /// All that the reclaimer wanted clean of a volume was tried.
    fn finish_wanted(&self, volume: &AttachedVolume) {
        if volume.cleaner.finish_wanted() {
            self.signals.kick_reclaimer();
        }
    }

    pub(crate) fn dirty_percent(&self) -> u64 {
        let map = self.map.borrow();
        map.dirty_units() * 100 / u64::from(map.units()).max(1)
    }

    /// Returns whether so much is dirty that writes which miss must bypass the cache. If all of the
    /// cache may be dirty, measured admission decides on writes without room.
    pub(crate) fn above_dirty_limit(&self) -> bool {
        let limit = self.settings.dirty_limit_percent;
        let none = limit >= 100 && self.settings.admission == Admission::Measured;
        !none && self.dirty_percent() >= u64::from(limit)
    }

    /// The blocks that the reclaimer wants clean, else those that the hand comes to, in backing
    /// order.
    fn next_to_clean(&self, volume: &AttachedVolume, turn: &Turn) -> Vec<BlockId> {
        let cleaner = &volume.cleaner;
        let mut map = self.map.borrow_mut();
        let mut blocks = Vec::with_capacity(BATCH);
        while blocks.len() < BATCH
            && let Some(id) = cleaner.pop_wanted()
        {
            // The wanted block may have been written back with other blocks already, or its number
            // may now belong to another volume.
            if map.volume(id) == volume.id && self.is_worth_cleaning(&map, id) {
                blocks.push(id);
            }
        }
        if !blocks.is_empty() || turn.only_wanted {
            return blocks;
        }
        for _ in 0..map.dirty_windows(volume.id).min(LOOK_AT) {
            if turn.fullest {
                let end = map.seek_fullest(volume.id, cleaner.part_end());
                cleaner.set_part_end(end);
            }
            for id in map.pop_dirty(volume.id) {
                let entry = map.state(id);
                if !self.is_worth_cleaning(&map, id) {
                    map.requeue_dirty(id);
                } else if entry.has(REWRITTEN) && turn.spare {
                    // The block was rewritten since the last pass, and may be rewritten before the
                    // next.
                    forget_rewrite(&mut map, id);
                    map.requeue_dirty(id);
                } else {
                    blocks.push(id);
                }
            }
            if blocks.len() >= BATCH {
                break;
            }
        }
        blocks
    }

    /// Returns whether a block can be cleaned and has dirty data that is not known to be corrupt.
    /// Corrupt dirty data stays in the cache; the cleaner would only retry it for ever.
    fn is_worth_cleaning(&self, map: &Map, id: BlockId) -> bool {
        let entry = map.state(id);
        let bad = (self.checksums.as_ref()).map_or(0, |it| {
            it.bad_granules(map.slot(id), entry.class, entry.dirty)
        });
        entry.dirty & !bad != 0 && self.can_be_cleaned(&entry)
    }

    pub(crate) fn can_be_cleaned(&self, entry: &BlockState) -> bool {
        entry.has(LIVE)
            && entry.dirty != 0
            && !entry.has(crate::map::CLEANING)
            && self.volumes.contains(entry.key.volume())
            && !self.locks.is_changed(self.geometry, entry)
    }
}
