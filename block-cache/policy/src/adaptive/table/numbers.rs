//! Numbers for the blocks of groups: consecutive, and as many as the group has slots. So few large
//! blocks take few numbers.
//!
//! Numbers are allocated in chunks of as many as the largest group has. Chunks are split into
//! halves, quarters and so on, and merged when they are released. So there are never more chunks
//! in use than groups, and the numbers stay below the units of the cache.

use crate::adaptive::sizes::{aligned, ones};
use crate::bits::BitSet;

#[derive(Debug)]
pub(super) struct Numbers {
    /// Numbers of a chunk, as a power of two.
    shift: u8,
    /// Those of each chunk that are given out, a bit each.
    used: Vec<u64>,
    /// Chunks by the longest run that is left in them, as a power of two.
    longest: Vec<BitSet>,
}

/// The runs of `1 << power` bits, aligned to that, in which all are set: their first bits.
fn runs(free: u64, power: u8) -> u64 {
    let all = (0..power).fold(free, |all, half| all & all >> (1 << half));
    all & aligned(power)
}

impl Numbers {
    /// So many chunks of `1 << shift` numbers, none given out.
    pub(super) fn new(shift: u8, chunks: u32) -> Self {
        let count = chunks as usize;
        let mut longest = vec![BitSet::new(count); usize::from(shift) + 1];
        (0..count).for_each(|chunk| {
            longest[usize::from(shift)].insert(chunk);
        });
        Self {
            shift,
            used: vec![0; (count << shift).div_ceil(64)],
            longest,
        }
    }

    fn free(&self, chunk: usize) -> u64 {
        let at = chunk << self.shift;
        !(self.used[at / 64] >> (at % 64)) & ones(1 << self.shift)
    }

    fn longest(&self, chunk: usize) -> Option<usize> {
        let free = self.free(chunk);
        let power = (0..=self.shift).rev().find(|power| runs(free, *power) != 0);
        power.map(usize::from)
    }

    /// Gives out `1 << power` numbers; returns the first.
    ///
    /// # Panics
    /// If more are given out than groups need.
    pub(super) fn take(&mut self, power: u8) -> u32 {
        let mut longest = self.longest[usize::from(power)..].iter();
        let chunk = longest.find_map(|chunks| chunks.next(0));
        let chunk = chunk.expect("a chunk for each group");
        let first = runs(self.free(chunk), power).trailing_zeros() as usize;
        let first = (chunk << self.shift) + first;
        self.change(chunk, first, power);
        first as u32
    }

    /// Takes back what [`Numbers::take`] gave out.
    pub(super) fn give_back(&mut self, first: u32, power: u8) {
        let first = first as usize;
        self.change(first >> self.shift, first, power);
    }

    /// Turns a run from free to used, or back.
    fn change(&mut self, chunk: usize, first: usize, power: u8) {
        let before = self.longest(chunk);
        self.used[first / 64] ^= ones(1 << power) << (first % 64);
        let after = self.longest(chunk);
        if before != after {
            if let Some(before) = before {
                self.longest[before].remove(chunk);
            }
            if let Some(after) = after {
                self.longest[after].insert(chunk);
            }
        }
    }

    pub(super) fn memory_bytes(&self) -> usize {
        let sets = self.longest.iter().map(BitSet::memory_bytes);
        self.used.len() * size_of::<u64>() + sets.sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn runs_are_apart_and_there_is_one_for_each_group(
            steps in prop::collection::vec((0u8..4, 0usize..6), 1..300),
            shift in prop::sample::select(vec![3u8, 6]),
        ) {
            let mut numbers = Numbers::new(shift, 6);
            let mut taken: Vec<(u32, u8)> = Vec::new();
            for (power, which) in steps {
                // Six groups, each with numbers or without.
                if taken.len() == 6 || which < taken.len() / 2 {
                    let (first, power) = taken.swap_remove(which);
                    numbers.give_back(first, power);
                } else {
                    taken.push((numbers.take(power), power));
                }
                let all = taken.iter().flat_map(|(first, power)| *first..*first + (1 << power));
                let all: Vec<u32> = all.collect();
                prop_assert!(all.iter().all(|number| *number < 6 << shift));
                prop_assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
            }
            for (first, power) in taken.drain(..) {
                numbers.give_back(first, power);
            }
            // After merging, whole chunks are available for all.
            let whole = (0..6).map(|_| numbers.take(shift));
            prop_assert!(whole.eq((0..6).map(|chunk| chunk << shift)));
        }
    }
}
