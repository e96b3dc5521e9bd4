//! CLOCK: approximates LRU with one bit for each slot.

use forebay_policy::BlockKey;

use super::{LOOK_AT, Replacement, SlotId};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Empty,
    Unreferenced,
    Referenced,
}

/// A hand circles over the slots. It clears the bits of slots used since its last pass, and evicts
/// the first slot without a bit. From F. J. Corbató, "A Paging Experiment with the Multics System",
/// 1968. A block is inserted without its bit. 1 byte for each slot.
#[derive(Debug)]
pub struct Clock {
    states: Vec<State>,
    hand: usize,
    len: usize,
}

impl Clock {
    /// Returns the policy for slots `0..slots`.
    #[must_use]
    pub fn new(slots: usize) -> Self {
        Self {
            states: vec![State::Empty; slots],
            hand: 0,
            len: 0,
        }
    }
}

impl Replacement for Clock {
    #[inline]
    fn insert(&mut self, slot: SlotId, _key: BlockKey) {
        debug_assert_eq!(self.states[slot as usize], State::Empty);
        self.states[slot as usize] = State::Unreferenced;
        self.len += 1;
    }

    #[inline]
    fn touch(&mut self, slot: SlotId) {
        debug_assert_ne!(self.states[slot as usize], State::Empty);
        self.states[slot as usize] = State::Referenced;
    }

    fn remove(&mut self, slot: SlotId, _key: BlockKey) {
        debug_assert_ne!(self.states[slot as usize], State::Empty);
        self.states[slot as usize] = State::Empty;
        self.len -= 1;
    }

    fn victim(
        &mut self,
        _incoming: Option<BlockKey>,
        mut evictable: impl FnMut(SlotId) -> bool,
    ) -> Option<SlotId> {
        let mut refused = 0;
        // In the second round no bit is set.
        for _ in 0..2 * self.states.len() {
            let at = self.hand;
            self.hand = if at + 1 == self.states.len() {
                0
            } else {
                at + 1
            };
            match self.states[at] {
                State::Empty => {}
                State::Referenced => self.states[at] = State::Unreferenced,
                State::Unreferenced if evictable(at as SlotId) => {
                    self.states[at] = State::Empty;
                    self.len -= 1;
                    return Some(at as SlotId);
                }
                State::Unreferenced => {
                    refused += 1;
                    if refused == LOOK_AT {
                        return None;
                    }
                }
            }
        }
        None
    }

    fn len(&self) -> usize {
        self.len
    }

    fn memory_bytes(&self) -> usize {
        self.states.capacity() * size_of::<State>()
    }
}
