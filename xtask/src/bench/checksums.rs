//! `cargo xtask bench checksums`: cost of checksums of cached data to a 4 KiB hit, in process and
//! over NBD.
//!
//! In process: `cargo bench --bench sums`. Over NBD: two daemons, one with checksums and one
//! without. Each is idle while the other is measured. A round measures both under each load, in the
//! opposite order in the next round. Ratios are of one round.

use std::path::Path;
use std::process::Command;

use serde::{Deserialize, Serialize};

use super::fio::{self, LOADS, Load};
use super::others::Processors;
use super::server::{Forebay, Scratch, in_memory};
use super::{Outcome, engine, median, require, run_for_output, take_processors};
use crate::claims::{Claim, Kind, Report};

const ROUNDS: usize = 9;
const SECONDS: u32 = 5;
const QUICK_ROUNDS: usize = 3;
const QUICK_SECONDS: u32 = 2;
const SET_BYTES: u64 = 64 << 20;
/// Time that a checksum may add to a hit in process, nanoseconds.
const ADDED_NS: f64 = 80.0;
/// Least share of the throughput without checksums, over NBD.
const SHARE: f64 = 0.95;
/// Use of one processor by other programs that makes a run disturbed, percent.
const DISTURBED_PERCENT: f64 = 5.0;

/// Hits of one kind, in process: pairs of nanoseconds a hit, without and with checksums.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Hits {
    op: String,
    set_bytes: u64,
    pairs_ns: Vec<[f64; 2]>,
}

/// One round over NBD.
#[derive(Debug, Serialize)]
pub(super) struct Round {
    load: &'static str,
    depth: u32,
    /// IOPS without and with checksums.
    iops: [f64; 2],
    p99_us: [f64; 2],
    /// The larger use of a processor by other programs during both runs, percent.
    others_percent: f64,
}

/// A measurement.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(super) enum Row {
    InProcess(Hits),
    Nbd(Round),
}

pub(super) fn run(root: &Path, binary: &Path, quick: bool) -> Outcome<Report<Row>> {
    require(&["fio", "taskset", "setpriv"])?;
    let (rounds, seconds) = match quick {
        true => (QUICK_ROUNDS, QUICK_SECONDS),
        false => (ROUNDS, SECONDS),
    };
    let bench = engine::build(root, "sums")?;
    let (server_cpu, _) = take_processors()?;
    let printed = run_for_output(Command::new(bench))?;
    let hits: Vec<Hits> = serde_json::from_str(&printed)
        .map_err(|error| format!("the benchmark printed {printed:?}: {error}"))?;
    let mut claims: Vec<Claim> = hits.iter().map(added).collect();

    println!(
        "Over NBD: 4 KiB at random on {} MiB, all of it cached, memory under both; {rounds} rounds \
         of {seconds} s.",
        SET_BYTES >> 20
    );
    let mut daemons = Vec::new();
    for (name, checksums) in [("bench-plain", false), ("bench-sums", true)] {
        let scratch = Scratch::new(name)?;
        let config = in_memory(SET_BYTES).replace(
            "durability = \"flush\"",
            &format!("durability = \"flush\"\nchecksums = {checksums}"),
        );
        let forebay = Forebay::start(binary, &scratch, &config, Some(server_cpu), &[])?;
        fio::fill(forebay.server.socket(), "v", SET_BYTES)?;
        if forebay
            .status()?
            .pointer("/cache/checksums")
            .is_some_and(|it| !it.is_null())
            != checksums
        {
            return Err("the daemon and its configuration differ about checksums".to_owned());
        }
        daemons.push((forebay, scratch));
    }
    let mut measured = Vec::new();
    for round in 0..rounds {
        for load in LOADS {
            let mut row = Round {
                load: load.direction(),
                depth: load.depth,
                iops: [0.0; 2],
                p99_us: [0.0; 2],
                others_percent: 0.0,
            };
            for turn in 0..2 {
                let which = (round + turn) % 2;
                let server = &daemons[which].0.server;
                let processors = Processors::sample(server.pid());
                let figures = fio::run(server.socket(), "v", SET_BYTES, load, seconds)?;
                let others = processors.others_percent(server.pid());
                (row.iops[which], row.p99_us[which]) = (figures.iops, figures.p99_us);
                row.others_percent = row.others_percent.max(others);
            }
            eprintln!(
                "round {} of {rounds}: {} QD {}: {:.0} IOPS, {:.0} with checksums",
                round + 1,
                row.load,
                row.depth,
                row.iops[0],
                row.iops[1]
            );
            measured.push(row);
        }
    }
    let disturbed = (measured.iter())
        .filter(|row| row.others_percent > DISTURBED_PERCENT)
        .count();
    if disturbed > 0 {
        println!(
            "\nNOT A RESULT: in {disturbed} of {} pairs of runs others used more than \
             {DISTURBED_PERCENT}% of a processor; rerun on a quiet machine",
            measured.len()
        );
    }
    for load in LOADS {
        claims.extend(over_nbd(&measured, load));
    }
    let rows = (hits.into_iter().map(Row::InProcess)).chain(measured.into_iter().map(Row::Nbd));
    Ok(Report {
        quick,
        claims,
        rows: rows.collect(),
    })
}

/// Returns the median of pairs, with the least and the most.
fn spread(values: impl Iterator<Item = f64> + Clone) -> (f64, f64, f64) {
    let least = values.clone().fold(f64::INFINITY, f64::min);
    let most = values.clone().fold(f64::NEG_INFINITY, f64::max);
    (median(values), least, most)
}

fn added(hits: &Hits) -> Claim {
    let pairs = hits.pairs_ns.iter();
    let (ours, least, most) = spread(pairs.clone().map(|[plain, sums]| sums - plain));
    let plain = median(pairs.map(|[plain, _]| *plain));
    Claim {
        name: format!("added/{}_hit/{}k", hits.op, hits.set_bytes >> 10),
        paper_or_peer: None,
        ours,
        unit: format!("ns to {plain:.0} ({least:.0}..{most:.0})"),
        kind: Kind::Measured,
        bar: format!("at most {ADDED_NS}"),
        holds: ours <= ADDED_NS,
    }
}

/// Returns the claims of IOPS, which have a limit, and of p99, which have none.
fn over_nbd(rows: &[Round], load: Load) -> [Claim; 2] {
    let own = (rows.iter()).filter(|row| row.load == load.direction() && row.depth == load.depth);
    let claim = |what: &str, (ours, least, most), bar: Option<f64>| Claim {
        name: format!("{what}/nbd/{}/qd{}", load.direction(), load.depth),
        paper_or_peer: Some(1.0),
        ours,
        unit: format!("x ({least:.3}..{most:.3})"),
        kind: Kind::Measured,
        bar: bar.map_or("told".to_owned(), |bar| format!("at least {bar}")),
        holds: bar.is_none_or(|bar| ours >= bar),
    };
    let ratio =
        |of: fn(&Round) -> [f64; 2]| spread(own.clone().map(of).map(|[plain, sums]| sums / plain));
    [
        claim("iops_ratio", ratio(|row| row.iops), Some(SHARE)),
        claim("p99_ratio", ratio(|row| row.p99_us), None),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn added_time_is_the_median_difference_of_the_pairs() {
        let mut hits = Hits {
            op: "read".to_owned(),
            set_bytes: 1 << 18,
            pairs_ns: vec![[100.0, 170.0], [300.0, 310.0], [100.0, 190.0]],
        };
        let claim = added(&hits);
        assert_eq!((claim.ours, claim.holds), (70.0, true));
        assert_eq!(claim.name, "added/read_hit/256k");
        hits.pairs_ns[1] = [100.0, 181.0];
        assert!(!added(&hits).holds);
    }

    #[test]
    fn a_twentieth_less_is_allowed() {
        let row = |sums: f64| Round {
            load: "read",
            depth: 1,
            iops: [100.0, sums],
            p99_us: [10.0, 11.0],
            others_percent: 0.0,
        };
        let [iops, p99] = over_nbd(&[row(96.0), row(90.0), row(97.0)], LOADS[0]);
        assert_eq!((iops.ours, iops.holds, p99.holds), (0.96, true, true));
        assert!(!over_nbd(&[row(94.0)], LOADS[0])[0].holds);
    }
}
