//! From a block's address to the slot that holds it.

use forebay_policy::BlockKey;
use hashbrown::HashTable;

/// A slot of the cache device: where one cache block's data lies.
pub type SlotId = u32;

/// The hash index. It stores slot numbers only; the keys stay with the slots, so that an entry
/// costs five bytes and the load factor.
#[derive(Debug)]
pub struct BlockIndex {
    table: HashTable<SlotId>,
}

impl BlockIndex {
    /// An index with room for `slots` entries, so that it never grows in service.
    #[must_use]
    pub fn new(slots: usize) -> Self {
        Self {
            table: HashTable::with_capacity(slots),
        }
    }

    /// The slot that holds `key`. `key_of` tells a slot's key.
    #[inline]
    pub fn get(&self, key: BlockKey, key_of: impl Fn(SlotId) -> BlockKey) -> Option<SlotId> {
        self.table
            .find(key.hash(), |&slot| key_of(slot) == key)
            .copied()
    }

    /// Adds `slot` under `key`, which is not in the index.
    pub fn insert(&mut self, key: BlockKey, slot: SlotId, key_of: impl Fn(SlotId) -> BlockKey) {
        debug_assert!(self.get(key, &key_of).is_none(), "{key:?} is indexed twice");
        self.table
            .insert_unique(key.hash(), slot, |&other| key_of(other).hash());
    }

    /// Removes `key`. Returns the slot that held it.
    pub fn remove(&mut self, key: BlockKey, key_of: impl Fn(SlotId) -> BlockKey) -> Option<SlotId> {
        self.table
            .find_entry(key.hash(), |&slot| key_of(slot) == key)
            .ok()
            .map(|entry| entry.remove().0)
    }

    /// Number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether there is no entry.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Bytes of memory that the index holds.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.table.allocation_size()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_what_was_put_in_and_nothing_else() {
        let keys: Vec<_> = (0..1000)
            .map(|block| BlockKey::new((block % 3) as u16, block / 3))
            .collect();
        let key_of = |slot: SlotId| keys[slot as usize];
        let mut index = BlockIndex::new(keys.len());
        for slot in 0..1000 {
            index.insert(keys[slot as usize], slot, key_of);
        }
        for slot in (0..1000).step_by(2) {
            assert_eq!(index.remove(keys[slot as usize], key_of), Some(slot));
        }
        for slot in 0..1000 {
            let expected = (slot % 2 == 1).then_some(slot);
            assert_eq!(index.get(keys[slot as usize], key_of), expected);
        }
        assert_eq!(index.get(BlockKey::new(9, 9), key_of), None);
        assert_eq!(index.len(), 500);
    }
}
