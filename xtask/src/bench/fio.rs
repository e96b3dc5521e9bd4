//! Loads: fio, over NBD by default, or our own initiators, and their figures.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use super::{Outcome, json_of, run_for_output};

/// A load of 4 KiB requests at random.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Load {
    pub(super) write: bool,
    pub(super) depth: u32,
}

impl Load {
    pub(super) const fn direction(self) -> &'static str {
        if self.write { "write" } else { "read" }
    }
}

/// Reads and writes, one at a time and many.
pub(super) const LOADS: [Load; 4] = [
    Load {
        write: false,
        depth: 1,
    },
    Load {
        write: false,
        depth: 32,
    },
    Load {
        write: true,
        depth: 1,
    },
    Load {
        write: true,
        depth: 32,
    },
];

/// Options for the latencies in a report.
const PERCENTILES: [&str; 3] = [
    "--lat_percentiles=1",
    "--clat_percentiles=0",
    "--percentile_list=50:99",
];

/// Figures of fio.
#[derive(Clone, Copy, Debug)]
pub(super) struct Figures {
    pub(super) iops: f64,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
}

/// Runs a load by our own initiators (`program`) on the first MiB at `uri`, for a time. With
/// `spins` it does not sleep while it waits. Returns the figures and the number of requests.
pub(super) fn by_initiator(
    program: &Path,
    uri: &str,
    load: Load,
    (set_mib, seconds): (u64, u32),
    spins: bool,
) -> Outcome<(Figures, f64)> {
    let mut command = Command::new(program);
    command.args([uri, load.direction()]);
    command.args([u64::from(load.depth), seconds.into(), set_mib].map(|number| number.to_string()));
    if spins {
        command.arg("spin");
    }
    let said = json_of(&run_for_output(command)?)?;
    let number = |key: &str| {
        let value = said.get(key).and_then(Value::as_f64);
        value.ok_or_else(|| format!("the load does not print {key}: {said}"))
    };
    let figures = Figures {
        iops: number("iops")?,
        p50_us: number("p50_us")?,
        p99_us: number("p99_us")?,
    };
    Ok((figures, number("requests")?))
}

/// Returns fio on the first bytes of an export, without a load.
pub(super) fn base(socket: &Path, name: &str, size_bytes: u64) -> Command {
    let mut fio = Command::new("fio");
    fio.args(["--name=bench", "--ioengine=nbd", "--output-format=json"]);
    fio.arg(format!(
        "--uri=nbd+unix:///{name}?socket={}",
        socket.display()
    ));
    fio.arg(format!("--size={size_bytes}"));
    fio
}

/// Writes the whole set once, so that all of it is cached.
pub(super) fn fill(socket: &Path, name: &str, size_bytes: u64) -> Outcome<()> {
    let mut fio = base(socket, name, size_bytes);
    fio.args(["--rw=write", "--bs=256k", "--iodepth=8", "--end_fsync=1"]);
    run_for_output(fio).map(drop)
}

/// Writes `bytes` bytes of it, 4 KiB at random, no block twice.
pub(super) fn scatter(socket: &Path, name: &str, size_bytes: u64, bytes: u64) -> Outcome<()> {
    let mut fio = base(socket, name, size_bytes);
    fio.args(["--rw=randwrite", "--bs=4k", "--iodepth=32"]);
    fio.arg("--randrepeat=0").arg(format!("--io_size={bytes}"));
    run_for_output(fio).map(drop)
}

/// Completes `fio`, which has its target, with a load for a time.
fn timed(mut fio: Command, load: Load, seconds: u32) -> Command {
    fio.arg(format!("--rw=rand{}", load.direction()));
    fio.arg(format!("--iodepth={}", load.depth));
    fio.arg(format!("--runtime={seconds}"));
    // Submission over NBD is synchronous, so clat omits a part. lat is the whole.
    fio.args(["--bs=4k", "--time_based", "--randrepeat=0"]);
    fio.args(PERCENTILES);
    fio
}

/// A load that runs until this is dropped.
pub(super) struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a load that ends after a time, or when the value is dropped.
pub(super) fn start(
    socket: &Path,
    name: &str,
    size_bytes: u64,
    load: Load,
    seconds: u32,
) -> Outcome<Running> {
    let mut fio = timed(base(socket, name, size_bytes), load, seconds);
    // One process, so that killing it ends the load.
    fio.arg("--thread").stdout(Stdio::null());
    let started = fio.spawn();
    started
        .map(Running)
        .map_err(|error| format!("cannot start fio: {error}"))
}

/// Runs a load for a time.
pub(super) fn run(
    socket: &Path,
    name: &str,
    size_bytes: u64,
    load: Load,
    seconds: u32,
) -> Outcome<Figures> {
    measure(base(socket, name, size_bytes), load, seconds)
}

/// Runs a load for a time on the target that `fio` names.
pub(super) fn measure(fio: Command, load: Load, seconds: u32) -> Outcome<Figures> {
    Figures::of(&job(fio, load, seconds)?, load)
}

/// As [`measure`], but returns fio's report of the job.
pub(super) fn job(fio: Command, load: Load, seconds: u32) -> Outcome<Value> {
    report(timed(fio, load, seconds))
}

/// Reads a part of a file once, with blocks of this size, at random or in order. Returns fio's
/// report of all jobs together.
pub(super) fn pass(mut fio: Command, pass: Pass) -> Outcome<Value> {
    let Pass {
        random,
        depth,
        jobs,
        block_bytes,
        bytes,
    } = pass;
    fio.arg(if random { "--rw=randread" } else { "--rw=read" });
    fio.args(PERCENTILES).arg("--group_reporting");
    let part = bytes / u64::from(jobs);
    // Each job has a part of its own.
    for (key, value) in [
        ("iodepth", depth.into()),
        ("numjobs", jobs.into()),
        ("bs", block_bytes),
        ("size", part),
        ("offset_increment", part),
    ] {
        fio.arg(format!("--{key}={value}"));
    }
    report(fio)
}

/// Writes blocks of 4 KiB at random in the first `bytes` of a file. `fio` says how many. Returns
/// fio's report.
pub(super) fn writes(mut fio: Command, bytes: u64) -> Outcome<Value> {
    fio.args(["--rw=randwrite", "--bs=4k", "--iodepth=1"]);
    fio.args(PERCENTILES).arg(format!("--size={bytes}"));
    report(fio)
}

/// One pass over a file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pass {
    pub(super) random: bool,
    /// Requests in flight of each job.
    pub(super) depth: u32,
    pub(super) jobs: u32,
    pub(super) block_bytes: u64,
    /// Size of the part of the file that all jobs read together, bytes.
    pub(super) bytes: u64,
}

fn report(fio: Command) -> Outcome<Value> {
    let mut report = json_of(&run_for_output(fio)?)?;
    Ok(report["jobs"][0].take())
}

impl Figures {
    /// Returns the figures in the report of a job.
    pub(super) fn of(job: &Value, load: Load) -> Outcome<Self> {
        let side = &job[load.direction()];
        let number = |value: &Value, what: &str| {
            value
                .as_f64()
                .ok_or_else(|| format!("fio does not print {what}"))
        };
        let percentiles = &side["lat_ns"]["percentile"];
        Ok(Self {
            iops: number(&side["iops"], "IOPS")?,
            p50_us: number(&percentiles["50.000000"], "p50")? / 1e3,
            p99_us: number(&percentiles["99.000000"], "p99")? / 1e3,
        })
    }
}
