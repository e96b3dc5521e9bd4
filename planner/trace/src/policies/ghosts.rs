//! The keys of the slots, and of blocks that were evicted a while ago (ghosts).
//!
//! Ghosts are nodes behind the slots, so that one list may hold both: node `slots + n` is the n-th
//! ghost.

use forebay_policy::BlockKey;

use super::{BlockIndex, SlotId};

/// Keys by node, an index of the ghosts' keys, and the ghost nodes that are not in use.
#[derive(Debug)]
pub(super) struct Keys {
    keys: Vec<BlockKey>,
    slots: usize,
    index: BlockIndex,
    free: Vec<u32>,
}

impl Keys {
    /// For nodes `0..slots + ghosts`, none of which has a key yet.
    pub(super) fn new(slots: usize, ghosts: usize) -> Self {
        let nodes =
            u32::try_from(slots + ghosts).expect("slots and ghosts are numbered in 32 bits");
        let first = nodes - ghosts as u32;
        Self {
            keys: vec![BlockKey::new(0, 0); slots + ghosts],
            slots,
            // Twice as large as it is filled: then removals make it tidy up in place instead of
            // growing.
            index: BlockIndex::new(2 * ghosts),
            free: (first..nodes).rev().collect(),
        }
    }

    /// Whether the node is a ghost.
    #[inline]
    pub(super) fn is_ghost(&self, node: u32) -> bool {
        node as usize >= self.slots
    }

    /// Notes which block the slot holds.
    #[inline]
    pub(super) fn set(&mut self, slot: SlotId, key: BlockKey) {
        self.keys[slot as usize] = key;
    }

    /// The ghost of `key`.
    #[inline]
    pub(super) fn ghost(&self, key: BlockKey) -> Option<u32> {
        self.index.get(key, |node| self.keys[node as usize])
    }

    /// A new ghost of the block that the slot holds.
    ///
    /// # Panics
    /// If all ghosts are in use: the caller forgets one first.
    pub(super) fn remember(&mut self, slot: SlotId) -> u32 {
        let node = self.free.pop().expect("a ghost was forgotten for this one");
        let key = self.keys[slot as usize];
        self.keys[node as usize] = key;
        let keys = &self.keys;
        self.index.insert(key, node, |other| keys[other as usize]);
        node
    }

    /// Forgets a ghost.
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
