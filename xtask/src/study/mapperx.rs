//! `cargo xtask study mapperx`: write-back after a crash, and the cost of tracking for it. With
//! `--timing`: the waits of writes.

mod engine_crashes;
mod page;
mod result;
mod timing;

pub(super) use timing::rerun as rerun_timing;

use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use serde_json::{Value, json};

use super::jobs::{SHORT, in_parallel, shared_folder};
use super::{commit, date};
use crate::bench::{Outcome, built_program, conclude, json_of, run_for_output};
use crate::claims::{Report, machine};
use crate::pages::{Header, MAPPERX, Rerun};
use result::{Crash, DIRTY_PERCENTS, Simulation, Trace, claims};

const QUICK_REQUESTS: u64 = 100_000;
/// The engine serves so many requests of a trace at most, and keeps what they write.
const ENGINE_REQUESTS: u64 = 100_000;
const QUICK_ENGINE_REQUESTS: u64 = 10_000;

/// Options of the study.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// The first 100,000 requests of each trace, and not into docs: for a look
    #[arg(long)]
    quick: bool,
    /// The timing half alone, on an emulated SSD: docs/results/mapperx-timing.md
    #[arg(long, conflicts_with_all = ["quick", "out"])]
    timing: bool,
    /// Where the page goes
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Write claims and rows to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Fields that a trace has of its requests.
#[derive(Clone, Copy, Debug)]
enum TraceFields {
    /// Operations and times.
    All,
    /// Neither: all requests count as writes, so many a second.
    Blocks(f64),
}

/// The traces beside the repository.
///
/// The publishers name the duration of the untimed traces: OLTP an hour, w106 a week. Of P3 and P6
/// only "months" is known, and 100 requests a second are an arbitrary choice.
const SHARED: [(&str, &str, TraceFields); 14] = [
    (
        "CloudPhysics, 2 h of a disk",
        "cloudphysics/cloudPhysicsIO.vscsi",
        TraceFields::All,
    ),
    (
        "MSN-FS, 150,000 requests",
        "msps/MSN-FS.149999.replayer.trace",
        TraceFields::All,
    ),
    (
        "Tencent CBS, 50,000 requests",
        "tencent/cbs.first50000.csv",
        TraceFields::All,
    ),
    (
        "smartphone, installing",
        "smartphone/Installing_log181.txt",
        TraceFields::All,
    ),
    (
        "SPC Financial1, excerpt",
        "spc/Financial1.first10000.ssdsim.ascii",
        TraceFields::All,
    ),
    (
        "smartphone, calling",
        "smartphone/calout_log147.txt",
        TraceFields::All,
    ),
    (
        "MSR hm_0, excerpt",
        "msr/hm_0.first1000.csv",
        TraceFields::All,
    ),
    (
        "SYSTOR '17, excerpt",
        "systor17/systor17-traces.first999.csv",
        TraceFields::All,
    ),
    (
        "SPC WebSearch1, excerpt",
        "spc/WebSearch1.first24783.mqsim.trace",
        TraceFields::All,
    ),
    (
        "YCSB on RocksDB, excerpt",
        "ycsb/ycsb_rocksdb.first10000events.blkparse",
        TraceFields::All,
    ),
    (
        "CloudPhysics w106, its first million, as writes",
        W106,
        TraceFields::Blocks(8.75),
    ),
    (
        "ARC OLTP, as writes",
        "arc/OLTP.lis",
        TraceFields::Blocks(254.0),
    ),
    (
        "ARC P3, as writes",
        "arc/P3.lis",
        TraceFields::Blocks(100.0),
    ),
    (
        "ARC P6, as writes",
        "arc/P6.lis",
        TraceFields::Blocks(100.0),
    ),
];

/// A week: more of it takes long, and tells no more.
const W106: &str = "cloudphysics/w106.u32le.bin";
const W106_REQUESTS: u64 = 1_000_000;
/// Its blocks are a database's pages, where the format has sectors.
const OLTP: &str = "arc/OLTP.lis";

struct Job {
    title: &'static str,
    as_writes: bool,
    job: Value,
}

const PROGRAM: [&str; 4] = ["--package", "forebay-trace", "--example", "mapperx"];

/// Rows of the short traces, by another run.
pub(super) fn rerun(root: &Path) -> Outcome<Vec<Rerun>> {
    let program = built_program(root, &PROGRAM)?;
    let mut jobs = jobs(root, false);
    jobs.retain(|job| SHORT.contains(&job.title));
    let traces = in_parallel(&jobs, |job| job.title, |job| simulate(&program, job));
    let traces: Vec<Trace> = traces.into_iter().collect::<Outcome<_>>()?;
    let traces: Vec<&Trace> = traces.iter().collect();
    Ok(vec![
        (page::traces_grid(&traces), 1),
        (page::trees(&traces), 7),
    ])
}

pub(super) fn run(root: &Path, options: &Options) -> Outcome<bool> {
    if options.timing {
        return timing::run(root, options.json.as_deref());
    }
    let began = Instant::now();
    let program = built_program(root, &PROGRAM)?;
    let engine = built_program(
        root,
        &["--package", "forebay-tests", "--example", "recovery"],
    )?;
    let commit = commit(root)?;
    let jobs = jobs(root, options.quick);
    if jobs.is_empty() {
        return Ok(true);
    }
    let traces = in_parallel(&jobs, |job| job.title, |job| simulate(&program, job));
    let mut traces: Vec<Trace> = traces.into_iter().collect::<Outcome<_>>()?;
    let counting: Vec<usize> = (0..traces.len())
        .filter(|nth| traces[*nth].counts())
        .collect();
    let served = in_parallel(
        &counting,
        |nth| jobs[*nth].title,
        |nth| serve(&engine, &jobs[*nth], options.quick),
    );
    for (nth, crashes) in counting.iter().zip(served) {
        traces[*nth].crashes = crashes?;
    }
    let report = Report {
        quick: options.quick,
        claims: claims(&traces),
        rows: traces,
    };
    let header = Header {
        machine: machine(),
        commit,
        date: run_for_output(date())?,
        command: "cargo xtask study mapperx".into(),
        minutes: began.elapsed().as_secs_f64() / 60.0,
    };
    let out = options.out.clone().unwrap_or_else(|| match options.quick {
        true => program.with_file_name("mapperx-quick.md"),
        false => MAPPERX.path(root),
    });
    MAPPERX.write(&out, &page::grids(&header, &report), options.quick)?;
    conclude(&report, options.json.as_deref())
}

fn jobs(root: &Path, quick: bool) -> Vec<Job> {
    let Some(folder) = shared_folder(root) else {
        println!("SKIPPED: study mapperx: there is no ../shared/traces (or $FOREBAY_TRACES)");
        return Vec::new();
    };
    let mut jobs = Vec::new();
    for (title, path, tells) in SHARED {
        let file = folder.join(format!("{path}.zst"));
        if !file.is_file() {
            println!("SKIPPED: {title}: there is no {}", file.display());
            continue;
        }
        let mut job = json!({"files": [file], "dirty_percents": DIRTY_PERCENTS});
        if path == W106 {
            job["limit"] = json!(W106_REQUESTS);
        }
        if quick {
            job["limit"] = json!(QUICK_REQUESTS);
        }
        if path == OLTP {
            job["scale"] = json!(8);
        }
        if let TraceFields::Blocks(rate) = tells {
            job["as_writes"] = json!(rate);
        }
        jobs.push(Job {
            title,
            as_writes: matches!(tells, TraceFields::Blocks(_)),
            job,
        });
    }
    // The long ones first.
    jobs.reverse();
    jobs
}

fn simulate(program: &Path, job: &Job) -> Outcome<Trace> {
    let mut command = std::process::Command::new(program);
    command.arg(job.job.to_string());
    let printed = run_for_output(command)?;
    let result: Result<Simulation, _> = serde_json::from_value(json_of(&printed)?);
    Ok(Trace {
        title: job.title,
        as_writes: job.as_writes,
        result: result.map_err(|error| format!("{}: {error}", job.title))?,
        crashes: Vec::new(),
    })
}

/// The same by the engine, with the first requests of the trace.
fn serve(program: &Path, job: &Job, quick: bool) -> Outcome<Vec<Crash>> {
    let most = if quick {
        QUICK_ENGINE_REQUESTS
    } else {
        ENGINE_REQUESTS
    };
    let mut shorter = job.job.clone();
    let limit = shorter["limit"].as_u64().unwrap_or(u64::MAX);
    shorter["limit"] = json!(limit.min(most));
    let mut command = std::process::Command::new(program);
    command.arg(shorter.to_string());
    let mut served = json_of(&run_for_output(command)?)?;
    let crashes: Result<Vec<Crash>, _> = serde_json::from_value(served["crashes"].take());
    crashes.map_err(|error| format!("{}: {error}", job.title))
}
