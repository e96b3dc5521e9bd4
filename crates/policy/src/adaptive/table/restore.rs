//! A table as it was before: blocks are put back where they lie.

use super::{BlockId, BlockTable, Group, NONE};
use crate::adaptive::sizes::{BlockSizes, Span};

/// Why a block cannot be put back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misplaced {
    /// There is no such place, or no block of this size begins there.
    NoSuchPlace,
    /// The place is taken, or its group holds blocks of another size: this one, among others.
    Taken(BlockId),
    /// The place, or its group with blocks of another size, is waiting to be free.
    Held,
}

impl BlockTable {
    /// An empty table in which blocks are put back. Nothing is free before [`BlockTable::restored`].
    ///
    /// # Panics
    /// As for [`BlockTable::with_units`].
    #[must_use]
    pub fn restoring(sizes: BlockSizes, units: u32) -> Self {
        Self {
            restoring: true,
            ..Self::with_units(sizes, units)
        }
    }

    /// Puts a block back where it lies, as the most recent.
    ///
    /// # Errors
    /// Why that cannot be; nothing is changed then. The caller makes sure that no block overlaps it in
    /// its region.
    pub fn restore(
        &mut self,
        volume: u16,
        region: u64,
        span: Span,
        place: u32,
    ) -> Result<BlockId, Misplaced> {
        debug_assert!(self.restoring);
        let group = place >> self.group_shift;
        let within = place & ((1 << self.group_shift) - 1);
        let slot = within >> span.class;
        let fits = (group as usize) < self.groups.len()
            && self.sizes.has(span.class)
            && within.is_multiple_of(span.units())
            && slot < self.slots(group, span.class);
        if !fits {
            return Err(Misplaced::NoSuchPlace);
        }
        let entry = &self.groups[group as usize];
        if entry.live > 0 && (entry.class != span.class || entry.used() >> slot & 1 == 1) {
            let same = entry.class == span.class;
            let mut blocks = self.blocks_of(group);
            let other = blocks.find(|id| !same || self.place(*id) == place);
            return Err(other.map_or(Misplaced::Held, Misplaced::Taken));
        }
        if entry.live == 0 {
            self.give(group, span.class);
        }
        Ok(self.fill(volume, region, span, group, slot))
    }

    /// Keeps a place from being given out until [`BlockTable::free_place`]. Returns whether that was
    /// necessary and possible: it is not where something lies already.
    pub fn hold(&mut self, place: u32, class: u8) -> bool {
        // A block that is put there and retired leaves just that.
        match self.restore(0, 0, Span { first: 0, class }, place) {
            Ok(id) => {
                self.retire(id);
                true
            }
            Err(_) => false,
        }
    }

    /// Everything was put back: what is not taken is free.
    pub fn restored(&mut self) {
        self.restoring = false;
        self.free_groups = NONE;
        self.free_group_count = 0;
        for group in (0..self.groups.len()).rev() {
            let id = u32::try_from(group).expect("fewer groups than units");
            let Group { class, live, .. } = self.groups[group];
            if live == 0 {
                self.groups[group].first = self.free_groups;
                self.free_groups = id;
                self.free_group_count += 1;
            } else if u32::from(live) < self.slots(id, class) {
                self.holes[usize::from(class)]
                    .push_front(&mut self.groups, id, |group| &mut group.holes);
                self.hole_units[usize::from(class)] +=
                    (self.slots(id, class) - u32::from(live)) << class;
            }
        }
    }
}
