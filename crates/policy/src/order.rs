//! Which dirty block is cleaned next: a hand goes round over all of them.
//!
//! Who is asked to clean a block that was written to since the hand came by last should leave it until the
//! next round: then those go first that have been left alone longest, about, for one bit a slot.

use crate::SlotId;
use crate::bits::BitSet;

/// Dirty slots, and a hand that goes over them. A slot stands in it at most once; slots that were cleaned
/// or evicted meanwhile are skipped by the caller.
#[derive(Debug, Default)]
pub struct DirtySweep {
    slots: BitSet,
    /// The slot at the hand.
    hand: usize,
    len: usize,
}

impl DirtySweep {
    /// An empty one for slots below `slots`.
    #[must_use]
    pub fn new(slots: usize) -> Self {
        Self {
            slots: BitSet::new(slots),
            hand: 0,
            len: 0,
        }
    }

    /// Adds a slot.
    ///
    /// # Panics
    /// If there is no such slot.
    pub fn push(&mut self, slot: SlotId) {
        self.len += usize::from(self.slots.insert(slot as usize));
    }

    /// Takes the next one off.
    pub fn pop(&mut self) -> Option<SlotId> {
        let slot = self.slots.next(self.hand).or_else(|| self.slots.next(0))?;
        self.slots.remove(slot);
        self.len -= 1;
        self.hand = slot + 1;
        SlotId::try_from(slot).ok()
    }

    /// Number of slots.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Bytes of memory that it takes.
    #[must_use]
    pub const fn memory_bytes(&self) -> usize {
        self.slots.memory_bytes()
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
