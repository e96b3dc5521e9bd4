//! Least recently used.

use forebay_policy::BlockKey;

use super::{LruList, Replacement, SlotId, first_evictable};

/// Evicts the least recently used slot. 8 bytes for each slot.
#[derive(Debug)]
pub struct Lru {
    list: LruList,
    slots: usize,
}

impl Lru {
    /// Returns the policy for slots `0..slots`.
    #[must_use]
    pub fn new(slots: usize) -> Self {
        Self {
            list: LruList::new(slots),
            slots,
        }
    }
}

impl Replacement for Lru {
    #[inline]
    fn insert(&mut self, slot: SlotId, _key: BlockKey) {
        self.list.insert(slot);
    }

    #[inline]
    fn touch(&mut self, slot: SlotId) {
        self.list.touch(slot);
    }

    fn remove(&mut self, slot: SlotId, _key: BlockKey) {
        self.list.remove(slot);
    }

    fn victim(
        &mut self,
        _incoming: Option<BlockKey>,
        mut evictable: impl FnMut(SlotId) -> bool,
    ) -> Option<SlotId> {
        let slot = first_evictable(self.list.coldest(), &mut evictable)?;
        self.list.remove(slot);
        Some(slot)
    }

    fn len(&self) -> usize {
        self.list.len()
    }

    fn memory_bytes(&self) -> usize {
        LruList::memory_bytes(self.slots)
    }
}
