//! The Open CAS study's experiments, on emulated devices: docs/results/opencas.md.

mod page;
mod speeds;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use clap::Args;
use serde::{Deserialize, Serialize};

use super::{commit, date};
use crate::bench::{Outcome, built_program, conclude, run_for_output};
use crate::claims::{Claim, Kind, Report, machine};
use crate::pages::{Header, OPENCAS, Rerun};

/// Options of the study.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Lines of 4 KiB and two file sizes alone, and not into docs: for a look
    #[arg(long)]
    quick: bool,
    /// Where the page goes
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Write claims and rows to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// The processor's time for a write of 4 KiB, as the program prints it: the median of several runs.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct Processor {
    system: String,
    access: u64,
    processor_ns: f64,
    least_ns: f64,
    most_ns: f64,
}

/// Contents of the page.
#[derive(Debug)]
struct Study {
    report: Report<Row>,
    processor: Vec<Processor>,
}

/// One access of a file, as the program prints it.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct Row {
    system: String,
    cache: String,
    backing: String,
    line_bytes: u64,
    write_bytes: u64,
    /// Of the cache.
    file_percent: u64,
    /// The first or the second.
    access: u64,
    bytes_per_s: f64,
    /// Bytes written to the cache device for each of the client's, metadata included.
    cache_written: f64,
    /// Of which to a device of its own.
    metadata_written: f64,
    cache_read: f64,
    backing_written: f64,
}

/// Parameters of one comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cell<'a> {
    cache: &'a str,
    backing: &'a str,
    line_bytes: u64,
    write_bytes: u64,
    file_percent: u64,
    access: u64,
}

impl Row {
    fn cell(&self) -> Cell<'_> {
        Cell {
            cache: &self.cache,
            backing: &self.backing,
            line_bytes: self.line_bytes,
            write_bytes: self.write_bytes,
            file_percent: self.file_percent,
            access: self.access,
        }
    }
}

fn find<'a>(rows: &'a [Row], system: &str, cell: Cell<'_>) -> Option<&'a Row> {
    rows.iter()
        .find(|row| row.system == system && row.cell() == cell)
}

const PROGRAM: [&str; 4] = ["--package", "forebay-benches", "--bench", "opencas"];

/// Rows of lines of 4 KiB and two sizes of files, by another run.
pub(super) fn rerun(root: &Path) -> Outcome<Vec<Rerun>> {
    let mut command = Command::new(built_program(root, &PROGRAM)?);
    command.arg("--quick");
    let rows: Vec<Row> = objects(&run_for_output(command)?)?;
    Ok(vec![(page::bytes(&rows), 3), (page::speeds(&rows), 6)])
}

/// Runs the study. Whether the claims hold.
pub(super) fn study(root: &Path, options: &Options) -> Outcome<bool> {
    let began = Instant::now();
    let program = built_program(root, &PROGRAM)?;
    let commit = commit(root)?;
    let mut command = Command::new(&program);
    if options.quick {
        command.arg("--quick");
    }
    let rows: Vec<Row> = objects(&run_for_output(command)?)?;
    let mut command = Command::new(&program);
    command.arg("--processor");
    let processor: Vec<Processor> = objects(&run_for_output(command)?)?;
    let mut claims = claims(&rows);
    claims.extend(speeds::of_clients(&rows, &processor));
    let study = Study {
        report: Report {
            quick: options.quick,
            claims,
            rows,
        },
        processor,
    };
    let out = options.out.clone().unwrap_or_else(|| match options.quick {
        true => program.with_file_name("opencas-quick.md"),
        false => OPENCAS.path(root),
    });
    let header = Header {
        machine: machine(),
        commit,
        date: run_for_output(date())?,
        command: "cargo xtask study opencas".into(),
        minutes: began.elapsed().as_secs_f64() / 60.0,
    };
    OPENCAS.write(&out, &page::grids(&header, &study), options.quick)?;
    conclude(&study.report, options.json.as_deref())
}

/// Open CAS's lines of 4 KiB, each written by a request of its own, where its metadata costs most.
fn small<'a>(cache: &'a str, file_percent: u64, access: u64) -> Cell<'a> {
    Cell {
        cache,
        backing: "fast",
        line_bytes: 4096,
        write_bytes: 4096,
        file_percent,
        access,
    }
}

fn claims(rows: &[Row]) -> Vec<Claim> {
    let value =
        |system, cell, what: fn(&Row) -> f64| find(rows, system, cell).map_or(f64::NAN, what);
    let counted = |name: &str, paper, ours: f64, bar: &str, holds| Claim {
        name: name.into(),
        paper_or_peer: paper,
        ours,
        unit: "x the client's bytes".into(),
        kind: Kind::Counted,
        bar: bar.into(),
        holds,
    };
    let written =
        |system, file, access| value(system, small("pmem", file, access), |row| row.cache_written);
    let (first, evicting) = (
        written("opencas-evict", 50, 1),
        written("opencas-evict", 125, 2),
    );
    let (own_first, own_evicting) = (written("lines", 50, 1), written("lines", 125, 2));
    let mut claims = vec![
        counted(
            "written/open cas/first access",
            Some(2.0),
            first,
            "from 1.99 to 2.01",
            (1.99..=2.01).contains(&first),
        ),
        counted(
            "written/open cas/every write evicts",
            Some(3.0),
            evicting,
            "from 2.99 to 3.01",
            (2.99..=3.01).contains(&evicting),
        ),
        counted(
            "written/lines/first access",
            Some(first),
            own_first,
            "at most 1.02",
            own_first <= 1.02,
        ),
        counted(
            "written/lines/every write evicts",
            Some(evicting),
            own_evicting,
            "at most 1.04",
            own_evicting <= 1.04,
        ),
    ];
    claims.extend(speeds::of_devices(rows));
    claims
}

/// An object a line.
fn objects<T: serde::de::DeserializeOwned>(printed: &str) -> Outcome<Vec<T>> {
    let objects = printed
        .lines()
        .map(|line| serde_json::from_str(line).map_err(|error| format!("{line}: {error}")));
    objects.collect()
}
