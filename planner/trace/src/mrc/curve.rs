//! A miss-ratio curve at chosen sizes.

/// One point of a [`Curve`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Size of the cache, blocks.
    pub blocks: u64,
    /// Miss ratio of all references.
    pub miss_ratio: f64,
    /// Miss ratio of the reads; zero if there are none.
    pub read_miss_ratio: f64,
    /// Miss ratio of the writes; zero if there are none.
    pub write_miss_ratio: f64,
    /// Estimated standard error of `miss_ratio`; zero for an exact curve.
    pub standard_error: f64,
}

/// Miss ratios of LRU caches by size.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// Points, in the order of the requested sizes.
    pub points: Vec<Point>,
    /// Number of all references.
    pub references: u64,
    /// Number of references used for the curve: all, or the samples.
    pub samples: u64,
}

impl Curve {
    /// Returns the mean absolute difference of the miss ratios of two curves at the same sizes. If
    /// one of them is exact, this is the measured error.
    ///
    /// # Panics
    /// If the sizes differ.
    #[must_use]
    pub fn mean_absolute_error(&self, other: &Self) -> f64 {
        let pairs = || self.points.iter().zip(&other.points);
        assert!(
            self.points.len() == other.points.len() && pairs().all(|(a, b)| a.blocks == b.blocks),
            "the curves are of the same sizes"
        );
        let sum: f64 = pairs()
            .map(|(a, b)| (a.miss_ratio - b.miss_ratio).abs())
            .sum();
        sum / self.points.len().max(1) as f64
    }

    /// Returns the mean of the points' standard errors.
    #[must_use]
    pub fn mean_standard_error(&self) -> f64 {
        let sum: f64 = self.points.iter().map(|point| point.standard_error).sum();
        sum / self.points.len().max(1) as f64
    }
}

/// Returns `count` sizes from `least` to `most`, each larger than the one before by the same
/// factor, without repetitions.
#[must_use]
pub fn sizes(least: u64, most: u64, count: usize) -> Vec<u64> {
    let least = least.max(1);
    let most = most.max(least);
    let steps = count.saturating_sub(1).max(1) as f64;
    let factor = most as f64 / least as f64;
    let size = |nth: usize| (least as f64 * factor.powf(nth as f64 / steps)).round() as u64;
    let mut sizes: Vec<u64> = (0..count).map(|nth| size(nth).min(most)).collect();
    sizes.dedup();
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_grow_by_a_factor() {
        assert_eq!(sizes(1, 1000, 4), [1, 10, 100, 1000]);
        assert_eq!(sizes(1, 4, 9), [1, 2, 3, 4]);
        assert_eq!(sizes(0, 0, 3), [1]);
        assert_eq!(sizes(7, 9, 1), [7]);
    }

    #[test]
    fn errors_are_means() {
        let curve = |ratios: [f64; 2]| Curve {
            points: [1, 2]
                .into_iter()
                .zip(ratios)
                .map(|(blocks, miss_ratio)| Point {
                    blocks,
                    miss_ratio,
                    read_miss_ratio: 0.0,
                    write_miss_ratio: 0.0,
                    standard_error: miss_ratio / 2.0,
                })
                .collect(),
            references: 0,
            samples: 0,
        };
        let (one, other) = (curve([0.5, 0.25]), curve([0.25, 0.75]));
        assert!((one.mean_absolute_error(&other) - 0.375).abs() < 1e-12);
        assert!((one.mean_standard_error() - 0.1875).abs() < 1e-12);
    }
}
