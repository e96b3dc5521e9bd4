//! The cells of the study: which program, on what data, in which order.

use std::path::PathBuf;
use std::process::Command;

use super::db_bench;
use super::results::Run;
use super::stack::Stack;
use crate::bench::{Outcome, json_of, run_for_output};

/// Value sizes of db_bench in bytes, each with the number of values: from 60 to 190 MB of data.
pub(super) const VALUES: [(u64, u64); 3] = [(128, 400_000), (1024, 120_000), (4096, 45_000)];
/// YCSB's records are of ten fields of a hundred bytes.
const RECORD_BYTES: u64 = 1000;
const RECORDS: u64 = 100_000;
const SQLITE_RECORDS: u64 = 2_000;
pub(super) const DISTRIBUTIONS: [&str; 3] = ["uniform", "zipfian", "latest"];
pub(super) const MIXES: [&str; 4] = ["webserver", "webproxy", "varmail", "fileserver"];
/// Of db_bench's keys, those that are hot.
const HOT: u64 = 100;

/// The programs that are run.
pub(super) struct Programs {
    pub(super) daemon: PathBuf,
    pub(super) load: PathBuf,
}

/// One cell.
#[derive(Clone, Copy, Debug)]
pub(super) enum Cell {
    DbBench {
        benchmark: &'static str,
        value_bytes: u64,
        values: u64,
    },
    Ycsb {
        store: &'static str,
        workload: &'static str,
        distribution: &'static str,
        records: u64,
    },
    Mix(&'static str),
}

/// All cells, in the order in which they run: each benchmark finds what the one before has left.
pub(super) fn all(quick: bool) -> Vec<Cell> {
    let mut cells = Vec::new();
    for (value_bytes, values) in VALUES {
        if quick && value_bytes != 4096 {
            continue;
        }
        for benchmark in ["fillrandom", "overwrite", "readrandom", "readhot"] {
            cells.push(Cell::DbBench {
                benchmark,
                value_bytes,
                values: if quick { values / 8 } else { values },
            });
        }
    }
    for (store, records) in [("rocksdb", RECORDS), ("sqlite", SQLITE_RECORDS)] {
        let records = if quick { records / 8 } else { records };
        let cell = |workload, distribution| Cell::Ycsb {
            store,
            workload,
            distribution,
            records,
        };
        // The load is the same for every distribution.
        cells.push(cell("load", "uniform"));
        for workload in ["a", "f"] {
            for distribution in DISTRIBUTIONS {
                let chosen = distribution == "zipfian" && workload == "a";
                if chosen || (store == "rocksdb" && !quick) {
                    cells.push(cell(workload, distribution));
                }
            }
        }
    }
    cells.extend(MIXES.map(Cell::Mix));
    cells
}

/// The name of a cell of db_bench.
pub(super) fn db_bench_name(benchmark: &str, value_bytes: u64) -> String {
    format!("{benchmark} {value_bytes} B")
}

/// The name of a cell of YCSB.
pub(super) fn ycsb_name(store: &str, workload: &str, distribution: &str) -> String {
    match workload {
        "load" => format!("{store} load"),
        _ => format!("{store} {} {distribution}", workload.to_uppercase()),
    }
}

impl Cell {
    pub(super) fn name(self) -> String {
        match self {
            Self::DbBench {
                benchmark,
                value_bytes,
                ..
            } => db_bench_name(benchmark, value_bytes),
            Self::Ycsb {
                store,
                workload,
                distribution,
                ..
            } => ycsb_name(store, workload, distribution),
            Self::Mix(name) => name.to_owned(),
        }
    }

    /// Runs it on what the cell before has left, which is all written and out of the page cache.
    pub(super) fn run(
        self,
        programs: &Programs,
        stack: &mut Stack,
        seconds: f64,
        seed: u64,
    ) -> Outcome<Run> {
        if self.begins() {
            empty(stack)?;
        }
        if let Self::Mix(_) = self {
            run_for_output(self.command(programs, stack, "prepare", seconds, seed))?;
        }
        stack.cool()?;
        let before = stack.transit()?;
        let printed = run_for_output(self.command(programs, stack, "run", seconds, seed))?;
        let after = stack.transit()?;
        let mut run = match self {
            Self::DbBench { benchmark, .. } => db_bench::parse(&printed, reported(benchmark))?,
            _ => serde_json::from_value(json_of(&printed)?).map_err(|error| error.to_string())?,
        };
        run.cell = self.name();
        run.transit = after.zip(before, |after, before| after - before);
        Ok(run)
    }

    /// Whether it begins with nothing.
    fn begins(self) -> bool {
        match self {
            Self::DbBench { benchmark, .. } => benchmark == "fillrandom",
            Self::Ycsb { workload, .. } => workload == "load",
            Self::Mix(_) => true,
        }
    }

    fn command(
        self,
        programs: &Programs,
        stack: &Stack,
        phase: &str,
        seconds: f64,
        seed: u64,
    ) -> Command {
        let folder = stack.folder().join("data");
        let mut load = Command::new(&programs.load);
        match self {
            Self::DbBench {
                benchmark,
                value_bytes,
                values,
            } => return db_bench(&folder, benchmark, value_bytes, values, seconds, seed),
            Self::Ycsb {
                store,
                workload,
                distribution,
                records,
            } => {
                load.args(["ycsb", store]).arg(&folder);
                load.args([workload, distribution]);
                load.args([records, RECORD_BYTES].map(|number| number.to_string()));
            }
            Self::Mix(name) => {
                load.args(["files", name]).arg(&folder).arg(phase);
            }
        }
        load.args([seconds.to_string(), seed.to_string()]);
        load
    }
}

/// Returns the name of a benchmark in the output of db_bench.
fn reported(benchmark: &str) -> &str {
    if benchmark == "readhot" {
        "readrandom"
    } else {
        benchmark
    }
}

/// With LevelDB's buffer and tables, no compression, one client.
fn db_bench(
    folder: &std::path::Path,
    benchmark: &str,
    value_bytes: u64,
    values: u64,
    seconds: f64,
    seed: u64,
) -> Command {
    let mut command = Command::new("db_bench");
    command.arg(format!("--db={}", folder.display()));
    command.arg(format!("--benchmarks={}", reported(benchmark)));
    command.args(["--histogram=1", "--compression_type=none", "--key_size=16"]);
    command.args([
        "--write_buffer_size=4194304",
        "--target_file_size_base=2097152",
    ]);
    command.arg("--max_bytes_for_level_base=10485760");
    // It looks at the clock as seldom as every thousandth operation otherwise.
    command.arg("--ops_between_duration_checks=50");
    command.arg(format!("--value_size={value_bytes}"));
    command.arg(format!("--seed={seed}"));
    let numbers = match benchmark {
        "fillrandom" => [format!("--num={values}"), "--use_existing_db=0".into()].to_vec(),
        "overwrite" => vec![
            format!("--num={values}"),
            format!("--writes={}", values / 2),
        ],
        // In whole seconds.
        "readhot" => vec![format!("--num={}", values / HOT), timed(seconds)],
        _ => vec![format!("--num={values}"), timed(seconds)],
    };
    if benchmark != "fillrandom" {
        command.arg("--use_existing_db=1");
    }
    command.args(numbers);
    command
}

fn timed(seconds: f64) -> String {
    format!("--duration={:.0}", seconds.max(1.0))
}

/// Removes what earlier cells have left.
fn empty(stack: &Stack) -> Outcome<()> {
    let data = stack.folder().join("data");
    if data.exists() {
        let removed = std::fs::remove_dir_all(&data);
        removed.map_err(|error| format!("{}: {error}", data.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_have_names_of_their_own_and_begin_before_they_go_on() {
        for quick in [false, true] {
            let cells = all(quick);
            let names: std::collections::HashSet<_> =
                cells.iter().map(|cell| cell.name()).collect();
            assert_eq!(names.len(), cells.len());
            assert!(cells[0].begins());
            let reading = cells
                .iter()
                .position(|cell| cell.name() == "readhot 4096 B");
            assert!(!cells[reading.expect("it is run in both")].begins());
        }
        assert_eq!(all(false).len(), 12 + 7 + 2 + 4);
    }
}
