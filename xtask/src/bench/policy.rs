//! `cargo xtask bench policy`: three comparisons.
//!
//! - The cost of a decision about a request with blocks of several sizes, beside a cache of 32K
//!   blocks.
//! - The speed of the simulator, beside libCacheSim on the same file.
//! - The memory of both.
//!
//! All figures are processor time of one thread, the fastest of several passes.

use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;
use serde::{Deserialize, Serialize};

use super::engine::build;
use super::{Outcome, json_of, run_for_output};
use crate::claims::{Claim, Kind, Report, machine};
use crate::pages::{ADACACHE, Data, Grid, claims_grid};

/// Limits of the average cost of a decision, alone and as a ratio to a cache of fixed 32K blocks.
const MOST_NS: f64 = 500.0;
const MOST_OF_FIXED: f64 = 1.3;
/// Least ratios of the simulator's speed to libCacheSim's, with our rules and with plain LRU.
const LEAST_OF_THEIRS: f64 = 0.5;
/// The version of the interop test of the replacement policies.
const PACKAGE: &str = "libcachesim==0.3.5";
const PASSES: &str = "5";

/// Options of the benchmark.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Put the result into docs/results/adacache.md, as its section on speed
    #[arg(long)]
    page: bool,
    /// Write claims and rows to this file
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
}

/// Cost of a kind of request, ns.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct Case {
    sizes: String,
    ns: f64,
}

/// One of the rules.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct Decisions {
    name: String,
    cases: Vec<Case>,
    bytes_a_block: f64,
}

impl Decisions {
    fn ns(&self, sizes: &str) -> f64 {
        let case = self.cases.iter().find(|case| case.sizes == sizes);
        case.map_or(f64::NAN, |case| case.ns)
    }
}

/// One simulator.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct Simulator {
    name: String,
    requests_per_s: f64,
    misses: u64,
    #[serde(default)]
    capacity_bytes: u64,
    /// Unknown for libCacheSim.
    bytes_a_block: Option<f64>,
}

/// Output of the benchmark.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Rows {
    decisions: Vec<Decisions>,
    references: u64,
    simulator: Vec<Simulator>,
}

pub(super) fn run(root: &Path, options: &Options) -> Outcome<Report<Rows>> {
    let program = build(root, "adaptive")?;
    let folder = program.parent().ok_or("the benchmark has no folder")?;
    let trace = folder.join("speed.oracleGeneral");
    let mut bench = Command::new(&program);
    bench.current_dir(root.join("benches"));
    bench.args(["--json", "--trace"]).arg(&trace);
    let rows = serde_json::from_value(json_of(&run_for_output(bench)?)?);
    let mut rows: Rows = rows.map_err(|error| format!("the output of the benchmark: {error}"))?;
    match theirs(root, folder, &trace, &rows) {
        Ok(theirs) => rows.simulator.push(theirs),
        Err(reason) => println!("SKIPPED: libCacheSim: {reason}"),
    }
    let report = Report {
        quick: false,
        claims: claims(&rows),
        rows: vec![rows],
    };
    if options.page {
        ADACACHE.write(&ADACACHE.path(root), &speed(&report), false)?;
    }
    Ok(report)
}

/// Runs libCacheSim on the same file, in a virtual environment beside the benchmark.
fn theirs(root: &Path, folder: &Path, trace: &Path, rows: &Rows) -> Outcome<Simulator> {
    let environment = folder.join("libcachesim");
    let python = environment.join("bin/python3");
    let command = |program: &Path, arguments: &[&str]| {
        let mut command = Command::new(program);
        command.args(arguments);
        command
    };
    if run_for_output(command(&python, &["-c", "import libcachesim"])).is_err() {
        let place = environment.to_str().ok_or("its path is not UTF-8")?;
        run_for_output(command(Path::new("python3"), &["-m", "venv", place]))?;
        let install = ["-m", "pip", "install", "--quiet", "--timeout=20", PACKAGE];
        run_for_output(command(&python, &install))?;
    }
    let ours = rows.simulator.first().ok_or("our figures are missing")?;
    let mut speed = command(&python, &[]);
    speed.arg(root.join("planner/trace/tests/libcachesim/speed.py"));
    speed.arg(trace);
    speed.arg(ours.capacity_bytes.to_string());
    speed.args([&rows.references.to_string(), PASSES]);
    let printed = run_for_output(speed)?;
    let passes = printed.lines().filter_map(|line| {
        let (seconds, misses) = line.split_once(' ')?;
        Some((seconds.parse::<f64>().ok()?, misses.parse::<u64>().ok()?))
    });
    let fastest = passes.min_by(|one, other| one.0.total_cmp(&other.0));
    let (seconds, misses) = fastest.ok_or_else(|| format!("it printed {printed:?}"))?;
    Ok(Simulator {
        name: "libCacheSim's LRU".into(),
        requests_per_s: rows.references as f64 / seconds,
        misses,
        capacity_bytes: ours.capacity_bytes,
        bytes_a_block: None,
    })
}

fn claims(rows: &Rows) -> Vec<Claim> {
    let mut claims = Vec::new();
    let mut add = |name: &str, peer: Option<f64>, ours: f64, unit: &str, bar: String, holds| {
        claims.push(Claim {
            name: name.into(),
            paper_or_peer: peer,
            ours,
            unit: unit.into(),
            kind: Kind::Measured,
            bar,
            holds,
        });
    };
    let of = |name: &str| rows.decisions.iter().find(|row| row.name == name);
    if let (Some(fixed), Some(ours)) = (of("fixed 32K"), of("ours")) {
        for sizes in ["mean", "mix"] {
            let (ns, fixed) = (ours.ns(sizes), fixed.ns(sizes));
            let name = format!("decision/{sizes}");
            add(
                &name,
                None,
                ns,
                "ns",
                format!("less than {MOST_NS}"),
                ns < MOST_NS,
            );
            add(
                &format!("{name}, of fixed 32K"),
                Some(fixed),
                ns / fixed,
                "times",
                format!("at most {MOST_OF_FIXED}"),
                ns / fixed <= MOST_OF_FIXED,
            );
        }
    }
    if let [lru, unit, ours, theirs] = &rows.simulator[..] {
        let peer = theirs.requests_per_s;
        for (row, least) in [(lru, 1.0), (unit, 1.0), (ours, LEAST_OF_THEIRS)] {
            let times = row.requests_per_s / peer;
            add(
                &format!("simulator/{}", row.name),
                Some(peer),
                row.requests_per_s,
                "requests/s",
                format!("at least {least} of libCacheSim's"),
                times >= least,
            );
        }
    }
    claims
}

/// Returns the grids of the section on speed of docs/results/adacache.md.
fn speed(report: &Report<Rows>) -> Data {
    let mut values = Grid::new("speed-values", &["name", "value"]);
    values.row(["speed_machine".into(), machine()]);
    let mut grids = vec![claims_grid(
        "speed-claims",
        &report.claims,
        crate::claims::figure,
    )];
    for rows in &report.rows {
        let capacity = rows.simulator.first().map_or(0, |row| row.capacity_bytes);
        values.row(["speed_references".into(), rows.references.to_string()]);
        values.row(["speed_mib".into(), (capacity >> 20).to_string()]);
        grids.push(decisions(&rows.decisions));
        grids.push(simulators(&rows.simulator));
    }
    grids.push(values);
    Data(grids)
}

fn decisions(rows: &[Decisions]) -> Grid {
    let cases = rows
        .first()
        .map(|row| row.cases.clone())
        .unwrap_or_default();
    let titles = cases.iter().map(|case| case.sizes.as_str());
    let titles = std::iter::once("rules").chain(titles);
    let titles: Vec<&str> = titles.chain(["table, bytes a block"]).collect();
    let mut grid = Grid::new("speed-decisions", &titles);
    for row in rows {
        let mut cells = vec![row.name.clone()];
        cells.extend(row.cases.iter().map(|case| format!("{:.0}", case.ns)));
        cells.push(format!("{:.1}", row.bytes_a_block));
        grid.row(cells);
    }
    grid
}

fn simulators(rows: &[Simulator]) -> Grid {
    let titles = [
        "simulator",
        "million requests a second",
        "misses",
        "bytes a cached block",
    ];
    let mut grid = Grid::new("speed-simulators", &titles);
    for row in rows {
        let bytes = row.bytes_a_block;
        grid.row([
            row.name.clone(),
            format!("{:.1}", row.requests_per_s / 1e6),
            row.misses.to_string(),
            bytes.map_or_else(|| "-".into(), |bytes| format!("{bytes:.0}")),
        ]);
    }
    grid
}
