//! Distributions, and the metrics of the example.

use std::collections::HashSet;

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

#[test]
fn the_metrics_are_valid_prometheus_text() {
    let text = forebay_terminal::metrics::render(&example());
    let mut families = HashSet::new();
    let mut current = String::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect("a type line has two words");
            assert!(families.insert(name.to_owned()), "{name} begins once");
            assert_eq!(kind == "counter", name.ends_with("_total"), "{name}");
            current = name.to_owned();
        } else if !line.starts_with("# HELP ") {
            assert!(line.starts_with(&current), "{line} belongs to {current}");
            let value = line.rsplit(' ').next().expect("a sample has a value");
            value.parse::<f64>().expect(line);
        }
    }
    assert!(families.len() > 25, "{families:?}");
    for sample in [
        "forebay_cache_dirty_bytes 65536",
        "forebay_cache_cleaning_info{policy=\"auto\"} 1",
        "forebay_volume_read_hits_total{volume=\"db\"} 90",
        "forebay_volume_bypassed_for_room_total{volume=\"db\"} 7",
        "forebay_volume_requests_total{volume=\"db\",op=\"read\"} 100",
        "forebay_volume_latency_seconds_bucket{volume=\"db\",op=\"read\",le=\"0.0001\"} 90",
        "forebay_volume_latency_seconds_bucket{volume=\"db\",op=\"read\",le=\"+Inf\"} 100",
        "forebay_connections{reactor=\"engine\"} 1",
        "forebay_device_errors_total{device=\"ssd\",role=\"cache\"} 2",
        "forebay_transit_bypassed_blocks_total{device=\"fast\",policy=\"caiti\"} 3",
        "forebay_device_written_bytes_total{device=\"ssd\",role=\"cache\"} 4096",
    ] {
        assert!(
            text.lines().any(|line| line == sample),
            "{sample} in\n{text}"
        );
    }
}
