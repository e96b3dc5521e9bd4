//! Weights by distance, in a fixed number of buckets.

/// Binary logarithm of the buckets for each doubling. Distances in one bucket differ by at most
/// 1/64, and are exact below 64.
const SUB_BITS: u32 = 6;
const SUB: usize = 1 << SUB_BITS;
const BUCKETS: usize = SUB * (u64::BITS - SUB_BITS + 1) as usize;

#[derive(Clone, Debug)]
pub(super) struct Histogram {
    buckets: Vec<f64>,
    /// Total weight, including references without a distance.
    total: f64,
}

/// Returns the bucket of a distance.
fn bucket(distance: u64) -> usize {
    let shift = distance.max(1).ilog2().saturating_sub(SUB_BITS);
    let octave = if distance < SUB as u64 { 0 } else { shift + 1 };
    octave as usize * SUB + ((distance >> shift) as usize & (SUB - 1))
}

/// Returns the least distance of a bucket.
const fn least(bucket: usize) -> f64 {
    let (octave, sub) = (bucket / SUB, bucket % SUB);
    if octave == 0 {
        return sub as f64;
    }
    ((SUB + sub) as u64 as f64) * (1_u64 << (octave - 1)) as f64
}

impl Histogram {
    pub(super) fn new() -> Self {
        Self {
            buckets: vec![0.0; BUCKETS],
            total: 0.0,
        }
    }

    pub(super) fn add(&mut self, distance: Option<u64>, weight: f64) {
        self.total += weight;
        if let Some(distance) = distance {
            self.buckets[bucket(distance)] += weight;
        }
    }

    /// Returns the weight of distances below a size. Assumes an even distribution within a bucket.
    pub(super) fn below(&self, size: u64) -> f64 {
        let last = bucket(size);
        let whole: f64 = self.buckets[..last].iter().sum();
        let (from, to) = (least(last), least(last + 1));
        whole + self.buckets[last] * (size as f64 - from) / (to - from)
    }

    pub(super) const fn total(&self) -> f64 {
        self.total
    }

    pub(super) const fn memory_bytes(&self) -> usize {
        self.buckets.capacity() * size_of::<f64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_narrow_and_in_order() {
        for distance in (0..3000).chain((12..53).flat_map(|bit| [(1 << bit) - 1, 1 << bit])) {
            let found = bucket(distance);
            let (from, to) = (least(found), least(found + 1));
            assert!(from <= distance as f64 && (distance as f64) < to.max(from + 1.0));
            assert!(
                to - from <= (from / SUB as f64).max(1.0),
                "{distance}: {from} to {to}"
            );
            assert!(bucket(distance + 1) - found <= 1);
        }
        assert!(bucket(u64::MAX) < BUCKETS);
    }

    #[test]
    fn weights_below_a_size() {
        let mut histogram = Histogram::new();
        for distance in [Some(0), Some(3), Some(3), Some(200), None] {
            histogram.add(distance, 2.0);
        }
        let below = [0, 1, 3, 4, 200, 10_000].map(|size| histogram.below(size));
        assert_eq!(below, [0.0, 2.0, 2.0, 6.0, 6.0, 8.0]);
        assert_eq!(histogram.total(), 10.0);
        // 200 and 201 share a bucket.
        assert_eq!(histogram.below(201), 7.0);
    }
}
