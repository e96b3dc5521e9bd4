//! S3-FIFO: three static queues.

use forebay_policy::BlockKey;

use super::ghosts::Keys;
use super::links::{Links, List, NONE};
use super::{LOOK_AT, Replacement, SlotId};

/// Largest count of a slot's uses: two bits.
const MAX_USES: u8 = 3;
/// Uses that move a slot from the small queue to the main one ("more than once").
const USES_TO_MOVE: u8 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Queue {
    None,
    Small,
    Main,
}

#[derive(Clone, Copy, Debug)]
struct State {
    queue: Queue,
    uses: u8,
}

/// Three queues. New blocks enter a small queue of a tenth of the slots. Blocks used there more
/// than once move to the main queue. The others are evicted, and their keys enter a ghost queue as
/// long as the main one. A block whose key is in the ghost queue is inserted into the main queue.
/// In the main queue, used slots return to the tail. The rule is algorithm 1 in section 4 of J.
/// Yang et al., "FIFO Queues are All You Need for Cache Eviction", SOSP 2023. It takes 47 to 58
/// bytes for each slot, including ghosts.
///
/// If a move fills the main queue beyond its share, the paper's algorithm evicts from it at once.
/// Here the next eviction is from it, so that each call evicts one slot. While the cache fills for
/// the first time, blocks beyond the small queue's share enter the main queue. So this share is
/// free from the start. Both differences are as in the authors' simulator.
#[derive(Debug)]
pub struct S3Fifo {
    keys: Keys,
    links: Links,
    states: Vec<State>,
    small: List,
    main: List,
    ghosts: List,
    small_limit: usize,
    ghosts_limit: usize,
    /// Whether a victim was chosen before: the cache has been full.
    warm: bool,
}

impl S3Fifo {
    /// Returns the policy for slots `0..slots`.
    #[must_use]
    pub fn new(slots: usize) -> Self {
        let small_limit = (slots / 10).max(1);
        let ghosts_limit = slots.saturating_sub(small_limit);
        let state = State {
            queue: Queue::None,
            uses: 0,
        };
        Self {
            // One more, since the key of a ghost that is hit keeps its node until the insertion.
            keys: Keys::new(slots, ghosts_limit + 1),
            links: Links::new(slots + ghosts_limit + 1),
            states: vec![state; slots],
            small: List::new(),
            main: List::new(),
            ghosts: List::new(),
            small_limit,
            ghosts_limit,
            warm: false,
        }
    }

    fn forget(&mut self, ghost: u32) {
        self.links.unlink(&mut self.ghosts, ghost);
        self.keys.forget(ghost);
    }

    /// Moves used slots to the main queue until it finds an evictable slot.
    fn evict_small(
        &mut self,
        held: Option<u32>,
        evictable: &mut impl FnMut(SlotId) -> bool,
    ) -> Option<SlotId> {
        let mut refused = 0;
        let mut slot = self.small.oldest();
        while slot != NONE && refused < LOOK_AT {
            let newer = self.links.newer(slot);
            if self.states[slot as usize].uses >= USES_TO_MOVE {
                self.links.unlink(&mut self.small, slot);
                self.links.push(&mut self.main, slot);
                self.states[slot as usize] = State {
                    queue: Queue::Main,
                    uses: 0,
                };
            } else if evictable(slot) {
                self.links.unlink(&mut self.small, slot);
                self.states[slot as usize].queue = Queue::None;
                while self.ghosts.len() >= self.ghosts_limit + usize::from(held.is_some()) {
                    match self.ghosts.oldest_but(held, &self.links) {
                        // A cache of one slot has no ghosts.
                        NONE => return Some(slot),
                        ghost => self.forget(ghost),
                    }
                }
                let ghost = self.keys.remember(slot);
                self.links.push(&mut self.ghosts, ghost);
                return Some(slot);
            } else {
                refused += 1;
            }
            slot = newer;
        }
        None
    }

    /// Moves used slots to the tail until it finds an evictable slot.
    fn evict_main(&mut self, evictable: &mut impl FnMut(SlotId) -> bool) -> Option<SlotId> {
        let mut refused = 0;
        let mut slot = self.main.oldest();
        // Each slot returns to the tail at most as often as its uses were counted.
        for _ in 0..(usize::from(MAX_USES) + 1) * self.main.len() {
            if slot == NONE {
                slot = self.main.oldest();
            }
            let newer = self.links.newer(slot);
            if self.states[slot as usize].uses > 0 {
                self.states[slot as usize].uses -= 1;
                self.links.touch(&mut self.main, slot);
            } else if evictable(slot) {
                self.links.unlink(&mut self.main, slot);
                self.states[slot as usize].queue = Queue::None;
                return Some(slot);
            } else {
                refused += 1;
                if refused == LOOK_AT {
                    break;
                }
            }
            slot = newer;
        }
        None
    }
}

impl Replacement for S3Fifo {
    fn insert(&mut self, slot: SlotId, key: BlockKey) {
        debug_assert_eq!(self.states[slot as usize].queue, Queue::None);
        self.keys.set(slot, key);
        let ghost = self.keys.ghost(key);
        if let Some(ghost) = ghost {
            self.forget(ghost);
        }
        let filling = !self.warm && self.small.len() >= self.small_limit;
        let (queue, list) = if ghost.is_some() || filling {
            (Queue::Main, &mut self.main)
        } else {
            (Queue::Small, &mut self.small)
        };
        self.links.push(list, slot);
        self.states[slot as usize] = State { queue, uses: 0 };
    }

    #[inline]
    fn touch(&mut self, slot: SlotId) {
        let uses = &mut self.states[slot as usize].uses;
        *uses = (*uses + 1).min(MAX_USES);
    }

    fn remove(&mut self, slot: SlotId, _key: BlockKey) {
        let list = match self.states[slot as usize].queue {
            Queue::Small => &mut self.small,
            Queue::Main => &mut self.main,
            Queue::None => unreachable!("slot {slot} is in no queue"),
        };
        self.links.unlink(list, slot);
        self.states[slot as usize].queue = Queue::None;
    }

    fn victim(
        &mut self,
        incoming: Option<BlockKey>,
        mut evictable: impl FnMut(SlotId) -> bool,
    ) -> Option<SlotId> {
        self.warm = true;
        let held = incoming.and_then(|key| self.keys.ghost(key));
        if self.small.len() >= self.small_limit {
            self.evict_small(held, &mut evictable)
                .or_else(|| self.evict_main(&mut evictable))
        } else {
            self.evict_main(&mut evictable)
                .or_else(|| self.evict_small(held, &mut evictable))
        }
    }

    fn len(&self) -> usize {
        self.small.len() + self.main.len()
    }

    fn memory_bytes(&self) -> usize {
        self.keys.memory_bytes()
            + self.links.memory_bytes()
            + self.states.capacity() * size_of::<State>()
    }
}
