//! W-TinyLFU: admission by frequency behind a small window.

use forebay_policy::BlockKey;

use super::links::{Links, List};
use super::sketch::Sketch;
use super::{Replacement, SlotId, first_evictable};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    None,
    Window,
    Probation,
    Protected,
}

/// Inserts new blocks into a window of a hundredth of the slots. A block that leaves the window
/// stays if it was used more often recently than the victim of the main part. The main part is a
/// segmented LRU list: a fifth on probation, four fifths for blocks reused there. From G. Einziger,
/// R. Friedman and B. Manes, "TinyLFU: A Highly Efficient Cache Admission Policy", TOS 2017,
/// section 4. Without a doorkeeper; its window does not adapt. 25 to 33 bytes for each slot.
///
/// Free slots count as part of the window, which will use them. So victims ahead of need are chosen
/// by frequency too.
#[derive(Debug)]
pub struct WTinyLfu {
    keys: Vec<BlockKey>,
    links: Links,
    places: Vec<Place>,
    sketch: Sketch,
    window: List,
    probation: List,
    protected: List,
    window_limit: usize,
    protected_limit: usize,
}

impl WTinyLfu {
    /// Returns the policy for slots `0..slots`.
    #[must_use]
    pub fn new(slots: usize) -> Self {
        let window_limit = (slots / 100).max(1);
        Self {
            keys: vec![BlockKey::new(0, 0); slots],
            links: Links::new(slots),
            places: vec![Place::None; slots],
            sketch: Sketch::new(slots),
            window: List::new(),
            probation: List::new(),
            protected: List::new(),
            window_limit,
            protected_limit: slots.saturating_sub(window_limit) * 4 / 5,
        }
    }

    fn push(&mut self, place: Place, slot: SlotId) {
        let list = match place {
            Place::Window => &mut self.window,
            Place::Probation => &mut self.probation,
            Place::Protected => &mut self.protected,
            Place::None => unreachable!("slots are pushed somewhere"),
        };
        self.links.push(list, slot);
        self.places[slot as usize] = place;
    }

    fn take(&mut self, slot: SlotId) {
        let list = match std::mem::replace(&mut self.places[slot as usize], Place::None) {
            Place::Window => &mut self.window,
            Place::Probation => &mut self.probation,
            Place::Protected => &mut self.protected,
            Place::None => unreachable!("slot {slot} is not in use"),
        };
        self.links.unlink(list, slot);
    }
}

impl Replacement for WTinyLfu {
    fn insert(&mut self, slot: SlotId, key: BlockKey) {
        self.keys[slot as usize] = key;
        self.sketch.increment(key);
        self.push(Place::Window, slot);
        if self.window.len() > self.window_limit {
            let oldest = self.window.oldest();
            self.take(oldest);
            self.push(Place::Probation, oldest);
        }
    }

    fn touch(&mut self, slot: SlotId) {
        self.sketch.increment(self.keys[slot as usize]);
        match self.places[slot as usize] {
            Place::Window => self.links.touch(&mut self.window, slot),
            Place::Protected => self.links.touch(&mut self.protected, slot),
            Place::Probation => {
                self.take(slot);
                self.push(Place::Protected, slot);
                if self.protected.len() > self.protected_limit {
                    let oldest = self.protected.oldest();
                    self.take(oldest);
                    self.push(Place::Probation, oldest);
                }
            }
            Place::None => unreachable!("slot {slot} is not in use"),
        }
    }

    fn remove(&mut self, slot: SlotId, _key: BlockKey) {
        self.take(slot);
    }

    fn victim(
        &mut self,
        _incoming: Option<BlockKey>,
        mut evictable: impl FnMut(SlotId) -> bool,
    ) -> Option<SlotId> {
        let mut coldest = |list: &List| first_evictable(self.links.iter(list), &mut evictable);
        let resident = coldest(&self.probation).or_else(|| coldest(&self.protected));
        let free = self.keys.len() - self.len();
        let overfull = self.window.len() + free >= self.window_limit;
        let candidate = if overfull || resident.is_none() {
            coldest(&self.window)
        } else {
            None
        };
        let victim = match (candidate, resident) {
            (Some(candidate), Some(resident)) => {
                let uses = |slot: SlotId| self.sketch.estimate(self.keys[slot as usize]);
                if uses(candidate) > uses(resident) {
                    self.take(candidate);
                    self.push(Place::Probation, candidate);
                    resident
                } else {
                    candidate
                }
            }
            (candidate, resident) => candidate.or(resident)?,
        };
        self.take(victim);
        Some(victim)
    }

    fn len(&self) -> usize {
        self.window.len() + self.probation.len() + self.protected.len()
    }

    fn memory_bytes(&self) -> usize {
        self.keys.capacity() * size_of::<BlockKey>()
            + self.links.memory_bytes()
            + self.places.capacity() * size_of::<Place>()
            + self.sketch.memory_bytes()
    }
}
