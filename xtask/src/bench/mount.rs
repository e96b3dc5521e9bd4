//! `cargo xtask bench mount`: cold reads through a mount of the page cache, beside the file system
//! below it.
//!
//! fio reads 4 KiB at random with O_DIRECT, 32 at a time, from a file that is sixteen times as
//! large as the node's memory. No block is read twice in a pass, so nearly each read is a miss. The
//! same reads go to the same file below the mount.
//!
//! A round measures both, one after the other. The ratio is of one round, and the claim is the
//! median. Beside it stands the time of the processors for a read, which other work on the machine
//! hardly changes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Serialize;
use serde_json::Value;

use super::fio::{self, Figures, Load};
use super::server::{Scratch, Server};
use super::{Outcome, loops, median, require, run_for_output};
use crate::claims::{Claim, Kind, Report, Table, figure};

const LOAD: Load = Load {
    write: false,
    depth: 32,
};
const FILE_BYTES: u64 = 2 << 30;
const QUICK_FILE_BYTES: u64 = 512 << 20;
/// Size of the file by that of the node's memory.
const TIMES: u64 = 16;
const ROUNDS: usize = 5;
const SECONDS: u32 = 10;
const QUICK_SECONDS: u32 = 4;
/// Least share of the throughput of the file.
const BAR: f64 = 0.8;
const FILE: &str = "the file";
const MOUNT: &str = "the mount";

/// One run of the load.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    of: &'static str,
    round: usize,
    iops: f64,
    p50_us: f64,
    p99_us: f64,
    fio: Cost,
    node: Cost,
    directory: Cost,
}

/// Cost of a read in one process: time of a processor, and context switches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
struct Cost {
    user_us: f64,
    system_us: f64,
    switches: f64,
}

impl Cost {
    /// Returns the costs of a process until now.
    fn of_process(pid: u32) -> Outcome<Self> {
        let process = PathBuf::from(format!("/proc/{pid}"));
        let read = |path: &Path| {
            let text = fs::read_to_string(path);
            text.map_err(|error| format!("{}: {error}", path.display()))
        };
        let mut cost = of_stat(&read(&process.join("stat"))?)?;
        let tasks = fs::read_dir(process.join("task"));
        for task in tasks.map_err(|error| error.to_string())?.flatten() {
            // A thread may end meanwhile.
            let status = fs::read_to_string(task.path().join("status"));
            cost.switches += status.map_or(0.0, |status| switches(&status));
        }
        Ok(cost)
    }

    /// Returns the cost of each of `reads` reads since `before`.
    fn since(self, before: Self, reads: f64) -> Self {
        Self {
            user_us: (self.user_us - before.user_us) / reads,
            system_us: (self.system_us - before.system_us) / reads,
            switches: (self.switches - before.switches) / reads,
        }
    }

    /// Returns the cost of each of `reads` reads to fio, by its report of a job.
    fn of_fio(job: &Value, reads: f64) -> Outcome<Self> {
        let number = |key: &str| {
            let value = job[key].as_f64();
            value.ok_or_else(|| format!("fio does not print {key}"))
        };
        // Per cent of the time of the job, which is in milliseconds.
        let percent_us = number("job_runtime")? * 1e3 / 100.0;
        Ok(Self {
            user_us: number("usr_cpu")? * percent_us / reads,
            system_us: number("sys_cpu")? * percent_us / reads,
            switches: number("ctx")? / reads,
        })
    }
}

/// Returns the times in the stat of proc(5), which has them in hundredths of a second.
fn of_stat(stat: &str) -> Outcome<Cost> {
    let fields = stat.rsplit_once(") ").map(|(_, fields)| fields);
    let mut fields = fields.unwrap_or_default().split(' ').skip(11);
    let mut next_us = || {
        let ticks = fields.next().and_then(|field| field.parse::<f64>().ok());
        let ticks = ticks.ok_or_else(|| format!("no times in {stat:?}"))?;
        Ok::<f64, String>(ticks * 1e4)
    };
    Ok(Cost {
        user_us: next_us()?,
        system_us: next_us()?,
        switches: 0.0,
    })
}

/// Returns the context switches in the status of proc(5).
fn switches(status: &str) -> f64 {
    let counts = status
        .lines()
        .filter_map(|line| line.split_once("_ctxt_switches:"));
    let counts = counts.filter_map(|(_, count)| count.trim().parse::<f64>().ok());
    counts.sum()
}

pub(super) fn run(root: &Path, binary: &Path, quick: bool) -> Outcome<Report<Row>> {
    require(&["fio", "setpriv", "umount"])?;
    if !loops::is_root() {
        return Err("a mount needs root".into());
    }
    let (rounds, seconds, size_bytes) = match quick {
        true => (1, QUICK_SECONDS, QUICK_FILE_BYTES),
        false => (ROUNDS, SECONDS, FILE_BYTES),
    };
    println!(
        "4 KiB at random, direct, 32 at a time, from a file of {} MiB; the node has {} MiB. \
         {rounds} rounds of {seconds} s.",
        size_bytes >> 20,
        (size_bytes / TIMES) >> 20
    );
    let scratch = Scratch::new("bench-mount")?;
    let mount = Mounted::start(root, binary, &scratch, size_bytes)?;
    let mut rows = Vec::new();
    for round in 0..rounds {
        for of in [FILE, MOUNT] {
            let row = mount.measure(of, round, seconds)?;
            eprintln!("{of}: {:.0} IOPS", row.iops);
            rows.push(row);
        }
    }
    print_rows(&rows);
    Ok(Report {
        quick,
        claims: vec![claim(&rows)],
        rows,
    })
}

/// A directory process and a node with a mount. The end of this value unmounts.
struct Mounted {
    node: Server,
    directory: Server,
    source: PathBuf,
    mountpoint: PathBuf,
}

impl Mounted {
    /// Starts both on a new file of this size, which is below the workspace.
    fn start(root: &Path, binary: &Path, scratch: &Scratch, size_bytes: u64) -> Outcome<Self> {
        let source = root.join("target/bench-mount");
        let _ = fs::remove_dir_all(&source);
        fs::create_dir_all(&source).map_err(|error| format!("{}: {error}", source.display()))?;
        let mut fill = Command::new("fio");
        fill.args(["--name=fill", "--rw=write", "--bs=1m", "--direct=1"]);
        fill.args(["--end_fsync=1", "--refill_buffers"]);
        fill.arg(format!("--size={size_bytes}"));
        fill.arg("--filename").arg(source.join("data"));
        run_for_output(fill)?;
        let (pool, mountpoint) = (scratch.path("pool"), scratch.path("mount"));
        let memory = (size_bytes / TIMES).to_string();
        let part = |name: &str| {
            let mut command = Command::new(binary);
            command.args(["pagecache", name, "--pool"]).arg(&pool);
            command
        };
        let mut directory = part("directory");
        directory.arg("--source").arg(&source);
        directory.args(["--capacity", &memory]);
        let log = scratch.path("log");
        let at = pool.clone();
        let has_socket = move || {
            let entries = fs::read_dir(&at).into_iter().flatten().flatten();
            let mut names = entries.map(|entry| entry.file_name());
            names.any(|name| name == "directory.sock")
        };
        let directory = Server::start_until(&directory, None, PathBuf::new(), &log, has_socket)?;
        let mut node = part("node");
        node.args(["--id", "1", "--memory", &memory, "--mount"]);
        node.arg(&mountpoint);
        let data = mountpoint.join("data");
        let is_mounted = move || data.exists();
        let node = Server::start_until(&node, None, PathBuf::new(), &log, is_mounted)?;
        Ok(Self {
            node,
            directory,
            source,
            mountpoint,
        })
    }

    fn measure(&self, of: &'static str, round: usize, seconds: u32) -> Outcome<Row> {
        let place = if of == FILE {
            &self.source
        } else {
            &self.mountpoint
        };
        let mut load = Command::new("fio");
        load.args(["--name=bench", "--ioengine=libaio", "--direct=1"]);
        load.arg("--output-format=json");
        load.arg("--filename").arg(place.join("data"));
        let costs = || {
            let (node, directory) = (self.node.pid(), self.directory.pid());
            Ok::<_, String>((Cost::of_process(node)?, Cost::of_process(directory)?))
        };
        let before = costs()?;
        let job = fio::job(load, LOAD, seconds)?;
        let after = costs()?;
        let Figures {
            iops,
            p50_us,
            p99_us,
        } = Figures::of(&job, LOAD)?;
        let reads = job[LOAD.direction()]["total_ios"].as_f64();
        let reads = reads.ok_or("fio does not print the number of reads")?;
        Ok(Row {
            of,
            round,
            iops,
            p50_us,
            p99_us,
            fio: Cost::of_fio(&job, reads)?,
            node: after.0.since(before.0, reads),
            directory: after.1.since(before.1, reads),
        })
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let mut unmount = Command::new("umount");
        unmount.arg("--lazy").arg(&self.mountpoint);
        let _ = run_for_output(unmount);
        let _ = fs::remove_dir_all(&self.source);
    }
}

fn claim(rows: &[Row]) -> Claim {
    let pairs = rows.chunks_exact(2);
    let ours = median(pairs.map(|pair| pair[1].iops / pair[0].iops));
    Claim {
        name: "cold_read_iops/qd32".into(),
        paper_or_peer: Some(1.0),
        ours,
        unit: "x the file".into(),
        kind: Kind::Measured,
        bar: format!("at least {BAR}"),
        holds: ours >= BAR,
    }
}

fn print_rows(rows: &[Row]) {
    println!();
    let mut table = Table::new(&[
        "medians",
        "IOPS",
        "p50, us",
        "p99, us",
        "user, us",
        "system, us",
        "switches",
    ]);
    let mut row = |what: String, speed: [String; 3], cost: [f64; 3]| {
        let mut cells = vec![what];
        cells.extend(speed);
        cells.extend(cost.map(figure));
        table.row(cells);
    };
    for of in [FILE, MOUNT] {
        let middle = |value: fn(&Row) -> f64| {
            let own = rows.iter().filter(|row| row.of == of);
            median(own.map(value))
        };
        let speed = [
            middle(|row| row.iops),
            middle(|row| row.p50_us),
            middle(|row| row.p99_us),
        ];
        let cost = |part: fn(&Row) -> Cost| {
            let of_part = |value: fn(Cost) -> f64| {
                let own = rows.iter().filter(|row| row.of == of);
                median(own.map(|row| value(part(row))))
            };
            [
                of_part(|cost| cost.user_us),
                of_part(|cost| cost.system_us),
                of_part(|cost| cost.switches),
            ]
        };
        let none = || [const { String::new() }; 3];
        row(format!("{of}, fio"), speed.map(figure), cost(|row| row.fio));
        if of == MOUNT {
            row("  node".into(), none(), cost(|row| row.node));
            row("  directory".into(), none(), cost(|row| row.directory));
        }
    }
    table.print();
    println!("Times and switches are those of one read.");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_come_from_the_kernels_files() {
        let stat = "7 (a ) name) S 1 7 7 0 -1 4194560 100 0 0 0 250 50 0 0 20 0 9 0 100";
        let cost = of_stat(stat).expect("it has times");
        assert_eq!((cost.user_us, cost.system_us), (2.5e6, 5e5));
        assert!(of_stat("7 (name) S 1").is_err());
        let status = "Name:\tx\nvoluntary_ctxt_switches:\t40\nnonvoluntary_ctxt_switches:\t2\n";
        assert_eq!(switches(status), 42.0);
    }

    #[test]
    fn the_cost_of_fio_is_a_share_of_its_time() {
        let job = serde_json::json!({
            "job_runtime": 10_000, "usr_cpu": 5.0, "sys_cpu": 20.0, "ctx": 3000
        });
        let cost = Cost::of_fio(&job, 1000.0).expect("all is there");
        let expected = Cost {
            user_us: 500.0,
            system_us: 2000.0,
            switches: 3.0,
        };
        assert_eq!(cost, expected);
    }

    #[test]
    fn the_claim_is_the_median_of_the_rounds() {
        let row = |of, iops| Row {
            of,
            round: 0,
            iops,
            p50_us: 1.0,
            p99_us: 1.0,
            fio: Cost::default(),
            node: Cost::default(),
            directory: Cost::default(),
        };
        let rounds = [(100.0, 79.0), (100.0, 90.0), (50.0, 42.0)];
        let rows = rounds.map(|(file, mount)| [row(FILE, file), row(MOUNT, mount)]);
        let claim = claim(&rows.into_iter().flatten().collect::<Vec<_>>());
        assert!(claim.holds && (claim.ours - 0.84).abs() < 1e-9);
    }
}
