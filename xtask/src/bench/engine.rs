//! `cargo xtask bench engine`: cost of a hit in process, in instructions under callgrind and by the
//! clock, and cost of a cached block in DRAM. The instructions are the same in each run.
//!
//! The instructions are the difference of two runs with different numbers of requests, so that the
//! set-up does not count. There are two limits:
//!
//! - Half of the cost of OCF's engine for the same. A 4 KiB read hit on memory volumes in its posix
//!   environment takes 4,720 instructions and 0.95 us on such a machine.
//! - The ceilings below, which catch a change that makes hits dearer.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Serialize;
use serde_json::Value;

use super::{Outcome, require, run_for_output};
use crate::claims::{Claim, Kind, Report};

/// Requests that the longer run has more than the shorter one.
const REQUESTS: u64 = 4000;
/// A read hit of OCF's engine, instructions and nanoseconds.
const OCF_INSTRUCTIONS: f64 = 4720.0;
const OCF_NS: f64 = 950.0;
/// Ceilings of a hit's instructions, a little above the cost when they were last lowered.
const CEILINGS: [(&str, f64); 2] = [("read", 2210.0), ("write", 2250.0)];
/// Ceiling of a write hit, in halves of OCF's read hit.
const WRITE_SHARE: f64 = 1.3;

/// DRAM that a cached block of 32 KiB may take, bytes.
const BLOCK_BYTES: f64 = 48.0;

/// A measured operation.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    op: &'static str,
    instructions: f64,
    median_ns: f64,
}

pub(super) fn run(root: &Path) -> Outcome<Report<Row>> {
    require(&["valgrind"])?;
    let binary = build(root, "hit")?;
    let times = clock(&binary)?;
    let mut report = Report {
        quick: false,
        claims: Vec::new(),
        rows: Vec::new(),
    };
    for (op, ceiling) in CEILINGS {
        let fewer = instructions(&binary, op, 1000)?;
        let more = instructions(&binary, op, 1000 + REQUESTS)?;
        let each = (more - fewer) as f64 / REQUESTS as f64;
        let share = if op == "write" { WRITE_SHARE } else { 1.0 };
        let half = OCF_INSTRUCTIONS / 2.0 * share;
        report.claims.push(claim(
            format!("instructions/{op}_hit"),
            Some(OCF_INSTRUCTIONS),
            each,
            "instructions",
            Kind::Counted,
            half,
        ));
        report.claims.push(claim(
            format!("ceiling/{op}_hit"),
            None,
            each,
            "instructions",
            Kind::Counted,
            ceiling,
        ));
        let median_ns = times
            .iter()
            .find(|(name, _)| name.starts_with(op))
            .map(|(_, time)| *time)
            .ok_or_else(|| format!("the benchmark printed no {op} hit"))?;
        report.rows.push(Row {
            op,
            instructions: each,
            median_ns,
        });
        println!(
            "{op} hit: {each:.0} instructions, {median_ns:.0} ns (OCF's read hit: \
             {OCF_INSTRUCTIONS:.0}, {OCF_NS:.0} ns; not measured in this run)"
        );
    }
    let printed = run_for_output(Command::new(build(root, "memory")?))?;
    print!("{printed}");
    let each = (printed
        .split_once(' ')
        .and_then(|(number, _)| number.parse().ok()))
    .ok_or_else(|| format!("the benchmark of memory printed {printed:?}"))?;
    report.claims.push(claim(
        "memory/cached_block_32k".to_owned(),
        None,
        each,
        "bytes",
        Kind::Measured,
        BLOCK_BYTES,
    ));
    Ok(report)
}

fn claim(name: String, peer: Option<f64>, ours: f64, unit: &str, kind: Kind, most: f64) -> Claim {
    Claim {
        name,
        paper_or_peer: peer,
        ours,
        unit: unit.to_owned(),
        kind,
        bar: format!("at most {most:.0}"),
        holds: ours <= most,
    }
}

/// Builds a benchmark. Returns the path of its program.
pub(crate) fn build(root: &Path, name: &str) -> Outcome<PathBuf> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    eprintln!("building the benchmark");
    let mut build = Command::new(cargo);
    build.current_dir(root);
    build.args(["bench", "--no-run", "--locked", "--quiet", "--bench", name]);
    build.args(["--package", "forebay-benches", "--message-format=json"]);
    let messages = run_for_output(build)?;
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|message| message["target"]["name"] == name)
        .find_map(|message| message["executable"].as_str().map(PathBuf::from))
        .ok_or_else(|| "cargo bench named no program".to_owned())
}

/// Runs the benchmark by the clock. Returns names and nanoseconds.
fn clock(binary: &Path) -> Outcome<Vec<(String, f64)>> {
    let printed = run_for_output(Command::new(binary))?;
    let rows = printed.lines().filter_map(|line| {
        let (before, _) = line.split_once(" ns ")?;
        let (name, time) = before.trim().rsplit_once(' ')?;
        Some((name.trim().to_owned(), time.parse().ok()?))
    });
    Ok(rows.collect())
}

/// Returns the instructions of a run with this number of requests.
fn instructions(binary: &Path, op: &str, requests: u64) -> Outcome<u64> {
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]);
    command.arg(binary);
    command.args(["--op", op, "--requests", &requests.to_string()]);
    let output = command.output();
    let output = output.map_err(|error| format!("cannot start valgrind: {error}"))?;
    let text = String::from_utf8_lossy(&output.stderr);
    text.lines()
        .find_map(|line| line.split_once("Collected : "))
        .and_then(|(_, count)| count.trim().parse().ok())
        .ok_or_else(|| format!("callgrind counted nothing: {text}"))
}
