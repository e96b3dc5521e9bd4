//! The choice of records: YCSB's three distributions.

use forebay_tests::stamp::mix;

use crate::Outcome;

/// The skew of YCSB's Zipfian distribution.
const THETA: f64 = 0.99;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    Uniform,
    Zipfian,
    /// As Zipfian, but records that were loaded later are more likely.
    Latest,
}

/// A seeded generator of records `0..count`.
#[derive(Debug)]
pub(crate) struct Draw {
    shape: Shape,
    count: u64,
    state: u64,
    zeta: f64,
    eta: f64,
}

impl Draw {
    /// # Errors
    /// Returns an error for an unknown distribution.
    pub(crate) fn new(distribution: &str, count: u64, seed: u64) -> Outcome<Self> {
        let shape = match distribution {
            "uniform" => Shape::Uniform,
            "zipfian" => Shape::Zipfian,
            "latest" => Shape::Latest,
            _ => return Err(format!("there is no distribution {distribution:?}")),
        };
        let zeta = |count: u64| (1..=count).map(|n| (n as f64).powf(-THETA)).sum::<f64>();
        let whole = zeta(count);
        let eta = (1.0 - (2.0 / count as f64).powf(1.0 - THETA)) / (1.0 - zeta(2) / whole);
        Ok(Self {
            shape,
            count,
            state: mix(seed),
            zeta: whole,
            eta,
        })
    }

    /// Returns a number below `below`.
    pub(crate) fn below(&mut self, below: u64) -> u64 {
        self.state = mix(self.state);
        self.state % below
    }

    fn unit(&mut self) -> f64 {
        self.state = mix(self.state);
        (self.state >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Returns a rank, 0 the most likely: J. Gray and others, "Quickly generating billion-record
    /// synthetic databases", SIGMOD '94.
    fn rank(&mut self) -> u64 {
        let unit = self.unit();
        let scaled = unit * self.zeta;
        if scaled < 1.0 {
            return 0;
        }
        if scaled < 1.0 + 0.5_f64.powf(THETA) {
            return 1;
        }
        let rank = (self.eta * unit - self.eta + 1.0).powf(1.0 / (1.0 - THETA));
        ((self.count as f64 * rank) as u64).min(self.count - 1)
    }

    /// Returns a record.
    pub(crate) fn record(&mut self) -> u64 {
        match self.shape {
            Shape::Uniform => self.below(self.count),
            // Likely records are spread over all of them.
            Shape::Zipfian => mix(self.rank()) % self.count,
            Shape::Latest => self.count - 1 - self.rank(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(distribution: &str) -> Vec<u64> {
        let mut draw = Draw::new(distribution, 1000, 1).expect("there is such");
        let mut counts = vec![0; 1000];
        for _ in 0..100_000 {
            counts[draw.record() as usize] += 1;
        }
        counts
    }

    #[test]
    fn shapes_are_those_of_their_names() {
        let uniform = counts("uniform");
        assert!(uniform.iter().all(|count| (40..200).contains(count)));
        // By definition, the first of 1000 has 1 / zeta(1000) = 13% of all draws.
        let zipfian = counts("zipfian");
        let most = zipfian.iter().max().copied().unwrap_or(0);
        assert!((12_000..15_000).contains(&most), "{most}");
        let latest = counts("latest");
        assert!((12_000..15_000).contains(&latest[999]), "{}", latest[999]);
        assert!(latest[999] > latest[900] && latest[900] >= latest[0].saturating_sub(30));
        assert!(Draw::new("normal", 10, 1).is_err());
    }
}
