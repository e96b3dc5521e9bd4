//! The set of used pages: exact while it is small enough, then a sample.

use hashbrown::HashTable;

/// Number of pages in one entry.
const GROUP_PAGES: u64 = 64;

/// Memory of an entry, bytes, with the free space of a hash table.
const ENTRY_BYTES: usize = 32;

/// 64 neighbouring pages.
#[derive(Clone, Copy, Debug)]
struct Group {
    number: u64,
    used: u64,
}

/// Used pages, by volume.
///
/// If the set grows too large, every second group of pages is dropped, chosen by hash, now and in
/// future. Each remaining group then stands for twice as many. The error of the estimate is about
/// one over the square root of the number of groups: a tenth of a percent at a million.
#[derive(Clone, Debug)]
pub(super) struct PageSet {
    volumes: Vec<HashTable<Group>>,
    groups: usize,
    max_groups: usize,
    /// Binary logarithm of the sampling interval of groups.
    sampling: u32,
}

fn hash(group: u64) -> u64 {
    // Two multiplications by odd constants, with shifts in between, mix every bit into every other.
    let mut hash = group.wrapping_add(0x9e37_79b9_7f4a_7c15);
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

/// Returns whether a group is in the sample. The hash table uses the highest bits and the lowest.
const fn is_sampled(hash: u64, sampling: u32) -> bool {
    (hash >> 24) & ((1 << sampling) - 1) == 0
}

impl PageSet {
    /// Returns an empty set of about `max_memory_bytes` at most.
    pub(super) fn new(max_memory_bytes: usize) -> Self {
        Self {
            volumes: Vec::new(),
            groups: 0,
            max_groups: (max_memory_bytes / ENTRY_BYTES).max(64),
            sampling: 0,
        }
    }

    /// Adds the pages `first..=last` of a volume.
    pub(super) fn add(&mut self, volume: usize, first: u64, last: u64) {
        if self.volumes.len() <= volume {
            self.volumes.resize_with(volume + 1, HashTable::new);
        }
        for group in first / GROUP_PAGES..=last / GROUP_PAGES {
            let begin = first.max(group * GROUP_PAGES) % GROUP_PAGES;
            let end = last.min(group * GROUP_PAGES + (GROUP_PAGES - 1)) % GROUP_PAGES;
            let used = (u64::MAX << begin) & (u64::MAX >> (GROUP_PAGES - 1 - end));
            self.add_group(volume, group, used);
        }
    }

    fn add_group(&mut self, volume: usize, number: u64, used: u64) {
        let hashed = hash(number);
        if !is_sampled(hashed, self.sampling) {
            return;
        }
        let table = &mut self.volumes[volume];
        if let Some(group) = table.find_mut(hashed, |group| group.number == number) {
            group.used |= used;
            return;
        }
        table.insert_unique(hashed, Group { number, used }, |group| hash(group.number));
        self.groups += 1;
        if self.groups > self.max_groups {
            self.halve();
        }
    }

    #[cold]
    fn halve(&mut self) {
        self.sampling += 1;
        self.groups = 0;
        for table in &mut self.volumes {
            table.retain(|group| is_sampled(hash(group.number), self.sampling));
            table.shrink_to_fit(|group| hash(group.number));
            self.groups += table.len();
        }
    }

    /// Returns the number of a volume's pages.
    pub(super) fn pages(&self, volume: usize) -> u64 {
        let groups = self.volumes.get(volume).into_iter().flatten();
        let pages: u64 = groups.map(|group| u64::from(group.used.count_ones())).sum();
        pages << self.sampling
    }

    /// Returns whether the set is a sample.
    pub(super) const fn is_sample(&self) -> bool {
        self.sampling > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_count_once() {
        let mut set = PageSet::new(1 << 20);
        set.add(0, 0, 0);
        set.add(0, 63, 64);
        set.add(0, 60, 200);
        set.add(0, 0, 0);
        set.add(2, 1 << 50, 1 << 50);
        assert_eq!((set.pages(0), set.pages(1), set.pages(2)), (142, 0, 1));
        assert!(!set.is_sample());
    }

    #[test]
    fn a_set_that_is_too_large_is_estimated() {
        let mut set = PageSet::new(32 * 10_000);
        for page in 0..200_000_u64 {
            set.add(0, page * 1000, page * 1000);
        }
        assert!(set.is_sample() && set.groups <= 10_000);
        let pages = set.pages(0);
        assert!((190_000..210_000).contains(&pages), "{pages}");
    }
}
