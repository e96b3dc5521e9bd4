//! `cargo xtask bench mount`: reads through a mount of the page cache, compared with the file
//! system below it and with bindfs. Bindfs is a FUSE file system that passes requests on.
//!
//! fio reads 4 KiB at random with O_DIRECT, so that each read enters the process of the mount.
//!
//! - **Cold reads** are of a file that is sixteen times as large as the node's memory. No block is
//!   read twice in a pass, so nearly each read is a miss. bindfs reads its source with O_DIRECT.
//! - **Hits** are of a file of half the node's memory, which was read before. bindfs reads its
//!   source through the kernel's cache, which has the file.
//!
//! A round measures all of them, one after the other. A ratio is of one round, and a claim is the
//! median. Beside it stands the time of the processors for a read, which other work on the machine
//! hardly changes.

mod cost;
pub(super) mod mounts;

use std::fs;
use std::path::Path;
use std::process::Command;

use serde::Serialize;

use super::fio::{self, Figures, Load};
use super::server::Scratch;
use super::{Outcome, loops, median, require};
use crate::claims::{Claim, Kind, Report, Table, figure};
use cost::Cost;
use mounts::{Mounted, Peer, Source};

/// Reads of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Reads {
    name: &'static str,
    file: &'static str,
    depth: u32,
}

impl Reads {
    const fn load(self) -> Load {
        Load {
            write: false,
            depth: self.depth,
        }
    }
}

const LARGE_FILE: &str = "large";
const SMALL_FILE: &str = "small";
const COLD: Reads = Reads {
    name: "cold reads, 32 at a time",
    file: LARGE_FILE,
    depth: 32,
};
const HIT: Reads = Reads {
    name: "hits, one at a time",
    file: SMALL_FILE,
    depth: 1,
};
const HITS: Reads = Reads {
    name: "hits, 32 at a time",
    file: SMALL_FILE,
    depth: 32,
};
const ALL: [Reads; 3] = [COLD, HIT, HITS];

const FILE_BYTES: u64 = 2 << 30;
const QUICK_FILE_BYTES: u64 = 512 << 20;
/// Size of the large file by that of the node's memory.
const TIMES: u64 = 16;
const ROUNDS: usize = 5;
const SECONDS: u32 = 10;
const QUICK_SECONDS: u32 = 4;
/// Least share of the throughput of the file for cold reads.
const COLD_BAR: f64 = 0.8;
/// Most time of a hit by that of the peer.
const HIT_BAR: f64 = 2.0;
const FILE: &str = "the file";
const PEER: &str = "bindfs";
const MOUNT: &str = "the mount";

/// One run of a load.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    reads: &'static str,
    of: &'static str,
    round: usize,
    iops: f64,
    p50_us: f64,
    p99_us: f64,
    fio: Cost,
    /// Process of the mount: a node, or the peer.
    server: Cost,
    directory: Cost,
}

pub(super) fn run(root: &Path, binary: &Path, quick: bool) -> Outcome<Report<Row>> {
    require(&["fio", "setpriv", "umount", "bindfs"])?;
    if !loops::is_root() {
        return Err("a mount needs root".into());
    }
    let (rounds, seconds, size_bytes) = match quick {
        true => (1, QUICK_SECONDS, QUICK_FILE_BYTES),
        false => (ROUNDS, SECONDS, FILE_BYTES),
    };
    println!(
        "4 KiB at random, direct; a large file of {} MiB, a small one of {} MiB; the node has {} \
         MiB. {rounds} rounds of {seconds} s.",
        size_bytes >> 20,
        (size_bytes / TIMES / 2) >> 20,
        (size_bytes / TIMES) >> 20
    );
    let scratch = Scratch::new("bench-mount")?;
    let source = Source::create(root, size_bytes)?;
    let mount = Mounted::start(
        binary,
        &scratch,
        &source,
        size_bytes / TIMES,
        size_bytes / TIMES,
    )?;
    let direct = Peer::start(&scratch, &source, "direct", &["--forward-odirect=4096"])?;
    let cached = Peer::start(&scratch, &source, "cached", &[])?;
    let mut rows = Vec::new();
    for round in 0..rounds {
        for reads in ALL {
            let peer = if reads == COLD { &direct } else { &cached };
            let peer_pids = [Some(peer.server.pid()), None];
            let our_pids = [Some(mount.node.server.pid()), Some(mount.directory.pid())];
            for (of, folder, pids) in [
                (FILE, source.0.as_path(), [None, None]),
                (PEER, &peer.mountpoint, peer_pids),
                (MOUNT, &mount.node.mountpoint, our_pids),
            ] {
                // The cold reads have evicted a part of it.
                if reads == HIT {
                    read_all(&folder.join(reads.file))?;
                }
                let row = measure(reads, &folder.join(reads.file), pids, seconds)?;
                let row = Row { of, round, ..row };
                eprintln!("{}, {of}: {:.0} IOPS", row.reads, row.iops);
                rows.push(row);
            }
        }
    }
    print_rows(&rows);
    Ok(Report {
        quick,
        claims: claims(&rows),
        rows,
    })
}

/// Reads a file from its begin to its end, so that caches have it.
pub(super) fn read_all(path: &Path) -> Outcome<()> {
    let mut file = fs::File::open(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let copied = std::io::copy(&mut file, &mut std::io::sink());
    copied
        .map(drop)
        .map_err(|error| format!("{}: {error}", path.display()))
}

/// Runs a load on a file, and returns its figures and the costs of the processes that serve it.
fn measure(reads: Reads, file: &Path, pids: [Option<u32>; 2], seconds: u32) -> Outcome<Row> {
    let mut load = Command::new("fio");
    load.args(["--name=bench", "--ioengine=libaio", "--direct=1"]);
    load.arg("--output-format=json").arg("--filename").arg(file);
    let costs = || {
        let of = |pid: Option<u32>| pid.map_or(Ok(Cost::default()), Cost::of_process);
        Ok::<_, String>((of(pids[0])?, of(pids[1])?))
    };
    let before = costs()?;
    let job = fio::job(load, reads.load(), seconds)?;
    let after = costs()?;
    let Figures {
        iops,
        p50_us,
        p99_us,
    } = Figures::of(&job, reads.load())?;
    let count = job[reads.load().direction()]["total_ios"].as_f64();
    let count = count.ok_or("fio does not print the number of reads")?;
    Ok(Row {
        reads: reads.name,
        of: FILE,
        round: 0,
        iops,
        p50_us,
        p99_us,
        fio: Cost::of_fio(&job, count)?,
        server: after.0.since(before.0, count),
        directory: after.1.since(before.1, count),
    })
}

/// Returns the median over the rounds of a figure by that of `other`.
fn ratio(rows: &[Row], reads: Reads, other: &str, figure: fn(&Row) -> f64) -> f64 {
    let of = |of: &str, round| {
        let mut found = rows.iter();
        let row = found.find(|row| (row.reads, row.of, row.round) == (reads.name, of, round));
        row.map(figure).expect("a round measures all")
    };
    let rounds = rows.iter().map(|row| row.round + 1).max().unwrap_or(0);
    median((0..rounds).map(|round| of(MOUNT, round) / of(other, round)))
}

fn claims(rows: &[Row]) -> Vec<Claim> {
    let claim = |name: &str, ours: f64, unit: &str, bar: Option<(String, bool)>| Claim {
        name: name.into(),
        paper_or_peer: Some(1.0),
        ours,
        unit: unit.into(),
        kind: Kind::Measured,
        holds: bar.as_ref().is_none_or(|(_, holds)| *holds),
        bar: bar.map_or_else(|| "none".into(), |(bar, _)| bar),
    };
    let iops = |row: &Row| row.iops;
    let cold = ratio(rows, COLD, FILE, iops);
    let hit = ratio(rows, HIT, PEER, |row| row.p50_us);
    vec![
        claim(
            "cold_read_iops/qd32",
            cold,
            "x the file",
            Some((format!("at least {COLD_BAR}"), cold >= COLD_BAR)),
        ),
        claim(
            "cold_read_iops/qd32/peer",
            ratio(rows, COLD, PEER, iops),
            "x bindfs",
            None,
        ),
        claim(
            "hit_p50/qd1",
            hit,
            "x bindfs",
            Some((format!("at most {HIT_BAR}"), hit <= HIT_BAR)),
        ),
        claim(
            "hit_iops/qd32",
            ratio(rows, HITS, PEER, iops),
            "x bindfs",
            None,
        ),
    ]
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
    for (reads, of) in ALL
        .into_iter()
        .flat_map(|reads| [FILE, PEER, MOUNT].map(|of| (reads, of)))
    {
        let own = || {
            let these = move |row: &&Row| (row.reads, row.of) == (reads.name, of);
            rows.iter().filter(these)
        };
        let middle = |value: fn(&Row) -> f64| median(own().map(value));
        let speed = [
            middle(|row| row.iops),
            middle(|row| row.p50_us),
            middle(|row| row.p99_us),
        ];
        let cost = |part: fn(&Row) -> Cost| {
            let of_part = |value: fn(Cost) -> f64| median(own().map(|row| value(part(row))));
            [
                of_part(|cost| cost.user_us),
                of_part(|cost| cost.system_us),
                of_part(|cost| cost.switches),
            ]
        };
        let none = || [const { String::new() }; 3];
        let what = format!("{}: {of}, fio", reads.name);
        row(what, speed.map(figure), cost(|row| row.fio));
        match of {
            PEER => row("  bindfs".into(), none(), cost(|row| row.server)),
            MOUNT => {
                row("  node".into(), none(), cost(|row| row.server));
                row("  directory".into(), none(), cost(|row| row.directory));
            }
            _ => {}
        }
    }
    table.print();
    println!("Times and switches are those of one read.");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_is_the_median_of_the_rounds() {
        let row = |reads: Reads, of, round, iops| Row {
            reads: reads.name,
            of,
            round,
            iops,
            p50_us: 1e6 / iops,
            p99_us: 1.0,
            fio: Cost::default(),
            server: Cost::default(),
            directory: Cost::default(),
        };
        let rounds = [(100.0, 79.0, 30.0), (100.0, 90.0, 90.0), (50.0, 42.0, 20.0)];
        let rounds = rounds.into_iter().enumerate();
        let rows: Vec<Row> = rounds
            .flat_map(|(round, (file, mount, peer))| {
                let of = move |reads| {
                    [(FILE, file), (PEER, peer), (MOUNT, mount)]
                        .map(|(of, iops)| row(reads, of, round, iops))
                };
                ALL.into_iter().flat_map(of)
            })
            .collect();
        let claims = claims(&rows);
        assert!(claims[0].holds && (claims[0].ours - 0.84).abs() < 1e-9);
        let hit = &claims[2];
        assert!(
            hit.holds && (hit.ours - 20.0 / 42.0).abs() < 1e-9,
            "{hit:?}"
        );
    }
}
