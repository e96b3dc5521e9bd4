//! `cargo xtask bench hosts`: 64 hosts on 16 volumes of one cache, over NVMe/TCP on loopback, by
//! our own initiator.
//!
//! One daemon has a cache in memory and 16 volumes, each a subsystem of its own. Four hosts with
//! their own names use each. All requested data is cached. The answers to each host are counted,
//! after a second in which both sides settle:
//!
//! - **Equal hosts**, each with the same number of requests in flight, reads and then writes.
//! - **A greedy host** among them, with a full queue of small requests or large ones. It is fair if
//!   each of the others gets its equal share of all answers, or as much as it requests.
//! - **Limits**, in another daemon: operations, bytes, or both, and bursts, different for each
//!   volume. Requests are of several sizes, reads and writes. In the first second an idle volume
//!   may spend its burst.
//! - **Memory** of the daemon, as the kernel counts it: without hosts, and with 64 idle hosts. Then
//!   with everything cached, at depth, and with 64 hosts that do not read their answers. They
//!   request twice as much as their connections may hold.
//!
//! The daemon is pinned to one processor and the load to another. The one without idle time decides
//! which host is served. The use of both is shown. If the load has no idle time, fairness is the
//! load's.

mod drive;
mod limit;
mod row;
mod verdict;

use std::path::Path;

use self::drive::{Busy, FIRST_S, Host, Ran, drive};
use self::limit::Limit;
use self::row::{Held, Phase, Row};
use super::server::{Forebay, Scratch, counter, free_port};
use super::{Outcome, require, take_processors};
use crate::claims::{Report, Table, figure};

const VOLUMES: usize = 16;
const HOSTS: usize = 64;
/// Requests in flight of a host, and of a greedy one. A queue has 128 entries, one of which stays
/// free.
const DEPTH: u32 = 4;
const GREEDY_DEPTH: u32 = 127;
const REQUEST_BYTES: u32 = 4 << 10;
const GREEDY_BYTES: u32 = 128 << 10;
/// Bytes of a request of the hosts of a volume with limits.
const LIMITED_BYTES: [u32; HOSTS / VOLUMES] = [4 << 10, 4 << 10, 16 << 10, 64 << 10];
const FILL_BYTES: u32 = 256 << 10;
/// Bytes of a request of stalled hosts. A full queue of them is twice as much as a connection holds
/// for its commands.
const STALLED_BYTES: u32 = 512 << 10;
const STALL_MS: u32 = 2500;
const SET_MIB: u64 = 16;
const SECONDS: u32 = 10;
const QUICK_SECONDS: u32 = 2;

pub(super) fn run(binary: &Path, load: &Path, quick: bool) -> Outcome<Report<Row>> {
    require(&["taskset", "setpriv"])?;
    let seconds = if quick { QUICK_SECONDS } else { SECONDS };
    let (server_cpu, client_cpu) = take_processors()?;
    println!(
        "{HOSTS} hosts on {VOLUMES} volumes of {SET_MIB} MiB, all of them cached in memory; \
         {seconds} s a phase; loopback.\nThe daemon (1 reactor, asleep when idle; mode wb, \
         durability flush) on processor {server_cpu}, our initiator on processor {client_cpu}."
    );
    let mut bench = Bench {
        load,
        seconds,
        rows: Vec::new(),
    };
    {
        let scratch = Scratch::new("bench-hosts")?;
        let target = Target::start(binary, &scratch, server_cpu, false)?;
        bench.memory(&target)?;
        for phase in Phase::FAIR {
            bench.fair(&target, phase)?;
        }
    }
    {
        let scratch = Scratch::new("bench-hosts-limits")?;
        let target = Target::start(binary, &scratch, server_cpu, true)?;
        bench.limits(&target)?;
    }
    let rows = bench.rows;
    print_rows(&rows);
    Ok(Report {
        quick,
        claims: verdict::claims(&rows),
        rows,
    })
}

/// The daemon under test.
struct Target {
    forebay: Forebay,
    port: u16,
}

impl Target {
    fn start(binary: &Path, scratch: &Scratch, cpu: &str, limited: bool) -> Outcome<Self> {
        let port = free_port()?;
        let config = configuration(port, limited);
        let forebay = Forebay::start_tcp(binary, scratch, &config, Some(cpu), port)?;
        Ok(Self { forebay, port })
    }

    /// Returns the address of a host's volume, with the host's name.
    fn uri(&self, host: usize, depth: u32) -> String {
        let (port, volume) = (self.port, volume_of(host));
        format!(
            "nvme-tcp://127.0.0.1:{port}/{}?queue_depth={}&host=nqn.2026-11.io.forebay:host{host}",
            nqn(volume),
            depth.max(1),
        )
    }

    fn misses(&self) -> Outcome<u64> {
        let status = self.forebay.status()?;
        let misses = (0..VOLUMES).map(|volume| -> Outcome<u64> {
            let kinds = ["read_misses", "write_misses"].map(|kind| {
                let place = format!("/volumes/{volume}/{kind}");
                counter(&status, &place)
            });
            let [reads, writes] = kinds;
            Ok(reads? + writes?)
        });
        misses.sum()
    }
}

fn nqn(volume: usize) -> String {
    format!("nqn.2026-11.io.forebay:bench{volume}")
}

/// Hosts are dealt to the volumes in turn.
const fn volume_of(host: usize) -> usize {
    host % VOLUMES
}

/// Returns a configuration of one cache and volumes before it, each exported alone.
fn configuration(port: u16, limited: bool) -> String {
    let size_bytes = SET_MIB << 20;
    // Twice the sets, so that the dirty limit of 60% has no effect.
    let cache_bytes = 2 * VOLUMES as u64 * size_bytes + (64 << 20);
    let mut config = format!(
        "[cache]\ndata = \"fast\"\ndurability = \"flush\"\n\n\
         [[device]]\nname = \"fast\"\nkind = \"mem\"\nsize = {cache_bytes}\nvolatile = true\n"
    );
    for volume in 0..VOLUMES {
        let limits = match limited {
            true => Limit::of(volume).configuration(),
            false => String::new(),
        };
        config += &format!(
            "\n[[device]]\nname = \"slow{volume}\"\nkind = \"mem\"\nsize = {size_bytes}\nvolatile \
             = true\n\n\
             [[volume]]\nname = \"v{volume}\"\nbacking = \"slow{volume}\"\nmode = \
             \"wb\"\n{limits}\n\
             [[export]]\nvolume = \"v{volume}\"\nnvme-tcp = \"127.0.0.1:{port}\"\nnqn = \"{}\"\n",
            nqn(volume)
        );
    }
    config + "\n[server]\n"
}

struct Bench<'a> {
    load: &'a Path,
    seconds: u32,
    rows: Vec<Row>,
}

impl Bench<'_> {
    /// Runs hosts on a target. `plan` returns the actions of each.
    fn drive(
        &self,
        target: &Target,
        seconds: u32,
        stall_ms: u32,
        plan: impl Fn(usize) -> Host,
    ) -> Outcome<Ran> {
        let hosts: Vec<Host> = (0..HOSTS).map(plan).collect();
        let uris: Vec<String> = hosts
            .iter()
            .enumerate()
            .map(|(host, plan)| target.uri(host, plan.depth))
            .collect();
        let pid = target.forebay.server.pid();
        drive(self.load, pid, &hosts, &uris, seconds, stall_ms)
    }

    /// Writes everything and requests a write-back, so that no phase touches memory for the first
    /// time.
    fn fill(&self, target: &Target) -> Outcome<()> {
        self.drive(target, 0, 0, |host| Host {
            load: "fill",
            depth: if host < VOLUMES { DEPTH } else { 0 },
            bytes: FILL_BYTES,
        })?;
        target.forebay.control(&["flush"]).map(drop)
    }

    fn memory(&mut self, target: &Target) -> Outcome<()> {
        let pid = target.forebay.server.pid();
        let read = |depth, bytes| {
            move |_: usize| Host {
                load: "read",
                depth,
                bytes,
            }
        };
        self.held(Held::Nobody, drive::resident_bytes(pid)?);
        // Before any phase: the daemon retains this memory for reuse, and connections would find
        // it.
        let ran = self.drive(target, 1, 0, read(0, REQUEST_BYTES))?;
        self.held(Held::Connected, ran.resident_bytes);
        self.fill(target)?;
        self.held(Held::Filled, drive::resident_bytes(pid)?);
        let ran = self.drive(target, 1, 0, read(DEPTH, REQUEST_BYTES))?;
        self.held(Held::AtDepth, ran.resident_bytes);
        let ran = self.drive(target, 1, STALL_MS, read(GREEDY_DEPTH, STALLED_BYTES))?;
        self.held(Held::Stalled, ran.resident_bytes);
        self.held(Held::After, drive::resident_bytes(pid)?);
        Ok(())
    }

    fn held(&mut self, held: Held, resident_bytes: u64) {
        eprintln!("memory, {}: {} MiB", held.name(), resident_bytes >> 20);
        self.rows.push(Row::Memory {
            held,
            resident_bytes,
        });
    }

    fn fair(&mut self, target: &Target, phase: Phase) -> Outcome<()> {
        let misses = target.misses()?;
        let plan = |host: usize| match host {
            0 if phase.is_greedy() => Host {
                load: phase.load(),
                depth: GREEDY_DEPTH,
                bytes: phase.greedy_bytes(),
            },
            _ => Host {
                load: phase.load(),
                depth: DEPTH,
                bytes: REQUEST_BYTES,
            },
        };
        let ran = self.drive(target, self.seconds, 0, plan)?;
        let missed = target.misses()? - misses;
        if missed > 0 {
            return Err(format!(
                "{}: {missed} requests missed the cache, which was to have everything",
                phase.name()
            ));
        }
        self.add(phase, ran, plan)
    }

    fn limits(&mut self, target: &Target) -> Outcome<()> {
        let plan = |host: usize| Host {
            load: if (host / VOLUMES).is_multiple_of(2) {
                "read"
            } else {
                "write"
            },
            depth: DEPTH,
            bytes: LIMITED_BYTES[host / VOLUMES],
        };
        let ran = self.drive(target, self.seconds, 0, plan)?;
        self.add(Phase::Limits, ran, plan)
    }

    fn add(&mut self, phase: Phase, ran: Ran, plan: impl Fn(usize) -> Host) -> Outcome<()> {
        if ran.losses > 0 {
            let phase = phase.name();
            return Err(format!("{phase}: {} associations were lost", ran.losses));
        }
        let total: u64 = ran.answered.iter().map(|answered| answered.then).sum();
        let busy = ran.busy;
        eprintln!(
            "{}: {:.0} IOPS in all; the daemon used {:.0}% of a processor, the load {:.0}%",
            phase.name(),
            total as f64 / f64::from(self.seconds),
            busy.server_percent,
            busy.load_percent,
        );
        self.rows.push(Row::Processors { phase, busy });
        for (host, answered) in ran.answered.into_iter().enumerate() {
            let Host { load, depth, bytes } = plan(host);
            self.rows.push(Row::Host {
                phase,
                host,
                volume: volume_of(host),
                load,
                depth,
                request_bytes: bytes,
                iops: answered.then as f64 / f64::from(self.seconds),
                first_iops: answered.first as f64 / FIRST_S,
            });
        }
        Ok(())
    }
}

fn print_rows(rows: &[Row]) {
    println!();
    let mut table = Table::new(&[
        "phase",
        "IOPS in all",
        "of a host: least",
        "median",
        "most",
        "greedy host",
        "daemon",
        "load",
        "others",
    ]);
    for phase in Phase::FAIR {
        let spread = verdict::spread(rows, phase);
        let busy = verdict::busy(rows, phase);
        let percent = |which: fn(Busy) -> f64| {
            busy.map_or_else(String::new, |busy| format!("{:.0}%", which(busy)))
        };
        table.row(vec![
            phase.name().into(),
            figure(spread.total),
            figure(spread.least),
            figure(spread.median),
            figure(spread.most),
            spread.greedy.map_or_else(String::new, figure),
            percent(|busy| busy.server_percent),
            percent(|busy| busy.load_percent),
            percent(|busy| busy.others_percent),
        ]);
    }
    table.print();
    println!();
    let mut table = Table::new(&["volume", "limits", "IOPS", "MB/s", "first second", "MB/s"]);
    for volume in 0..VOLUMES {
        let [then, first] = limit::rates(rows, volume);
        table.row(vec![
            format!("v{volume}"),
            Limit::of(volume).to_string(),
            figure(then.iops),
            figure(then.bytes_per_s / 1e6),
            figure(first.iops),
            figure(first.bytes_per_s / 1e6),
        ]);
    }
    table.print();
    println!();
    let mut table = Table::new(&["the daemon's memory", "MiB", "KiB more for each host"]);
    for held in Held::ALL {
        let here = verdict::resident_bytes(rows, held);
        let before = verdict::resident_bytes(rows, held.beside());
        table.row(vec![
            held.name().into(),
            figure((here / 1048576.0).round()),
            figure(((here - before) / HOSTS as f64 / 1024.0).round()),
        ]);
    }
    table.print();
    if let Some(most) = verdict::disturbed(rows) {
        println!(
            "\nNOT A RESULT: others used up to {most:.0}% of a processor; rerun on a quiet machine"
        );
    }
}
