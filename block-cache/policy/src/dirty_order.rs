//! Index of a volume's dirty blocks in the order of addresses. A hand passes over them as an
//! elevator does, so that a disk's arm travels little and neighbours are written together.
//!
//! A bit stands for a stretch of the volume: a window of blocks that are written back together. For
//! a volume of more than 4 TiB it stands for several windows. If the bit is set, blocks there may
//! be dirty.

use std::ops::Range;

use crate::bits::BitSet;

/// Stretches of a volume: 2 MiB of memory.
const STRETCHES: u64 = 1 << 24;
/// Parts of a volume of which the fullest is looked for.
const PARTS: usize = 64;

/// The dirty stretches of a volume, and a hand that goes over them.
#[derive(Debug, Default)]
pub struct DirtyOrder {
    set: BitSet,
    /// Stretches that there is room for.
    bound: usize,
    /// Windows in a stretch, as a power of two.
    shift: u32,
    /// The stretch at the hand.
    hand: usize,
    len: usize,
    rounds: u64,
}

impl DirtyOrder {
    /// Makes room for a volume that ends in this window, so that nothing has to be made later.
    pub fn reserve(&mut self, last: u64) {
        while last >> self.shift >= STRETCHES {
            self.coarsen();
        }
        #[expect(clippy::cast_possible_truncation, reason = "below STRETCHES")]
        let needed = (last >> self.shift) as usize + 1;
        if needed > self.bound {
            self.bound = needed.next_power_of_two().max(64);
            self.set.grow(self.bound);
        }
    }

    /// Stretches become twice as long.
    fn coarsen(&mut self) {
        let old = std::mem::take(&mut self.set);
        self.set = BitSet::new(self.bound);
        self.shift += 1;
        self.hand /= 2;
        self.len = 0;
        let mut at = 0;
        while let Some(stretch) = old.next(at) {
            self.len += usize::from(self.set.insert(stretch / 2));
            at = stretch + 1;
        }
    }

    /// Something in a window is dirty.
    pub fn insert(&mut self, window: u64) {
        self.reserve(window);
        #[expect(clippy::cast_possible_truncation, reason = "there is room for it")]
        let stretch = (window >> self.shift) as usize;
        self.len += usize::from(self.set.insert(stretch));
    }

    /// Takes the next stretch off: its windows, of which some may be clean by now.
    pub fn pop(&mut self) -> Option<Range<u64>> {
        let stretch = self.set.next(self.hand).or_else(|| {
            self.rounds += 1;
            self.set.next(0)
        })?;
        self.set.remove(stretch);
        self.len -= 1;
        self.hand = stretch + 1;
        let first = (stretch as u64) << self.shift;
        Some(first..first + (1 << self.shift))
    }

    /// Moves the hand to the part of the volume where most is dirty, unless it is within one.
    /// Returns where that part ends, for the next call.
    pub fn seek_fullest(&mut self, end: usize) -> usize {
        let size = self.bound.div_ceil(PARTS).max(1);
        let before = self.set.next(self.hand).is_some_and(|next| next < end);
        if before && self.hand < end {
            return end;
        }
        let parts = (0..self.bound)
            .step_by(size)
            .map(|first| first..(first + size).min(self.bound));
        // Of several, the first.
        let fullest = parts.rev().max_by_key(|part| self.set.count(part.clone()));
        let Some(part) = fullest else { return 0 };
        self.hand = part.start;
        part.end
    }

    /// Stretches of which something may be dirty.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing is dirty.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How often the hand came to the end.
    #[must_use]
    pub const fn rounds(&self) -> u64 {
        self.rounds
    }

    /// Bytes of memory.
    #[must_use]
    pub const fn memory_bytes(&self) -> usize {
        self.set.memory_bytes()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_hand_goes_round_in_order(
            steps in prop::collection::vec((any::<bool>(), 0u64..9000), 1..400),
        ) {
            let (mut order, mut model, mut hand) = (DirtyOrder::default(), BTreeSet::new(), 0);
            let mut rounds = 0;
            for (insert, window) in steps {
                if insert {
                    order.insert(window);
                    model.insert(window);
                } else {
                    let ahead = model.range(hand..).next().copied();
                    rounds += u64::from(ahead.is_none());
                    let next = ahead.or_else(|| model.first().copied());
                    prop_assert_eq!(order.pop(), next.map(|next| next..next + 1));
                    if let Some(next) = next {
                        model.remove(&next);
                        hand = next + 1;
                    }
                }
                prop_assert_eq!((order.len(), order.rounds()), (model.len(), rounds));
            }
        }

        /// However large the volume is, dirty blocks are in the popped stretches, in order, and
        /// memory has a bound.
        #[test]
        fn large_volumes_have_longer_stretches(
            windows in prop::collection::btree_set(0u64..1 << 40, 1..40),
        ) {
            let mut order = DirtyOrder::default();
            for window in &windows {
                order.insert(*window);
            }
            prop_assert!(order.memory_bytes() <= 3 << 20);
            let (mut found, mut last) = (0, 0);
            while let Some(stretch) = order.pop() {
                prop_assert!(stretch.start >= last);
                last = stretch.end;
                found += windows.range(stretch).count();
            }
            prop_assert_eq!(found, windows.len());
        }
    }

    #[test]
    fn the_fullest_part_comes_first() {
        let mut order = DirtyOrder::default();
        order.reserve(6399);
        let windows = [5, 700, 701, 702, 6300, 6301];
        for window in windows {
            order.insert(window);
        }
        let mut end = 0;
        let mut popped = Vec::new();
        while !order.is_empty() {
            end = order.seek_fullest(end);
            popped.extend(order.pop().map(|stretch| stretch.start));
        }
        assert_eq!(popped, [700, 701, 702, 6300, 6301, 5]);
    }
}
