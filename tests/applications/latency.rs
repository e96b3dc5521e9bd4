//! Response times, reads apart from changes.

use std::time::Instant;

use hdrhistogram::Histogram;
use serde_json::{Value, json};

/// Printed percentiles of each distribution.
const PERCENTILES: [f64; 10] = [10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.9, 99.99, 100.0];

/// A read, or an operation that changes data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Read,
    Write,
}

/// Measurements of a thread, nanoseconds.
#[derive(Debug)]
pub(crate) struct Latencies {
    reads: Histogram<u64>,
    writes: Histogram<u64>,
    /// Operations. One may consist of several timed ones.
    pub(crate) operations: u64,
}

impl Latencies {
    pub(crate) fn new() -> Self {
        // Longer than any operation may take.
        let most_ns = 1_000_000_000_000;
        let histogram = || Histogram::new_with_max(most_ns, 3).expect("three digits are allowed");
        Self {
            reads: histogram(),
            writes: histogram(),
            operations: 0,
        }
    }

    /// Runs `work` and records its time.
    pub(crate) fn timed<T>(&mut self, kind: Kind, work: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        let done = work();
        let took_ns = began.elapsed().as_nanos() as u64;
        match kind {
            Kind::Read => self.reads.saturating_record(took_ns),
            Kind::Write => self.writes.saturating_record(took_ns),
        }
        done
    }

    pub(crate) fn add(&mut self, other: &Self) {
        let merged = self.reads.add(&other.reads);
        merged.expect("histograms of one size");
        let merged = self.writes.add(&other.writes);
        merged.expect("histograms of one size");
        self.operations += other.operations;
    }

    /// Returns one JSON object for a run of `seconds`.
    pub(crate) fn json(&self, seconds: f64) -> Value {
        json!({
            "operations": self.operations,
            "seconds": seconds,
            "reads": side(&self.reads),
            "writes": side(&self.writes),
        })
    }
}

fn side(histogram: &Histogram<u64>) -> Value {
    let at = |percent: &f64| {
        let us = histogram.value_at_quantile(percent / 100.0) as f64 / 1e3;
        json!([percent, us])
    };
    json!({
        "count": histogram.len(),
        "mean_us": histogram.mean() / 1e3,
        "percentiles_us": PERCENTILES.iter().map(at).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_and_writes_are_apart_and_threads_add_up() {
        let mut one = Latencies::new();
        one.operations = 2;
        for us in [1, 2, 3] {
            one.writes.record(us * 1000).expect("it grows");
        }
        let mut two = Latencies::new();
        two.operations = 1;
        two.writes.record(10_000).expect("it grows");
        let pause = std::time::Duration::from_millis(2);
        two.timed(Kind::Read, || std::thread::sleep(pause));
        one.add(&two);
        let json = one.json(2.0);
        assert_eq!(
            (&json["operations"], &json["reads"]["count"]),
            (&3.into(), &1.into())
        );
        assert_eq!(json["writes"]["count"], 4);
        // The histogram does not cut times short.
        assert!(json["reads"]["mean_us"].as_f64().expect("a number") >= 2000.0);
        let percentiles = &json["writes"]["percentiles_us"];
        assert_eq!(percentiles[2][0], 50.0);
        assert!((percentiles[2][1].as_f64().expect("a number") - 2.0).abs() < 0.01);
        assert!((percentiles[9][1].as_f64().expect("a number") - 10.0).abs() < 0.01);
    }
}
