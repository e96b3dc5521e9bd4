//! Reuse distances: the number of other blocks referenced since the last reference to a block.

use hashbrown::HashTable;

/// Least number of positions before they are compacted.
const MIN_POSITIONS: usize = 1024;

#[derive(Clone, Copy, Debug)]
struct Last {
    key: u64,
    position: u32,
}

/// Time of the last reference of each block, and a Fenwick tree that counts last references by
/// time. The distance of a block is the count after its own time. The position of an earlier
/// reference is dead. When all positions are used, the live ones are compacted, so that memory
/// grows with the blocks and not with the references. O(log blocks) for each reference.
#[derive(Debug)]
pub(super) struct Distances {
    lasts: HashTable<Last>,
    /// Block of the reference at each position, live or dead.
    keys: Vec<u64>,
    /// Fenwick tree over the positions, one-based: 1 for each live one.
    tree: Vec<u32>,
    /// The next position.
    now: usize,
}

impl Distances {
    /// Returns an empty set with memory for this many blocks. More blocks make it grow.
    pub(super) fn with_capacity(blocks: usize) -> Self {
        let positions = (2 * blocks).max(MIN_POSITIONS);
        Self {
            lasts: HashTable::with_capacity(2 * blocks),
            keys: vec![0; positions],
            tree: vec![0; positions + 1],
            now: 0,
        }
    }

    /// Adds a reference. Returns the distance, or `None` for the first reference of a block.
    pub(super) fn reference(&mut self, key: u64) -> Option<u64> {
        if self.now == self.keys.len() {
            self.compact();
        }
        let position = self.now as u32;
        let found = self.lasts.find_mut(mix(key), |last| last.key == key);
        let distance = if let Some(last) = found {
            let before = std::mem::replace(&mut last.position, position) as usize;
            let newer = self.lasts.len() - self.count(before + 1);
            self.add(before, u32::MAX);
            Some(newer as u64)
        } else {
            let last = Last { key, position };
            self.lasts
                .insert_unique(mix(key), last, |last| mix(last.key));
            None
        };
        self.keys[self.now] = key;
        self.add(self.now, 1);
        self.now += 1;
        distance
    }

    /// Removes a block.
    pub(super) fn remove(&mut self, key: u64) {
        if let Ok(entry) = self.lasts.find_entry(mix(key), |last| last.key == key) {
            let position = entry.remove().0.position as usize;
            self.add(position, u32::MAX);
        }
    }

    /// Returns the number of blocks.
    pub(super) fn len(&self) -> usize {
        self.lasts.len()
    }

    /// Returns the number of live ones among the first `positions`.
    fn count(&self, positions: usize) -> usize {
        let mut sum = 0;
        let mut node = positions;
        while node > 0 {
            sum += self.tree[node] as usize;
            node &= node - 1;
        }
        sum
    }

    /// Adds to a position's count; `u32::MAX` subtracts one.
    fn add(&mut self, position: usize, count: u32) {
        let mut node = position + 1;
        while node < self.tree.len() {
            self.tree[node] = self.tree[node].wrapping_add(count);
            node += node & node.wrapping_neg();
        }
    }

    fn compact(&mut self) {
        let mut live = 0;
        for position in 0..self.now {
            let key = self.keys[position];
            let last = self.lasts.find_mut(mix(key), |last| last.key == key);
            if let Some(last) = last
                && last.position as usize == position
            {
                last.position = live as u32;
                self.keys[live] = key;
                live += 1;
            }
        }
        self.now = live;
        let positions = (2 * live).max(self.keys.len());
        assert!(
            u32::try_from(positions).is_ok(),
            "blocks are counted in 31 bits"
        );
        self.keys.resize(positions, 0);
        self.tree.clear();
        self.tree.resize(positions + 1, 0);
        // The lowest set bit of n is the number of positions, up to the n-th, that node n counts.
        for node in 1..=positions {
            let first = node & (node - 1);
            self.tree[node] = (node.min(live) - first.min(live)) as u32;
        }
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.lasts.allocation_size()
            + self.keys.capacity() * size_of::<u64>()
            + self.tree.capacity() * size_of::<u32>()
    }
}

/// Returns a hash of 64 bits (the finalizer of splitmix64, by S. Vigna).
pub(super) const fn mix(key: u64) -> u64 {
    let mut z = key.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_by_hand() {
        let mut distances = Distances::with_capacity(4);
        let found: Vec<_> = [1, 2, 3, 1, 1, 3, 2]
            .map(|key| distances.reference(key))
            .into();
        assert_eq!(
            found,
            [None, None, None, Some(2), Some(0), Some(1), Some(2)]
        );
        distances.remove(3);
        assert_eq!(distances.reference(1), Some(1), "only 2 lies between");
        assert_eq!((distances.reference(3), distances.len()), (None, 3));
    }

    #[test]
    fn compaction_changes_nothing() {
        let mut distances = Distances::with_capacity(1);
        let mut stack: Vec<u64> = Vec::new();
        let mut state = 1_u64;
        for _ in 0..20_000 {
            state = mix(state);
            let key = state % 700 % (1 + state / 700 % 700);
            let at = stack.iter().rposition(|&other| other == key);
            let expected = at.map(|at| (stack.len() - 1 - at) as u64);
            if let Some(at) = at {
                stack.remove(at);
            }
            if state >> 60 == 0 && at.is_some() {
                distances.remove(key);
                continue;
            }
            stack.push(key);
            assert_eq!(distances.reference(key), expected);
        }
        assert_eq!(distances.len(), stack.len());
        assert!(distances.keys.len() <= 2 * 1024);
    }
}
