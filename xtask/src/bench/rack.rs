//! `cargo xtask bench rack`: the comparison of AdaCache's Figure 2 (CLOUD'23, section II-A). Memory
//! takes the place of NVMe SSDs, so that the path to it is measured: 4 KiB at random.
//!
//! - *local*: fio on a file in memory.
//! - *NVMe/TCP* (our own initiator) and *NBD* over a Unix socket (fio): the same file through
//!   `forebay serve`, as a volume without a cache.
//! - *RBD*: fio's own engine on a Ceph of one node, without replicas, with its objects in memory
//!   (`scripts/ceph-one-node.sh`), without librbd's cache.
//!
//! Servers are pinned to one processor and clients to another. A round measures all four, in the
//! opposite order in the next one. Ratios are of one round.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Serialize;

use super::ceph::{self, Ceph};
use super::fio::{self, Figures, LOADS, Load};
use super::server::{Forebay, Scratch, free_port};
use super::{Outcome, median, require, run_for_output, take_processors};
use crate::claims::{Report, Table, figure};

const ROUNDS: usize = 5;
const SECONDS: u32 = 3;
const QUICK_ROUNDS: usize = 1;
const QUICK_SECONDS: u32 = 1;
const SET_MIB: u64 = 128;
const NQN: &str = "nqn.2026-11.io.forebay:rack";

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Who {
    Local,
    NvmeTcp,
    Nbd,
    Rbd,
}

impl Who {
    const ALL: [Self; 4] = [Self::Local, Self::NvmeTcp, Self::Nbd, Self::Rbd];

    const fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::NvmeTcp => "NVMe/TCP",
            Self::Nbd => "NBD",
            Self::Rbd => "RBD",
        }
    }
}

/// One load on one of them.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    on: Who,
    load: &'static str,
    depth: u32,
    round: usize,
    iops: f64,
    p50_us: f64,
    p99_us: f64,
}

pub(super) fn run(root: &Path, binary: &Path, load: &Path, quick: bool) -> Outcome<Report<Row>> {
    require(&["fio", "taskset", "setpriv"])?;
    let (rounds, seconds) = match quick {
        true => (QUICK_ROUNDS, QUICK_SECONDS),
        false => (ROUNDS, SECONDS),
    };
    let (server_cpu, client_cpu) = take_processors()?;
    println!(
        "4 KiB at random on {SET_MIB} MiB in memory; {rounds} rounds of {seconds} s. Servers on \
         processor {server_cpu}, clients on processor {client_cpu}."
    );
    let skipped = ceph::unavailable().and_then(|()| fio_has_rbd()).err();
    if let Some(why) = &skipped {
        println!("SKIPPED: the rows of RBD: {why}");
    }
    let bench = Bench::start(root, binary, load, server_cpu, skipped.is_none())?;
    let mut rows = Vec::new();
    for round in 0..rounds {
        for load in LOADS {
            let mut order = bench.there();
            if round % 2 == 1 {
                order.reverse();
            }
            for on in order {
                let found = bench.measure(on, load, seconds)?;
                eprintln!(
                    "round {} of {rounds}: {} QD {} {}: {:.0} IOPS, p50 {:.1} us",
                    round + 1,
                    load.direction(),
                    load.depth,
                    on.name(),
                    found.iops,
                    found.p50_us
                );
                rows.push(Row {
                    on,
                    load: load.direction(),
                    depth: load.depth,
                    round,
                    iops: found.iops,
                    p50_us: found.p50_us,
                    p99_us: found.p99_us,
                });
            }
        }
    }
    print_rows(&rows);
    if let Some(why) = skipped {
        println!("\nSKIPPED: the rows of RBD: {why}");
    }
    // It has no limit.
    Ok(Report {
        quick,
        claims: Vec::new(),
        rows,
    })
}

/// Returns an error if fio has no engine for RBD.
fn fio_has_rbd() -> Outcome<()> {
    let mut engines = Command::new("fio");
    engines.arg("--enghelp");
    let engines = run_for_output(engines)?;
    match engines.split_whitespace().any(|engine| engine == "rbd") {
        true => Ok(()),
        false => Err("this fio was built without its engine for RBD".into()),
    }
}

/// The servers to measure.
struct Bench {
    load: PathBuf,
    file: PathBuf,
    uri: String,
    forebay: Forebay,
    ceph: Option<Ceph>,
    _scratch: [Scratch; 2],
}

impl Bench {
    fn start(
        root: &Path,
        binary: &Path,
        load: &Path,
        server_cpu: &str,
        with_ceph: bool,
    ) -> Outcome<Self> {
        let scratch = [
            Scratch::new("bench-rack")?,
            Scratch::new("bench-rack-ceph")?,
        ];
        let file = scratch[0].file("disk", SET_MIB << 20)?;
        let port = free_port()?;
        let config = format!(
            "[[device]]\nname = \"disk\"\nkind = \"file\"\npath = \"disk\"\ndirect = false\n\n\
             [[volume]]\nname = \"v\"\nbacking = \"disk\"\n\n\
             [[export]]\nvolume = \"v\"\nnvme-tcp = \"127.0.0.1:{port}\"\nnqn = \"{NQN}\"\n"
        );
        let forebay = Forebay::start(binary, &scratch[0], &config, Some(server_cpu), &[])?;
        let ceph = match with_ceph {
            true => Some(Ceph::start(root, &scratch[1], server_cpu)?),
            false => None,
        };
        let bench = Self {
            load: load.to_owned(),
            file,
            uri: format!("nvme-tcp://127.0.0.1:{port}/{NQN}?queue_depth=127"),
            forebay,
            ceph,
            _scratch: scratch,
        };
        // A hole reads faster than written data.
        for on in [Who::Local, Who::Rbd] {
            if let Some(mut fill) = bench.fio(on) {
                fill.args(["--rw=write", "--bs=256k", "--iodepth=8", "--end_fsync=1"]);
                run_for_output(fill)?;
            }
        }
        Ok(bench)
    }

    fn there(&self) -> Vec<Who> {
        let is_there = |on: &Who| *on != Who::Rbd || self.ceph.is_some();
        Who::ALL.into_iter().filter(is_there).collect()
    }

    /// Returns fio on the set, by its own engine. `None` if another program sends the requests, or
    /// the server is missing.
    fn fio(&self, on: Who) -> Option<Command> {
        let mut fio = Command::new("fio");
        fio.args(["--name=rack", "--output-format=json"]);
        fio.arg(format!("--size={}", SET_MIB << 20));
        match on {
            Who::Local => {
                fio.arg("--ioengine=io_uring");
                fio.arg(format!("--filename={}", self.file.display()));
            }
            Who::Rbd => {
                fio.args(["--ioengine=rbd", "--clientname=admin", "--pool=rbd"]);
                fio.arg("--rbdname=bench");
                fio.env("CEPH_CONF", &self.ceph.as_ref()?.conf);
            }
            Who::NvmeTcp | Who::Nbd => return None,
        }
        Some(fio)
    }

    fn measure(&self, on: Who, load: Load, seconds: u32) -> Outcome<Figures> {
        if on == Who::Nbd {
            let socket = self.forebay.server.socket();
            return fio::run(socket, "", SET_MIB << 20, load, seconds);
        }
        if let Some(fio) = self.fio(on) {
            return fio::measure(fio, load, seconds);
        }
        let figures = fio::by_initiator(&self.load, &self.uri, load, (SET_MIB, seconds), false)?;
        Ok(figures.0)
    }
}

/// Returns the ratio of one to another in each round, for one load.
fn ratios(rows: &[Row], on: Who, to: Who, load: Load) -> Vec<f64> {
    let of = |on: Who| {
        let direction = load.direction();
        rows.iter()
            .filter(move |row| (row.on, row.load, row.depth) == (on, direction, load.depth))
    };
    let pairs = of(on).zip(of(to));
    pairs.map(|(one, other)| one.iops / other.iops).collect()
}

fn print_rows(rows: &[Row]) {
    println!();
    let head = [
        "medians",
        "on",
        "IOPS",
        "of local",
        "p50 us",
        "p99 us",
        "times RBD (rounds)",
    ];
    let mut table = Table::new(&head);
    for load in LOADS {
        for on in Who::ALL {
            let own = || {
                rows.iter().filter(move |row| {
                    (row.on, row.load, row.depth) == (on, load.direction(), load.depth)
                })
            };
            if own().next().is_none() {
                continue;
            }
            let beside = ratios(rows, on, Who::Rbd, load);
            let beside = match (beside.is_empty(), on) {
                (true, _) => "SKIPPED".into(),
                (false, Who::Rbd) => "1".into(),
                (false, _) => {
                    let least = beside.iter().copied().fold(f64::INFINITY, f64::min);
                    let most = beside.iter().copied().fold(0.0, f64::max);
                    let middle = median(beside.into_iter());
                    format!("{middle:.1} ({least:.1} to {most:.1})")
                }
            };
            table.row(vec![
                format!("{} QD {}", load.direction(), load.depth),
                on.name().into(),
                figure(median(own().map(|row| row.iops))),
                format!(
                    "{:.2}",
                    median(ratios(rows, on, Who::Local, load).into_iter())
                ),
                figure(median(own().map(|row| row.p50_us))),
                figure(median(own().map(|row| row.p99_us))),
                beside,
            ]);
        }
    }
    table.print();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_of_the_same_round_and_load() {
        let row = |on, depth, round, iops| Row {
            on,
            load: "read",
            depth,
            round,
            iops,
            p50_us: 1.0,
            p99_us: 1.0,
        };
        let rows = [
            row(Who::Local, 1, 0, 100.0),
            row(Who::Rbd, 1, 0, 10.0),
            row(Who::Local, 32, 0, 500.0),
            row(Who::Rbd, 1, 1, 20.0),
            row(Who::Local, 1, 1, 60.0),
        ];
        let single = Load {
            write: false,
            depth: 1,
        };
        assert_eq!(ratios(&rows, Who::Local, Who::Rbd, single), [10.0, 3.0]);
        assert_eq!(ratios(&rows, Who::Nbd, Who::Rbd, single), [0.0; 0]);
    }
}
