//! Collaborative active write-back (Co-Active): blocks that are written again soon are hot, by a
//! Bloom filter; dirty and clean ones have lists of their own. While the device is idle, cold dirty
//! blocks are written to it and stay as clean copies, which make room without a write. A write that
//! finds none waits for an eviction.

use crate::policy::{Admission, Decide, LINK_BYTES, Links, List, NONE, Slots, View};

/// Blocks that the filter takes before it is emptied, for each slot.
const REMEMBERED: usize = 2;
/// Bits of the filter for each of them, and how many of these a block sets. About one in fifty
/// blocks is taken for hot by mistake.
const BITS: usize = 8;
const HASHES: u64 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Place {
    Hot,
    Cold,
    Clean,
    Nowhere,
}

#[derive(Debug)]
pub(crate) struct CoActive {
    links: Links,
    /// By [`Place`], oldest first.
    lists: [List; 3],
    places: Box<[Place]>,
    /// Whether the block of a slot is hot, for when it comes back.
    hot: Box<[bool]>,
    filter: Filter,
}

#[derive(Debug)]
struct Filter {
    bits: Box<[u64]>,
    len: usize,
    most: usize,
}

impl Filter {
    fn new(most: usize) -> Self {
        let words = (most * BITS).next_power_of_two().div_ceil(64).max(1);
        Self {
            bits: vec![0; words].into(),
            len: 0,
            most,
        }
    }

    /// Takes a block in; whether it had, as far as it knows.
    fn insert(&mut self, block: u64) -> bool {
        if self.len >= self.most {
            self.bits.fill(0);
            self.len = 0;
        }
        let mut known = true;
        let mask = self.bits.len() * 64 - 1;
        for hash in 1..=HASHES {
            let mixed = (block ^ hash << 56).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
            let bit = mixed as usize & mask;
            let word = &mut self.bits[bit / 64];
            known &= *word >> (bit % 64) & 1 == 1;
            *word |= 1 << (bit % 64);
        }
        self.len += usize::from(!known);
        known
    }
}

impl CoActive {
    pub(crate) fn new(slots: usize) -> Self {
        Self {
            links: Links::new(slots),
            lists: [List::default(); 3],
            places: vec![Place::Nowhere; slots].into(),
            hot: vec![false; slots].into(),
            filter: Filter::new(slots * REMEMBERED),
        }
    }

    fn put(&mut self, slot: u32, place: Place, before: u32) {
        self.places[slot as usize] = place;
        self.lists[place as usize].insert(&mut self.links, slot, before);
    }

    fn take(&mut self, slot: u32) {
        let place = std::mem::replace(&mut self.places[slot as usize], Place::Nowhere);
        self.lists[place as usize].remove(&mut self.links, slot);
    }

    fn dirty_place(&self, slot: u32) -> Place {
        match self.hot[slot as usize] {
            true => Place::Hot,
            false => Place::Cold,
        }
    }

    fn oldest(&self, place: Place) -> Option<u32> {
        self.lists[place as usize].front()
    }
}

impl Decide for CoActive {
    fn admit(&mut self, slots: &Slots, _block: u64) -> Admission {
        match self.oldest(Place::Clean) {
            _ if slots.room() > 0 => Admission::Slot,
            Some(copy) => Admission::Instead(copy),
            None => Admission::Wait,
        }
    }

    fn next(&mut self, view: View<'_>) -> Option<u32> {
        let cold = self.oldest(Place::Cold);
        if view.idle && cold.is_some() {
            return cold;
        }
        let available = view.slots.room() + self.lists[Place::Clean as usize].len();
        cold.or(self.oldest(Place::Hot))
            .filter(|_| available + view.evicting < view.waiting)
    }

    fn entered(&mut self, slot: u32, block: u64) {
        self.hot[slot as usize] = self.filter.insert(block);
        self.put(slot, self.dirty_place(slot), NONE);
    }

    fn read(&mut self, slot: u32) {
        let place = self.places[slot as usize];
        self.take(slot);
        self.put(slot, place, NONE);
    }

    fn began(&mut self, slot: u32) {
        self.take(slot);
    }

    fn returned(&mut self, slot: u32) {
        let place = self.dirty_place(slot);
        let oldest = self.oldest(place).unwrap_or(NONE);
        self.put(slot, place, oldest);
    }

    fn left(&mut self, slot: u32, is_copy: bool) {
        if is_copy {
            self.put(slot, Place::Clean, NONE);
        }
    }

    fn dropped(&mut self, slot: u32) {
        self.take(slot);
    }

    fn keeps(&self) -> bool {
        true
    }

    fn uses_idle_time(&self) -> bool {
        true
    }

    fn slot_bytes(&self) -> usize {
        LINK_BYTES + 2 + REMEMBERED * BITS / 8
    }
}
