//! SIEVE: lazy promotion, quick demotion.

use forebay_policy::BlockKey;

use super::links::{Links, List, NONE};
use super::{LOOK_AT, Replacement, SlotId};

/// A queue in the order of arrival, with a hand that moves from the old end to the new one. The
/// hand clears the bits of used slots, and evicts the first unused slot. A hit moves nothing. From
/// Y. Zhang et al., "SIEVE is Simpler than LRU", NSDI 2024, section 3, algorithm 1. 9 bytes for
/// each slot.
#[derive(Debug)]
pub struct Sieve {
    links: Links,
    queue: List,
    visited: Vec<bool>,
    /// Start of the next search; [`NONE`] for the old end.
    hand: u32,
}

impl Sieve {
    /// Returns the policy for slots `0..slots`.
    #[must_use]
    pub fn new(slots: usize) -> Self {
        Self {
            links: Links::new(slots),
            queue: List::new(),
            visited: vec![false; slots],
            hand: NONE,
        }
    }
}

impl Replacement for Sieve {
    #[inline]
    fn insert(&mut self, slot: SlotId, _key: BlockKey) {
        self.visited[slot as usize] = false;
        self.links.push(&mut self.queue, slot);
    }

    #[inline]
    fn touch(&mut self, slot: SlotId) {
        self.visited[slot as usize] = true;
    }

    fn remove(&mut self, slot: SlotId, _key: BlockKey) {
        if self.hand == slot {
            self.hand = self.links.newer(slot);
        }
        self.links.unlink(&mut self.queue, slot);
    }

    fn victim(
        &mut self,
        _incoming: Option<BlockKey>,
        mut evictable: impl FnMut(SlotId) -> bool,
    ) -> Option<SlotId> {
        let mut refused = 0;
        // In the second round no bit is set.
        for _ in 0..2 * self.queue.len() {
            let slot = match self.hand {
                NONE => self.queue.oldest(),
                hand => hand,
            };
            self.hand = self.links.newer(slot);
            if std::mem::take(&mut self.visited[slot as usize]) {
                continue;
            }
            if evictable(slot) {
                self.links.unlink(&mut self.queue, slot);
                return Some(slot);
            }
            refused += 1;
            if refused == LOOK_AT {
                break;
            }
        }
        None
    }

    fn len(&self) -> usize {
        self.queue.len()
    }

    fn memory_bytes(&self) -> usize {
        self.links.memory_bytes() + self.visited.capacity()
    }
}
