//! A latency histogram of fixed log-linear buckets: eight to each power of two. So a value is known
//! to an eighth, from one nanosecond to eighteen minutes.

use std::sync::atomic::{AtomicU64, Ordering};

/// log2 of the buckets to each power of two.
const SUB_BITS: u32 = 3;
const SUB: usize = 1 << SUB_BITS;
/// Values of `2^MAX_BITS` ns and above fall into the last bucket.
const MAX_BITS: u32 = 40;

/// Number of buckets.
pub const BUCKETS: usize = (MAX_BITS - SUB_BITS + 1) as usize * SUB;

fn index(value_ns: u64) -> usize {
    if value_ns < SUB as u64 {
        return value_ns as usize;
    }
    if value_ns >= 1 << MAX_BITS {
        return BUCKETS - 1;
    }
    let exponent = value_ns.ilog2();
    let within = (value_ns >> (exponent - SUB_BITS)) as usize & (SUB - 1);
    (exponent - SUB_BITS + 1) as usize * SUB + within
}

/// Returns the largest value of `bucket`, ns. The last bucket also has all larger values.
#[must_use]
pub const fn bucket_upper_ns(bucket: usize) -> u64 {
    if bucket < SUB {
        return bucket as u64;
    }
    let shift = bucket / SUB - 1;
    let within = (bucket % SUB) as u64;
    ((SUB as u64 + within + 1) << shift) - 1
}

/// Counters that one thread writes and any thread reads.
#[derive(Debug)]
pub(crate) struct Histogram {
    buckets: [AtomicU64; BUCKETS],
    sum_ns: AtomicU64,
}

/// Adds without an atomic read-modify-write: the counter has one writer.
pub(crate) fn add(counter: &AtomicU64, amount: u64) {
    counter.store(
        counter.load(Ordering::Relaxed).wrapping_add(amount),
        Ordering::Relaxed,
    );
}

impl Histogram {
    pub(crate) const fn new() -> Self {
        Self {
            buckets: [const { AtomicU64::new(0) }; BUCKETS],
            sum_ns: AtomicU64::new(0),
        }
    }

    pub(crate) fn record(&self, value_ns: u64) {
        add(&self.buckets[index(value_ns)], 1);
        add(&self.sum_ns, value_ns);
    }

    pub(crate) fn snapshot(&self) -> HistogramSnapshot {
        HistogramSnapshot {
            counts: self
                .buckets
                .iter()
                .map(|bucket| bucket.load(Ordering::Relaxed))
                .collect(),
            sum_ns: self.sum_ns.load(Ordering::Relaxed),
        }
    }
}

/// State of a histogram at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HistogramSnapshot {
    /// Number of values in each bucket; [`bucket_upper_ns`] is the bucket's largest value.
    pub counts: Vec<u64>,
    /// Sum of all values, ns.
    pub sum_ns: u64,
}

impl HistogramSnapshot {
    /// Returns the number of values.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Returns the value that a share of `quantile` (0 to 1) of all values does not exceed, rounded
    /// up to its bucket's end, ns. Returns zero if there are no values.
    #[must_use]
    pub fn quantile_ns(&self, quantile: f64) -> u64 {
        let count = self.count();
        let rank = (quantile.clamp(0.0, 1.0) * count as f64).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (bucket, values) in self.counts.iter().enumerate() {
            seen += values;
            if seen >= rank {
                return bucket_upper_ns(bucket);
            }
        }
        0
    }

    /// Adds the values of `other`.
    pub fn merge(&mut self, other: &Self) {
        self.counts.resize(BUCKETS, 0);
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine += theirs;
        }
        self.sum_ns += other.sum_ns;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_cover_every_value_once_and_in_order() {
        let mut lower = 0;
        for bucket in 0..BUCKETS {
            let upper = bucket_upper_ns(bucket);
            assert_eq!(index(lower), bucket, "first of bucket {bucket}");
            assert_eq!(index(upper), bucket, "last of bucket {bucket}");
            assert!(upper - lower <= (lower / 8).max(1), "an eighth at most");
            lower = upper + 1;
        }
        assert_eq!(lower, 1 << MAX_BITS);
        assert_eq!(index(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn quantiles_are_known_to_an_eighth() {
        let histogram = Histogram::new();
        for value in 1..=1000 {
            histogram.record(value * 1000);
        }
        let mut snapshot = histogram.snapshot();
        assert_eq!(snapshot.count(), 1000);
        assert_eq!(snapshot.sum_ns, 500_500_000);
        for (quantile, exact) in [(0.5, 500_000), (0.99, 990_000), (1.0, 1_000_000)] {
            let value = snapshot.quantile_ns(quantile);
            assert!(
                value >= exact && value <= exact + exact / 8,
                "{quantile}: {value}"
            );
        }
        snapshot.merge(&histogram.snapshot());
        assert_eq!(snapshot.count(), 2000);
        assert_eq!(HistogramSnapshot::default().quantile_ns(0.5), 0);
    }
}
