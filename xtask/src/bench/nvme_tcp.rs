//! `cargo xtask bench nvme-tcp`: 4 KiB at random over NVMe/TCP on loopback, from memory, by our own
//! initiator.
//!
//! Four servers run at once, each idle while another is measured:
//!
//! - ours with a volume in memory,
//! - ours with a cache in memory before it (write-back, everything cached),
//! - `nbdkit memory` over TCP,
//! - `nbdkit memory` over a Unix socket.
//!
//! All are pinned to one processor. The load, one program for both protocols, is pinned to another.
//! A round measures them one after the other, in the opposite order in the next round. Ratios are
//! of one round. The claim is their median.
//!
//! One request at a time is also measured where neither side sleeps, as between other targets that
//! poll and their initiators. Two more of our servers have `poll = "busy"`, and the load spins.
//! They are stopped while others are measured.

use std::path::Path;
use std::process::Command;

use serde::Serialize;

use super::fio::{self, Load};
use super::others::{Processors, used_s};
use super::server::{Forebay, Scratch, Server, free_port, in_memory};
use super::{Outcome, median, require, run_for_output, take_processors};
use crate::claims::{Claim, Kind, Report, Table, figure};

const DEPTHS: [u32; 3] = [1, 32, 127];
/// Fewest rounds for a claim.
const ROUNDS: usize = 5;
const SECONDS: u32 = 5;
const QUICK_ROUNDS: usize = 1;
const QUICK_SECONDS: u32 = 1;
const SET_MIB: u64 = 128;
const NQN: &str = "nqn.2026-11.io.forebay:bench";
/// Use of one processor by other programs that makes a run disturbed, percent.
const DISTURBED_PERCENT: f64 = 5.0;
/// Limit of our p50 at a queue depth of one, as a ratio to nbdkit's.
const LATENCY_BAR: f64 = 1.1;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Contender {
    Memory,
    Cache,
    MemoryPolls,
    CachePolls,
    NbdkitTcp,
    NbdkitUnix,
}

impl Contender {
    const ALL: [Self; 6] = [
        Self::Memory,
        Self::Cache,
        Self::MemoryPolls,
        Self::CachePolls,
        Self::NbdkitTcp,
        Self::NbdkitUnix,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::Memory => "forebay, memory",
            Self::Cache => "forebay, cache",
            Self::MemoryPolls => "forebay, memory, both poll",
            Self::CachePolls => "forebay, cache, both poll",
            Self::NbdkitTcp => "nbdkit memory, TCP",
            Self::NbdkitUnix => "nbdkit memory, Unix",
        }
    }

    /// Whether server and load poll all the time.
    const fn polls(self) -> bool {
        matches!(self, Self::MemoryPolls | Self::CachePolls)
    }

    /// Whether the pair runs at this depth. A polling pair runs only at depth 1: each side uses a
    /// whole processor at any depth.
    const fn has(self, depth: u32) -> bool {
        depth == 1 || !self.polls()
    }
}

/// One load on one server.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    server: Contender,
    load: &'static str,
    depth: u32,
    round: usize,
    iops: f64,
    p50_us: f64,
    p99_us: f64,
    /// Processor time of the server for each request.
    server_us: f64,
    /// Use of one processor by other programs during the run, percent.
    others_percent: f64,
}

struct Served {
    contender: Contender,
    uri: String,
    pid: u32,
}

impl Served {
    /// Stops or continues a polling server, which would take the processor from the others.
    fn signal(&self, signal: &str) -> Outcome<()> {
        if !self.contender.polls() {
            return Ok(());
        }
        let mut kill = Command::new("kill");
        kill.args([signal, &self.pid.to_string()]);
        run_for_output(kill).map(drop)
    }
}

/// Options of the benchmark.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Only loads of one request at a time
    #[arg(long)]
    single: bool,
}

pub(super) fn run(
    binary: &Path,
    load: &Path,
    arguments: &Arguments,
    quick: bool,
) -> Outcome<Report<Row>> {
    require(&["nbdkit", "taskset", "setpriv"])?;
    let (rounds, seconds) = match quick {
        true => (QUICK_ROUNDS, QUICK_SECONDS),
        false => (ROUNDS, SECONDS),
    };
    let (server_cpu, client_cpu) = take_processors()?;
    println!(
        "4 KiB at random on {SET_MIB} MiB in memory; {rounds} rounds of {seconds} s; loopback, one \
         connection.\n\
         Servers on processor {server_cpu}, our initiator on processor {client_cpu}. Ours: 1 \
         reactor, asleep when idle; \
         the cache in mode wb, durability flush, all of it cached."
    );
    let scratch = [
        Scratch::new("bench-nvme-memory")?,
        Scratch::new("bench-nvme-cache")?,
        Scratch::new("bench-nvme-memory-polls")?,
        Scratch::new("bench-nvme-cache-polls")?,
    ];
    let size_bytes = SET_MIB << 20;
    let ports = [
        free_port()?,
        free_port()?,
        free_port()?,
        free_port()?,
        free_port()?,
    ];
    let bare = format!(
        "[[device]]\nname = \"disk\"\nkind = \"mem\"\nsize = {size_bytes}\n\n\
         [[volume]]\nname = \"v\"\nbacking = \"disk\"\n"
    );
    let mut ours = Vec::new();
    let cached = in_memory(size_bytes);
    let adaptive = "poll = \"adaptive\"";
    let busy = "poll = \"busy\"";
    for (at, (config, poll)) in [
        (&bare, adaptive),
        (&cached, adaptive),
        (&bare, busy),
        (&cached, busy),
    ]
    .into_iter()
    .enumerate()
    {
        let (scratch, port) = (&scratch[at], ports[at]);
        let config = format!(
            "{config}\n[[export]]\nvolume = \"v\"\nnvme-tcp = \"127.0.0.1:{port}\"\nnqn = \
             \"{NQN}\"\n\n[server]\n{poll}\n"
        );
        let started = Forebay::start_tcp(binary, scratch, &config, Some(server_cpu), port);
        ours.push(started?);
    }
    let log = scratch[0].path("nbdkit.log");
    let socket = scratch[0].path("nbdkit.sock");
    let mut nbdkit = Command::new("nbdkit");
    nbdkit.args(["--foreground", "--unix"]).arg(&socket);
    nbdkit.args(["memory", &size_bytes.to_string()]);
    let unix = Server::start(&nbdkit, Some(server_cpu), socket.clone(), &log)?;
    let port = ports[4].to_string();
    let mut nbdkit = Command::new("nbdkit");
    nbdkit.args(["--foreground", "--ipaddr", "127.0.0.1", "--port", &port]);
    nbdkit.args(["memory", &size_bytes.to_string()]);
    let tcp = Server::start_tcp(&nbdkit, Some(server_cpu), ports[4], &log)?;
    let nvme = |port: u16| format!("nvme-tcp://127.0.0.1:{port}/{NQN}?queue_depth=127");
    let served = [
        (Contender::Memory, nvme(ports[0]), ours[0].server.pid()),
        (Contender::Cache, nvme(ports[1]), ours[1].server.pid()),
        (Contender::MemoryPolls, nvme(ports[2]), ours[2].server.pid()),
        (Contender::CachePolls, nvme(ports[3]), ours[3].server.pid()),
        (
            Contender::NbdkitTcp,
            format!("nbd://127.0.0.1:{port}/"),
            tcp.pid(),
        ),
        (
            Contender::NbdkitUnix,
            format!("nbd+unix:///?socket={}", socket.display()),
            unix.pid(),
        ),
    ];
    let served = served.map(|(contender, uri, pid)| Served {
        contender,
        uri,
        pid,
    });
    for server in &served {
        server.signal("-STOP")?;
    }
    let depths = if arguments.single {
        &DEPTHS[..1]
    } else {
        &DEPTHS
    };
    let mut rows = Vec::new();
    for server in &served {
        // Writes everything, which fills volumes and caches, at the fastest depth.
        let fill = Load {
            write: true,
            depth: 127,
        };
        measure(load, server, fill, 0, seconds.max(3))?;
    }
    for round in 0..rounds {
        for &depth in depths {
            for write in [false, true] {
                let mut order: Vec<_> = served
                    .iter()
                    .filter(|one| one.contender.has(depth))
                    .collect();
                if round % 2 == 1 {
                    order.reverse();
                }
                for server in order {
                    let row = measure(load, server, Load { write, depth }, round, seconds)?;
                    eprintln!(
                        "round {} of {rounds}: {} QD {depth} {}: {:.0} IOPS, p50 {:.1} us",
                        round + 1,
                        row.load,
                        server.contender.name(),
                        row.iops,
                        row.p50_us
                    );
                    rows.push(row);
                }
            }
        }
    }
    print_rows(&rows);
    let mut claims = Vec::new();
    for write in [false, true] {
        claims.extend(
            [Contender::Memory, Contender::Cache]
                .map(|contender| claim_of(&rows, contender, write)),
        );
    }
    Ok(Report {
        quick,
        claims,
        rows,
    })
}

fn measure(
    program: &Path,
    server: &Served,
    load: Load,
    round: usize,
    seconds: u32,
) -> Outcome<Row> {
    server.signal("-CONT")?;
    let processors = Processors::sample(server.pid);
    let before_s = used_s(server.pid);
    let (figures, requests) = fio::by_initiator(
        program,
        &server.uri,
        load,
        (SET_MIB, seconds),
        server.contender.polls(),
    )?;
    server.signal("-STOP")?;
    let used_us = (used_s(server.pid) - before_s) * 1e6;
    let others_percent = processors.others_percent(server.pid);
    // The load runs a little longer than it measures.
    let all = requests * (f64::from(seconds) + 0.3) / f64::from(seconds);
    Ok(Row {
        server: server.contender,
        load: load.direction(),
        depth: load.depth,
        round,
        iops: figures.iops,
        p50_us: figures.p50_us,
        p99_us: figures.p99_us,
        server_us: used_us / all,
        others_percent,
    })
}

fn of<'a>(
    rows: &'a [Row],
    contender: Contender,
    load: &'static str,
    depth: u32,
) -> impl Iterator<Item = &'a Row> {
    rows.iter()
        .filter(move |row| row.server == contender && row.load == load && row.depth == depth)
}

fn print_rows(rows: &[Row]) {
    println!();
    let head = [
        "medians",
        "server",
        "IOPS",
        "p50 us",
        "p99 us",
        "server CPU us",
        "other CPU",
    ];
    let mut table = Table::new(&head);
    for load in ["read", "write"] {
        for depth in DEPTHS {
            for contender in Contender::ALL {
                if of(rows, contender, load, depth).next().is_none() {
                    continue;
                }
                let middle =
                    |what: fn(&Row) -> f64| median(of(rows, contender, load, depth).map(what));
                table.row(vec![
                    format!("{load} QD {depth}"),
                    contender.name().into(),
                    figure(middle(|row| row.iops)),
                    figure(middle(|row| row.p50_us)),
                    figure(middle(|row| row.p99_us)),
                    figure(middle(|row| row.server_us)),
                    format!("{:.1}%", middle(|row| row.others_percent)),
                ]);
            }
        }
    }
    table.print();
    let is_disturbed = |row: &&Row| row.others_percent > DISTURBED_PERCENT;
    let disturbed = rows.iter().filter(is_disturbed).count();
    if disturbed > 0 {
        println!(
            "\nNOT A RESULT: in {disturbed} of {} runs others used more than {DISTURBED_PERCENT}% \
             of a processor; rerun on a quiet machine",
            rows.len()
        );
    }
}

/// Returns the claim of the latency of one request at a time, against nbdkit over TCP, in the same
/// round.
fn claim_of(rows: &[Row], contender: Contender, write: bool) -> Claim {
    let load = if write { "write" } else { "read" };
    let ours = of(rows, contender, load, 1);
    let pairs = ours.zip(of(rows, Contender::NbdkitTcp, load, 1));
    let ratios: Vec<f64> = pairs
        .map(|(ours, theirs)| ours.p50_us / theirs.p50_us)
        .collect();
    let ratio = median(ratios.iter().copied());
    let least = ratios.iter().copied().fold(f64::INFINITY, f64::min);
    let most = ratios.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let with = if contender == Contender::Cache {
        "cache"
    } else {
        "memory"
    };
    Claim {
        name: format!("p50_ratio/{with}/nbdkit_memory_tcp/{load}/qd1"),
        paper_or_peer: Some(1.0),
        ours: ratio,
        unit: format!("x ({least:.2}..{most:.2})"),
        kind: Kind::Measured,
        bar: format!("at most {LATENCY_BAR:.1}"),
        holds: ratio <= LATENCY_BAR,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(server: Contender, round: usize, p50_us: f64) -> Row {
        Row {
            server,
            load: "read",
            depth: 1,
            round,
            iops: 1e6 / p50_us,
            p50_us,
            p99_us: p50_us,
            server_us: 1.0,
            others_percent: 0.0,
        }
    }

    #[test]
    fn a_claim_is_the_median_of_the_ratios_of_one_round() {
        let mut rows = Vec::new();
        for (round, ours) in [10.0, 13.0, 10.5].into_iter().enumerate() {
            rows.extend([
                row(Contender::Memory, round, ours),
                row(Contender::NbdkitTcp, round, 10.0),
            ]);
        }
        let claim = claim_of(&rows, Contender::Memory, false);
        assert_eq!((claim.ours, claim.holds), (1.05, true));
        assert_eq!(claim.unit, "x (1.00..1.30)");
        rows[2].p50_us = 12.0;
        rows[4].p50_us = 12.0;
        assert!(!claim_of(&rows, Contender::Memory, false).holds);
    }
}
