//! `cargo xtask bench nbd`: 4 KiB hits over NBD, beside nbdkit.
//!
//! Three servers run at once, each idle while another is measured: ours, `nbdkit memory`, and
//! `nbdkit --filter=cache file` with file and cache in memory. A round measures them one after the
//! other, and the next round in the opposite order. So ours is next to each of the others. Ratios
//! are of one round. The claim is their median.

use std::path::Path;
use std::process::Command;

use serde::Serialize;

use super::client::Flusher;
use super::fio::{self, Figures, LOADS, Load};
use super::others::Processors;
use super::server::{Forebay, Scratch, Server, counter, in_memory};
use super::{Outcome, median, require, take_processors};
use crate::claims::{Claim, Kind, Report, Table, figure};

/// Fewer pairs are not a result.
const ROUNDS: usize = 5;
const SECONDS: u32 = 10;
const SET_BYTES: u64 = 256 << 20;
const QUICK_ROUNDS: usize = 3;
const QUICK_SECONDS: u32 = 2;
const QUICK_SET_BYTES: u64 = 64 << 20;
/// Required hit ratio of our rows, percent.
const HITS_PERCENT: f64 = 99.0;
/// Use of one processor by other programs that makes a run disturbed, percent.
const DISTURBED_PERCENT: f64 = 5.0;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Who {
    Forebay,
    NbdkitMemory,
    NbdkitCache,
}

impl Who {
    const ALL: [Self; 3] = [Self::NbdkitMemory, Self::Forebay, Self::NbdkitCache];

    const fn name(self) -> &'static str {
        match self {
            Self::Forebay => "forebay",
            Self::NbdkitMemory => "nbdkit_memory",
            Self::NbdkitCache => "nbdkit_cache",
        }
    }

    /// Returns the required ratio of our IOPS to the other's.
    const fn iops_bar(self) -> f64 {
        match self {
            Self::NbdkitCache => 2.0,
            Self::Forebay | Self::NbdkitMemory => 1.0,
        }
    }
}

/// One run of fio against one server.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    server: Who,
    load: &'static str,
    depth: u32,
    round: usize,
    iops: f64,
    p50_us: f64,
    p99_us: f64,
    /// Hit ratio of the cache, from our status. `None` for the others, which hold everything.
    hit_percent: Option<f64>,
    flushes: u64,
    /// Use of one processor by other programs during the run, percent.
    others_percent: f64,
}

struct Servers {
    forebay: Forebay,
    memory: Server,
    cache: Server,
    size_bytes: u64,
    // The last field, so that it is dropped after the servers.
    _scratch: Scratch,
}

pub(super) fn run(binary: &Path, quick: bool) -> Outcome<Report<Row>> {
    require(&["fio", "nbdkit", "taskset", "setpriv"])?;
    let (rounds, seconds, size_bytes) = match quick {
        true => (QUICK_ROUNDS, QUICK_SECONDS, QUICK_SET_BYTES),
        false => (ROUNDS, SECONDS, SET_BYTES),
    };
    let (server_cpu, client_cpu) = take_processors()?;
    println!(
        "4 KiB at random on {} MiB, all of it cached; {rounds} rounds of {seconds} s; Unix \
         sockets, \
         one connection for the load and one that flushes once a second.\n\
         Servers on processor {server_cpu}, fio on processor {client_cpu}. Ours: mem devices for \
         cache and \
         backing, mode wb, durability flush, 1 reactor.",
        size_bytes >> 20
    );
    let servers = Servers::start(binary, size_bytes, server_cpu)?;
    let mut rows = Vec::new();
    for round in 0..rounds {
        for load in LOADS {
            let mut order = Who::ALL;
            if round % 2 == 1 {
                order.reverse();
            }
            for who in order {
                let row = servers.measure(who, load, round, seconds)?;
                eprintln!(
                    "round {} of {rounds}: {} QD {} {}: {:.0} IOPS, p99 {:.1} us",
                    round + 1,
                    row.load,
                    row.depth,
                    who.name(),
                    row.iops,
                    row.p99_us
                );
                rows.push(row);
            }
        }
    }
    print_rows(&rows);
    let mut claims = Vec::new();
    for load in LOADS {
        for peer in [Who::NbdkitMemory, Who::NbdkitCache] {
            claims.extend(claims_of(&rows, load, peer));
        }
    }
    Ok(Report {
        quick,
        claims,
        rows,
    })
}

impl Servers {
    fn start(binary: &Path, size_bytes: u64, cpu: &str) -> Outcome<Self> {
        let scratch = Scratch::new("bench-nbd")?;
        let log = scratch.path("nbdkit.log");
        let mut memory = Command::new("nbdkit");
        let socket = scratch.path("memory.sock");
        memory.args(["--foreground", "--unix"]).arg(&socket);
        memory.args(["memory", &size_bytes.to_string()]);
        let memory = Server::start(&memory, Some(cpu), socket, &log)?;

        let file = scratch.file("file", size_bytes)?;
        let mut cache = Command::new("nbdkit");
        let socket = scratch.path("cache.sock");
        // The folder of the filter's cache.
        cache.env("TMPDIR", scratch.path(""));
        cache.args(["--foreground", "--unix"]).arg(&socket);
        cache.args(["--filter=cache", "file"]).arg(&file);
        let cache = Server::start(&cache, Some(cpu), socket, &log)?;

        let forebay = Forebay::start(binary, &scratch, &in_memory(size_bytes), Some(cpu), &[])?;
        let servers = Self {
            forebay,
            memory,
            cache,
            size_bytes,
            _scratch: scratch,
        };
        for who in Who::ALL {
            let (socket, _, export) = servers.find(who);
            fio::fill(socket, export, size_bytes)?;
        }
        Ok(servers)
    }

    /// Returns the socket, the process and the export of a server.
    fn find(&self, who: Who) -> (&Path, u32, &str) {
        let server = match who {
            Who::Forebay => {
                let ours = &self.forebay.server;
                return (ours.socket(), ours.pid(), "v");
            }
            Who::NbdkitMemory => &self.memory,
            Who::NbdkitCache => &self.cache,
        };
        (server.socket(), server.pid(), "")
    }

    fn measure(&self, who: Who, load: Load, round: usize, seconds: u32) -> Outcome<Row> {
        let (socket, pid, export) = self.find(who);
        let hits = |before: Option<(u64, u64)>| match who {
            Who::Forebay => self.hits(load, before.unwrap_or_default()).map(Some),
            _ => Ok(None),
        };
        let hits_before = hits(None)?;
        let processors = Processors::sample(pid);
        let flusher = Flusher::start(socket, export)?;
        let figures = fio::run(socket, export, self.size_bytes, load, seconds);
        let flushes = flusher.stop()?;
        let Figures {
            iops,
            p50_us,
            p99_us,
        } = figures?;
        let others_percent = processors.others_percent(pid);
        let hit_percent = hits(hits_before)?
            .map(|(hits, misses)| hits as f64 * 100.0 / (hits + misses).max(1) as f64);
        Ok(Row {
            server: who,
            load: load.direction(),
            depth: load.depth,
            round,
            iops,
            p50_us,
            p99_us,
            hit_percent,
            flushes,
            others_percent,
        })
    }

    /// Returns hits and misses of the load's kind since `before`.
    fn hits(&self, load: Load, before: (u64, u64)) -> Outcome<(u64, u64)> {
        let status = self.forebay.status()?;
        let count = |what| counter(&status, &format!("/volumes/0/{}_{what}", load.direction()));
        Ok((count("hits")? - before.0, count("misses")? - before.1))
    }
}

fn of(rows: &[Row], load: Load, who: Who) -> impl Iterator<Item = &Row> {
    rows.iter().filter(move |row| {
        row.server == who && row.load == load.direction() && row.depth == load.depth
    })
}

fn print_rows(rows: &[Row]) {
    println!();
    let mut table = Table::new(&[
        "medians",
        "server",
        "IOPS",
        "p50 us",
        "p99 us",
        "hits",
        "flushes",
        "others use",
    ]);
    for load in LOADS {
        for who in Who::ALL {
            let middle = |what: fn(&Row) -> f64| median(of(rows, load, who).map(what));
            let lowest = of(rows, load, who)
                .filter_map(|row| row.hit_percent)
                .fold(100.0, f64::min);
            table.row(vec![
                format!("{} QD {}", load.direction(), load.depth),
                who.name().into(),
                figure(middle(|row| row.iops)),
                figure(middle(|row| row.p50_us)),
                figure(middle(|row| row.p99_us)),
                match who {
                    Who::Forebay => format!("{lowest:.2}%"),
                    _ => "all".into(),
                },
                figure(middle(|row| row.flushes as f64)),
                format!("{:.1}%", middle(|row| row.others_percent)),
            ]);
        }
    }
    table.print();
    let disturbed = rows
        .iter()
        .filter(|row| row.others_percent > DISTURBED_PERCENT)
        .count();
    if disturbed > 0 {
        println!(
            "\nNOT A RESULT: in {disturbed} of {} runs others used more than {DISTURBED_PERCENT}% \
             of a processor; rerun on a quiet machine",
            rows.len()
        );
    }
}

/// Returns the two claims against one other server under one load.
fn claims_of(rows: &[Row], load: Load, peer: Who) -> [Claim; 2] {
    let pairs = || of(rows, load, Who::Forebay).zip(of(rows, load, peer));
    let enough_hits = of(rows, load, Who::Forebay)
        .all(|row| row.hit_percent.is_some_and(|hits| hits >= HITS_PERCENT));
    let end = format!("{}/{}/qd{}", peer.name(), load.direction(), load.depth);
    let claim = |what: &str, ratios: Vec<f64>, bar: String, good: &dyn Fn(f64) -> bool| {
        let ours = median(ratios.iter().copied());
        let least = ratios.iter().copied().fold(f64::INFINITY, f64::min);
        let most = ratios.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        Claim {
            name: format!("{what}/{end}"),
            paper_or_peer: Some(1.0),
            ours,
            unit: format!("x ({least:.2}..{most:.2})"),
            kind: Kind::Measured,
            bar,
            holds: good(ours) && enough_hits,
        }
    };
    let iops = pairs()
        .map(|(ours, theirs)| ours.iops / theirs.iops)
        .collect();
    let p99 = pairs()
        .map(|(ours, theirs)| ours.p99_us / theirs.p99_us)
        .collect();
    let bar = peer.iops_bar();
    [
        claim("iops_ratio", iops, format!("at least {bar:.1}"), &|ours| {
            ours >= bar
        }),
        claim("p99_ratio", p99, "at most 1.0".into(), &|ours| ours <= 1.0),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(server: Who, round: usize, iops: f64, hit_percent: Option<f64>) -> Row {
        Row {
            server,
            load: "read",
            depth: 1,
            round,
            iops,
            p50_us: 1.0,
            p99_us: 1e6 / iops,
            hit_percent,
            flushes: 0,
            others_percent: 0.0,
        }
    }

    fn rounds(hit_percent: f64) -> Vec<Row> {
        let ours = [100.0, 300.0, 90.0];
        let rows = ours.iter().enumerate().flat_map(|(round, iops)| {
            [
                row(Who::Forebay, round, *iops, Some(hit_percent)),
                row(Who::NbdkitMemory, round, 100.0, None),
            ]
        });
        rows.collect()
    }

    #[test]
    fn a_claim_is_the_median_of_the_ratios_of_one_round() {
        let [iops, p99] = claims_of(&rounds(100.0), LOADS[0], Who::NbdkitMemory);
        assert_eq!(iops.name, "iops_ratio/nbdkit_memory/read/qd1");
        assert_eq!((iops.ours, iops.holds), (1.0, true));
        assert_eq!(iops.unit, "x (0.90..3.00)");
        assert_eq!((p99.ours, p99.holds), (1.0, true));
    }

    #[test]
    fn without_hits_no_claim_holds() {
        let [iops, p99] = claims_of(&rounds(98.0), LOADS[0], Who::NbdkitMemory);
        assert!(!iops.holds && !p99.holds);
    }
}
