//! `cargo xtask study dpc`: the distributed page cache beside private caches with tokens,
//! cooperative caching and one node that has all the memory. Its costs are counted and modelled,
//! and measured where this machine can.

mod cells;
mod measured;
mod page;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use clap::Args;
use serde_json::Value;

use super::jobs::in_parallel;
use super::{commit, date};
use crate::bench::{Outcome, built_program, conclude, json_of, run_for_output};
use crate::claims::{Report, machine};
use crate::pages::{DPC, Header, Rerun};
use cells::{Cells, Row};

/// Rounds of what is measured.
const ROUNDS: usize = 5;

/// Options of the study.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Four nodes and the declared costs alone, no sweeps, and not into docs: for a look
    #[arg(long)]
    quick: bool,
    /// `--json` file of an earlier run, for its modelled cells, which are the same on any machine.
    /// Missing cells are run, and all measurements are repeated
    #[arg(long, value_name = "FILE", conflicts_with = "quick")]
    model: Option<PathBuf>,
    /// Where the page goes
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Write claims and rows to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

const PROGRAM: [&str; 4] = ["--package", "forebay-pagecache", "--example", "dpc"];

/// Rows of four nodes with the declared costs, by another run.
pub(super) fn rerun(root: &Path) -> Outcome<Vec<Rerun>> {
    let program = built_program(root, &PROGRAM)?;
    let mut jobs = cells::jobs(true);
    jobs.retain(|job| job["sweep"].is_null());
    let cells = Cells(run_all(&program, &jobs.iter().collect::<Vec<_>>())?);
    Ok(vec![(page::times(&cells), 1), (page::counts(&cells), 2)])
}

/// Runs the study. Whether the claims hold.
pub(super) fn run(root: &Path, options: &Options) -> Outcome<bool> {
    let began = Instant::now();
    let program = built_program(root, &PROGRAM)?;
    let commit = commit(root)?;
    let cells = modelled(&program, options)?;
    let rounds = measured::run(&program, if options.quick { 1 } else { ROUNDS })?;
    let mut claims = cells::claims(&cells);
    claims.extend(measured::claims(&rounds));
    let header = Header {
        machine: machine(),
        commit,
        date: run_for_output(date())?,
        command: match options.model {
            Some(_) => "cargo xtask study dpc --model FILE".into(),
            None => "cargo xtask study dpc".into(),
        },
        minutes: began.elapsed().as_secs_f64() / 60.0,
    };
    let costs = json_of(&run_for_output({
        let mut command = Command::new(&program);
        command.arg("costs");
        command
    })?)?;
    let out = options.out.clone().unwrap_or_else(|| match options.quick {
        true => program.with_file_name("dpc-quick.md"),
        false => DPC.path(root),
    });
    let grids = page::grids(&header, &costs, &claims, &cells, &rounds);
    DPC.write(&out, &grids, options.quick)?;
    let report = Report {
        quick: options.quick,
        claims,
        rows: cells.0,
    };
    conclude(&report, options.json.as_deref())
}

/// All cells, in the order of the jobs: an earlier run's, and those that it lacks run now.
fn modelled(program: &Path, options: &Options) -> Outcome<Cells> {
    let jobs = cells::jobs(options.quick);
    let earlier = options.model.as_deref().map_or(Ok(Vec::new()), earlier)?;
    let earlier = Cells(earlier);
    let missing: Vec<&Value> = jobs
        .iter()
        .filter(|job| earlier.of(job).is_none())
        .collect();
    let run = Cells(run_all(program, &missing)?);
    let cell = |job: &Value| {
        let row = earlier.of(job).or_else(|| run.of(job));
        row.cloned()
            .ok_or_else(|| format!("{job}: no such cell was printed"))
    };
    Ok(Cells(jobs.iter().map(cell).collect::<Outcome<_>>()?))
}

/// Runs the cells of these jobs.
fn run_all(program: &Path, jobs: &[&Value]) -> Outcome<Vec<Row>> {
    let rows = in_parallel(
        jobs,
        |job| job["title"].as_str().unwrap_or_default(),
        |job| model(program, job),
    );
    rows.into_iter().collect()
}

/// The cells that an earlier run has written.
fn earlier(path: &Path) -> Outcome<Vec<Row>> {
    let failed = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let text = std::fs::read_to_string(path).map_err(|error| failed(&error))?;
    let mut report: Value = serde_json::from_str(&text).map_err(|error| failed(&error))?;
    serde_json::from_value(report["rows"].take()).map_err(|error| failed(&error))
}

/// One cell.
fn model(program: &Path, job: &Value) -> Outcome<Row> {
    let mut command = Command::new(program);
    command.arg("model").arg(job.to_string());
    let printed = run_for_output(command)?;
    serde_json::from_str(&printed).map_err(|error| format!("{job}: {error}"))
}
