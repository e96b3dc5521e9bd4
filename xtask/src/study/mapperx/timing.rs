//! The timing half: the waits of all-hit writes, by the method of dirty tracking (the paper's
//! micro-benchmark). docs/results/mapperx-timing.md.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::bench::{Outcome, engine, json_of, run_for_output};
use crate::claims::{Claim, Kind, Report, machine};
use crate::pages::{Data, Grid, Header, MAPPERX_TIMING, Rerun, claims_grid, values_grid};
use crate::study::{commit, date};

/// Ways to keep track, as the program knows them, and what the table calls them.
const WAYS: [(&str, &str); 4] = [
    ("none", "none (asynchronous)"),
    ("abt", "abt"),
    ("exact", "exact, a mark for 64 blocks"),
    ("each", "exact, a mark for each block (synchronous)"),
];
const BLOCKS_KIB: [u32; 3] = [64, 128, 256];
const DEPTHS: [u32; 2] = [1, 16];
/// Writes of each run, to 32,768 blocks.
const WRITES: u32 = 20_000;
/// Most that the tree may cost beside no tracking, as a share.
const SHARE: f64 = 0.05;

/// One run, as the program prints it.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct Run {
    how: String,
    block_kib: u32,
    depth: u32,
    writes: u64,
    iops: f64,
    mean_us: f64,
    p50_us: f64,
    p99_us: f64,
    p999_us: f64,
    marks: u64,
    persists: u64,
    metadata_bytes: u64,
    written_back: u64,
    dirty_blocks: u64,
    doubtful_blocks: u64,
}

/// Runs the blocks of these sizes at each depth.
fn runs(root: &Path, blocks_kib: &[u32]) -> Outcome<Vec<Run>> {
    let program = engine::build(root, "tracking")?;
    let mut runs = Vec::new();
    for depth in DEPTHS {
        for block_kib in blocks_kib {
            for (how, _) in WAYS {
                let mut command = Command::new(&program);
                command.args([how.to_owned(), block_kib.to_string(), depth.to_string()]);
                command.arg(WRITES.to_string());
                let run = serde_json::from_value(json_of(&run_for_output(command)?)?);
                runs.push(run.map_err(|error| format!("{how}: {error}"))?);
            }
        }
    }
    Ok(runs)
}

/// Rows of the smallest blocks, by another run.
pub(in crate::study) fn rerun(root: &Path) -> Outcome<Vec<Rerun>> {
    let runs = runs(root, &BLOCKS_KIB[..1])?;
    Ok(vec![(grid(&runs), 3)])
}

/// Runs the timing half. Returns whether the claims hold.
pub(super) fn run(root: &Path, json: Option<&Path>) -> Outcome<bool> {
    let began = Instant::now();
    let commit = commit(root)?;
    let runs = runs(root, &BLOCKS_KIB)?;
    let report = Report {
        quick: false,
        claims: claims(&runs),
        rows: runs,
    };
    let header = Header {
        machine: machine(),
        commit,
        date: run_for_output(date())?,
        command: "cargo xtask study mapperx --timing".into(),
        minutes: began.elapsed().as_secs_f64() / 60.0,
    };
    let figure = |value| format!("{value:.4}");
    let data = Data(vec![
        values_grid(&header),
        claims_grid("claims", &report.claims, figure),
        grid(&report.rows),
    ]);
    MAPPERX_TIMING.write(&MAPPERX_TIMING.path(root), &data, false)?;
    crate::bench::conclude(&report, json)
}

fn find<'a>(runs: &'a [Run], how: &str, block_kib: u32, depth: u32) -> &'a Run {
    (runs.iter())
        .find(|run| (run.how.as_str(), run.block_kib, run.depth) == (how, block_kib, depth))
        .expect("all were run")
}

/// The paper's claim: the cost of the tree is negligible. Synchronous tracking must cost more, or
/// the claim shows nothing.
fn claims(runs: &[Run]) -> Vec<Claim> {
    let mut claims = Vec::new();
    for block_kib in BLOCKS_KIB {
        let over = |how, value: fn(&Run) -> f64, depth| {
            value(find(runs, how, block_kib, depth)) / value(find(runs, "none", block_kib, depth))
        };
        let mut claim = |name: &str, ours: f64, bar: String, holds| {
            claims.push(Claim {
                name: format!("{name}/{block_kib}_kib"),
                paper_or_peer: None,
                ours,
                unit: "of none's".into(),
                kind: Kind::Emulated,
                bar,
                holds,
            });
        };
        let (most, least) = (1.0 + SHARE, 1.0 - SHARE);
        let mean = over("abt", |run| run.mean_us, 1);
        let bar = format!("at most {most}");
        claim("abt/mean_latency_depth_1", mean, bar, mean <= most);
        let iops = over("abt", |run| run.iops, 16);
        let bar = format!("at least {least}");
        claim("abt/iops_depth_16", iops, bar.clone(), iops >= least);
        let each = over("each", |run| run.iops, 16);
        let bar = format!("below {least}");
        claim("synchronous/iops_depth_16", each, bar, each < least);
    }
    claims
}

fn grid(runs: &[Run]) -> Grid {
    let columns = [
        "depth",
        "block",
        "tracking",
        "mean, us",
        "p50, us",
        "p99, us",
        "p99.9, us",
        "IOPS",
        "of none's",
        "announced",
        "metadata",
        "dirty",
        "back",
    ];
    let mut grid = Grid::new("runs", &columns);
    for run in runs {
        let none = find(runs, "none", run.block_kib, run.depth).iops;
        let way = WAYS.iter().find(|(how, _)| *how == run.how);
        grid.row([
            run.depth.to_string(),
            format!("{} KiB", run.block_kib),
            way.map_or("-", |(_, name)| name).to_owned(),
            format!("{:.1}", run.mean_us),
            format!("{:.0}", run.p50_us),
            format!("{:.0}", run.p99_us),
            format!("{:.0}", run.p999_us),
            format!("{:.0}", run.iops),
            format!("{:.3}", run.iops / none),
            (run.marks + run.persists).to_string(),
            format!("{} KiB", run.metadata_bytes.div_ceil(1024)),
            run.dirty_blocks.to_string(),
            run.doubtful_blocks.to_string(),
        ]);
    }
    grid
}
