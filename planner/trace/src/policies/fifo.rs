//! First in, first out.

use forebay_policy::BlockKey;

use super::{LruList, Replacement, SlotId, first_evictable};

/// Evicts the slot that was filled first, regardless of later use. 8 bytes for each slot.
#[derive(Debug)]
pub struct Fifo {
    list: LruList,
    slots: usize,
}

impl Fifo {
    /// Returns the policy for slots `0..slots`.
    #[must_use]
    pub fn new(slots: usize) -> Self {
        Self {
            list: LruList::new(slots),
            slots,
        }
    }
}

impl Replacement for Fifo {
    #[inline]
    fn insert(&mut self, slot: SlotId, _key: BlockKey) {
        self.list.insert(slot);
    }

    #[inline]
    fn touch(&mut self, _slot: SlotId) {}

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
