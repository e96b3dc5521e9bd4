//! A distribution of times, each known to one part in 64.

use std::time::Duration;

/// Buckets for each power of two.
const SUB: u64 = 64;
const SUB_SHIFT: u32 = SUB.trailing_zeros();
/// Number of buckets, sufficient for a minute. The last one has longer times.
const BUCKETS: usize = (SUB as usize) * 32;

/// A distribution of latencies.
#[derive(Clone, Debug)]
pub struct Latencies {
    counts: Vec<u64>,
    count: u64,
    sum: Duration,
    max: Duration,
}

impl Default for Latencies {
    fn default() -> Self {
        Self {
            counts: vec![0; BUCKETS],
            count: 0,
            sum: Duration::ZERO,
            max: Duration::ZERO,
        }
    }
}

/// Returns the bucket of a number of nanoseconds: exact below [`SUB`], then [`SUB`] for each power
/// of two.
fn bucket(ns: u64) -> usize {
    if ns < SUB {
        return usize::try_from(ns).expect("small");
    }
    let shift = ns.ilog2() - SUB_SHIFT;
    let at = u64::from(shift) * SUB + (ns >> shift);
    usize::try_from(at).map_or(BUCKETS - 1, |at| at.min(BUCKETS - 1))
}

/// Returns the largest number of nanoseconds in a bucket.
fn upper_ns(bucket: usize) -> u64 {
    let at = bucket as u64;
    if at < SUB {
        return at;
    }
    let shift = at / SUB - 1;
    ((at - shift * SUB + 1) << shift) - 1
}

impl Latencies {
    pub(super) fn record(&mut self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.counts[bucket(ns)] += 1;
        self.count += 1;
        self.sum += time;
        self.max = self.max.max(time);
    }

    /// Returns the sum of two distributions.
    #[must_use]
    pub fn with(&self, others: &Self) -> Self {
        Self {
            counts: self
                .counts
                .iter()
                .zip(&others.counts)
                .map(|(a, b)| a + b)
                .collect(),
            count: self.count + others.count,
            sum: self.sum + others.sum,
            max: self.max.max(others.max),
        }
    }

    /// Returns the number of latencies.
    #[must_use]
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// Returns the mean, exact.
    #[must_use]
    pub fn mean(&self) -> Duration {
        match self.count {
            0 => Duration::ZERO,
            count => self.sum.div_f64(count as f64),
        }
    }

    /// Returns the longest, exact.
    #[must_use]
    pub const fn max(&self) -> Duration {
        self.max
    }

    /// Returns the latency that this share (0 to 1) does not exceed, to one part in 64.
    #[must_use]
    pub fn quantile(&self, share: f64) -> Duration {
        let rank = ((self.count as f64 * share).ceil() as u64).clamp(1, self.count.max(1));
        let mut seen = 0;
        let found = self.counts.iter().position(|count| {
            seen += count;
            seen >= rank
        });
        found.map_or(self.max, |bucket| {
            let upper = Duration::from_nanos(upper_ns(bucket));
            // The last bucket has no upper end.
            if bucket == BUCKETS - 1 {
                self.max
            } else {
                upper.min(self.max)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_follow_each_other_without_gaps() {
        for at in 0..BUCKETS - 1 {
            let upper = upper_ns(at);
            assert_eq!((bucket(upper), bucket(upper + 1)), (at, at + 1), "{upper}");
        }
        assert!(upper_ns(BUCKETS - 2) > 60_000_000_000);
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn quantiles_are_known_to_a_64th() {
        let mut latencies = Latencies::default();
        assert_eq!(latencies.quantile(0.5), Duration::ZERO);
        for us in 1..=10_000 {
            latencies.record(Duration::from_micros(us));
        }
        assert_eq!(latencies.count(), 10_000);
        assert_eq!(latencies.mean(), Duration::from_nanos(5_000_500));
        assert_eq!(latencies.max(), Duration::from_millis(10));
        for (share, us) in [
            (0.0, 1.0),
            (0.5, 5000.0),
            (0.99, 9900.0),
            (0.999, 9990.0),
            (1.0, 10_000.0),
        ] {
            let found = latencies.quantile(share).as_nanos() as f64 / 1e3;
            assert!(
                found >= us && found <= us * (1.0 + 1.0 / 64.0),
                "{share}: {found}"
            );
        }
        let both = latencies.with(&latencies);
        assert_eq!((both.count(), both.mean()), (20_000, latencies.mean()));
        assert_eq!(both.quantile(0.9), latencies.quantile(0.9));
        latencies.record(Duration::from_secs(1000));
        assert_eq!(latencies.quantile(1.0), Duration::from_secs(1000));
    }
}
