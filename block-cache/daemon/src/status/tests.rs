//! Distributions count each value once.

use super::*;

#[test]
fn a_distribution_counts_each_value_once() {
    let buckets = [(900, 2), (40_000, 96), (3_000_000, 1), (90_000_000_000, 1)];
    let latency = Latency::from_buckets(buckets.into_iter(), 5_000);
    assert_eq!(latency.count, 100);
    assert_eq!(latency.p50_us, 40.0);
    assert_eq!(latency.p99_us, 3_000.0);
    assert_eq!(latency.within[0], 2);
    assert_eq!(latency.within[4], 2);
    assert_eq!(latency.within[5], 98);
    assert_eq!(latency.within[18], 99);
    assert_eq!(Latency::from_buckets([].into_iter(), 0).p99_us, 0.0);
}
