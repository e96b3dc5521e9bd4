//! `cargo xtask bench cleaning`: cost of a cache full of dirty data to its clients, by cleaning
//! policy.
//!
//! fio writes 4 KiB at random over NBD to a volume sixteen times as large as the cache. The cache
//! is full of dirty data at the beginning. The same writes go to the same backing device without a
//! cache. The backing devices and the SSD are emulated over memory.
//!
//! A round measures all contenders one after the other. Ratios are of one round. The claims are
//! about the default policy, and use the medians. The losers stand in the table.

use std::path::Path;

use serde::Serialize;

use super::fio::{self, Load};
use super::server::{Forebay, Scratch, counter};
use super::{Outcome, median, require};
use crate::claims::{Claim, Kind, Report, Table, figure};

const CACHE_BYTES: u64 = 64 << 20;
const VOLUME_BYTES: u64 = 1 << 30;
const DEPTHS: [u32; 2] = [1, 32];
/// Requests in flight where half of the cache is dirty.
const HALF_DEPTH: u32 = 4;
const POLICIES: [&str; 4] = ["auto", "alru", "acp", "nop"];
const BARE: &str = "no cache";
const ROUNDS: usize = 3;
const SECONDS: u32 = 10;
const QUICK_SECONDS: u32 = 4;
/// Time before the measurement, in which `auto` finds its pace.
const WARM_SECONDS: u32 = 3;
/// Dirty share of the cache that counts as full, percent.
const FULL_PERCENT: u64 = 98;

/// The backing device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Behind {
    Cloud,
    Hdd,
}

impl Behind {
    const ALL: [Self; 2] = [Self::Cloud, Self::Hdd];

    const fn name(self) -> &'static str {
        match self {
            Self::Cloud => "cloud",
            Self::Hdd => "hdd",
        }
    }

    /// Returns the keys of the emulated device. The cloud volume is an Amazon EBS gp3 without
    /// extras: 3,000 operations and 125 MiB a second, single-digit milliseconds. The disk's figures
    /// stand with its profile.
    const fn keys(self) -> &'static str {
        match self {
            Self::Cloud => "latency = \"1ms\"\niops = 3000\nbandwidth = \"131072000B/s\"",
            Self::Hdd => "profile = \"hdd\"",
        }
    }

    /// Returns the least share of the bare device's throughput.
    const fn bar(self) -> f64 {
        match self {
            Self::Cloud => 0.95,
            Self::Hdd => 1.0,
        }
    }
}

/// One run of the load.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    behind: Behind,
    dirty_percent: u64,
    depth: u32,
    policy: &'static str,
    round: usize,
    iops: f64,
    p50_us: f64,
    p99_us: f64,
    /// Dirty share of the cache at the end, percent.
    dirty_percent_after: Option<u64>,
}

pub(super) fn run(binary: &Path, quick: bool) -> Outcome<Report<Row>> {
    require(&["fio", "setpriv"])?;
    let (rounds, seconds) = match quick {
        true => (1, QUICK_SECONDS),
        false => (ROUNDS, SECONDS),
    };
    println!(
        "Random 4 KiB writes over NBD to {} MiB behind {} MiB of cache, blocks of 4 KiB; {rounds} \
         rounds of {seconds} s.",
        VOLUME_BYTES >> 20,
        CACHE_BYTES >> 20
    );
    println!("SSD, emulated: 90 us read, 30 us write, 200 us flush, 2 GB/s.");
    for behind in Behind::ALL {
        println!(
            "{}, emulated: {}.",
            behind.name(),
            behind.keys().replace('\n', ", ")
        );
    }
    let mut rows = Vec::new();
    for behind in Behind::ALL {
        for round in 0..rounds {
            full(binary, behind, round, seconds, &mut rows)?;
            half(binary, behind, round, seconds, &mut rows)?;
        }
    }
    print_rows(&rows);
    Ok(Report {
        quick,
        claims: claims(&rows),
        rows,
    })
}

fn configuration(behind: Behind, cached: bool) -> String {
    let keys = behind.keys();
    let cache = format!(
        r#"
[[device]]
name = "flash"
kind = "mem"
size = {}
volatile = true

[[device]]
name = "ssd"
kind = "emulate"
on = "flash"
read_latency = "90us"
write_latency = "30us"
flush_latency = "200us"
bandwidth = "2000MB/s"

[cache]
data = "ssd"
block_sizes = ["4K"]
dirty_limit = "100%"
cleaning = "nop"
"#,
        // Metadata takes the rest.
        CACHE_BYTES + CACHE_BYTES / 8
    );
    format!(
        r#"
[[device]]
name = "platter"
kind = "mem"
size = {VOLUME_BYTES}
volatile = true

[[device]]
name = "slow"
kind = "emulate"
on = "platter"
{keys}
{}
[[volume]]
name = "v"
backing = "slow"
mode = "{}"
"#,
        if cached { &cache } else { "" },
        if cached { "wb" } else { "wt" },
    )
}

fn dirty_percent(forebay: &Forebay) -> Outcome<u64> {
    let status = forebay.status()?;
    let dirty =
        counter(&status, "/cache/dirty_blocks")? * counter(&status, "/cache/block_size_bytes")?;
    Ok(dirty * 100 / counter(&status, "/cache/capacity_bytes")?.max(1))
}

/// Writes at random, as much as fits. Further writes would make room, and the cache would not be
/// full.
fn fill(forebay: &Forebay) -> Outcome<()> {
    let capacity = counter(&forebay.status()?, "/cache/capacity_bytes")?;
    let bytes = capacity * (FULL_PERCENT + 1) / 100;
    fio::scatter(forebay.server.socket(), "v", VOLUME_BYTES, bytes)?;
    match dirty_percent(forebay)? {
        FULL_PERCENT.. => Ok(()),
        less => Err(format!("the cache gets only {less}% dirty")),
    }
}

/// Measures writes that begin with everything dirty, or without a cache.
fn full(
    binary: &Path,
    behind: Behind,
    round: usize,
    seconds: u32,
    rows: &mut Vec<Row>,
) -> Outcome<()> {
    let mut measure = |forebay: &Forebay, depth: u32, policy: &'static str| {
        let load = Load { write: true, depth };
        let socket = forebay.server.socket();
        fio::run(socket, "v", VOLUME_BYTES, load, WARM_SECONDS)?;
        let figures = fio::run(socket, "v", VOLUME_BYTES, load, seconds)?;
        let dirty = (policy != BARE)
            .then(|| dirty_percent(forebay))
            .transpose()?;
        eprintln!(
            "{} QD {depth} {policy}: {figures:?}, {dirty:?}% dirty",
            behind.name()
        );
        rows.push(Row {
            behind,
            dirty_percent: 100,
            depth,
            policy,
            round,
            iops: figures.iops,
            p50_us: figures.p50_us,
            p99_us: figures.p99_us,
            dirty_percent_after: dirty,
        });
        Ok::<(), String>(())
    };
    {
        let scratch = Scratch::new("bench-cleaning-bare")?;
        let bare = Forebay::start(binary, &scratch, &configuration(behind, false), None, &[])?;
        for depth in DEPTHS {
            measure(&bare, depth, BARE)?;
        }
    }
    for depth in DEPTHS {
        for policy in POLICIES {
            // Each has a new cache: one that has made room is no longer full.
            let scratch = Scratch::new("bench-cleaning")?;
            let forebay =
                Forebay::start(binary, &scratch, &configuration(behind, true), None, &[])?;
            fill(&forebay)?;
            forebay.control(&["cleaning", policy])?;
            measure(&forebay, depth, policy)?;
        }
    }
    Ok(())
}

/// Measures with half of the cache dirty and only hits, with cleaning and without.
fn half(
    binary: &Path,
    behind: Behind,
    round: usize,
    seconds: u32,
    rows: &mut Vec<Row>,
) -> Outcome<()> {
    let scratch = Scratch::new("bench-cleaning-half")?;
    let forebay = Forebay::start(binary, &scratch, &configuration(behind, true), None, &[])?;
    let socket = forebay.server.socket();
    fio::fill(socket, "v", CACHE_BYTES / 2)?;
    let load = Load {
        write: true,
        depth: HALF_DEPTH,
    };
    for policy in ["nop", "auto"] {
        forebay.control(&["cleaning", policy])?;
        fio::run(socket, "v", CACHE_BYTES / 2, load, WARM_SECONDS)?;
        let figures = fio::run(socket, "v", CACHE_BYTES / 2, load, seconds)?;
        eprintln!("{} half dirty, {policy}: {figures:?}", behind.name());
        rows.push(Row {
            behind,
            dirty_percent: 50,
            depth: HALF_DEPTH,
            policy,
            round,
            iops: figures.iops,
            p50_us: figures.p50_us,
            p99_us: figures.p99_us,
            dirty_percent_after: Some(dirty_percent(&forebay)?),
        });
    }
    Ok(())
}

fn of<'a>(
    rows: &'a [Row],
    behind: Behind,
    dirty_percent: u64,
    depth: u32,
    policy: &'a str,
) -> impl Iterator<Item = &'a Row> {
    rows.iter().filter(move |row| {
        (row.behind, row.dirty_percent, row.depth, row.policy)
            == (behind, dirty_percent, depth, policy)
    })
}

fn print_rows(rows: &[Row]) {
    println!();
    let mut table = Table::new(&[
        "medians",
        "dirty",
        "policy",
        "IOPS",
        "p50 us",
        "p99 us",
        "IOPS x",
        "p99 x",
        "dirty after",
    ]);
    let cases = DEPTHS.map(|depth| (100, depth, BARE));
    let cases = cases.into_iter().chain([(50, HALF_DEPTH, "nop")]);
    for (behind, (dirty, depth, beside)) in Behind::ALL
        .into_iter()
        .flat_map(|behind| cases.clone().map(move |case| (behind, case)))
    {
        for policy in [BARE].into_iter().chain(POLICIES) {
            let own = || of(rows, behind, dirty, depth, policy);
            if own().next().is_none() {
                continue;
            }
            let ratio = |what: fn(&Row) -> f64| {
                figure(median(
                    ratios(rows, behind, (dirty, depth), (policy, beside), what).into_iter(),
                ))
            };
            let after = median(
                own()
                    .filter_map(|row| row.dirty_percent_after)
                    .map(|it| it as f64),
            );
            table.row(vec![
                format!("{} QD {depth}", behind.name()),
                format!("{dirty}%"),
                policy.into(),
                figure(median(own().map(|row| row.iops))),
                figure(median(own().map(|row| row.p50_us))),
                figure(median(own().map(|row| row.p99_us))),
                ratio(|row| row.iops),
                ratio(|row| row.p99_us),
                if after.is_nan() {
                    String::new()
                } else {
                    format!("{after:.0}%")
                },
            ]);
        }
    }
    table.print();
}

/// Returns the ratios of a policy's figure to another's, round by round.
fn ratios(
    rows: &[Row],
    behind: Behind,
    (dirty, depth): (u64, u32),
    (policy, beside): (&str, &str),
    what: fn(&Row) -> f64,
) -> Vec<f64> {
    let of = |policy| of(rows, behind, dirty, depth, policy);
    let pairs = of(policy).zip(of(beside));
    pairs
        .map(|(ours, theirs)| what(ours) / what(theirs))
        .collect()
}

fn claims(rows: &[Row]) -> Vec<Claim> {
    let claim = |name: String, ratios: Vec<f64>, bar: String, good: &dyn Fn(f64) -> bool| {
        let ours = median(ratios.iter().copied());
        let least = ratios.iter().copied().fold(f64::INFINITY, f64::min);
        let most = ratios.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        Claim {
            name,
            paper_or_peer: Some(1.0),
            ours,
            unit: format!("x ({least:.2}..{most:.2})"),
            kind: Kind::Emulated,
            bar,
            holds: good(ours),
        }
    };
    let mut claims = Vec::new();
    for behind in Behind::ALL {
        for depth in DEPTHS {
            let of = |what| ratios(rows, behind, (100, depth), ("auto", BARE), what);
            let (name, bar) = (behind.name(), behind.bar());
            let iops = of(|row| row.iops);
            let what = format!("iops_ratio/{name}/full/qd{depth}");
            claims.push(claim(what, iops, format!("at least {bar}"), &|ours| {
                ours >= bar
            }));
            let p99 = of(|row| row.p99_us);
            let what = format!("p99_ratio/{name}/full/qd{depth}");
            claims.push(claim(what, p99, "at most 2".into(), &|ours| ours <= 2.0));
        }
        let p99 = ratios(rows, behind, (50, HALF_DEPTH), ("auto", "nop"), |row| {
            row.p99_us
        });
        let what = format!("p99_ratio/{}/half", behind.name());
        claims.push(claim(what, p99, "at most 1.2".into(), &|ours| ours <= 1.2));
    }
    claims
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(policy: &'static str, dirty_percent: u64, depth: u32, iops: f64) -> Row {
        Row {
            behind: Behind::Hdd,
            dirty_percent,
            depth,
            policy,
            round: 0,
            iops,
            p50_us: 1.0,
            p99_us: 1e6 / iops,
            dirty_percent_after: None,
        }
    }

    #[test]
    fn claims_are_about_the_default_beside_the_bare_device() {
        let rows = [
            row(BARE, 100, 1, 100.0),
            row("auto", 100, 1, 99.0),
            row("acp", 100, 1, 900.0),
            row("nop", 50, HALF_DEPTH, 100.0),
            row("auto", 50, HALF_DEPTH, 80.0),
        ];
        let claims = claims(&rows);
        let holds = |name: &str| {
            let found = claims.iter().find(|claim| claim.name == name);
            found.expect("made").holds
        };
        assert!(!holds("iops_ratio/hdd/full/qd1"), "a hundredth less");
        assert!(holds("p99_ratio/hdd/full/qd1"));
        assert!(!holds("p99_ratio/hdd/half"), "a quarter more");
        assert!(!holds("iops_ratio/cloud/full/qd32"), "nothing was measured");
    }
}
