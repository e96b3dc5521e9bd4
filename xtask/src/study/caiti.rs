//! Response times of random writes to a table on emulated persistent memory, alone and through transit and
//! staging caches: docs/results/caiti.md.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use clap::Args;
use serde::{Deserialize, Serialize};

use super::{commit, date};
use crate::bench::{Outcome, built_program, conclude, json_of, run_for_output};
use crate::claims::{Claim, Kind, Report, machine};

/// What is compared: raw memory, the table, and the table under each policy.
const SYSTEMS: [&str; 9] = [
    "pmem",
    "btt",
    "pmbd",
    "pmbd-70",
    "lru",
    "co-active",
    "caiti",
    "caiti-without-eviction",
    "caiti-without-bypass",
];
/// Those that keep what is written until there is no room.
const STAGING: [&str; 4] = ["pmbd", "pmbd-70", "lru", "co-active"];
/// Writes under way at a time, at saturation.
const DEPTH: u32 = 32;

/// What the study takes.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Runs of each, one system after the other in every round
    #[arg(long, value_name = "NUMBER", default_value_t = 5)]
    rounds: usize,
    /// Of each run
    #[arg(long, value_name = "SECONDS", default_value_t = 8.0)]
    seconds: f64,
    /// One short round with the processor kept while waiting, and not into docs: for a look
    #[arg(long)]
    quick: bool,
    /// Where the page goes
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Write claims and rows to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// One run, as the program prints it.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Run {
    system: String,
    load: String,
    emulated: String,
    waiting: String,
    writes: u64,
    iops: f64,
    mean_us: f64,
    p50_us: f64,
    p99_us: f64,
    p9999_us: f64,
    max_us: f64,
    flush_mean_ms: f64,
    steal_s: f64,
    written: u64,
    bypassed: u64,
    waited: u64,
    evicted: u64,
    slot_bytes: u64,
}

impl Run {
    fn is_open(&self) -> bool {
        self.load.starts_with("open")
    }
}

/// A figure of several runs.
#[derive(Clone, Copy, Debug)]
struct Spread {
    median: f64,
    least: f64,
    most: f64,
}

impl Spread {
    fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let last = values.len() - 1;
        Self {
            median: (values[last / 2] + values[last.div_ceil(2)]) / 2.0,
            least: values[0],
            most: values[last],
        }
    }
}

/// The runs of one system under one load.
struct Cell<'a>(Vec<&'a Run>);

impl Cell<'_> {
    fn spread(&self, value: fn(&Run) -> f64) -> Spread {
        Spread::of(self.0.iter().map(|run| value(run)).collect())
    }

    fn median(&self, value: fn(&Run) -> f64) -> f64 {
        self.spread(value).median
    }
}

fn cell<'a>(runs: &'a [Run], system: &str, waiting: &str, open: bool) -> Cell<'a> {
    let chosen = runs
        .iter()
        .filter(|run| run.system == system && run.waiting == waiting && run.is_open() == open);
    Cell(chosen.collect())
}

/// Runs the study. Whether the claims hold.
pub(super) fn study(root: &Path, options: &Options) -> Outcome<bool> {
    let began = Instant::now();
    let program = built_program(
        root,
        &["--package", "forebay-transit", "--example", "caiti"],
    )?;
    let commit = commit(root)?;
    let (rounds, seconds) = match options.quick {
        true => (1, options.seconds.min(2.0)),
        false => (options.rounds.max(1), options.seconds),
    };
    let waitings: &[&str] = if options.quick {
        &["spin"]
    } else {
        &["spin", "yield"]
    };
    let mut runs = Vec::new();
    for round in 0..rounds {
        for waiting in waitings {
            one_round(&program, round, waiting, seconds, &mut runs)?;
        }
    }
    let report = Report {
        quick: options.quick,
        claims: claims(&runs),
        rows: runs,
    };
    let out = options.out.clone().unwrap_or_else(|| match options.quick {
        true => program.with_file_name("caiti-quick.md"),
        false => root.join("docs/results/caiti.md"),
    });
    let head = format!(
        "# I/O transit caching: response times\n\nWritten by `cargo xtask study caiti`, {rounds} rounds of {seconds} s a run, which took {:.0} min; no figure is typed by \
         hand. Commit {commit}, {}. Machine: {}. Time taken by the machine's owner (steal): {:.2} s.\n\nThe memory is **{}**: a file in DRAM whose loads, fences and bandwidth wait as \
         declared (*spin*: the processor is kept, as by a stalled store; *yield*: other threads run meanwhile, as if each had a processor).\n",
        began.elapsed().as_secs_f64() / 60.0,
        run_for_output(date())?,
        machine(),
        report.rows.iter().map(|run| run.steal_s).sum::<f64>(),
        report.rows[0].emulated,
    );
    let text = head + &page(&report.rows, waitings, options.quick);
    std::fs::write(&out, text).map_err(|error| format!("{}: {error}", out.display()))?;
    println!("written: {}", out.display());
    conclude(&report, options.json.as_deref())
}

/// Every system at saturation, then at half of what the table can take.
fn one_round(
    program: &Path,
    round: usize,
    waiting: &str,
    seconds: f64,
    runs: &mut Vec<Run>,
) -> Outcome<()> {
    let mut systems = SYSTEMS;
    // No system always comes after the same other one.
    systems.rotate_left(round % SYSTEMS.len());
    let mut saturation = 0.0;
    for system in systems {
        let run = run(
            program,
            system,
            &format!("closed:{DEPTH}"),
            waiting,
            seconds,
            round,
        )?;
        if system == "btt" {
            saturation = run.iops;
        }
        runs.push(run);
    }
    for system in systems {
        let load = format!("open:{:.0}", saturation / 2.0);
        runs.push(run(program, system, &load, waiting, seconds, round)?);
    }
    Ok(())
}

fn run(
    program: &Path,
    system: &str,
    load: &str,
    waiting: &str,
    seconds: f64,
    round: usize,
) -> Outcome<Run> {
    eprintln!("round {round}, {waiting}: {system}, {load}");
    let mut command = Command::new(program);
    command.args([system, load, &seconds.to_string()]);
    command.arg(format!("wait={waiting}"));
    command.arg(format!("seed={}", round + 1));
    let printed = json_of(&run_for_output(command)?)?;
    serde_json::from_value(printed).map_err(|error| format!("{system}, {load}: {error}"))
}

fn claims(runs: &[Run]) -> Vec<Claim> {
    let half = |system| cell(runs, system, "spin", true);
    let full = |system| cell(runs, system, "spin", false);
    let claim = |name: &str, paper: Option<f64>, ours: f64, bar: &str, holds: bool| Claim {
        name: name.into(),
        paper_or_peer: paper,
        ours,
        unit: "times".into(),
        kind: Kind::Emulated,
        bar: bar.into(),
        holds,
    };
    let mean = half("caiti").median(|run| run.mean_us) / half("btt").median(|run| run.mean_us);
    let staging = STAGING.map(|policy| half(policy).median(|run| run.p9999_us));
    let tail = half("caiti").median(|run| run.p9999_us)
        / staging.into_iter().fold(f64::INFINITY, f64::min);
    let beside = |other| full("caiti").median(|run| run.iops) / full(other).median(|run| run.iops);
    let (btt, lru, pmbd) = (beside("btt"), beside("lru"), beside("pmbd"));
    let slot = SYSTEMS.map(|system| full(system).median(|run| run.slot_bytes as f64));
    let slot = slot.into_iter().fold(0.0, f64::max);
    vec![
        claim(
            "half load/mean beside btt",
            None,
            mean,
            "at most 0.8",
            mean <= 0.8,
        ),
        claim(
            "half load/p99.99 beside the best staging policy",
            None,
            tail,
            "below 1",
            tail < 1.0,
        ),
        claim(
            "saturation/writes beside btt",
            Some(3.6),
            btt,
            "at least 0.9",
            btt >= 0.9,
        ),
        claim(
            "saturation/writes beside lru",
            Some(3.5),
            lru,
            "above 1",
            lru > 1.0,
        ),
        claim(
            "saturation/writes beside pmbd",
            Some(3.6),
            pmbd,
            "above 1",
            pmbd > 1.0,
        ),
        Claim {
            unit: "bytes".into(),
            kind: Kind::Counted,
            ..claim(
                "metadata of a slot, any policy",
                Some(102.0),
                slot,
                "at most 64",
                slot <= 64.0,
            )
        },
    ]
}

fn page(runs: &[Run], waitings: &[&str], quick: bool) -> String {
    let mut text = String::new();
    if quick {
        text += "\n**A quick run, maybe beside others. For a look, not for a result.**\n";
    }
    for waiting in waitings {
        for (open, title) in [
            (
                true,
                "Half of the table's saturation, at random moments".to_owned(),
            ),
            (false, format!("Saturation: {DEPTH} writes under way")),
        ] {
            text += &format!("\n## {title} ({waiting})\n\n");
            text += "| | writes/s | mean, us | p50, us | p99, us | p99.99, us | bypassed | waited | samples |\n\
                     |---|---|---|---|---|---|---|---|---|\n";
            for system in SYSTEMS {
                let cell = cell(runs, system, waiting, open);
                let figure = |value: fn(&Run) -> f64| {
                    let spread = cell.spread(value);
                    let digits = if spread.median < 1000.0 { 1 } else { 0 };
                    format!(
                        "{:.digits$} ({:.digits$} to {:.digits$})",
                        spread.median, spread.least, spread.most
                    )
                };
                let part = |count: fn(&Run) -> u64| {
                    let all: u64 = cell.0.iter().map(|run| run.writes).sum();
                    let some: u64 = cell.0.iter().map(|run| count(run)).sum();
                    format!("{:.1}%", 100.0 * some as f64 / all.max(1) as f64)
                };
                let samples: u64 = cell.0.iter().map(|run| run.writes).sum();
                text += &format!(
                    "| {system} | {} | {} | {} | {} | {} | {} | {} | {samples} |\n",
                    figure(|run| run.iops),
                    figure(|run| run.mean_us),
                    figure(|run| run.p50_us),
                    figure(|run| run.p99_us),
                    figure(|run| run.p9999_us),
                    part(|run| run.bypassed),
                    part(|run| run.waited),
                );
            }
        }
    }
    text + "\nMedian of the rounds, with the least and the most. *pmem* does not keep blocks whole; all others do.\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run_of(system: &str, load: &str, iops: f64, mean_us: f64) -> Run {
        Run {
            system: system.into(),
            load: load.into(),
            emulated: "emulated: x".into(),
            waiting: "spin".into(),
            writes: 100,
            iops,
            mean_us,
            p50_us: mean_us,
            p99_us: mean_us * 3.0,
            p9999_us: mean_us * 10.0,
            max_us: mean_us * 20.0,
            flush_mean_ms: 0.0,
            steal_s: 0.0,
            written: 0,
            bypassed: 25,
            waited: 0,
            evicted: 0,
            slot_bytes: 52,
        }
    }

    #[test]
    fn claims_compare_medians_of_the_same_load() {
        let mut runs = Vec::new();
        for system in SYSTEMS {
            let slow = if system == "caiti" { 1.0 } else { 2.0 };
            for (load, iops) in [("open:5", 5.0), ("closed:32", 10.0)] {
                for factor in [0.5, 1.0, 30.0] {
                    runs.push(run_of(system, load, iops / slow, slow * factor));
                }
            }
        }
        let claims = claims(&runs);
        assert!(claims.iter().all(|claim| claim.holds), "{claims:?}");
        assert_eq!((claims[0].ours, claims[2].ours), (0.5, 2.0));
        for run in runs.iter_mut().filter(|run| run.system == "lru") {
            run.iops = 100.0;
            run.p9999_us = 0.1;
        }
        let failed = super::claims(&runs)
            .into_iter()
            .filter(|claim| !claim.holds);
        let names: Vec<String> = failed.map(|claim| claim.name).collect();
        assert_eq!(names.len(), 2, "{names:?}");
        let text = page(&runs, &["spin"], true);
        assert!(
            text.contains("| caiti | 5.0 (5.0 to 5.0) | 1.0 (0.5 to 30.0) |"),
            "{text}"
        );
        assert!(text.contains("| 25.0% |"), "{text}");
    }
}
