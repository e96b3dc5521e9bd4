//! The exact curve.

use super::distance::Distances;
use super::{Curve, Point, blocks};
use crate::{Op, Request};

/// Number of references by distance. A reuse at distance d hits in caches of more than d blocks.
#[derive(Clone, Debug, Default)]
struct Counts {
    references: u64,
    at: Vec<u64>,
}

impl Counts {
    fn add(&mut self, distance: Option<u64>) {
        self.references += 1;
        if let Some(distance) = distance {
            let distance = usize::try_from(distance).expect("below the number of blocks");
            if distance >= self.at.len() {
                self.at.resize(distance + 1, 0);
            }
            self.at[distance] += 1;
        }
    }

    fn misses(&self, size: u64) -> u64 {
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        let hits: u64 = self.at.iter().take(size).sum();
        self.references - hits
    }
}

/// The LRU misses of every cache size from one pass, by reuse distances. The method is that of R.
/// L. Mattson et al., "Evaluation Techniques for Storage Hierarchies", IBM Systems Journal 1970. It
/// takes 30 to 60 bytes a block of the working set, and 16 for each of the longest distance.
#[derive(Debug)]
pub struct Exact {
    distances: Distances,
    reads: Counts,
    writes: Counts,
}

impl Default for Exact {
    fn default() -> Self {
        Self::new()
    }
}

impl Exact {
    /// Returns a counter without references.
    #[must_use]
    pub fn new() -> Self {
        Self {
            distances: Distances::with_capacity(0),
            reads: Counts::default(),
            writes: Counts::default(),
        }
    }

    /// Adds a reference to a block. Only reads and writes count.
    pub fn reference(&mut self, block: u64, op: Op) {
        let counts = match op {
            Op::Read => &mut self.reads,
            Op::Write => &mut self.writes,
            Op::Flush | Op::Discard => return,
        };
        counts.add(self.distances.reference(block));
    }

    /// Adds references to the blocks of a request; see [`blocks`].
    pub fn request(&mut self, request: &Request, block_bytes: u32) {
        for block in blocks(request, block_bytes) {
            self.reference(block, request.op);
        }
    }

    /// Returns the misses of an LRU cache of `size` blocks.
    #[must_use]
    pub fn misses(&self, size: u64) -> u64 {
        self.reads.misses(size) + self.writes.misses(size)
    }

    /// Returns the number of references.
    #[must_use]
    pub const fn references(&self) -> u64 {
        self.reads.references + self.writes.references
    }

    /// Returns the number of different blocks: the size of the working set.
    #[must_use]
    pub fn unique_blocks(&self) -> u64 {
        self.distances.len() as u64
    }

    /// Returns the curve at these sizes, in blocks.
    #[must_use]
    pub fn curve(&self, sizes: &[u64]) -> Curve {
        let ratio = |misses: u64, of: u64| misses as f64 / of.max(1) as f64;
        let point = |&size: &u64| Point {
            blocks: size,
            miss_ratio: ratio(self.misses(size), self.references()),
            read_miss_ratio: ratio(self.reads.misses(size), self.reads.references),
            write_miss_ratio: ratio(self.writes.misses(size), self.writes.references),
            standard_error: 0.0,
        };
        Curve {
            points: sizes.iter().map(point).collect(),
            references: self.references(),
            samples: self.references(),
        }
    }

    /// Returns the memory in use, bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.distances.memory_bytes()
            + (self.reads.at.capacity() + self.writes.at.capacity()) * size_of::<u64>()
    }
}
