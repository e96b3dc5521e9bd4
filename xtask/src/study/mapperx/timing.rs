//! The timing half: what all-hit writes wait for, by how the cache keeps track of what is dirty (the paper's
//! micro-benchmark). docs/results/mapperx-timing.md.

use std::path::Path;
use std::process::Command;

use serde::{Deserialize, Serialize};

use crate::bench::{Outcome, engine, json_of, run_for_output};
use crate::claims::{Claim, Kind, Report};
use crate::study::{commit, date};

/// Ways to keep track, as the program knows them, and what the table calls them.
const WAYS: [(&str, &str); 4] = [
    ("none", "none (asynchronous)"),
    ("abt", "**abt**"),
    ("exact", "exact, a mark for 64 blocks"),
    ("each", "exact, a mark for each block (synchronous)"),
];
const BLOCKS_KIB: [u32; 3] = [64, 128, 256];
const DEPTHS: [u32; 2] = [1, 16];
/// Writes of each run, to 32,768 blocks.
const WRITES: u32 = 20_000;
/// What the tree may cost beside no tracking.
const SHARE: f64 = 0.05;

const HOW: &str = "\
All-hit random writes, each as large as a cache block, over 32,768 cached blocks that are all clean at first: the first write of a block turns it dirty. Write-back, `durability = \"flush\"` with a process journal, metadata on the cache device; 1 or 16 writes under way at a time. The engine
is the one that serves ([tracking.rs](../../benches/tracking.rs)); the SSD is emulated: 20 us a write, 400 us a flush, 200 us more for FUA, 2.5 GB/s, 400,000 IOPS, a volatile cache. Time is virtual, so that it has what writes wait for on the devices, the same in each run and on any machine, and nothing of the processor's.

- **none** keeps no track: what MapperX compares with as asynchronous. **abt** is the bit-tree at a ratio of 0.01. **exact** are marks in the log, which wait for a commit (a flush of the data and a write with FUA): for 64 blocks, as formatted by default, and for each block by itself, which is what the paper calls synchronous.
- **Announced** are marks, or writes of the tree's units. **Metadata** is bytes of both written.
- **Dirty** is blocks at the end of the run, **back** those that would be written back if the machine went down then: a load this random makes each way but the last write back nearly everything, and is the worst for a tree. What real loads have written back is in [mapperx.md](mapperx.md).
- Where a block is dirty already, nothing waits; the share of such writes grows to a half within a run. Nothing is evicted, and the cleaner has not come to anything yet.";

/// One run, as the program prints it.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct Run {
    how: String,
    block_kib: u32,
    depth: u32,
    writes: u64,
    iops: f64,
    mean_us: f64,
    p50_us: f64,
    p99_us: f64,
    p999_us: f64,
    marks: u64,
    persists: u64,
    metadata_bytes: u64,
    written_back: u64,
    dirty_blocks: u64,
    doubtful_blocks: u64,
}

/// Runs it, and writes the page into `folder`. Whether the claims hold.
pub(super) fn run(root: &Path, folder: &Path, json: Option<&Path>) -> Outcome<bool> {
    let program = engine::build(root, "tracking")?;
    let commit = commit(root)?;
    let mut runs = Vec::new();
    for depth in DEPTHS {
        for block_kib in BLOCKS_KIB {
            for (how, _) in WAYS {
                let mut command = Command::new(&program);
                command.args([how.to_owned(), block_kib.to_string(), depth.to_string()]);
                command.arg(WRITES.to_string());
                let run = serde_json::from_value(json_of(&run_for_output(command)?)?);
                runs.push(run.map_err(|error| format!("{how}: {error}"))?);
            }
        }
    }
    let report = Report {
        quick: false,
        claims: claims(&runs),
        rows: runs,
    };
    let out = folder.join("mapperx-timing.md");
    let text = page(&report, &commit, &run_for_output(date())?);
    std::fs::write(&out, text).map_err(|error| format!("{}: {error}", out.display()))?;
    println!("written: {}", out.display());
    crate::bench::conclude(&report, json)
}

fn find<'a>(runs: &'a [Run], how: &str, block_kib: u32, depth: u32) -> &'a Run {
    (runs.iter())
        .find(|run| (run.how.as_str(), run.block_kib, run.depth) == (how, block_kib, depth))
        .expect("all were run")
}

/// The paper's: what the tree costs is negligible. And that it is not so without it, or nothing was shown.
fn claims(runs: &[Run]) -> Vec<Claim> {
    let mut claims = Vec::new();
    for block_kib in BLOCKS_KIB {
        let over = |how, value: fn(&Run) -> f64, depth| {
            value(find(runs, how, block_kib, depth)) / value(find(runs, "none", block_kib, depth))
        };
        let mut claim = |name: &str, ours: f64, bar: String, holds| {
            claims.push(Claim {
                name: format!("{name}/{block_kib}_kib"),
                paper_or_peer: None,
                ours,
                unit: "of none's".into(),
                kind: Kind::Emulated,
                bar,
                holds,
            });
        };
        let (most, least) = (1.0 + SHARE, 1.0 - SHARE);
        let mean = over("abt", |run| run.mean_us, 1);
        let bar = format!("at most {most}");
        claim("abt/mean_latency_depth_1", mean, bar, mean <= most);
        let iops = over("abt", |run| run.iops, 16);
        let bar = format!("at least {least}");
        claim("abt/iops_depth_16", iops, bar.clone(), iops >= least);
        let each = over("each", |run| run.iops, 16);
        let bar = format!("below {least}");
        claim("synchronous/iops_depth_16", each, bar, each < least);
    }
    claims
}

fn page(report: &Report<Run>, commit: &str, date: &str) -> String {
    let mut text = format!(
        "# The bit-tree: what writes wait for (MapperX, the timing half)\n\nWritten by `cargo xtask study mapperx --timing`; no figure is typed by hand. Commit {commit}, {}.\n\n## How\n\n{HOW}\n",
        date.trim()
    );
    for depth in DEPTHS {
        text += &format!(
            "\n## Depth {depth}\n\n| block | tracking | mean, us | p50 | p99 | p99.9 | IOPS | of none's | announced | metadata | dirty | back |\n|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n"
        );
        for block_kib in BLOCKS_KIB {
            let none = find(&report.rows, "none", block_kib, depth).iops;
            for (how, name) in WAYS {
                let run = find(&report.rows, how, block_kib, depth);
                text += &format!(
                    "| {block_kib} KiB | {name} | {:.1} | {:.0} | {:.0} | {:.0} | {:.0} | {:.3} | {} | {} KiB | {} | {} |\n",
                    run.mean_us,
                    run.p50_us,
                    run.p99_us,
                    run.p999_us,
                    run.iops,
                    run.iops / none,
                    run.marks + run.persists,
                    run.metadata_bytes.div_ceil(1024),
                    run.dirty_blocks,
                    run.doubtful_blocks,
                );
            }
        }
    }
    text += "\n## Claims\n\n| claim | ours, of none's | bar | |\n|---|---:|---|---|\n";
    for claim in &report.claims {
        let holds = if claim.holds { "holds" } else { "**fails**" };
        text += &format!(
            "| {} | {:.4} | {} | {holds} |\n",
            claim.name, claim.ours, claim.bar
        );
    }
    text
}
