//! Fields of the status with types of the daemon, and distributions of latencies.

use forebay_terminal::record::{Distribution, Optional, Value, Valued};

use super::Latency;
use crate::config::{Mode, Promotion};

/// The bounds of the latency histograms, microseconds.
pub const LATENCY_BOUNDS_US: [u64; 19] = [
    1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000,
    1_000_000, 10_000_000, 60_000_000,
];

impl Latency {
    /// Returns the distribution of histogram buckets, in order: (largest value in ns, count). A
    /// bucket that straddles a bound counts for the next one, so that no bound counts too much.
    pub fn from_buckets(buckets: impl Iterator<Item = (u64, u64)>, sum_ns: u64) -> Self {
        let buckets: Vec<_> = buckets.filter(|(_, count)| *count > 0).collect();
        let count: u64 = buckets.iter().map(|(_, count)| count).sum();
        let quantile_us = |share: f64| {
            let rank = ((count as f64 * share).ceil() as u64).max(1);
            let mut seen = 0;
            let found = buckets.iter().find(|(_, n)| {
                seen += n;
                seen >= rank
            });
            found.map_or(0.0, |(upper_ns, _)| *upper_ns as f64 / 1e3)
        };
        let within = |bound_us: &u64| {
            let fits = buckets
                .iter()
                .filter(|(upper_ns, _)| *upper_ns <= bound_us * 1000);
            fits.map(|(_, count)| count).sum()
        };
        Self {
            count,
            sum_us: sum_ns as f64 / 1e3,
            p50_us: quantile_us(0.50),
            p99_us: quantile_us(0.99),
            within: LATENCY_BOUNDS_US.iter().map(within).collect(),
        }
    }
}

impl Valued for Latency {
    fn value(&self) -> Value<'_> {
        Value::Distribution(Distribution {
            bounds_us: &LATENCY_BOUNDS_US,
            within: &self.within,
            count: self.count,
            sum_us: self.sum_us,
        })
    }
}

impl Optional for Mode {
    fn value(mode: Option<&Self>) -> Value<'_> {
        Value::Text(match mode {
            Some(mode) => mode.to_string().into(),
            None => "no cache".into(),
        })
    }
}

impl Valued for Promotion {
    fn value(&self) -> Value<'_> {
        Value::Hidden
    }
}
