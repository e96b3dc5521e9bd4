//! The sampled curve.

use std::collections::BinaryHeap;

use super::distance::{Distances, mix};
use super::histogram::Histogram;
use super::{Curve, Point, blocks};
use crate::{Op, Request};

/// Number of disjoint samples. Their differences give the error.
const GROUPS: usize = 8;
const GROUP_BITS: u32 = GROUPS.ilog2();
/// Bound of a block's hash within its group.
const PLACES: u64 = 1 << (u64::BITS - GROUP_BITS);

/// Choice of the sampled blocks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Sampling {
    /// A share of all blocks, above 0 and at most 1. Memory grows with the working set.
    Rate(f64),
    /// At most this many blocks. The share falls as the working set grows; memory does not grow.
    Blocks(usize),
}

/// An LRU miss-ratio curve from a sample of the blocks, chosen by the hashes of their numbers.
/// Distances among the samples, divided by the sampling rate, estimate the distances among all
/// blocks. The method is from C. Waldspurger et al., "Efficient MRC Construction with SHARDS", FAST
/// 2015, section 3: fixed rate, fixed size, and the correction SHARDS-adj.
///
/// The sample consists of eight samples of an eighth each. The curve is the mean of their curves.
/// Its standard error is estimated from their differences, and from the steps of the curve, which
/// all of them blur. Sizes of less than about eight blocks divided by the rate are coarse.
#[derive(Debug)]
pub struct Shards {
    groups: Vec<Group>,
    seed: u64,
    reads: u64,
    writes: u64,
}

#[derive(Debug)]
struct Group {
    distances: Distances,
    reads: Histogram,
    writes: Histogram,
    samples: u64,
    /// Blocks with hashes below this are sampled.
    threshold: u64,
    /// Number of references that each sampled reference stands for.
    weight: f64,
    /// With a fixed size: the blocks with their hashes, the highest first, and the limit on their
    /// number.
    fixed: Option<(BinaryHeap<(u64, u64)>, usize)>,
}

impl Group {
    fn new(sampling: Sampling) -> Self {
        let (threshold, limit) = match sampling {
            Sampling::Rate(rate) => {
                assert!(
                    rate > 0.0 && rate <= 1.0,
                    "a rate is above 0 and at most 1, not {rate}"
                );
                ((PLACES as f64 * rate) as u64, None)
            }
            Sampling::Blocks(blocks) => (PLACES, Some(blocks.div_ceil(GROUPS).max(1))),
        };
        let mut group = Self {
            // One more for the block that is inserted before another is removed.
            distances: Distances::with_capacity(limit.map_or(0, |limit| limit + 1)),
            reads: Histogram::new(),
            writes: Histogram::new(),
            samples: 0,
            threshold: 0,
            weight: 0.0,
            fixed: limit.map(|limit| (BinaryHeap::with_capacity(limit + 1), limit)),
        };
        group.set_threshold(threshold.max(1));
        group
    }

    fn set_threshold(&mut self, threshold: u64) {
        self.threshold = threshold;
        self.weight = PLACES as f64 / threshold as f64 * GROUPS as f64;
    }

    fn sample(&mut self, block: u64, place: u64, write: bool) {
        self.samples += 1;
        let distance = self.distances.reference(block);
        let histogram = if write {
            &mut self.writes
        } else {
            &mut self.reads
        };
        // Adds half a block: the middle of the distances that the sample cannot distinguish.
        let scaled = distance.map(|distance| ((distance as f64 + 0.5) * self.weight) as u64);
        histogram.add(scaled, self.weight);
        if distance.is_none()
            && let Some((places, limit)) = &mut self.fixed
        {
            places.push((place, block));
            if places.len() > *limit
                && let Some((highest, block)) = places.pop()
            {
                self.distances.remove(block);
                self.set_threshold(highest);
            }
        }
    }
}

/// Reference count in the denominator of a ratio.
#[derive(Clone, Copy)]
enum Denominator {
    All,
    Reads,
    Writes,
}

/// Returns the blur of the curve `at` at a size. It is the same for all groups, so that their
/// differences do not show it.
///
/// A distance is estimated from the number of samples in it, one for `weight` blocks. This number
/// varies by its square root. So the observed curve is the true one, blurred over that range. A
/// second blur, with three points as in Gauss-Hermite quadrature, changes a step about half as much
/// as the first.
fn blur(size: u64, weight: f64, at: impl Fn(u64) -> f64) -> f64 {
    let reach = (3.0 * size as f64 * weight).sqrt();
    let below = (size as f64 - reach).max(0.0) as u64;
    let above = (size as f64 + reach) as u64;
    2.0 * (at(below) + at(above) - 2.0 * at(size)) / 6.0
}

impl Shards {
    /// Returns an empty sample. Another seed selects another sample.
    ///
    /// # Panics
    /// If a rate is not above 0 and at most 1.
    #[must_use]
    pub fn new(sampling: Sampling, seed: u64) -> Self {
        Self {
            groups: (0..GROUPS).map(|_| Group::new(sampling)).collect(),
            seed: mix(seed),
            reads: 0,
            writes: 0,
        }
    }

    /// Adds a reference to a block. Only reads and writes count.
    #[inline]
    pub fn reference(&mut self, block: u64, op: Op) {
        let write = match op {
            Op::Read => {
                self.reads += 1;
                false
            }
            Op::Write => {
                self.writes += 1;
                true
            }
            Op::Flush | Op::Discard => return,
        };
        let hash = mix(block ^ self.seed);
        let (place, group) = (hash >> GROUP_BITS, hash as usize % GROUPS);
        if place < self.groups[group].threshold {
            self.groups[group].sample(block, place, write);
        }
    }

    /// Adds references to the blocks of a request; see [`blocks`].
    pub fn request(&mut self, request: &Request, block_bytes: u32) {
        for block in blocks(request, block_bytes) {
            self.reference(block, request.op);
        }
    }

    /// Returns the number of references, sampled or not.
    #[must_use]
    pub const fn references(&self) -> u64 {
        self.reads + self.writes
    }

    /// Returns the present share of sampled blocks.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.groups.iter().map(|group| 1.0 / group.weight).sum()
    }

    /// Returns the estimated number of different blocks: the size of the working set.
    #[must_use]
    pub fn unique_blocks(&self) -> u64 {
        let of = |group: &Group| group.distances.len() as f64 * group.weight;
        (self.groups.iter().map(of).sum::<f64>() / GROUPS as f64).round() as u64
    }

    /// Returns the curve at these sizes, in blocks, with its estimated standard error.
    #[must_use]
    pub fn curve(&self, sizes: &[u64]) -> Curve {
        let misses = |group: &Group, size: u64, of: Denominator| {
            let histograms = [(&group.reads, self.reads), (&group.writes, self.writes)];
            let histograms = match of {
                Denominator::All => &histograms[..],
                Denominator::Reads => &histograms[..1],
                Denominator::Writes => &histograms[1..],
            };
            let references: u64 = histograms.iter().map(|(_, references)| references).sum();
            // The expected number of samples is that of all references. The difference is added at
            // distance zero, since it is caused by few blocks with very many references.
            let missed = histograms
                .iter()
                .map(|(histogram, _)| histogram.total() - histogram.below(size));
            missed.sum::<f64>() / references.max(1) as f64
        };
        let mean = |each: &dyn Fn(&Group) -> f64| {
            self.groups.iter().map(each).sum::<f64>() / GROUPS as f64
        };
        let at = |size: u64, of: Denominator| mean(&|group| misses(group, size, of));
        let weight = mean(&|group| group.weight);
        let point = |&size: &u64| {
            let miss_ratio = at(size, Denominator::All);
            let off = |group: &Group| (misses(group, size, Denominator::All) - miss_ratio).powi(2);
            let variance = mean(&off) / (GROUPS - 1) as f64;
            let blur = blur(size, weight, |size| at(size, Denominator::All));
            Point {
                blocks: size,
                miss_ratio: miss_ratio.clamp(0.0, 1.0),
                read_miss_ratio: at(size, Denominator::Reads).clamp(0.0, 1.0),
                write_miss_ratio: at(size, Denominator::Writes).clamp(0.0, 1.0),
                standard_error: (variance + blur.powi(2)).sqrt(),
            }
        };
        Curve {
            points: sizes.iter().map(point).collect(),
            references: self.references(),
            samples: self.groups.iter().map(|group| group.samples).sum(),
        }
    }

    /// Returns the memory in use, bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let of = |group: &Group| {
            let fixed = group
                .fixed
                .as_ref()
                .map_or(0, |(places, _)| places.capacity());
            group.distances.memory_bytes()
                + group.reads.memory_bytes()
                + group.writes.memory_bytes()
                + fixed * size_of::<(u64, u64)>()
        };
        self.groups.iter().map(of).sum()
    }
}
