//! LRU order as a doubly linked list over slot numbers: eight bytes for each slot. Free slots are
//! linked through the same memory.

use super::SlotId;

const NONE: SlotId = SlotId::MAX;
/// `prev` of a slot that is not on the list.
const ABSENT: SlotId = SlotId::MAX - 1;

#[derive(Clone, Copy, Debug)]
struct Link {
    prev: SlotId,
    next: SlotId,
}

/// Slots from the most to the least recently used.
#[derive(Debug)]
pub struct LruList {
    links: Vec<Link>,
    head: SlotId,
    tail: SlotId,
    len: usize,
    /// The first free slot; `next` leads to the others.
    free: SlotId,
    free_len: usize,
}

impl LruList {
    /// Returns an empty list for slots `0..slots`.
    #[must_use]
    pub fn new(slots: usize) -> Self {
        Self {
            links: vec![
                Link {
                    prev: ABSENT,
                    next: NONE
                };
                slots
            ],
            head: NONE,
            tail: NONE,
            len: 0,
            free: NONE,
            free_len: 0,
        }
    }

    /// Adds a slot that is not on the list at the most recent end.
    pub fn insert(&mut self, slot: SlotId) {
        debug_assert_eq!(
            self.links[slot as usize].prev, ABSENT,
            "slot {slot} is on the list"
        );
        self.links[slot as usize] = Link {
            prev: NONE,
            next: self.head,
        };
        match self.head {
            NONE => self.tail = slot,
            head => self.links[head as usize].prev = slot,
        }
        self.head = slot;
        self.len += 1;
    }

    /// Removes a slot from the list.
    pub fn remove(&mut self, slot: SlotId) {
        let Link { prev, next } = self.links[slot as usize];
        debug_assert_ne!(prev, ABSENT, "slot {slot} is not on the list");
        match prev {
            NONE => self.head = next,
            prev => self.links[prev as usize].next = next,
        }
        match next {
            NONE => self.tail = prev,
            next => self.links[next as usize].prev = prev,
        }
        self.links[slot as usize] = Link {
            prev: ABSENT,
            next: NONE,
        };
        self.len -= 1;
    }

    /// Frees a slot that is not on the list.
    pub fn release(&mut self, slot: SlotId) {
        debug_assert_eq!(
            self.links[slot as usize].prev, ABSENT,
            "slot {slot} is on the list"
        );
        self.links[slot as usize].next = self.free;
        self.free = slot;
        self.free_len += 1;
    }

    /// Returns the slot that was freed last, which is neither free nor on the list then.
    pub fn take_free(&mut self) -> Option<SlotId> {
        let slot = self.free;
        if slot == NONE {
            return None;
        }
        self.free = std::mem::replace(&mut self.links[slot as usize].next, NONE);
        self.free_len -= 1;
        Some(slot)
    }

    /// Returns the number of free slots.
    #[must_use]
    pub const fn free_len(&self) -> usize {
        self.free_len
    }

    /// Moves a slot to the most recent end.
    #[inline]
    pub fn touch(&mut self, slot: SlotId) {
        if self.head != slot {
            self.remove(slot);
            self.insert(slot);
        }
    }

    /// Returns slots from the least to the most recently used.
    pub fn coldest(&self) -> impl Iterator<Item = SlotId> + '_ {
        let mut at = self.tail;
        std::iter::from_fn(move || {
            let slot = at;
            if slot == NONE {
                return None;
            }
            at = self.links[slot as usize].prev;
            Some(slot)
        })
    }

    /// Returns the number of slots on the list.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns the memory of a list of `slots` slots, bytes.
    #[must_use]
    pub const fn memory_bytes(slots: usize) -> usize {
        slots * size_of::<Link>()
    }

    /// Returns whether the list is empty.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_slots_are_chained_beside_the_list() {
        let mut lru = LruList::new(4);
        for slot in [2, 1, 0] {
            lru.release(slot);
        }
        assert_eq!((lru.free_len(), lru.take_free()), (3, Some(0)));
        lru.insert(0);
        lru.insert(3);
        assert_eq!(lru.take_free(), Some(1));
        lru.insert(1);
        assert_eq!(lru.coldest().collect::<Vec<_>>(), [0, 3, 1]);
        lru.remove(3);
        lru.release(3);
        assert_eq!(lru.take_free(), Some(3));
        assert_eq!(lru.take_free(), Some(2));
        assert_eq!((lru.free_len(), lru.take_free()), (0, None));
        assert_eq!(lru.coldest().collect::<Vec<_>>(), [0, 1]);
    }

    #[test]
    fn behaves_like_a_queue_with_moves() {
        let mut lru = LruList::new(8);
        let mut model: Vec<SlotId> = Vec::new();
        let mut state = 12345_u32;
        for _ in 0..10_000 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let slot = (state >> 16) % 8;
            let at = model.iter().position(|&other| other == slot);
            match (at, state >> 30) {
                (None, _) => {
                    lru.insert(slot);
                    model.push(slot);
                }
                (Some(at), 0) => {
                    lru.remove(slot);
                    model.remove(at);
                }
                (Some(at), _) => {
                    lru.touch(slot);
                    model.remove(at);
                    model.push(slot);
                }
            }
            assert!(lru.coldest().eq(model.iter().copied()));
            assert_eq!(lru.len(), model.len());
        }
    }
}
