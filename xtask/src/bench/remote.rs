//! `cargo xtask bench remote`: volumes on remote stores, with and without a cache, compared with a
//! volume on a file.
//!
//! - *NBD*: `nbdkit memory`, which delays each request by a millisecond (`--filter=delay`). The
//!   delay is emulated.
//! - *RBD*: a Ceph of one node, with its objects in memory (`scripts/ceph-one-node.sh`).
//! - *S3*: `MinIO` on this machine, with its objects in memory (`scripts/minio.sh`). s3backer, a
//!   peer, has a volume in the same bucket and a cache of the same size.
//!
//! Loads are 4 KiB at random over NBD from the daemon:
//!
//! - *Zipf*: Zipf-distributed (0.99) over the whole volume. The cache has a tenth of it. A volume
//!   without a cache has the same load.
//! - *hits*: a part that the cache has. Reads are hits, and writes stay below the dirty limit.
//!   They are compared with a volume whose backing device is a file in memory.
//! - *copy*: `nbdcopy` reads everything once, from the server and from a volume without a cache.
//!
//! Servers are pinned to one processor and clients to another. A ratio is of one round, and a claim
//! is the median of the rounds.

mod backer;
mod minio;
mod stores;

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use serde::Serialize;

use super::fio::{self, Figures, Load};
use super::{Outcome, median, require, run_for_output, take_processors};
use crate::claims::{Claim, Kind, Report, Table, figure};
use stores::{Site, Store, Way};

const ROUNDS: usize = 5;
const SECONDS: u32 = 8;
const QUICK_ROUNDS: usize = 1;
const QUICK_SECONDS: u32 = 2;
/// Size of a volume, bytes.
const SET_BYTES: u64 = 512 << 20;
/// Size of a cache, bytes.
const CACHE_BYTES: u64 = SET_BYTES / 10 / (1 << 20) * (1 << 20);
/// Size of the part that is read and written as hits, bytes.
const HOT_BYTES: u64 = 8 << 20;
/// Most time of a hit by that of a volume on a file.
const HIT_BAR: f64 = 1.2;
/// Least throughput of a copy through a volume by that of a copy from the server.
const COPY_BAR: f64 = 0.9;

/// Kind of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Part {
    Zipf,
    Hits,
}

const READ: Load = Load {
    write: false,
    depth: 1,
};
const READS: Load = Load {
    write: false,
    depth: 32,
};
const WRITE: Load = Load {
    write: true,
    depth: 1,
};
const WRITES: Load = Load {
    write: true,
    depth: 32,
};

/// One load on one volume.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    store: Store,
    way: Way,
    part: Part,
    load: &'static str,
    depth: u32,
    round: usize,
    iops: f64,
    p50_us: f64,
    p99_us: f64,
}

/// A ratio of two throughputs of nbdcopy, with the throughputs in MiB/s.
struct Copy {
    from_server: f64,
    from_volume: f64,
}

pub(super) fn run(root: &Path, binary: &Path, quick: bool) -> Outcome<Report<Row>> {
    require(&["fio", "nbdkit", "nbdcopy", "taskset", "setpriv"])?;
    let (rounds, seconds) = match quick {
        true => (QUICK_ROUNDS, QUICK_SECONDS),
        false => (ROUNDS, SECONDS),
    };
    let (server_cpu, client_cpu) = take_processors()?;
    println!(
        "4 KiB at random on {} MiB, cache of a tenth in memory; {rounds} rounds of {seconds} s. \
         Servers on processor {server_cpu}, clients on processor {client_cpu}.",
        SET_BYTES >> 20
    );
    let (mut rows, mut copies) = (Vec::new(), Vec::new());
    // One store after the other: idle daemons of a store take processor time, too.
    let file = Site::start(root, binary, Store::File, server_cpu)?;
    for store in Store::REMOTE {
        if let Err(why) = store.unavailable() {
            println!("SKIPPED: {}: {why}", store.name());
            continue;
        }
        let site = Site::start(root, binary, store, server_cpu)?;
        for round in 0..rounds {
            measure_round(&mut rows, &site, &file, round, seconds)?;
            if let Some(server) = site.socket() {
                let from_server = copy(server, "")?;
                let volume = site.socket_of(Way::Uncached).expect("each has one");
                let from_volume = copy(volume, "v")?;
                copies.push(Copy {
                    from_server,
                    from_volume,
                });
            }
        }
    }
    print_rows(&rows);
    Ok(Report {
        quick,
        claims: claims(&rows, &copies),
        rows,
    })
}

/// Measures the loads of one round on the volumes of a store, and hits on a file.
fn measure_round(
    rows: &mut Vec<Row>,
    site: &Site,
    file: &Site,
    round: usize,
    seconds: u32,
) -> Outcome<()> {
    let mut measure = |of: &Site, way, part, load| {
        let Some(row) = run_load(of, way, part, load, (round, seconds))? else {
            return Ok(());
        };
        eprintln!(
            "round {}: {} {}: {:.0} IOPS, p50 {:.1} us",
            round + 1,
            row.store.name(),
            in_words(part, load, way),
            row.iops,
            row.p50_us
        );
        rows.push(row);
        Ok::<_, String>(())
    };
    for load in [READ, READS, WRITES] {
        for way in Way::ALL {
            measure(site, way, Part::Zipf, load)?;
        }
    }
    for load in [READ, READS, WRITE, WRITES] {
        measure(file, Way::Cached, Part::Hits, load)?;
        measure(site, Way::Cached, Part::Hits, load)?;
    }
    Ok(())
}

/// Returns `None` if there is no such volume.
fn run_load(
    site: &Site,
    way: Way,
    part: Part,
    load: Load,
    (round, seconds): (usize, u32),
) -> Outcome<Option<Row>> {
    let Some(socket) = site.socket_of(way) else {
        return Ok(None);
    };
    let bytes = match part {
        Part::Zipf => SET_BYTES,
        Part::Hits => HOT_BYTES,
    };
    let mut fio = fio::base(socket, "v", bytes);
    match part {
        Part::Zipf => {
            fio.arg("--random_distribution=zipf:0.99");
        }
        // Once before the first run, so that the cache has all of it.
        Part::Hits => fio::fill(socket, "v", HOT_BYTES)?,
    }
    let Figures {
        iops,
        p50_us,
        p99_us,
    } = fio::measure(fio, load, seconds)?;
    Ok(Some(Row {
        store: site.store,
        way,
        part,
        load: load.direction(),
        depth: load.depth,
        round,
        iops,
        p50_us,
        p99_us,
    }))
}

/// Reads a whole export with nbdcopy. Returns the throughput, MiB/s.
fn copy(socket: &Path, export: &str) -> Outcome<f64> {
    let mut copy = Command::new("nbdcopy");
    copy.arg(format!("nbd+unix:///{export}?socket={}", socket.display()));
    copy.arg("null:");
    let begin = Instant::now();
    run_for_output(copy)?;
    Ok((SET_BYTES >> 20) as f64 / begin.elapsed().as_secs_f64())
}

fn in_words(part: Part, load: Load, way: Way) -> String {
    let part = match part {
        Part::Zipf => "Zipf",
        Part::Hits => "hits",
    };
    let (load, depth) = (load.direction(), load.depth);
    format!("{part}, {load} QD {depth}, {}", way.name())
}

/// Returns the figures of these rows, one for each round.
fn figures(
    rows: &[Row],
    (store, way, part, load): (Store, Way, Part, Load),
    figure: fn(&Row) -> f64,
) -> Vec<f64> {
    let of = |row: &&Row| {
        (row.store, row.way, row.part) == (store, way, part)
            && (row.load, row.depth) == (load.direction(), load.depth)
    };
    rows.iter().filter(of).map(figure).collect()
}

/// Returns the median of the ratios of pairs.
fn ratio(ones: &[f64], others: &[f64]) -> f64 {
    median(ones.iter().zip(others).map(|(one, other)| one / other))
}

fn claims(rows: &[Row], copies: &[Copy]) -> Vec<Claim> {
    let claim = |name: String, ours: f64, unit: &str, kind, bar: Option<(String, bool)>| Claim {
        name,
        paper_or_peer: Some(1.0),
        ours,
        unit: unit.into(),
        kind,
        holds: bar.as_ref().is_none_or(|(_, holds)| *holds),
        bar: bar.map_or_else(|| "none".into(), |(bar, _)| bar),
    };
    let mut claims = Vec::new();
    for store in Store::REMOTE {
        let name = |what: &str| format!("{what}/{}", store.name());
        if figures(rows, (store, Way::Cached, Part::Zipf, READ), |row| row.iops).is_empty() {
            continue;
        }
        for (what, load) in [
            ("read/qd1", READ),
            ("read/qd32", READS),
            ("write/qd32", WRITES),
        ] {
            let of = |way| figures(rows, (store, way, Part::Zipf, load), |row| row.iops);
            let cached = of(Way::Cached);
            let name = name(&format!("zipf_iops/{what}"));
            let ours = ratio(&cached, &of(Way::Uncached));
            claims.push(claim(name.clone(), ours, "x no cache", store.kind(), None));
            let peer = of(Way::Peer);
            if !peer.is_empty() {
                let ours = ratio(&cached, &peer);
                claims.push(claim(name, ours, "x s3backer", store.kind(), None));
            }
        }
        for (what, load) in [("read_hit", READ), ("write", WRITE)] {
            let of = |store| {
                figures(rows, (store, Way::Cached, Part::Hits, load), |row| {
                    row.p50_us
                })
            };
            let ours = ratio(&of(store), &of(Store::File));
            let bar = Some((format!("at most {HIT_BAR}"), ours <= HIT_BAR));
            let name = name(&format!("{what}_p50/qd1"));
            claims.push(claim(name, ours, "x a file", store.kind(), bar));
        }
    }
    if !copies.is_empty() {
        let volume: Vec<f64> = copies.iter().map(|copy| copy.from_volume).collect();
        let server: Vec<f64> = copies.iter().map(|copy| copy.from_server).collect();
        let ours = ratio(&volume, &server);
        let bar = Some((format!("at least {COPY_BAR}"), ours >= COPY_BAR));
        let name = format!("copy/{}", Store::Nbd.name());
        claims.push(claim(name, ours, "x the server", Kind::Emulated, bar));
        println!(
            "\nnbdcopy: {:.0} MiB/s from the server, {:.0} MiB/s from the volume (medians)",
            median(server.into_iter()),
            median(volume.into_iter())
        );
    }
    claims
}

fn print_rows(rows: &[Row]) {
    println!();
    let mut table = Table::new(&["medians", "IOPS", "p50 us", "p99 us"]);
    let zipf = [READ, READS, WRITES].map(|load| (Part::Zipf, load));
    let hits = [READ, READS, WRITE, WRITES].map(|load| (Part::Hits, load));
    for store in Store::REMOTE.into_iter().chain([Store::File]) {
        for (part, load) in zipf.into_iter().chain(hits) {
            for way in Way::ALL {
                let of = |figure| figures(rows, (store, way, part, load), figure);
                let iops = of(|row| row.iops);
                if iops.is_empty() {
                    continue;
                }
                let middle = |values: Vec<f64>| figure(median(values.into_iter()));
                table.row(vec![
                    format!("{}: {}", store.name(), in_words(part, load, way)),
                    middle(iops),
                    middle(of(|row| row.p50_us)),
                    middle(of(|row| row.p99_us)),
                ]);
            }
        }
    }
    table.print();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_is_the_median_of_the_ratios_of_one_round() {
        let row = |store, way, part, load: Load, round, us: f64| Row {
            store,
            way,
            part,
            load: load.direction(),
            depth: load.depth,
            round,
            iops: 1e6 / us,
            p50_us: us,
            p99_us: us,
        };
        let mut rows = Vec::new();
        for (round, far, file) in [(0, 22.0, 20.0), (1, 30.0, 20.0), (2, 20.0, 20.0)] {
            for load in [READ, READS, WRITES] {
                for (way, us) in [(Way::Uncached, 1000.0), (Way::Cached, 100.0)] {
                    rows.push(row(Store::Nbd, way, Part::Zipf, load, round, us));
                    rows.push(row(Store::S3, way, Part::Zipf, load, round, us));
                }
                rows.push(row(Store::S3, Way::Peer, Part::Zipf, load, round, 500.0));
            }
            for load in [READ, WRITE] {
                rows.push(row(Store::Nbd, Way::Cached, Part::Hits, load, round, far));
                rows.push(row(Store::S3, Way::Cached, Part::Hits, load, round, file));
                rows.push(row(Store::File, Way::Cached, Part::Hits, load, round, file));
            }
        }
        let copies = [Copy {
            from_server: 1000.0,
            from_volume: 800.0,
        }];
        let claims = claims(&rows, &copies);
        let ours: Vec<_> = claims.iter().map(|claim| claim.ours).collect();
        let nbd = [10.0, 10.0, 10.0, 1.1, 1.1];
        let s3 = [10.0, 5.0, 10.0, 5.0, 10.0, 5.0, 1.0, 1.0];
        let expected: Vec<_> = nbd.into_iter().chain(s3).chain([0.8]).collect();
        for (ours, expected) in ours.iter().zip(&expected) {
            assert!((ours - expected).abs() < 1e-9, "{claims:?}");
        }
        assert_eq!(claims.len(), expected.len());
        let (copy, others) = claims.split_last().expect("claims");
        assert!(others.iter().all(|claim| claim.holds) && !copy.holds);
    }
}
