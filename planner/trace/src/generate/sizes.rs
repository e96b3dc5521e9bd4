//! Sizes of requests.

use forebay_block::{Error, ErrorKind, Result};

use super::random::Random;

/// A distribution of sizes, each with a share.
#[derive(Clone, Debug, PartialEq)]
pub struct SizeCdf {
    /// `(bytes, share of requests that are not larger)`, both increasing, the last share one.
    steps: Vec<(u32, f64)>,
}

impl SizeCdf {
    /// Returns the distribution of sizes in bytes with weights, in any order. A share is a weight
    /// over the sum of weights.
    ///
    /// # Errors
    /// `InvalidInput` if there are no sizes, or a size is zero or not a multiple of 512. The same
    /// if a weight is negative or not a number, or all weights are zero.
    pub fn new(weights: &[(u32, f64)]) -> Result<Self> {
        let bad = |what: String| {
            let said = format!(
                "{what}\n\
                                help: write sizes with their weights, such as 4K:60,64K:40"
            );
            Err(Error::new(ErrorKind::InvalidInput, said))
        };
        for (bytes, weight) in weights {
            if *bytes == 0 || bytes % 512 != 0 {
                return bad(format!(
                    "a size of {bytes} bytes is not in whole sectors of 512"
                ));
            }
            if !weight.is_finite() || *weight < 0.0 {
                return bad(format!("{weight} is no weight of a size"));
            }
        }
        let total: f64 = weights.iter().map(|(_, weight)| weight).sum();
        if total <= 0.0 {
            return bad("no size has any weight".to_owned());
        }
        let mut sorted = weights.to_vec();
        sorted.sort_by_key(|(bytes, _)| *bytes);
        let mut share = 0.0;
        let mut steps: Vec<(u32, f64)> = Vec::with_capacity(sorted.len());
        for (bytes, weight) in sorted {
            share += weight / total;
            match steps.last_mut() {
                Some(last) if last.0 == bytes => last.1 = share,
                _ => steps.push((bytes, share)),
            }
        }
        if let Some(last) = steps.last_mut() {
            last.1 = 1.0;
        }
        Ok(Self { steps })
    }

    /// Returns a mixture of sizes of `self` and `larger` with the mean `mean_bytes`. If that is
    /// outside of both means, returns the distribution with the closer one.
    #[must_use]
    pub(super) fn mixed(&self, larger: &Self, mean_bytes: f64) -> Self {
        let (low, high) = (self.mean_bytes(), larger.mean_bytes());
        let part = ((mean_bytes - low) / (high - low)).clamp(0.0, 1.0);
        let small = self
            .shares()
            .map(|(bytes, share)| (bytes, share * (1.0 - part)));
        let large = larger.shares().map(|(bytes, share)| (bytes, share * part));
        let weights: Vec<_> = small.chain(large).collect();
        Self::new(&weights).expect("a mixture of distributions is one")
    }

    /// Returns the sizes, each with its share.
    pub fn shares(&self) -> impl Iterator<Item = (u32, f64)> {
        let before = std::iter::once(0.0).chain(self.steps.iter().map(|(_, share)| *share));
        let steps = self.steps.iter().zip(before);
        steps.map(|((bytes, share), before)| (*bytes, share - before))
    }

    /// Returns the mean, bytes.
    #[must_use]
    pub fn mean_bytes(&self) -> f64 {
        self.shares()
            .map(|(bytes, share)| f64::from(bytes) * share)
            .sum()
    }

    /// Returns the share of sizes of at most `bytes`.
    #[must_use]
    pub fn at_most(&self, bytes: u32) -> f64 {
        let steps = self.steps.iter().take_while(|(size, _)| *size <= bytes);
        steps.last().map_or(0.0, |(_, share)| *share)
    }

    /// Returns the largest size, bytes.
    #[must_use]
    pub fn max_bytes(&self) -> u32 {
        self.steps.last().map_or(0, |(bytes, _)| *bytes)
    }

    pub(super) fn draw(&self, random: &mut Random) -> u32 {
        let share = random.unit();
        let step = self.steps.partition_point(|(_, up_to)| *up_to <= share);
        self.steps[step.min(self.steps.len() - 1)].0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_and_means() {
        let sizes = SizeCdf::new(&[(65_536, 1.0), (4096, 2.0), (4096, 1.0)]).unwrap();
        assert_eq!(
            sizes.shares().collect::<Vec<_>>(),
            [(4096, 0.75), (65_536, 0.25)]
        );
        assert_eq!(sizes.mean_bytes(), 0.75 * 4096.0 + 0.25 * 65_536.0);
        assert_eq!(
            (
                sizes.at_most(4095),
                sizes.at_most(4096),
                sizes.at_most(1 << 20)
            ),
            (0.0, 0.75, 1.0)
        );
        let mixed = SizeCdf::new(&[(512, 1.0)]).unwrap().mixed(&sizes, 10_000.0);
        assert!((mixed.mean_bytes() - 10_000.0).abs() < 1e-6);
    }

    #[test]
    fn draws_follow_the_shares() {
        let sizes = SizeCdf::new(&[(512, 10.0), (4096, 60.0), (65_536, 30.0)]).unwrap();
        let mut random = Random::new(3);
        let draws: Vec<_> = (0..100_000).map(|_| sizes.draw(&mut random)).collect();
        for (bytes, share) in sizes.shares() {
            let found = draws.iter().filter(|draw| **draw == bytes).count() as f64 / 1e5;
            assert!(
                (found - share).abs() < 0.01,
                "{bytes}: {found}, not {share}"
            );
        }
    }

    #[test]
    fn invalid_size_distributions_are_refused() {
        for weights in [
            &[][..],
            &[(0, 1.0)],
            &[(100, 1.0)],
            &[(512, -1.0)],
            &[(512, 0.0)],
            &[(512, f64::NAN)],
        ] {
            assert!(SizeCdf::new(weights).is_err(), "{weights:?}");
        }
    }
}
