//! Where blocks lie: groups, the size of the blocks of each, and which of its slots are in use.
//!
//! The blocks of a group have consecutive numbers. So the slot says the number, and a group's
//! blocks are adjacent in memory.

use std::ops::Range;

use super::GroupId;
use super::numbers::Numbers;
use crate::adaptive::ids::{BlockId, Slot};
use crate::adaptive::sizes::{BlockSizes, ones};
use crate::bits::BitSet;

/// The groups of a cache.
#[derive(Debug)]
pub(in crate::adaptive) struct Groups {
    /// Units of the cache; the last group may have fewer than the others.
    units: u32,
    /// Units of a group, as a power of two.
    shift: u8,
    /// The number of the block in the first slot of each.
    first: Vec<u32>,
    /// None where blocks have one size: a block has the number of its slot.
    numbers: Option<Numbers>,
    /// The size of the blocks of each.
    classes: Vec<u8>,
    /// A bit for each unit of the cache: those of a group are its slots, from the first on.
    used: Vec<u64>,
    free: BitSet,
    free_count: u32,
    /// By class: groups with free slots, the units of those slots, and the group that was filled
    /// last.
    holes: [BitSet; 8],
    hole_units: [u32; 8],
    filling: [GroupId; 8],
}

impl Groups {
    pub(super) fn new(sizes: BlockSizes, units: u32) -> Self {
        let shift = if sizes.top() == 0 { 6 } else { sizes.top() };
        let count = if sizes.top() == 0 {
            units.div_ceil(1 << shift)
        } else {
            units >> shift
        };
        let number = count as usize;
        let mut free = BitSet::new(number);
        (0..number).for_each(|group| {
            free.insert(group);
        });
        Self {
            units,
            shift,
            first: (0..count).map(|group| group << shift).collect(),
            numbers: (sizes.top() > 0).then(|| Numbers::new(sizes.top(), count)),
            classes: vec![0; number],
            used: vec![0; (number << shift).div_ceil(64)],
            free,
            free_count: count,
            holes: std::array::from_fn(|class| {
                BitSet::new(if sizes.has(class as u8) { number } else { 0 })
            }),
            hole_units: [0; 8],
            filling: [0; 8],
        }
    }

    pub(super) fn len(&self) -> usize {
        self.first.len()
    }

    /// Units that blocks may lie in.
    pub(super) fn units(&self) -> u32 {
        self.units
            .min((self.len() as u64 * (1 << self.shift)) as u32)
    }

    pub(super) const fn free(&self) -> u32 {
        self.free_count
    }

    /// Units of free slots of a class, those of free groups not counted.
    #[inline]
    pub(super) const fn hole_units(&self, class: u8) -> u32 {
        self.hole_units[class as usize]
    }

    /// Units of free groups, if all groups are as long as the first.
    #[inline]
    pub(super) const fn free_units(&self) -> u32 {
        self.free_count << self.shift
    }

    #[inline]
    pub(super) const fn of(&self, slot: Slot) -> GroupId {
        slot.get() >> self.shift
    }

    /// Returns the number of blocks of a class that a group holds.
    pub(super) fn slots(&self, group: GroupId, class: u8) -> u32 {
        let first = group << self.shift;
        (self.units - first).min(1 << self.shift) >> class
    }

    /// Slots of a group that are in use.
    #[inline]
    pub(super) fn used(&self, group: GroupId) -> u64 {
        let at = group << self.shift;
        self.used[at as usize / 64] >> (at % 64) & ones(1 << self.shift)
    }

    /// The size of the blocks of a group that is in use.
    #[inline]
    pub(super) fn class(&self, group: GroupId) -> u8 {
        self.classes[group as usize]
    }

    /// How many slots of its group are before a slot.
    #[inline]
    const fn nth(&self, slot: Slot, class: u8) -> u32 {
        (slot.get() & ((1 << self.shift) - 1)) >> class
    }

    /// Whether a slot can have a block of a class.
    pub(super) fn fits(&self, slot: Slot, class: u8) -> bool {
        (self.of(slot) as usize) < self.len()
            && slot.get().is_multiple_of(1 << class)
            && self.nth(slot, class) < self.slots(self.of(slot), class)
    }

    /// The number of the block in a slot.
    #[inline]
    pub(super) fn number(&self, slot: Slot, class: u8) -> BlockId {
        BlockId::new(self.first[self.of(slot) as usize] + self.nth(slot, class))
    }

    /// The number of the block in a slot, if that is in use.
    pub(super) fn number_at(&self, slot: Slot) -> Option<BlockId> {
        let group = self.of(slot);
        let class = *self.classes.get(group as usize)?;
        let used = self.fits(slot, class) && self.used(group) >> self.nth(slot, class) & 1 == 1;
        used.then(|| self.number(slot, class))
    }

    /// The numbers for the blocks of a group; none if it is free.
    pub(super) fn numbers_of(&self, group: GroupId) -> Range<u32> {
        let first = self.first[group as usize];
        match self.used(group) {
            0 => first..first,
            _ => first..first + self.slots(group, self.class(group)),
        }
    }

    /// Returns the end of the chunk of numbers that `id` is in. The numbers of any group are in one
    /// chunk.
    pub(super) fn chunk_end(&self, id: BlockId) -> u32 {
        ((id.get() | ((1 << self.shift) - 1)) + 1).min(self.units)
    }

    /// A free slot for a block of a class, in use now: in a group of that class, else in a free
    /// one.
    pub(super) fn take(&mut self, class: u8) -> Option<Slot> {
        let class_index = usize::from(class);
        let holes = &self.holes[class_index];
        // A group is filled before the next one is looked for.
        let hole = match self.hole_units[class_index] {
            0 => None,
            _ => holes
                .next(self.filling[class_index] as usize)
                .or_else(|| holes.next(0)),
        };
        let group = match hole {
            Some(group) => group as GroupId,
            None => {
                let group = self.free.next(0)? as GroupId;
                self.give(group, class);
                group
            }
        };
        self.filling[class_index] = group;
        let nth = (!self.used(group)).trailing_zeros();
        self.fill(group, class, nth);
        Some(Slot::new((group << self.shift) + (nth << class)))
    }

    /// Takes a slot for a block of a class. False if that cannot be, because the group has blocks
    /// of another size or the slot is in use. The block [fits](Groups::fits) there.
    pub(super) fn claim(&mut self, slot: Slot, class: u8) -> bool {
        let group = self.of(slot);
        let nth = self.nth(slot, class);
        let used = self.used(group);
        if used == 0 {
            self.give(group, class);
        } else if self.classes[group as usize] != class || used >> nth & 1 == 1 {
            return false;
        }
        self.fill(group, class, nth);
        true
    }

    /// Gives a free group to a class.
    fn give(&mut self, group: GroupId, class: u8) {
        self.free.remove(group as usize);
        self.free_count -= 1;
        self.classes[group as usize] = class;
        if let Some(numbers) = &mut self.numbers {
            self.first[group as usize] = numbers.take(self.shift - class);
        }
        self.hole_units[usize::from(class)] += self.slots(group, class) << class;
        self.holes[usize::from(class)].insert(group as usize);
    }

    fn fill(&mut self, group: GroupId, class: u8, nth: u32) {
        let at = (group << self.shift) + nth;
        self.used[at as usize / 64] |= 1 << (at % 64);
        self.hole_units[usize::from(class)] -= 1 << class;
        if self.used(group).count_ones() == self.slots(group, class) {
            self.holes[usize::from(class)].remove(group as usize);
        }
    }

    /// Frees a slot, and its group with the last slot in use.
    pub(super) fn release(&mut self, slot: Slot, class: u8) {
        let group = self.of(slot);
        let at = (group << self.shift) + self.nth(slot, class);
        debug_assert!(
            self.classes[group as usize] == class
                && self.used[at as usize / 64] >> (at % 64) & 1 == 1
        );
        self.used[at as usize / 64] &= !(1 << (at % 64));
        let (holes, hole_units) = (
            &mut self.holes[usize::from(class)],
            &mut self.hole_units[usize::from(class)],
        );
        *hole_units += 1 << class;
        holes.insert(group as usize);
        if self.used(group) == 0 {
            self.hole_units[usize::from(class)] -= self.slots(group, class) << class;
            self.holes[usize::from(class)].remove(group as usize);
            self.free.insert(group as usize);
            self.free_count += 1;
            if let Some(numbers) = &mut self.numbers {
                numbers.give_back(self.first[group as usize], self.shift - class);
            }
        }
    }

    pub(super) fn memory_bytes(&self) -> usize {
        let sets = self.holes.iter().chain([&self.free]);
        let numbers = self.numbers.as_ref().map_or(0, Numbers::memory_bytes);
        self.first.len() * (size_of::<u32>() + size_of::<u8>())
            + self.used.len() * size_of::<u64>()
            + sets.map(BitSet::memory_bytes).sum::<usize>()
            + numbers
    }
}
