//! `cargo xtask bench nodes`: reads through the mounts of two nodes of the page cache on one
//! machine. They are compared with the file system below it and with bindfs (DPC, Figures 6 to 9).
//!
//! - **Local hits** are of a file that the reading node has in its memory.
//! - **First remote hits** are of a file that the other node has, which the reading node has not
//!   mapped yet. **Remote hits** are a second pass over it.
//! - **Misses** are of a part of a file that nothing has read before.
//! - **Writes** are of 4 KiB, each followed by `fsync`.
//!
//! Each measurement is one pass over a part. The file system's hits are of the kernel's page cache
//! (without O_DIRECT). All its other reads, and all those through mounts, have O_DIRECT. Through a
//! mount each read enters a process then. Remote memory is memory of this machine: the link between
//! nodes is emulated by nothing, and costs nothing.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Serialize;
use serde_json::Value;

use super::fio::{self, Figures, Load, Pass};
use super::mount::mounts::{Mounted, Node, Peer, Source};
use super::mount::read_all;
use super::server::Scratch;
use super::{Outcome, loops, median, require};
use crate::claims::{Claim, Kind, Report, Table, figure};

const ROUNDS: usize = 5;
const LARGE_BYTES: u64 = 2 << 30;
const QUICK_LARGE_BYTES: u64 = 512 << 20;
/// Memory of a node, bytes.
const MEMORY_BYTES: u64 = 256 << 20;
/// Size of the part that one pass reads, bytes.
const PART_BYTES: u64 = 32 << 20;
/// Number of writes with `fsync`.
const WRITES: u64 = 500;
/// Most time of a local hit by that of the peer.
const HIT_BAR: f64 = 2.0;

/// Requests of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    name: &'static str,
    block_bytes: u64,
    depth: u32,
    jobs: u32,
}

const SINGLE: Shape = Shape {
    name: "4 KiB, QD 1",
    block_bytes: 4 << 10,
    depth: 1,
    jobs: 1,
};
const SHAPES: [Shape; 3] = [
    SINGLE,
    Shape {
        name: "4 KiB, QD 32",
        block_bytes: 4 << 10,
        depth: 32,
        jobs: 1,
    },
    Shape {
        name: "128 KiB, QD 32 x 8",
        block_bytes: 128 << 10,
        depth: 32,
        jobs: 8,
    },
];

const LOCAL: &str = "local hits";
const FIRST: &str = "first remote hits";
const REMOTE: &str = "remote hits";
const MISS: &str = "misses";
const WRITE: &str = "writes with fsync";
const READS: [&str; 4] = [LOCAL, FIRST, REMOTE, MISS];
const FILE: &str = "the file";
const PEER: &str = "bindfs";
const MOUNT: &str = "the mount";

/// One pass.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    what: &'static str,
    shape: &'static str,
    of: &'static str,
    round: usize,
    iops: f64,
    mib_per_s: f64,
    p50_us: f64,
    p99_us: f64,
}

/// The processes and files.
struct Bench {
    source: Source,
    reader: Mounted,
    other: Node,
    cached: Peer,
    direct: Peer,
    /// Number of parts of the large file that were read.
    parts: u64,
    large_bytes: u64,
    // The last field, so that it is removed after the processes have ended.
    _scratch: Scratch,
}

pub(super) fn run(root: &Path, binary: &Path, quick: bool) -> Outcome<Report<Row>> {
    require(&["fio", "setpriv", "umount", "bindfs"])?;
    if !loops::is_root() {
        return Err("a mount needs root".into());
    }
    let (rounds, large_bytes) = match quick {
        true => (1, QUICK_LARGE_BYTES),
        false => (ROUNDS, LARGE_BYTES),
    };
    println!(
        "Two nodes of {} MiB; a pass reads {} MiB; {rounds} rounds.",
        MEMORY_BYTES >> 20,
        PART_BYTES >> 20
    );
    let mut bench = Bench::start(root, binary, large_bytes)?;
    let mut rows = Vec::new();
    for round in 0..rounds {
        for shape in SHAPES {
            bench.measure(&mut rows, shape, round)?;
        }
        bench.measure_writes(&mut rows, round)?;
    }
    print_rows(&rows);
    Ok(Report {
        quick,
        claims: claims(&rows),
        rows,
    })
}

impl Bench {
    fn start(root: &Path, binary: &Path, large_bytes: u64) -> Outcome<Self> {
        let scratch = Scratch::new("bench-nodes")?;
        let source = Source::create(root, large_bytes)?;
        let (capacity, memory) = (2 * MEMORY_BYTES, MEMORY_BYTES);
        let reader = Mounted::start(binary, &scratch, &source, capacity, memory)?;
        let other = Node::start(binary, &scratch, 2, memory)?;
        let cached = Peer::start(&scratch, &source, "cached", &[])?;
        let direct = Peer::start(&scratch, &source, "direct", &["--forward-odirect=4096"])?;
        Ok(Self {
            source,
            reader,
            other,
            cached,
            direct,
            parts: 0,
            large_bytes,
            _scratch: scratch,
        })
    }

    /// Measures all reads of one shape.
    fn measure(&mut self, rows: &mut Vec<Row>, shape: Shape, round: usize) -> Outcome<()> {
        let mount = self.reader.node.mountpoint.clone();
        let (local, far) = (format!("local{}", self.parts), format!("far{}", self.parts));
        for name in [&local, &far] {
            self.source.add(name, PART_BYTES)?;
        }
        for folder in [&mount, &self.source.0, &self.cached.mountpoint] {
            read_all(&folder.join(&local))?;
        }
        read_all(&self.other.mountpoint.join(&far))?;
        let mut passes = vec![
            (LOCAL, FILE, self.source.0.join(&local), 0, false),
            (LOCAL, PEER, self.cached.mountpoint.join(&local), 0, true),
            (LOCAL, MOUNT, mount.join(&local), 0, true),
            (FIRST, MOUNT, mount.join(&far), 0, true),
            (REMOTE, MOUNT, mount.join(&far), 0, true),
        ];
        for (of, folder) in [
            (FILE, &self.source.0),
            (PEER, &self.direct.mountpoint),
            (MOUNT, &mount),
        ] {
            let at = self.parts * PART_BYTES % self.large_bytes;
            passes.push((MISS, of, folder.join("large"), at, true));
        }
        for (what, of, path, at, direct) in passes {
            let mut load = Command::new("fio");
            load.args(["--name=bench", "--ioengine=libaio"]);
            load.arg(format!("--direct={}", u8::from(direct)));
            load.arg(format!("--offset={at}"));
            load.arg("--output-format=json").arg("--filename").arg(path);
            let pass = Pass {
                random: true,
                depth: shape.depth,
                jobs: shape.jobs,
                block_bytes: shape.block_bytes,
                bytes: PART_BYTES,
            };
            let job = fio::pass(load, pass)?;
            rows.push(row_of(&job, (what, shape.name, of, round), false)?);
        }
        self.parts += 1;
        for name in [&local, &far] {
            let path = mount.join(name);
            let removed = std::fs::remove_file(&path);
            removed.map_err(|error| format!("{}: {error}", path.display()))?;
        }
        Ok(())
    }

    /// Measures writes, each of which is durable before the next one.
    fn measure_writes(&self, rows: &mut Vec<Row>, round: usize) -> Outcome<()> {
        let places: [(&'static str, PathBuf); 3] = [
            (FILE, self.source.0.join("written0")),
            (PEER, self.cached.mountpoint.join("written1")),
            (MOUNT, self.reader.node.mountpoint.join("written2")),
        ];
        for (of, path) in places {
            let mut load = Command::new("fio");
            load.args(["--name=bench", "--ioengine=psync", "--fsync=1"]);
            load.arg(format!("--number_ios={WRITES}"));
            load.arg("--output-format=json").arg("--filename").arg(path);
            let job = fio::writes(load, PART_BYTES)?;
            rows.push(row_of(&job, (WRITE, SINGLE.name, of, round), true)?);
        }
        Ok(())
    }
}

fn row_of(
    job: &Value,
    (what, shape, of, round): (&'static str, &'static str, &'static str, usize),
    write: bool,
) -> Outcome<Row> {
    let load = Load { write, depth: 1 };
    let Figures {
        iops,
        p50_us,
        p99_us,
    } = Figures::of(job, load)?;
    let side = &job[load.direction()];
    let bytes = side["bw_bytes"].as_f64().ok_or("fio prints no bandwidth")?;
    // A durable write takes the time of its `fsync`, too.
    let sync = &job["sync"]["lat_ns"]["percentile"];
    let more_us = |percent: &str| sync[percent].as_f64().unwrap_or(0.0) / 1e3;
    let row = Row {
        what,
        shape,
        of,
        round,
        iops,
        mib_per_s: bytes / f64::from(1 << 20),
        p50_us: p50_us + more_us("50.000000"),
        p99_us: p99_us + more_us("99.000000"),
    };
    eprintln!(
        "{what}, {shape}, {of}: {iops:.0} IOPS, p50 {:.1} us",
        row.p50_us
    );
    Ok(row)
}

/// Returns a figure of these rows, one for each round.
fn figures(
    rows: &[Row],
    (what, shape, of): (&str, &str, &str),
    figure: fn(&Row) -> f64,
) -> Vec<f64> {
    let own = |row: &&Row| (row.what, row.shape, row.of) == (what, shape, of);
    rows.iter().filter(own).map(figure).collect()
}

/// Returns the median of the ratios of one round.
fn ratio(ones: &[f64], others: &[f64]) -> f64 {
    median(ones.iter().zip(others).map(|(one, other)| one / other))
}

fn claims(rows: &[Row]) -> Vec<Claim> {
    let claim = |name: String, ours: f64, unit: &str, bar: Option<(String, bool)>| Claim {
        name,
        paper_or_peer: Some(1.0),
        ours,
        unit: unit.into(),
        kind: Kind::Measured,
        holds: bar.as_ref().is_none_or(|(_, holds)| *holds),
        bar: bar.map_or_else(|| "none".into(), |(bar, _)| bar),
    };
    let p50 = |what, of| figures(rows, (what, SINGLE.name, of), |row| row.p50_us);
    let local = p50(LOCAL, MOUNT);
    let hit = ratio(&local, &p50(LOCAL, PEER));
    let mut claims = vec![
        claim(
            "local_hit_p50/qd1".into(),
            hit,
            "x bindfs",
            Some((format!("at most {HIT_BAR}"), hit <= HIT_BAR)),
        ),
        claim(
            "first_remote_hit_p50/qd1".into(),
            ratio(&p50(FIRST, MOUNT), &local),
            "x a local hit",
            None,
        ),
        claim(
            "remote_hit_p50/qd1".into(),
            ratio(&p50(REMOTE, MOUNT), &local),
            "x a local hit",
            None,
        ),
        claim(
            "write_fsync_p50".into(),
            ratio(&p50(WRITE, MOUNT), &p50(WRITE, FILE)),
            "x the file",
            None,
        ),
    ];
    for shape in SHAPES {
        let of = |of| figures(rows, (MISS, shape.name, of), |row| row.iops);
        let ours = ratio(&of(MOUNT), &of(FILE));
        let name = format!("miss_iops/{}", shape.name);
        claims.push(claim(name, ours, "x the file, direct", None));
    }
    claims
}

fn print_rows(rows: &[Row]) {
    println!();
    let mut table = Table::new(&["medians", "of", "IOPS", "MiB/s", "p50 us", "p99 us"]);
    let shapes = SHAPES.map(|shape| shape.name);
    let reads = READS
        .iter()
        .flat_map(|what| shapes.map(|shape| (*what, shape)));
    for (what, shape) in reads.chain([(WRITE, SINGLE.name)]) {
        for of in [FILE, PEER, MOUNT] {
            let middle = |value: fn(&Row) -> f64| {
                figure(median(figures(rows, (what, shape, of), value).into_iter()))
            };
            if figures(rows, (what, shape, of), |row| row.iops).is_empty() {
                continue;
            }
            table.row(vec![
                format!("{what}, {shape}"),
                of.into(),
                middle(|row| row.iops),
                middle(|row| row.mib_per_s),
                middle(|row| row.p50_us),
                middle(|row| row.p99_us),
            ]);
        }
    }
    table.print();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_is_the_median_of_the_ratios_of_one_round() {
        let mut rows = Vec::new();
        for (round, ours, peer) in [(0, 15.0, 10.0), (1, 30.0, 10.0), (2, 18.0, 10.0)] {
            let mut add = |what, shape, of, us: f64| {
                rows.push(Row {
                    what,
                    shape,
                    of,
                    round,
                    iops: 1e6 / us,
                    mib_per_s: 1.0,
                    p50_us: us,
                    p99_us: us,
                });
            };
            add(LOCAL, SINGLE.name, MOUNT, ours);
            add(LOCAL, SINGLE.name, PEER, peer);
            add(FIRST, SINGLE.name, MOUNT, 2.0 * ours);
            add(REMOTE, SINGLE.name, MOUNT, ours);
            add(WRITE, SINGLE.name, MOUNT, 100.0);
            add(WRITE, SINGLE.name, FILE, 50.0);
            for shape in SHAPES {
                add(MISS, shape.name, MOUNT, 20.0);
                add(MISS, shape.name, FILE, 10.0);
            }
        }
        let claims = claims(&rows);
        let ours: Vec<_> = claims.iter().map(|claim| claim.ours).collect();
        assert_eq!(ours, [1.8, 2.0, 1.0, 2.0, 0.5, 0.5, 0.5]);
        assert!(claims[0].holds);
        let job = serde_json::json!({
            "write": {
                "iops": 10.0,
                "bw_bytes": 1_048_576.0,
                "lat_ns": {"percentile": {"50.000000": 1000, "99.000000": 2000}}
            },
            "sync": {"lat_ns": {"percentile": {"50.000000": 4000, "99.000000": 6000}}}
        });
        let row = row_of(&job, (WRITE, SINGLE.name, FILE, 0), true).expect("all is there");
        assert_eq!((row.p50_us, row.p99_us, row.mib_per_s), (5.0, 8.0, 1.0));
    }
}
