//! `cargo xtask bench cold`: the time to the first I/O of a cache with ten million blocks after a
//! power cut.
//!
//! The cache is a sparse file: its log is on media, its data is a hole, so that it takes 3 GB
//! instead of 44. The engine makes it once (`benches/cold.rs`). Each run opens it as after a power
//! cut, with direct I/O and without the kernel's caches, and leaves it unchanged.

use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;
use serde_json::Value;

use super::engine::build;
use super::{Outcome, json_of, median, run_for_output};
use crate::claims::{Claim, Kind, Report};

/// Time that a dirty block may wait beyond the read of the metadata, seconds.
const DIRTY_S: f64 = 0.5;
/// Limit for a read of a clean range, seconds.
const CLEAN_S: f64 = 1.0;

/// Options of the measurement of a cold start.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Cached blocks of 4 KiB. A result has 10 million
    #[arg(long, default_value_t = 10_000_000)]
    blocks: u64,
    /// Kind of dirty tracking: exact, abt or none
    #[arg(long, default_value = "exact")]
    dirty_tracking: String,
    /// Number of measured starts, of which the median counts
    #[arg(long, default_value_t = 3)]
    runs: usize,
    /// Folder of the file, 264 bytes a block, on the medium to measure. The file is removed
    /// afterwards
    #[arg(long, value_name = "DIRECTORY", default_value = "target")]
    directory: PathBuf,
    /// Write claims and rows to this file
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
}

pub(super) fn run(root: &Path, options: &Options) -> Outcome<Report<Value>> {
    let binary = build(root, "cold")?;
    let file = options.directory.join("cold.cache");
    let outcome = measure(&binary, &file, options);
    // A file that was never made need not be removed.
    let _ = std::fs::remove_file(&file);
    let rows = outcome?;
    let figure = |name: &'static str| {
        let values = rows.iter().map(move |row| row[name].as_f64());
        median(values.map(|value| value.unwrap_or(f64::NAN)))
    };
    // The metadata counts once, even if it is read several times.
    let most = DIRTY_S + figure("metadata_bytes") / figure("bandwidth_bytes_per_s");
    Ok(Report {
        quick: options.blocks < 10_000_000,
        claims: vec![
            claim("cold/first_clean_read", figure("first_clean_s"), CLEAN_S),
            claim("cold/dirty_p99", figure("dirty_p99_s"), most),
        ],
        rows,
    })
}

fn measure(binary: &Path, file: &Path, options: &Options) -> Outcome<Vec<Value>> {
    let step = |what: &str| {
        let mut command = Command::new(binary);
        command.arg(what).arg(file).arg(options.blocks.to_string());
        command.arg(&options.dirty_tracking);
        run_for_output(command)
    };
    eprintln!("filling a cache of {} blocks", options.blocks);
    step("make")?;
    println!(
        "{:>8} {:>8} {:>8} {:>8} {:>8} {:>10} {:>10} {:>8} {:>10}",
        "clean s", "dirty50", "dirty99", "opened", "cpu s", "read MB", "log MB", "MB/s", "peak MB"
    );
    let mut rows = Vec::new();
    for _ in 0..options.runs {
        let row = json_of(&step("open")?)?;
        let number = |name: &str| row[name].as_f64().unwrap_or(f64::NAN);
        let mega = |name: &str| number(name) / 1e6;
        println!(
            "{:>8.2} {:>8.2} {:>8.2} {:>8.2} {:>8.2} {:>10.0} {:>10.0} {:>8.0} {:>10.0}",
            number("first_clean_s"),
            number("dirty_p50_s"),
            number("dirty_p99_s"),
            number("opened_s"),
            number("cpu_s"),
            mega("read_bytes"),
            mega("log_bytes"),
            mega("bandwidth_bytes_per_s"),
            mega("peak_memory_bytes"),
        );
        if row["damaged_records"] != 0 || row["caches_dropped"] != true {
            return Err(format!(
                "the run does not count: records are damaged, or caches were not dropped (that \
                 needs root): {row}"
            ));
        }
        rows.push(row);
    }
    Ok(rows)
}

fn claim(name: &str, ours: f64, most: f64) -> Claim {
    Claim {
        name: name.to_owned(),
        paper_or_peer: None,
        ours,
        unit: "s".to_owned(),
        kind: Kind::Measured,
        bar: format!("at most {most:.2}"),
        holds: ours <= most,
    }
}
