//! Admission to the cache: promotion on misses, and the cut-off for sequential streams.

use crate::BlockKey;

/// When a missed block is promoted into the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promotion {
    /// On the first miss.
    Always,
    /// When it was missed this many times recently (Open CAS: `nhit`).
    Nhit {
        /// Misses until promotion, from 1 to 255.
        hits: u32,
    },
}

/// Counts recent misses of the blocks of one volume that are not cached.
///
/// It remembers as many blocks as the cache has, each exactly. So every block of a hot set that
/// fits the cache is admitted at its Nth miss, in any order of misses. A new block takes the place
/// of one that was missed once since the hand last passed (a second chance, as in CLOCK).
///
/// Memory: at most [`PromotionFilter::BYTES_PER_BLOCK`] for each block of the cache, and
/// [`PromotionFilter::FIXED_BYTES`].
#[derive(Debug)]
pub struct PromotionFilter {
    promotion: Promotion,
    /// By hash of a block: the place of the first entry of a chain.
    heads: Vec<u32>,
    entries: Vec<Entry>,
    /// By entry: the next one of its chain.
    next: Vec<u32>,
    /// Blocks that are remembered at most.
    most: usize,
    /// The first entry without a block.
    free: Option<u32>,
    /// The entry that is looked at first for one that goes.
    hand: usize,
}

/// No entry.
const NONE: u32 = u32::MAX;

/// A block and its count, or, where the count is zero, the place of the next such entry.
#[derive(Clone, Copy, Debug)]
struct Entry(u64);

impl Entry {
    const COUNT_SHIFT: u32 = 56;
    /// The block was missed a second time since the clock hand passed.
    const MISSED_TWICE: u64 = 1 << 55;
    const BLOCK: u64 = BlockKey::MAX_BLOCKS - 1;
    const fn new(block: u64) -> Self {
        Self(1 << Self::COUNT_SHIFT | block)
    }

    const fn free(next: Option<u32>) -> Self {
        Self(match next {
            Some(next) => next as u64,
            None => NONE as u64,
        })
    }

    const fn next_free(self) -> Option<u32> {
        let next = self.0 as u32;
        if next == NONE { None } else { Some(next) }
    }

    const fn block(self) -> u64 {
        self.0 & Self::BLOCK
    }

    const fn count(self) -> u32 {
        (self.0 >> Self::COUNT_SHIFT) as u32
    }
}

impl PromotionFilter {
    /// Most memory for each block of the cache, in bytes.
    pub const BYTES_PER_BLOCK: usize = size_of::<Entry>() + 2 * size_of::<u32>();
    /// Fewest blocks that are remembered.
    const FEWEST: usize = 64;
    /// Largest memory in addition to that, in bytes.
    pub const FIXED_BYTES: usize = Self::FEWEST * Self::BYTES_PER_BLOCK;

    /// Returns a filter for a cache of `blocks` blocks of the smallest size.
    ///
    /// # Panics
    /// If the cache has 2^32 - 1 blocks or more, or more than 255 misses are asked for.
    #[must_use]
    pub fn new(promotion: Promotion, blocks: usize) -> Self {
        let most = match promotion {
            Promotion::Always => 0,
            Promotion::Nhit { hits } => {
                assert!(hits <= u8::MAX.into(), "a count has 8 bits");
                blocks.max(Self::FEWEST)
            }
        };
        assert!(u32::try_from(most).is_ok_and(|most| most < u32::MAX));
        Self {
            promotion,
            // Taken now: the data path takes none.
            heads: vec![NONE; most],
            entries: Vec::with_capacity(most),
            next: Vec::with_capacity(most),
            most,
            free: None,
            hand: 0,
        }
    }

    /// Whether every missed block is promoted.
    #[must_use]
    pub const fn admits_all(&self) -> bool {
        matches!(self.promotion, Promotion::Always)
    }

    /// Returns the memory of the filter, in bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let places = self.heads.capacity() + self.next.capacity();
        places * size_of::<u32>() + self.entries.capacity() * size_of::<Entry>()
    }

    /// Notes a miss of `key`. Returns whether the block is promoted now.
    pub fn miss(&mut self, key: BlockKey) -> bool {
        let Promotion::Nhit { hits } = self.promotion else {
            return true;
        };
        if hits <= 1 {
            return true;
        }
        let Some(at) = self.find(key) else {
            self.remember(key);
            return false;
        };
        let entry = &mut self.entries[at as usize];
        if entry.count() + 1 < hits {
            entry.0 = (entry.0 | Entry::MISSED_TWICE) + (1 << Entry::COUNT_SHIFT);
            return false;
        }
        self.unlink(key, at);
        self.entries[at as usize] = Entry::free(self.free);
        self.free = Some(at);
        true
    }

    fn head(&self, key: BlockKey) -> usize {
        // Below the number of heads, without a division.
        ((u128::from(key.hash()) * self.heads.len() as u128) >> 64) as usize
    }

    fn find(&self, key: BlockKey) -> Option<u32> {
        let mut at = self.heads[self.head(key)];
        while at != NONE && self.entries[at as usize].block() != key.block() {
            at = self.next[at as usize];
        }
        (at != NONE).then_some(at)
    }

    /// Takes an entry out of its chain.
    fn unlink(&mut self, key: BlockKey, entry: u32) {
        let (head, after) = (self.head(key), self.next[entry as usize]);
        if self.heads[head] == entry {
            self.heads[head] = after;
            return;
        }
        let mut at = self.heads[head] as usize;
        while self.next[at] != entry {
            at = self.next[at] as usize;
        }
        self.next[at] = after;
    }

    /// Begins to count the misses of a block.
    fn remember(&mut self, key: BlockKey) {
        let entry = Entry::new(key.block());
        let at = match self.free {
            Some(at) => {
                self.free = self.entries[at as usize].next_free();
                at
            }
            None if self.entries.len() < self.most => {
                self.entries.push(entry);
                self.next.push(NONE);
                (self.entries.len() - 1) as u32
            }
            None => self.make_room(key.volume()),
        };
        let head = self.head(key);
        self.entries[at as usize] = entry;
        self.next[at as usize] = std::mem::replace(&mut self.heads[head], at);
    }

    /// Forgets the first block from the hand on that was not missed once more since the hand
    /// passed. All entries have a block.
    fn make_room(&mut self, volume: u16) -> u32 {
        loop {
            let at = self.hand;
            self.hand = (at + 1) % self.entries.len();
            let entry = &mut self.entries[at];
            if entry.0 & Entry::MISSED_TWICE != 0 {
                entry.0 &= !Entry::MISSED_TWICE;
                continue;
            }
            let (key, at) = (BlockKey::new(volume, entry.block()), at as u32);
            self.unlink(key, at);
            return at;
        }
    }
}

const STREAMS: usize = 16;

#[derive(Clone, Copy, Debug, Default)]
struct Stream {
    /// Where the next request of the stream would start, bytes.
    next: u64,
    /// Length so far, bytes.
    length: u64,
    used: u64,
}

/// Finds sequential streams: requests that start where an earlier one ended. Sixteen streams are
/// followed at a time, the longest unused one is forgotten.
#[derive(Debug)]
pub struct SequentialDetector {
    cutoff_bytes: u64,
    streams: [Stream; STREAMS],
    clock: u64,
}

impl SequentialDetector {
    /// A detector that cuts streams off after `cutoff_bytes`; zero never cuts.
    #[must_use]
    pub fn new(cutoff_bytes: u64) -> Self {
        Self {
            cutoff_bytes,
            streams: [Stream::default(); STREAMS],
            clock: 0,
        }
    }

    /// Notes a request. Whether it belongs to a stream that has reached the cut-off.
    pub fn request(&mut self, offset: u64, len: u64) -> bool {
        if self.cutoff_bytes == 0 {
            return false;
        }
        self.clock += 1;
        let known = self
            .streams
            .iter_mut()
            .find(|stream| stream.length > 0 && stream.next == offset);
        let stream = match known {
            Some(stream) => stream,
            None => {
                let oldest = self
                    .streams
                    .iter_mut()
                    .min_by_key(|stream| stream.used)
                    .expect("there are streams");
                oldest.length = 0;
                oldest
            }
        };
        stream.next = offset.saturating_add(len);
        stream.length = stream.length.saturating_add(len);
        stream.used = self.clock;
        stream.length > self.cutoff_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nhit_promotes_on_the_nth_miss() {
        let mut filter = PromotionFilter::new(Promotion::Nhit { hits: 3 }, 64);
        let key = BlockKey::new(1, 77);
        assert_eq!([filter.miss(key), filter.miss(key)], [false, false]);
        assert!(filter.miss(key));
        assert!(!filter.miss(key), "the count starts again");
        let mut always = PromotionFilter::new(Promotion::Always, 64);
        assert!(always.miss(key));
    }

    fn order(blocks: u64, round: u64, kind: u8) -> Vec<u64> {
        let mut order: Vec<u64> = (0..blocks).collect();
        match kind {
            0 => {}
            1 => order.reverse(),
            2 if round % 2 == 1 => order.reverse(),
            2 => {}
            _ => order.sort_by_key(|block| BlockKey::new(1, block ^ round << 32).hash()),
        }
        order
    }

    #[test]
    fn every_block_of_a_hot_set_that_fits_is_promoted_at_its_nth_miss() {
        for hits in [2, 3, 5, 255] {
            for (blocks, size) in [(1660, 2080), (2080, 2080), (64, 10), (1000, 1000), (1, 64)] {
                for kind in 0..4 {
                    let mut filter = PromotionFilter::new(Promotion::Nhit { hits }, size);
                    for round in 1..=u64::from(hits) {
                        // Far apart, as blocks of the same stretch of a disk.
                        let keys = order(blocks, round, kind).into_iter();
                        let keys = keys.map(|block| BlockKey::new(3, block << 20 | 7));
                        let promoted = keys.filter(|key| filter.miss(*key)).count() as u64;
                        let expected = if round == u64::from(hits) { blocks } else { 0 };
                        assert_eq!(promoted, expected, "nhit:{hits}, {blocks}, order {kind}");
                    }
                }
            }
        }
    }

    #[test]
    fn blocks_missed_repeatedly_outlive_blocks_missed_once() {
        let mut filter = PromotionFilter::new(Promotion::Nhit { hits: 4 }, 1000);
        let hot = |block: u64| BlockKey::new(1, block);
        let mut cold = (0..).map(|block| BlockKey::new(1, 1 << 40 | block));
        let mut promoted = 0;
        for _ in 0..4 {
            promoted += (0..500).filter(|block| filter.miss(hot(*block))).count();
            // In all more than there is room for, of which nothing comes twice.
            assert!(cold.by_ref().take(400).all(|key| !filter.miss(key)));
        }
        assert_eq!(promoted, 500);
    }

    #[test]
    fn memory_is_bounded_whatever_is_missed() {
        for blocks in [1, 64, 2080, 7168, 7169, 100_000, 131_072] {
            let mut filter = PromotionFilter::new(Promotion::Nhit { hits: 2 }, blocks);
            let most = PromotionFilter::BYTES_PER_BLOCK * blocks + PromotionFilter::FIXED_BYTES;
            let before = filter.memory_bytes();
            for block in 0..3 * blocks as u64 + 100 {
                filter.miss(BlockKey::new(1, block));
                if block % 3 == 0 {
                    filter.miss(BlockKey::new(1, block));
                }
            }
            let after = filter.memory_bytes();
            assert!(after <= most, "{blocks} blocks: {after} bytes");
            assert_eq!(before, after, "nothing is taken in service");
        }
        let always = PromotionFilter::new(Promotion::Always, 1 << 20);
        assert_eq!(always.memory_bytes(), 0);
    }

    #[test]
    fn interleaved_streams_differ_from_random_requests() {
        let mut detector = SequentialDetector::new(64 << 10);
        let mut cut = 0;
        for step in 0..32_u64 {
            cut += u32::from(detector.request(step * 4096, 4096));
            cut += u32::from(detector.request((1 << 30) + step * 4096, 4096));
            assert!(!detector.request((step * 7919 + 13) << 20, 4096));
        }
        assert_eq!(cut, 2 * 16, "each stream is cut after 16 requests");
        let mut off = SequentialDetector::new(0);
        assert!((0..100).all(|step| !off.request(step * 4096, 4096)));
    }
}
