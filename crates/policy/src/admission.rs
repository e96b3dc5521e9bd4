//! Who is let into the cache: promotion on misses, and the cut-off for sequential streams.

use crate::BlockKey;

/// When a missed block is promoted into the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promotion {
    /// On the first miss.
    Always,
    /// When it was missed this many times recently (Open CAS: `nhit`).
    Nhit {
        /// Misses until promotion, at least 1.
        hits: u32,
    },
}

/// Counts recent misses of blocks that are not cached, in a fixed table: two candidates an entry,
/// the less counted one is replaced.
#[derive(Debug)]
pub struct PromotionFilter {
    promotion: Promotion,
    entries: Vec<Entry>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    tag: u32,
    count: u32,
}

impl PromotionFilter {
    /// A filter that remembers about `blocks` blocks.
    #[must_use]
    pub fn new(promotion: Promotion, blocks: usize) -> Self {
        let entries = match promotion {
            Promotion::Always => Vec::new(),
            Promotion::Nhit { .. } => {
                vec![Entry::default(); blocks.max(64).next_power_of_two()]
            }
        };
        Self { promotion, entries }
    }

    /// Whether every missed block is promoted.
    #[must_use]
    pub const fn admits_all(&self) -> bool {
        matches!(self.promotion, Promotion::Always)
    }

    /// Notes a miss of `key`. Whether the block is promoted now.
    pub fn miss(&mut self, key: BlockKey) -> bool {
        let Promotion::Nhit { hits } = self.promotion else {
            return true;
        };
        let hash = key.hash();
        let tag = (hash >> 32) as u32;
        let mask = self.entries.len() - 1;
        let first = usize::try_from(hash).unwrap_or(0) & mask;
        let second = first ^ 1;
        let at = if self.entries[first].tag == tag {
            first
        } else if self.entries[second].tag == tag {
            second
        } else {
            let loser = if self.entries[first].count <= self.entries[second].count {
                first
            } else {
                second
            };
            // The survivor ages, so that a table full of old favourites still learns.
            self.entries[loser ^ 1].count /= 2;
            self.entries[loser] = Entry { tag, count: 0 };
            loser
        };
        let entry = &mut self.entries[at];
        entry.count += 1;
        if entry.count < hits {
            return false;
        }
        *entry = Entry::default();
        true
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

    #[test]
    fn interleaved_streams_are_told_from_random_requests() {
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
