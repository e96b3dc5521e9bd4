//! Which dirty block is cleaned next: a hand goes round over all of them.
//!
//! Who is asked to clean a block that was written to since the hand came by last should leave it until the
//! next round: then those go first that have been left alone longest, about, for one bit a slot.

use crate::SlotId;

/// Dirty slots, and a hand that goes over them. A slot stands in it at most once; slots that were cleaned
/// or evicted meanwhile are skipped by the caller.
#[derive(Debug, Default)]
pub struct DirtySweep {
    /// A bit a slot, and above it a bit for each word that has one.
    bits: Vec<u64>,
    words: Vec<u64>,
    /// The slot at the hand.
    hand: usize,
    len: usize,
}

impl DirtySweep {
    /// An empty one for slots below `slots`.
    #[must_use]
    pub fn new(slots: usize) -> Self {
        let bits = vec![0; slots.div_ceil(64)];
        let words = vec![0; bits.len().div_ceil(64)];
        Self {
            bits,
            words,
            hand: 0,
            len: 0,
        }
    }

    /// Adds a slot.
    ///
    /// # Panics
    /// If there is no such slot.
    pub fn push(&mut self, slot: SlotId) {
        let slot = slot as usize;
        let word = &mut self.bits[slot / 64];
        self.len += usize::from(*word >> (slot % 64) & 1 == 0);
        *word |= 1 << (slot % 64);
        self.words[slot / 4096] |= 1 << (slot / 64 % 64);
    }

    /// Takes the next one off.
    pub fn pop(&mut self) -> Option<SlotId> {
        let slot = self.from(self.hand).or_else(|| self.from(0))?;
        let word = &mut self.bits[slot / 64];
        *word &= !(1 << (slot % 64));
        if *word == 0 {
            self.words[slot / 4096] &= !(1 << (slot / 64 % 64));
        }
        self.len -= 1;
        self.hand = slot + 1;
        SlotId::try_from(slot).ok()
    }

    /// The first slot from `at` on.
    fn from(&self, at: usize) -> Option<usize> {
        let first = at / 64;
        let rest = self.bits.get(first)? & u64::MAX << (at % 64);
        if rest != 0 {
            return Some(first * 64 + rest.trailing_zeros() as usize);
        }
        let next = first + 1;
        let mut mask = u64::MAX << (next % 64);
        for (above, words) in self.words.iter().enumerate().skip(next / 64) {
            let words = words & mask;
            if words != 0 {
                let word = above * 64 + words.trailing_zeros() as usize;
                return Some(word * 64 + self.bits[word].trailing_zeros() as usize);
            }
            mask = u64::MAX;
        }
        None
    }

    /// Number of slots.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_hand_goes_round(steps in prop::collection::vec((any::<bool>(), 0u32..9000), 1..400)) {
            let (mut sweep, mut model, mut hand) = (DirtySweep::new(9000), BTreeSet::new(), 0);
            for (push, slot) in steps {
                if push {
                    sweep.push(slot);
                    model.insert(slot);
                } else {
                    let next = model.range(hand..).next().or_else(|| model.first()).copied();
                    prop_assert_eq!(sweep.pop(), next);
                    if let Some(next) = next {
                        model.remove(&next);
                        hand = next + 1;
                    }
                }
                prop_assert_eq!(sweep.len(), model.len());
            }
        }
    }
}
