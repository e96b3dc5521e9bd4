//! Index from a block's address to its slot.

use forebay_policy::BlockKey;
use hashbrown::HashTable;

/// Number of a slot of the cache device, which holds the data of one cache block.
pub type SlotId = u32;

/// Hash index. It stores only slot numbers, and the keys are stored with the slots. So an entry
/// takes five bytes divided by the load factor.
#[derive(Debug)]
pub struct BlockIndex {
    table: HashTable<SlotId>,
}

impl BlockIndex {
    /// Returns an index with space for `slots` entries, so that it never grows in service.
    #[must_use]
    pub fn new(slots: usize) -> Self {
        Self {
            table: HashTable::with_capacity(slots),
        }
    }

    /// Returns the slot that holds `key`. `key_of` returns a slot's key.
    #[inline]
    pub fn get(&self, key: BlockKey, key_of: impl Fn(SlotId) -> BlockKey) -> Option<SlotId> {
        self.table
            .find(key.hash(), |&slot| key_of(slot) == key)
            .copied()
    }

    /// Adds `slot` under `key`, which must not be in the index.
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

    /// Returns the number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Returns whether there is no entry.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Returns the memory in use, bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.table.allocation_size()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_index_finds_inserted_keys_and_no_others() {
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
