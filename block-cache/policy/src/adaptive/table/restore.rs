//! A table as it was before: blocks are put back where they lie.

use super::BlockTable;
use crate::adaptive::ids::{BlockId, Slot};
use crate::adaptive::sizes::{BlockSizes, Span};

/// Why a block cannot be put back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misplaced {
    /// There is no such slot, no block of this size begins there, or no volume has such a region.
    NoSuchSlot,
    /// The slot is taken, or its group holds blocks of another size: this one, among others.
    Taken(BlockId),
    /// The slot, or its group with blocks of another size, is waiting to be free.
    Held,
}

impl BlockTable {
    /// Puts a block back where it lies, as the least recent: blocks are put back from the most
    /// recent on, before any is used.
    ///
    /// # Errors
    /// Why that cannot be; nothing is changed then. The caller makes sure that no block overlaps it
    /// in its region.
    pub fn restore(
        &mut self,
        volume: u16,
        region: u64,
        span: Span,
        slot: Slot,
    ) -> Result<BlockId, Misplaced> {
        let numbered = region < BlockSizes::MAX_VOLUME_UNITS >> self.sizes.top();
        if !numbered || !self.sizes.has(span.class) || !self.groups.fits(slot, span.class) {
            return Err(Misplaced::NoSuchSlot);
        }
        if !self.groups.claim(slot, span.class) {
            let group = self.groups.of(slot);
            let same = self.groups.class(group) == span.class;
            let mut blocks = self.blocks_of(group);
            let other = blocks.find(|id| !same || self.slot(*id) == slot);
            return Err(other.map_or(Misplaced::Held, Misplaced::Taken));
        }
        let id = self.fill(volume, region, span, slot);
        self.enter_least(id);
        Ok(id)
    }

    /// Looks at the memory that putting these back changes, at all of it at once.
    /// [`BlockTable::restore`] of one after the other would wait for each piece in turn.
    pub fn look_ahead(&self, coming: impl Iterator<Item = (u16, u64, Span, Slot)>) {
        let looked = coming.map(|(volume, region, span, slot)| {
            let head = self.heads[self.head(volume, region, span.first)];
            let there = self.groups.fits(slot, span.class);
            let id = there.then(|| self.groups.number(slot, span.class));
            let block = id.and_then(|id| self.blocks.get(id.index()));
            head ^ block.map_or(0, |block| block.slot.get())
        });
        std::hint::black_box(looked.fold(0, std::ops::BitXor::bitxor));
    }

    /// Keeps a slot from being given out until [`BlockTable::free_slot`]. Returns whether that
    /// was necessary and possible: it is not where something lies already.
    pub fn hold(&mut self, slot: Slot, class: u8) -> bool {
        // A block that is put there and retired leaves just that.
        match self.restore(0, 0, Span { first: 0, class }, slot) {
            Ok(id) => {
                self.retire(id);
                true
            }
            Err(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adaptive::segment::Segment;

    #[test]
    fn restored_blocks_are_evicted_in_order_of_use_and_before_new_blocks() {
        let sizes = BlockSizes::new(&[4096, 8192]).expect("right");
        let span = |class| Span { first: 0, class };
        let mut table = BlockTable::new(sizes, 8);
        let mut blocks = Vec::new();
        // Regions 5, 4, ... 1, of two sizes, from the most recent on. Blocks held meanwhile leave
        // no trace.
        for (nth, region) in (1..=5).rev().enumerate() {
            let (slot, class) = (Slot::new(2 * nth as u32), (region % 2) as u8);
            table.look_ahead(std::iter::once((1, region, span(class), slot)));
            assert!(table.hold(Slot::new(15), 0), "nothing lies there");
            table.free_slot(Slot::new(15), 0);
            blocks.push(table.restore(1, region, span(class), slot).expect("free"));
        }
        let new = table.allocate(1, 9, span(0)).expect("there is room");
        let ages: Vec<u32> = blocks.iter().map(|id| table.age(*id)).collect();
        assert_eq!(ages, [1, 2, 3, 4, 5], "uses since, by then");
        assert_eq!(table.age(new), 0);
        let beyond = BlockSizes::MAX_VOLUME_UNITS / 2;
        let refused = table.restore(1, beyond, span(0), Slot::new(14));
        assert_eq!(refused, Err(Misplaced::NoSuchSlot));
        // From the least recent on.
        let mut removed = Vec::new();
        while let Some(id) = table.coldest(Segment::Probation) {
            removed.push(table.address(id).1);
            table.remove(id);
        }
        assert_eq!(removed, [1, 2, 3, 4, 5, 9]);
    }
}
