//! RocksDB's db_bench, and what it prints.

use super::results::{Run, Side};
use crate::bench::Outcome;

/// The percentiles that are kept; the last is the longest of all.
const PERCENTILES: [f64; 10] = [10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.9, 99.99, 100.0];

/// One benchmark's part of the output, with its histogram of writes or of reads.
pub(super) fn parse(text: &str, benchmark: &str) -> Outcome<Run> {
    let missing = |what: &str| format!("db_bench printed no {what} of {benchmark}: {text}");
    // fillrandom : 18.272 micros/op 54721 ops/sec 0.365 seconds 20000 operations; 6.1 MB/s
    let mut lines = text.lines();
    let line = lines.find(|line| {
        let (name, rest) = line.split_once(':').unwrap_or_default();
        name.trim() == benchmark && rest.contains("micros/op")
    });
    let line = line.ok_or_else(|| missing("figures"))?;
    let words: Vec<&str> = line.split_whitespace().collect();
    let before = |unit: &str| {
        let at = words
            .iter()
            .position(|word| word.trim_end_matches(';') == unit)?;
        words.get(at.checked_sub(1)?)?.parse::<f64>().ok()
    };
    let seconds = before("seconds").ok_or_else(|| missing("seconds"))?;
    let operations = before("operations").ok_or_else(|| missing("operations"))?;
    let kind = lines.find_map(|line| line.strip_prefix("Microseconds per "));
    let kind = kind
        .ok_or_else(|| missing("histogram"))?
        .trim_end_matches(':');
    let side = histogram(lines).ok_or_else(|| missing("histogram"))?;
    let mut run = Run {
        operations: operations as u64,
        seconds,
        ..Run::default()
    };
    match kind {
        "read" => run.reads = side,
        "write" => run.writes = side,
        _ => return Err(missing("times of reads or writes")),
    }
    Ok(run)
}

/// Mean, most, and buckets of whole microseconds: within one, values are taken to be spread evenly.
fn histogram<'a>(lines: impl Iterator<Item = &'a str>) -> Option<Side> {
    let mut side = Side::default();
    let (mut most, mut buckets) = (0.0, Vec::new());
    for line in lines {
        let mut words = line.split_whitespace();
        match words.next().unwrap_or_default() {
            "Count:" => {
                side.count = words.next()?.parse().ok()?;
                side.mean_us = words.nth(1)?.parse().ok()?;
            }
            "Min:" => most = line.rsplit(' ').next()?.parse().ok()?,
            "(" | "[" => {
                let low: f64 = words.next()?.trim_end_matches(',').parse().ok()?;
                let high: f64 = words.next()?.parse().ok()?;
                let count: u64 = words.nth(1)?.parse().ok()?;
                buckets.push((low, high, count));
                let counted: u64 = buckets.iter().map(|(.., count)| count).sum();
                if counted == side.count {
                    break;
                }
            }
            _ => {}
        }
    }
    let at = |percent: f64| {
        let mut wanted = side.count as f64 * percent / 100.0;
        for (low, high, count) in &buckets {
            if wanted <= *count as f64 {
                let us: f64 = low + (high - low) * wanted / *count as f64;
                return us.min(most);
            }
            wanted -= *count as f64;
        }
        most
    };
    let percentiles =
        PERCENTILES.map(|percent| (percent, if percent < 100.0 { at(percent) } else { most }));
    let whole = side.count > 0 && !buckets.is_empty();
    whole.then(|| Side {
        percentiles_us: percentiles.to_vec(),
        ..side
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRINTED: &str = "\
DB path: [x]
fillrandom   :      18.272 micros/op 54721 ops/sec 0.365 seconds 20000 operations;    6.1 MB/s
Microseconds per write:
Count: 20000 Average: 18.2674  StdDev: 475.11
Min: 2  Median: 3.4211  Max: 36142
Percentiles: P50: 3.42 P75: 3.93 P99: 9.73 P99.9: 4950.00 P99.99: 27500.00
------------------------------------------------------
[       0,       1 ]     5000  25.000%  25.000% #####
(       1,       3 ]    10000  50.000%  75.000% ##########
(   33000,   50000 ]     5000  25.000% 100.000% #####

Set seed
";

    #[test]
    fn output_of_db_bench_is_parsed() {
        let run = parse(PRINTED, "fillrandom").expect("as printed");
        assert_eq!(
            (run.operations, run.seconds, run.reads.count),
            (20_000, 0.365, 0)
        );
        let side = &run.writes;
        assert_eq!((side.count, side.mean_us), (20_000, 18.2674));
        let at = [25.0, 50.0, 75.0, 100.0].map(|percent| side.at(percent));
        assert_eq!(at, [1.0, 2.0, 3.0, 36142.0]);
        // No value is above the most, though the bucket goes on.
        assert!(side.at(99.9) <= 36142.0);
        assert!(parse(PRINTED, "overwrite").is_err());
        assert!(
            parse(
                &PRINTED.replace("Microseconds", "Nanoseconds"),
                "fillrandom"
            )
            .is_err()
        );
    }
}
