//! Zipf's law over any number of ranks, in constant time and memory.
//!
//! The method is rejection-inversion (Hörmann and Derflinger, 1996). The probability of rank k is
//! proportional to k^-s, which is a step function. It is bounded by a curve h(x) = x^-s with an
//! invertible integral H. A point is drawn evenly under the curve, and rejected if it is outside of
//! the step. For every exponent, fewer than one point in ten is rejected.

use super::random::Random;

/// Ranks from 1 to `ranks`; rank k is drawn with a probability in proportion to `k^-exponent`.
#[derive(Clone, Debug)]
pub(super) struct Zipf {
    ranks: f64,
    exponent: f64,
    /// H at the ends of the drawing range.
    from: f64,
    to: f64,
    /// Points this close to the left of a rank are certainly under its step.
    sure: f64,
}

/// Returns (e^x - 1) / x, also for x close to zero.
fn expm1_ratio(x: f64) -> f64 {
    if x.abs() > 1e-8 {
        x.exp_m1() / x
    } else {
        1.0 + x / 2.0
    }
}

/// Returns ln(1 + x) / x, also for x close to zero.
fn ln_1p_ratio(x: f64) -> f64 {
    if x.abs() > 1e-8 {
        x.ln_1p() / x
    } else {
        1.0 - x / 2.0
    }
}

impl Zipf {
    /// Returns the law over `ranks` ranks. An `exponent` of 0 gives the uniform distribution.
    ///
    /// # Panics
    /// If there are no ranks, or the exponent is negative or not a number.
    pub(super) fn new(ranks: u64, exponent: f64) -> Self {
        assert!(ranks > 0 && exponent >= 0.0 && exponent.is_finite());
        let mut zipf = Self {
            ranks: ranks as f64,
            exponent,
            from: 0.0,
            to: 0.0,
            sure: 0.0,
        };
        // The first rank's step is as wide as it is high, so that it is never rejected.
        zipf.from = zipf.integral(1.5) - 1.0;
        zipf.to = zipf.integral(zipf.ranks + 0.5);
        zipf.sure = 2.0 - zipf.inverse(zipf.integral(2.5) - zipf.height(2.0));
        zipf
    }

    fn height(&self, x: f64) -> f64 {
        (-self.exponent * x.ln()).exp()
    }

    /// Returns H, the integral of the height from 1 to x, in a form that also holds for an exponent
    /// of one.
    fn integral(&self, x: f64) -> f64 {
        let log = x.ln();
        expm1_ratio((1.0 - self.exponent) * log) * log
    }

    fn inverse(&self, area: f64) -> f64 {
        // Rounding may move the argument just below the range of H.
        let scaled = (area * (1.0 - self.exponent)).max(-1.0);
        (ln_1p_ratio(scaled) * area).exp()
    }

    /// Returns a random rank, from 1.
    pub(super) fn draw(&self, random: &mut Random) -> u64 {
        loop {
            let area = self.to + random.unit() * (self.from - self.to);
            let x = self.inverse(area);
            let rank = x.round().clamp(1.0, self.ranks);
            if rank - x <= self.sure || area >= self.integral(rank + 0.5) - self.height(rank) {
                return rank as u64;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRAWS: u32 = 1_000_000;

    /// Returns Pearson's statistic of the draws against the law, over classes with at least a
    /// hundred expected draws, and the number of classes.
    fn chi_squared(ranks: u32, exponent: f64) -> (f64, u32) {
        let zipf = Zipf::new(u64::from(ranks), exponent);
        let mut random = Random::new(42);
        let mut counts = vec![0_u32; ranks as usize + 1];
        for _ in 0..DRAWS {
            counts[usize::try_from(zipf.draw(&mut random)).unwrap()] += 1;
        }
        assert_eq!(counts[0], 0);
        let weight = |rank: u32| f64::from(rank).powf(-exponent);
        let total: f64 = (1..=ranks).map(weight).sum();
        let (mut statistic, mut classes) = (0.0, 0);
        let (mut expected, mut found) = (0.0, 0.0);
        for rank in 1..=ranks {
            expected += weight(rank) / total * f64::from(DRAWS);
            found += f64::from(counts[rank as usize]);
            if expected >= 100.0 {
                statistic += (found - expected) * (found - expected) / expected;
                classes += 1;
                (expected, found) = (0.0, 0.0);
            }
        }
        (statistic, classes)
    }

    #[test]
    fn draws_follow_the_law() {
        for exponent in [0.0, 0.5, 0.9, 1.0, 1.2, 2.5] {
            for ranks in [2, 10, 1000, 50_000] {
                let (statistic, classes) = chi_squared(ranks, exponent);
                // Its mean is the degrees of freedom, its variance twice that: five deviations.
                let freedom = f64::from(classes - 1);
                let limit = freedom + 5.0 * (2.0 * freedom).sqrt();
                assert!(
                    statistic <= limit,
                    "exponent {exponent}, {ranks} ranks: {statistic} > {limit} of {classes} classes"
                );
            }
        }
    }

    #[test]
    fn the_test_would_notice() {
        let zipf = Zipf::new(1000, 1.0);
        let mut random = Random::new(42);
        let firsts = (0..DRAWS).filter(|_| zipf.draw(&mut random) == 1).count();
        // The harmonic number of 1000 is 7.4855.
        let expected = f64::from(DRAWS) / 7.4855;
        assert!((firsts as f64 / expected - 1.0).abs() < 0.02, "{firsts}");
    }

    #[test]
    fn extremes_stay_in_range() {
        let mut random = Random::new(1);
        for (ranks, exponent) in [(1, 1.0), (u64::MAX >> 12, 0.8), (1 << 40, 1.0), (3, 50.0)] {
            let zipf = Zipf::new(ranks, exponent);
            for _ in 0..10_000 {
                assert!((1..=ranks).contains(&zipf.draw(&mut random)));
            }
        }
    }
}
