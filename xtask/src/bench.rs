//! `cargo xtask bench`: Forebay beside comparable systems and on kernel counters, on this machine.

mod amplification;
mod ceph;
mod checksums;
mod cleaning;
mod client;
mod cold;
pub(crate) mod engine;
mod fio;
mod hosts;
pub(crate) mod loops;
mod mount;
mod nbd;
mod nodes;
mod nvme_tcp;
mod others;
mod policy;
mod rack;
mod record;
mod remote;
mod replay;
pub(crate) mod server;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use clap::{Args, Subcommand};
use serde::Serialize;
use serde_json::Value;

use crate::claims::{Report, machine};

/// Result with an error message for the user, which ends the benchmark.
pub(crate) type Outcome<T> = Result<T, String>;

/// Benchmarks, each beside comparable systems or with a limit.
#[derive(Debug, Subcommand)]
pub(crate) enum Bench {
    /// IOPS and p99 over NBD beside nbdkit, 4 KiB hits, memory-backed devices on both sides
    Nbd(Options),
    /// IOPS, latency and processor time over NVMe/TCP by our own initiator, memory-backed, beside
    /// nbdkit
    NvmeTcp {
        #[command(flatten)]
        options: Options,
        #[command(flatten)]
        arguments: nvme_tcp::Arguments,
    },
    /// A file in memory, used locally, exported by NVMe/TCP and by NBD, beside a cloud block store
    /// of one node
    Rack(Options),
    /// Whether 64 NVMe/TCP hosts on 16 volumes get equal shares, or their limits, and what memory
    /// they take
    Hosts(Options),
    /// Bytes written to the cache device per client byte, from the kernel's counters (needs root)
    Amplification(Options),
    /// Cost of a cache full of dirty data to its clients, by cleaning policy, beside its backing
    /// device
    Cleaning(Options),
    /// Cost of blocks of several sizes beside blocks of one, and the simulator beside libCacheSim
    Policy(policy::Options),
    /// Adaptive cache blocks against fixed ones: real I/O of traces, with an emulated backing
    /// device
    Replay {
        #[command(flatten)]
        options: Options,
        #[command(flatten)]
        replay: replay::Arguments,
    },
    /// Volumes on remote stores, with and without a cache, and on a file
    Remote(Options),
    /// Cost of a recording to the recorded clients, over NBD
    Record(Options),
    /// Cost of checksums of cached data to a hit, in process and over NBD
    Checksums(Options),
    /// Time to the first I/O after a power cut, with ten million cached blocks (needs root to drop
    /// caches)
    Cold(cold::Options),
    /// Cold random reads through a mount of the page cache, beside the file system below it (needs
    /// root)
    Mount(Options),
    /// Reads through the mounts of two nodes of the page cache: local and remote hits, and misses
    /// (needs root)
    Nodes(Options),
    /// Cost of a hit in process: instructions under callgrind, and time
    Engine {
        /// Write claims and rows to this file
        #[arg(long, value_name = "FILE")]
        json: Option<PathBuf>,
    },
}

/// Options of every benchmark.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// A short and small run, in under two minutes. Not a result
    #[arg(long)]
    quick: bool,
    /// Write claims and rows to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Measure this program instead of the workspace's release build
    #[arg(long, value_name = "PATH")]
    binary: Option<PathBuf>,
}

/// Runs a benchmark. Fails if it cannot run or a claim does not hold.
pub(crate) fn run(root: &Path, bench: &Bench) -> ExitCode {
    let outcome = match bench {
        Bench::Nbd(options) => program(root, options)
            .and_then(|binary| nbd::run(&binary, options.quick))
            .and_then(|report| conclude(&report, options.json.as_deref())),
        Bench::NvmeTcp { options, arguments } => program(root, options)
            .and_then(|binary| {
                let load = initiator(root, "load")?;
                nvme_tcp::run(&binary, &load, arguments, options.quick)
            })
            .and_then(|report| conclude(&report, options.json.as_deref())),
        Bench::Rack(options) => program(root, options)
            .and_then(|binary| rack::run(root, &binary, &initiator(root, "load")?, options.quick))
            .and_then(|report| conclude(&report, options.json.as_deref())),
        Bench::Hosts(options) => program(root, options)
            .and_then(|binary| hosts::run(&binary, &initiator(root, "hosts")?, options.quick))
            .and_then(|report| conclude(&report, options.json.as_deref())),
        Bench::Remote(options) => program(root, options)
            .and_then(|binary| remote::run(root, &binary, options.quick))
            .and_then(|report| conclude(&report, options.json.as_deref())),
        Bench::Record(options) => program(root, options)
            .and_then(|binary| record::run(&binary, options.quick))
            .and_then(|report| conclude(&report, options.json.as_deref())),
        Bench::Replay { options, replay } => program(root, options)
            .and_then(|binary| replay::run(&binary, replay, options.quick))
            .and_then(|report| conclude(&report, options.json.as_deref())),
        Bench::Cleaning(options) => program(root, options)
            .and_then(|binary| cleaning::run(&binary, options.quick))
            .and_then(|report| conclude(&report, options.json.as_deref())),
        Bench::Checksums(options) => program(root, options)
            .and_then(|binary| checksums::run(root, &binary, options.quick))
            .and_then(|report| conclude(&report, options.json.as_deref())),
        Bench::Cold(options) => {
            cold::run(root, options).and_then(|report| conclude(&report, options.json.as_deref()))
        }
        Bench::Mount(options) => program(root, options)
            .and_then(|binary| mount::run(root, &binary, options.quick))
            .and_then(|report| conclude(&report, options.json.as_deref())),
        Bench::Nodes(options) => program(root, options)
            .and_then(|binary| nodes::run(root, &binary, options.quick))
            .and_then(|report| conclude(&report, options.json.as_deref())),
        Bench::Engine { json } => {
            engine::run(root).and_then(|report| conclude(&report, json.as_deref()))
        }
        Bench::Policy(options) => {
            policy::run(root, options).and_then(|report| conclude(&report, options.json.as_deref()))
        }
        Bench::Amplification(options) => match loops::unavailable() {
            Some(reason) => {
                println!("SKIPPED: bench amplification: {reason}");
                return ExitCode::SUCCESS;
            }
            None => program(root, options)
                .and_then(|binary| amplification::run(&binary, options.quick))
                .and_then(|report| conclude(&report, options.json.as_deref())),
        },
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("bench: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Prints and writes a report. Returns whether every claim holds.
pub(crate) fn conclude<R: Serialize>(report: &Report<R>, json: Option<&Path>) -> Outcome<bool> {
    println!();
    report.print_claims();
    println!("\nmachine: {}", machine());
    if report.quick {
        println!("quick: shorter and smaller than a result; omit --quick for a result");
    }
    let failed = report.claims.iter().filter(|claim| !claim.holds).count();
    println!(
        "{} of {} claims hold",
        report.claims.len() - failed,
        report.claims.len()
    );
    if let Some(path) = json {
        let written = report.write(path);
        written.map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    }
    Ok(report.holds())
}

/// Returns the program to measure: the named one, or a release build.
fn program(root: &Path, options: &Options) -> Outcome<PathBuf> {
    if let Some(binary) = &options.binary {
        let found = binary.canonicalize();
        return found.map_err(|error| format!("{}: {error}", binary.display()));
    }
    built_program(root, &["--package", "forebay"])
}

/// Builds a load generator with our own initiators. Returns its path.
fn initiator(root: &Path, name: &str) -> Outcome<PathBuf> {
    built_program(root, &["--package", "forebay-device", "--example", name])
}

/// Makes a release build with these arguments of cargo. Returns the path of its program.
pub(crate) fn built_program(root: &Path, chosen: &[&str]) -> Outcome<PathBuf> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    eprintln!("building {}", chosen.join(" "));
    let mut build = Command::new(cargo);
    build.current_dir(root);
    build.args(["build", "--release", "--locked", "--quiet"]);
    build.arg("--message-format=json").args(chosen);
    let messages = run_for_output(build)?;
    let mut programs = messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter_map(|message| message["executable"].as_str().map(PathBuf::from));
    programs
        .next_back()
        .ok_or_else(|| format!("cargo built no program from {}", chosen.join(" ")))
}

/// Binds this program, which is the client, and its children to one processor. Returns the
/// processors for servers and for clients. They are the same on a machine with one.
fn take_processors() -> Outcome<(&'static str, &'static str)> {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let client = if processors > 1 { "1" } else { "0" };
    let mut taskset = Command::new("taskset");
    taskset.args(["--all-tasks", "--cpu-list", "--pid", client]);
    taskset.arg(std::process::id().to_string());
    run_for_output(taskset).map(|_| ("0", client))
}

pub(crate) fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        odd if odd % 2 == 1 => values[odd / 2],
        even => f64::midpoint(values[even / 2 - 1], values[even / 2]),
    }
}

/// Runs a command to its end. Returns its standard output.
pub(crate) fn run_for_output(mut command: Command) -> Outcome<String> {
    let shown = format!("{command:?}");
    let output = command.output();
    let output = output.map_err(|error| format!("cannot start {shown}: {error}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if !output.status.success() {
        return Err(format!(
            "{shown} failed ({}): {} {}",
            output.status,
            text(&output.stderr),
            text(&output.stdout)
        ));
    }
    Ok(text(&output.stdout))
}

pub(crate) fn json_of(text: &str) -> Outcome<Value> {
    let start = text
        .find('{')
        .ok_or_else(|| format!("no JSON in {text:?}"))?;
    serde_json::from_str(&text[start..]).map_err(|error| format!("bad JSON: {error}"))
}

/// Returns an error unless all programs exist.
pub(crate) fn require(programs: &[&str]) -> Outcome<()> {
    let path = std::env::var("PATH").unwrap_or_default();
    let there = |program: &str| {
        let folders = path.split(':').chain(["/usr/sbin", "/sbin"]);
        folders
            .map(Path::new)
            .any(|folder| folder.join(program).is_file())
    };
    let missing: Vec<_> = programs.iter().filter(|program| !there(program)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(format!(
        "{missing:?} are missing: run `make setup`, or install their packages"
    ))
}
