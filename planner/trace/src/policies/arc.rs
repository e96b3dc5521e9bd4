//! ARC: adaptive replacement cache.

use forebay_policy::BlockKey;

use super::ghosts::Keys;
use super::links::{Links, List};
use super::{Replacement, SlotId, first_evictable};

/// The four lists, by the paper's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    None,
    /// Cached, used once recently.
    T1,
    /// Cached, used more than once recently.
    T2,
    /// Ghosts of T1.
    B1,
    /// Ghosts of T2.
    B2,
}

/// Two recency lists, of blocks used once and of blocks used more often, and the ghosts of each. A
/// hit on a ghost changes the target size of the first list. From N. Megiddo and D. S. Modha, "ARC:
/// A Self-Tuning, Low Overhead Replacement Cache", FAST 2003, section III, figure 4. 49 to 61 bytes
/// for each slot, including ghosts.
///
/// The ghost lists are trimmed when a block is inserted, not when the victim is chosen. With one
/// victim for each block the outcome is the paper's. With victims chosen ahead of need, the paper's
/// bounds hold. T1 and B1 together hold at most one key for each slot, and all four lists at most
/// two.
#[derive(Debug)]
pub struct Arc {
    keys: Keys,
    links: Links,
    places: Vec<Place>,
    t1: List,
    t2: List,
    b1: List,
    b2: List,
    /// Target length of T1 (p in the paper), with fractions.
    target: f64,
    slots: usize,
    /// Key whose ghost has changed the target already.
    adapted: Option<BlockKey>,
}

impl Arc {
    /// Returns the policy for slots `0..slots`.
    #[must_use]
    pub fn new(slots: usize) -> Self {
        // One more, since a ghost that is hit keeps its node until the insertion.
        let ghosts = slots + 1;
        Self {
            keys: Keys::new(slots, ghosts),
            links: Links::new(slots + ghosts),
            places: vec![Place::None; slots + ghosts],
            t1: List::new(),
            t2: List::new(),
            b1: List::new(),
            b2: List::new(),
            target: 0.0,
            slots,
            adapted: None,
        }
    }

    fn list(&mut self, place: Place) -> (&mut List, &mut Links) {
        let list = match place {
            Place::T1 => &mut self.t1,
            Place::T2 => &mut self.t2,
            Place::B1 => &mut self.b1,
            Place::B2 => &mut self.b2,
            Place::None => unreachable!("on no list"),
        };
        (list, &mut self.links)
    }

    fn push(&mut self, place: Place, node: u32) {
        let (list, links) = self.list(place);
        links.push(list, node);
        self.places[node as usize] = place;
    }

    /// Removes a node from its list. Returns the list.
    fn take(&mut self, node: u32) -> Place {
        let place = std::mem::replace(&mut self.places[node as usize], Place::None);
        let (list, links) = self.list(place);
        links.unlink(list, node);
        place
    }

    fn forget_oldest(&mut self, place: Place) {
        let ghost = self.list(place).0.oldest();
        self.take(ghost);
        self.keys.forget(ghost);
    }

    /// Cases II and III: the missed key is a ghost.
    fn adapt(&mut self, key: BlockKey, ghost: u32) {
        if self.adapted == Some(key) {
            return;
        }
        self.adapted = Some(key);
        let (b1, b2) = (self.b1.len() as f64, self.b2.len() as f64);
        self.target = match self.places[ghost as usize] {
            Place::B1 => (self.target + (b2 / b1).max(1.0)).min(self.slots as f64),
            _ => (self.target - (b1 / b2).max(1.0)).max(0.0),
        };
    }

    fn evict(&mut self, from: Place, evictable: &mut impl FnMut(SlotId) -> bool) -> Option<SlotId> {
        let list = if from == Place::T1 { self.t1 } else { self.t2 };
        let slot = first_evictable(self.links.iter(&list), evictable)?;
        self.take(slot);
        if self.b1.len() + self.b2.len() > self.slots {
            // Only after victims ahead of need, when T1 and T2 are short.
            let crowded = self.t1.len() + self.b1.len() >= self.slots || self.b2.is_empty();
            self.forget_oldest(if crowded && !self.b1.is_empty() {
                Place::B1
            } else {
                Place::B2
            });
        }
        let ghost = self.keys.remember(slot);
        self.push(
            if from == Place::T1 {
                Place::B1
            } else {
                Place::B2
            },
            ghost,
        );
        Some(slot)
    }
}

impl Replacement for Arc {
    fn insert(&mut self, slot: SlotId, key: BlockKey) {
        self.keys.set(slot, key);
        if let Some(ghost) = self.keys.ghost(key) {
            self.adapt(key, ghost);
            self.take(ghost);
            self.keys.forget(ghost);
            self.push(Place::T2, slot);
        } else {
            let first = self.t1.len() + self.b1.len();
            if first >= self.slots {
                self.forget_oldest(Place::B1);
            } else if first + self.t2.len() + self.b2.len() >= 2 * self.slots {
                self.forget_oldest(Place::B2);
            }
            self.push(Place::T1, slot);
        }
        self.adapted = None;
    }

    #[inline]
    fn touch(&mut self, slot: SlotId) {
        if self.places[slot as usize] == Place::T2 {
            self.links.touch(&mut self.t2, slot);
        } else {
            self.take(slot);
            self.push(Place::T2, slot);
        }
    }

    fn remove(&mut self, slot: SlotId, _key: BlockKey) {
        self.take(slot);
    }

    fn victim(
        &mut self,
        incoming: Option<BlockKey>,
        mut evictable: impl FnMut(SlotId) -> bool,
    ) -> Option<SlotId> {
        let mut from_b2 = false;
        if let Some(key) = incoming
            && let Some(ghost) = self.keys.ghost(key)
        {
            from_b2 = self.places[ghost as usize] == Place::B2;
            self.adapt(key, ghost);
        }
        // The paper's REPLACE.
        let t1 = self.t1.len() as f64;
        let order = if t1 > self.target || (from_b2 && t1 == self.target) {
            [Place::T1, Place::T2]
        } else {
            [Place::T2, Place::T1]
        };
        order
            .into_iter()
            .find_map(|from| self.evict(from, &mut evictable))
    }

    fn len(&self) -> usize {
        self.t1.len() + self.t2.len()
    }

    fn memory_bytes(&self) -> usize {
        self.keys.memory_bytes()
            + self.links.memory_bytes()
            + self.places.capacity() * size_of::<Place>()
    }
}
