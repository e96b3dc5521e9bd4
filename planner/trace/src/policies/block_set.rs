//! A cache without data, for comparing policies.

use forebay_policy::BlockKey;

use super::{BlockIndex, Replacement, SlotId};

/// Blocks in a cache with a policy, if every missed block is inserted.
#[derive(Debug)]
pub struct BlockSet<R> {
    index: BlockIndex,
    keys: Vec<BlockKey>,
    policy: R,
    slots: usize,
}

impl<R: Replacement> BlockSet<R> {
    /// Returns an empty cache of `slots` slots, at least one. The policy must have as many.
    #[must_use]
    pub fn new(slots: usize, policy: R) -> Self {
        assert!(slots > 0, "a cache has slots");
        Self {
            // Twice the number of entries, so that evictions rehash in place instead of growing.
            index: BlockIndex::new(2 * slots),
            keys: Vec::with_capacity(slots),
            policy,
            slots,
        }
    }

    /// References a block and inserts it if missing. Returns whether it was cached.
    pub fn reference(&mut self, key: BlockKey) -> bool {
        let keys = &mut self.keys;
        if let Some(slot) = self.index.get(key, |slot| keys[slot as usize]) {
            self.policy.touch(slot);
            return true;
        }
        let slot = if keys.len() < self.slots {
            keys.push(key);
            (keys.len() - 1) as SlotId
        } else {
            let slot = self
                .policy
                .victim(Some(key), |_| true)
                .expect("a full cache in which nothing is refused has a victim");
            self.index
                .remove(keys[slot as usize], |other| keys[other as usize]);
            keys[slot as usize] = key;
            slot
        };
        self.index
            .insert(key, slot, |other| self.keys[other as usize]);
        self.policy.insert(slot, key);
        false
    }

    /// Returns the policy.
    #[must_use]
    pub const fn policy(&self) -> &R {
        &self.policy
    }

    /// Returns the number of cached blocks.
    #[must_use]
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Returns whether no block is cached.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }
}
