//! `cargo xtask bench record`: cost of a recording to the recorded clients.
//!
//! One daemon serves one continuous load over NBD. The benchmark counts the answers in many pairs
//! of periods, one with a recording and one without, in alternating order. Each pair gives a ratio.
//! The median counts. The recorder runs beside the client, not on the daemon's processor. So, as on
//! a machine with free processors, it costs the daemon only the daemon's own work.

use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::fio::{self, Load};
use super::server::{Forebay, Scratch, counter, in_memory};
use super::{Outcome, median, require, take_processors};
use crate::claims::{Claim, Kind, Report, Table, figure};

const LOADS: [Load; 3] = [
    Load {
        write: false,
        depth: 1,
    },
    Load {
        write: false,
        depth: 32,
    },
    Load {
        write: true,
        depth: 32,
    },
];
/// Number of pairs. Two periods without a recording differ by some per cent, so one pair proves
/// little. This number resolves a hundredth.
const PAIRS: usize = 240;
const QUICK_PAIRS: usize = 6;
const SET_BYTES: u64 = 64 << 20;
/// Time that a recording runs before and after the counted period. The periods without one have the
/// same gaps.
const MARGIN: Duration = Duration::from_millis(100);
const COUNTED: Duration = Duration::from_millis(400);
/// Value of `--duration`: the counted period with the time before and after it.
const RECORDED: &str = "600ms";
/// Least ratio to the throughput without a recording.
const BAR: f64 = 0.99;

/// A period with a recording and one without.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    load: &'static str,
    depth: u32,
    recorded_iops: f64,
    iops: f64,
}

pub(super) fn run(binary: &Path, quick: bool) -> Outcome<Report<Row>> {
    require(&["fio", "taskset", "setpriv"])?;
    let pairs = if quick { QUICK_PAIRS } else { PAIRS };
    let (server_cpu, _) = take_processors()?;
    println!(
        "4 KiB at random on {} MiB, all of it cached, memory under both; {pairs} pairs of moments, \
         with a recording and without.",
        SET_BYTES >> 20
    );
    let scratch = Scratch::new("bench-record")?;
    let forebay = Forebay::start(
        binary,
        &scratch,
        &in_memory(SET_BYTES),
        Some(server_cpu),
        &[],
    )?;
    let socket = forebay.server.socket().to_owned();
    fio::fill(&socket, "v", SET_BYTES)?;
    let mut rows = Vec::new();
    for load in LOADS {
        // Longer than all pairs take. The load ends with this scope.
        let seconds = (pairs * 3 + 10) as u32;
        let _fio = fio::start(&socket, "v", SET_BYTES, load, seconds)?;
        sleep(Duration::from_secs(2));
        for pair in 0..pairs {
            let mut iops = [0.0; 2];
            for turn in 0..2 {
                let recorded = (pair + turn) % 2 == 0;
                iops[usize::from(recorded)] = served(binary, &forebay, &scratch, load, recorded)?;
            }
            eprintln!(
                "{} QD {}: {:.0} IOPS recorded, {:.0} not",
                load.direction(),
                load.depth,
                iops[1],
                iops[0]
            );
            rows.push(Row {
                load: load.direction(),
                depth: load.depth,
                recorded_iops: iops[1],
                iops: iops[0],
            });
        }
    }
    let claims = LOADS.iter().map(|load| claim(&rows, *load)).collect();
    print_rows(&rows);
    Ok(Report {
        quick,
        claims,
        rows,
    })
}

/// Returns the answered requests a second.
fn served(
    binary: &Path,
    forebay: &Forebay,
    scratch: &Scratch,
    load: Load,
    recorded: bool,
) -> Outcome<f64> {
    let out = scratch.path("recording");
    let recorder = if recorded {
        let mut record = Command::new(binary);
        record.arg("--control").arg(scratch.path("control.sock"));
        record.args(["trace", "record", "--force", "--duration", RECORDED]);
        let child = record.arg(&out).spawn();
        Some(child.map_err(|error| format!("cannot start {}: {error}", binary.display()))?)
    } else {
        None
    };
    sleep(MARGIN);
    let hits = || {
        let status = forebay.status()?;
        counter(&status, &format!("/volumes/0/{}_hits", load.direction()))
    };
    let (before, begin) = (hits()?, Instant::now());
    sleep(COUNTED);
    let (after, taken) = (hits()?, begin.elapsed());
    match recorder {
        None => sleep(MARGIN),
        Some(mut recorder) => {
            let ended = recorder.wait().map_err(|error| error.to_string())?;
            let mut stats = Command::new(binary);
            stats.args(["trace", "stats", "--json"]).arg(&out);
            let stats = super::json_of(&super::run_for_output(stats)?)?;
            let requests = stats["requests"].as_u64().unwrap_or(0);
            if !ended.success() || requests < after - before {
                return Err(format!(
                    "{requests} requests were recorded of at least {}",
                    after - before
                ));
            }
        }
    }
    Ok((after - before) as f64 / taken.as_secs_f64())
}

fn ratios(rows: &[Row], load: Load) -> Vec<f64> {
    let own = rows
        .iter()
        .filter(|row| row.load == load.direction() && row.depth == load.depth);
    let mut ratios: Vec<f64> = own.map(|row| row.recorded_iops / row.iops).collect();
    ratios.sort_by(f64::total_cmp);
    ratios
}

fn claim(rows: &[Row], load: Load) -> Claim {
    let ratios = ratios(rows, load);
    // The true median lies between these two order statistics with a probability of 95%.
    let count = ratios.len();
    let rank = (count as f64 / 2.0 - 0.98 * (count as f64).sqrt()).max(0.0) as usize;
    let (low, high) = (ratios[rank], ratios[count - 1 - rank]);
    let ours = median(ratios.into_iter());
    Claim {
        name: format!("recorded_iops/{}/qd{}", load.direction(), load.depth),
        paper_or_peer: Some(1.0),
        ours,
        unit: format!("x (95%: {low:.3}..{high:.3})"),
        kind: Kind::Measured,
        bar: format!("at least {BAR}"),
        holds: ours >= BAR,
    }
}

fn print_rows(rows: &[Row]) {
    println!();
    let mut table = Table::new(&["medians", "IOPS recorded", "IOPS not", "pairs"]);
    for load in LOADS {
        let own = || {
            rows.iter()
                .filter(|row| row.load == load.direction() && row.depth == load.depth)
        };
        table.row(vec![
            format!("{} QD {}", load.direction(), load.depth),
            figure(median(own().map(|row| row.recorded_iops))),
            figure(median(own().map(|row| row.iops))),
            own().count().to_string(),
        ]);
    }
    table.print();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_is_the_median_of_the_pairs() {
        let rows: Vec<Row> = [990.0, 1010.0, 970.0, 985.0, 995.0]
            .map(|recorded_iops| Row {
                load: "read",
                depth: 32,
                recorded_iops,
                iops: 1000.0,
            })
            .into();
        let claim = claim(&rows, LOADS[1]);
        assert_eq!((claim.ours, claim.holds), (0.99, true));
        assert_eq!(claim.unit, "x (95%: 0.970..1.010)");
    }
}
