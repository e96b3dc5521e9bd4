//! Keys of the slots, and of recently evicted blocks (ghosts).
//!
//! Ghosts are nodes after the slots, so that one list can hold both: node `slots + n` is ghost n.

use forebay_policy::BlockKey;

use super::{BlockIndex, SlotId};

/// Keys by node, an index of the ghosts' keys, and the unused ghost nodes.
#[derive(Debug)]
pub(super) struct Keys {
    keys: Vec<BlockKey>,
    slots: usize,
    index: BlockIndex,
    free: Vec<u32>,
}

impl Keys {
    /// Returns keys for nodes `0..slots + ghosts`, none of which has a key yet.
    pub(super) fn new(slots: usize, ghosts: usize) -> Self {
        let nodes =
            u32::try_from(slots + ghosts).expect("slots and ghosts are numbered in 32 bits");
        let first = nodes - ghosts as u32;
        Self {
            keys: vec![BlockKey::new(0, 0); slots + ghosts],
            slots,
            // Twice the number of entries, so that removals rehash in place instead of growing.
            index: BlockIndex::new(2 * ghosts),
            free: (first..nodes).rev().collect(),
        }
    }

    /// Returns whether the node is a ghost.
    #[inline]
    pub(super) fn is_ghost(&self, node: u32) -> bool {
        node as usize >= self.slots
    }

    /// Sets the block of a slot.
    #[inline]
    pub(super) fn set(&mut self, slot: SlotId, key: BlockKey) {
        self.keys[slot as usize] = key;
    }

    /// Returns the ghost of `key`.
    #[inline]
    pub(super) fn ghost(&self, key: BlockKey) -> Option<u32> {
        self.index.get(key, |node| self.keys[node as usize])
    }

    /// Adds a ghost of the block in a slot.
    ///
    /// # Panics
    /// If all ghosts are in use: the caller must forget one first.
    pub(super) fn remember(&mut self, slot: SlotId) -> u32 {
        let node = self.free.pop().expect("a ghost was forgotten for this one");
        let key = self.keys[slot as usize];
        self.keys[node as usize] = key;
        let keys = &self.keys;
        self.index.insert(key, node, |other| keys[other as usize]);
        node
    }

    /// Removes a ghost.
    pub(super) fn forget(&mut self, node: u32) {
        let keys = &self.keys;
        let found = self
            .index
            .remove(keys[node as usize], |other| keys[other as usize]);
        debug_assert_eq!(found, Some(node), "a ghost is indexed once");
        self.free.push(node);
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.keys.capacity() * size_of::<BlockKey>()
            + self.free.capacity() * size_of::<u32>()
            + self.index.memory_bytes()
    }
}
