//! `cargo xtask bench replay`: traces as real I/O on caches with blocks of one size and of several.
//!
//! Each run formats a cache of a tenth of the trace's working set and replays the trace with
//! `forebay replay`. It has the engine in its own process, and files in memory under devices with
//! a declared speed. The speeds are those of the simulator's model: a cloud volume (backing) and
//! NVMe over Fabrics (cache).
//!
//! Runs of one trace are interleaved, so that other load on the machine meets all of them. The
//! median of a few counts. The data is not verified here, which would change the figures. The tests
//! verify it.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;
use serde::Serialize;
use serde_json::Value;

use super::server::Scratch;
use super::{Outcome, json_of, run_for_output};
use crate::claims::{Claim, Kind, Report, Table, figure};

/// The block sizes to compare with.
const FIXED: [&str; 4] = ["32K", "64K", "128K", "256K"];
/// Declared speed of the model's devices: latencies in microseconds, bytes and operations a second.
const CORE: Speed = Speed {
    read_us: 1000,
    write_us: 1000,
    bytes_per_s: 125 << 20,
    iops: Some(3000),
};
/// The cache device's limits of operations are far above the load.
const CACHE: Speed = Speed {
    read_us: 90,
    write_us: 30,
    bytes_per_s: 3_500_000_000,
    iops: None,
};
/// Allowed ratio of adaptive blocks to the best fixed ones.
const SLOWER: f64 = 1.02;
/// Smallest cache, bytes: a few groups of the largest blocks.
const SMALLEST_BYTES: u64 = 16 << 20;
/// Generated traces, if none are named. Each has the published features of the set of its name.
const PRESETS: [&str; 3] = ["alibaba", "msr", "systor"];

/// Further options of `bench replay`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// A trace to replay. May be given several times [default: three generated ones]
    #[arg(long = "trace", value_name = "FILE")]
    traces: Vec<PathBuf>,
    /// Requests of each trace to replay
    #[arg(long, value_name = "NUMBER", default_value = "50000")]
    requests: u64,
    /// The blocks of the adaptive cache, as for `forebay format --block-size`
    #[arg(long, value_name = "SIZES", default_value = "32K,64K,128K,256K")]
    adaptive: String,
    /// Runs of each cache, of which the median counts
    #[arg(long, value_name = "NUMBER", default_value = "3")]
    runs: usize,
    /// Requests in flight
    #[arg(long, value_name = "NUMBER", default_value = "8")]
    depth: u32,
}

/// Declared speed of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Speed {
    read_us: u64,
    write_us: u64,
    bytes_per_s: u64,
    iops: Option<u32>,
}

/// One run.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    trace: String,
    blocks: String,
    run: usize,
    requests: u64,
    mean_us: f64,
    p50_us: f64,
    p99_us: f64,
    processing_us: f64,
    read_hit_ratio: f64,
    write_hit_ratio: f64,
    read_from_core_bytes: u64,
    write_to_core_bytes: u64,
    read_from_cache_bytes: u64,
    write_to_cache_bytes: u64,
    memory_bytes: u64,
    taken_away_us: f64,
}

/// A trace and its properties.
struct Load {
    name: String,
    path: PathBuf,
    cache_bytes: u64,
    /// Size of each of its volumes.
    volumes: Vec<u64>,
}

pub(super) fn run(binary: &Path, arguments: &Arguments, quick: bool) -> Outcome<Report<Row>> {
    let scratch = Scratch::new("bench-replay")?;
    let (requests, runs) = match quick {
        true => (arguments.requests.min(3000), 1),
        false => (arguments.requests, arguments.runs),
    };
    let mut report = Report {
        quick,
        claims: Vec::new(),
        rows: Vec::new(),
    };
    let mut blocks: Vec<&str> = FIXED.to_vec();
    if can_format(binary, &scratch, &arguments.adaptive)? {
        blocks.push(&arguments.adaptive);
    } else {
        println!(
            "SKIPPED: adaptive: this program formats no cache with blocks of {}",
            arguments.adaptive
        );
    }
    for load in loads(binary, &scratch, &arguments.traces, requests)? {
        println!(
            "{}: a cache of {} MiB for {} volumes",
            load.name,
            load.cache_bytes >> 20,
            load.volumes.len()
        );
        let first = report.rows.len();
        for run in 0..runs {
            for at in 0..blocks.len() {
                // Each run begins with another size.
                let blocks = blocks[(at + run) % blocks.len()];
                eprintln!("{} {blocks}, run {}", load.name, run + 1);
                let printed = replay(binary, &scratch, &load, blocks, requests, arguments.depth)?;
                report.rows.push(row(&load.name, blocks, run, &printed)?);
            }
        }
        let rows = &report.rows[first..];
        table(rows, &blocks);
        report
            .claims
            .extend(claim(&load.name, rows, &arguments.adaptive));
    }
    Ok(report)
}

/// Whether the program can format such blocks.
fn can_format(binary: &Path, scratch: &Scratch, blocks: &str) -> Outcome<bool> {
    let path = scratch.file("probe", 64 << 20)?;
    let mut format = Command::new(binary);
    format
        .arg("format")
        .arg("--cache")
        .arg(&path)
        .args(["--block-size", blocks]);
    let output = format
        .output()
        .map_err(|error| format!("{}: {error}", binary.display()))?;
    let _ = std::fs::remove_file(path);
    Ok(output.status.success())
}

/// Returns the traces with the sizes of their working sets.
fn loads(binary: &Path, scratch: &Scratch, named: &[PathBuf], requests: u64) -> Outcome<Vec<Load>> {
    let mut paths: Vec<(String, PathBuf)> = Vec::new();
    for path in named {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        paths.push((name.into_owned(), path.clone()));
    }
    if named.is_empty() {
        for preset in PRESETS {
            let path = scratch.path(preset);
            let mut generate = Command::new(binary);
            generate
                .args(["trace", "generate", "--preset", preset])
                .arg(&path);
            generate.args(["--requests", &requests.to_string()]);
            run_for_output(generate)?;
            paths.push((format!("generated-{preset}"), path));
        }
    }
    let loads = paths.into_iter().map(|(name, path)| {
        // Only the first requests are replayed.
        let head = scratch.path("head");
        let mut convert = Command::new(binary);
        convert
            .args(["trace", "convert", "--force"])
            .arg(&path)
            .arg(&head);
        run_for_output(convert)?;
        let mut stats = Command::new(binary);
        stats.args(["trace", "stats", "--json"]).arg(&head);
        let stats = json_of(&run_for_output(stats)?)?;
        let _ = std::fs::remove_file(&head);
        let working_set_bytes = number(&stats, "/working_set_bytes")? as u64;
        let ends = stats["volumes"]
            .as_array()
            .map(Vec::as_slice)
            .unwrap_or_default();
        let ends = ends
            .iter()
            .map(|volume| Ok(number(volume, "/end_bytes")? as u64));
        Ok(Load {
            name,
            path,
            cache_bytes: (working_set_bytes / 10)
                .next_multiple_of(1 << 20)
                .max(SMALLEST_BYTES),
            volumes: ends.collect::<Outcome<_>>()?,
        })
    });
    loads.collect()
}

/// Creates a new cache and new volumes, and replays on them. Returns the program's output.
fn replay(
    binary: &Path,
    scratch: &Scratch,
    load: &Load,
    blocks: &str,
    requests: u64,
    depth: u32,
) -> Outcome<Value> {
    let _ = std::fs::remove_dir_all(scratch.path("state"));
    let _ = std::fs::remove_file(scratch.path("journal"));
    let cache = scratch.file("cache", load.cache_bytes)?;
    // Four times the size of the records with the smallest blocks.
    let metadata = scratch.file("metadata", (load.cache_bytes / 32).max(16 << 20))?;
    for (number, end_bytes) in load.volumes.iter().enumerate() {
        scratch.file(
            &format!("disk{number}"),
            end_bytes.next_multiple_of(1 << 20),
        )?;
    }
    let config = scratch.path("replay.toml");
    let written = std::fs::write(&config, configuration(load.volumes.len()));
    written.map_err(|error| format!("{}: {error}", config.display()))?;
    let mut format = Command::new(binary);
    format
        .arg("format")
        .arg("--cache")
        .arg(cache)
        .arg("--metadata")
        .arg(metadata);
    run_for_output({
        format.args(["--block-size", blocks]);
        format
    })?;
    let mut replay = Command::new(binary);
    replay
        .arg("replay")
        .arg(&load.path)
        .arg("--on")
        .arg(&config);
    replay.args(["--destroy-data", "--json", "--depth", &depth.to_string()]);
    replay.args(["--limit", &requests.to_string()]);
    json_of(&run_for_output(replay)?)
}

fn emulated(text: &mut String, name: &str, path: &str, speed: Speed) {
    let Speed {
        read_us,
        write_us,
        bytes_per_s,
        iops,
    } = speed;
    let iops = iops.map_or_else(String::new, |iops| format!("iops = {iops}\n"));
    let _ = write!(
        text,
        r#"[[device]]
name = "{path}"
kind = "file"
path = "{path}"

[[device]]
name = "{name}"
kind = "emulate"
on = "{path}"
read_latency = "{read_us}us"
write_latency = "{write_us}us"
bandwidth = "{bytes_per_s}B/s"
{iops}
"#
    );
}

/// Returns a configuration with this number of volumes in write-back mode.
fn configuration(volumes: usize) -> String {
    let mut text = String::new();
    emulated(&mut text, "fast", "cache", CACHE);
    text.push_str("[[device]]\nname = \"metadata\"\nkind = \"file\"\npath = \"metadata\"\n\n");
    for number in 0..volumes {
        emulated(
            &mut text,
            &format!("slow{number}"),
            &format!("disk{number}"),
            CORE,
        );
        let _ = write!(
            text,
            "[[volume]]\nname = \"v{number}\"\nbacking = \"slow{number}\"\nmode = \"wb\"\n\n"
        );
    }
    text.push_str(
        r#"[cache]
data = "fast"
metadata = "metadata"
journal = "journal"

[server]
control = "control.sock"
metrics = "127.0.0.1:0"
state = "state"
"#,
    );
    text
}

fn number(value: &Value, place: &str) -> Outcome<f64> {
    let number = value.pointer(place).and_then(Value::as_f64);
    number.ok_or_else(|| format!("no {place} in {value}"))
}

fn row(trace: &str, blocks: &str, run: usize, printed: &Value) -> Outcome<Row> {
    if printed["failed"] != Value::Null || number(printed, "/past_end")? > 0.0 {
        return Err(format!("the replay of {trace} failed: {printed}"));
    }
    let count = |place: &str| number(printed, place).map(|number| number as u64);
    let or_none = |place: &str| number(printed, place).unwrap_or(0.0);
    Ok(Row {
        trace: trace.to_owned(),
        blocks: blocks.to_owned(),
        run,
        requests: count("/requests")?,
        mean_us: number(printed, "/read_and_write/mean_us")?,
        p50_us: number(printed, "/read_and_write/p50_us")?,
        p99_us: number(printed, "/read_and_write/p99_us")?,
        processing_us: number(printed, "/engine/processing_us")?,
        read_hit_ratio: or_none("/engine/read_hit_ratio"),
        write_hit_ratio: or_none("/engine/write_hit_ratio"),
        read_from_core_bytes: count("/engine/read_from_core/bytes")?,
        write_to_core_bytes: count("/engine/write_to_core/bytes")?,
        read_from_cache_bytes: count("/engine/read_from_cache/bytes")?,
        write_to_cache_bytes: count("/engine/write_to_cache/bytes")?,
        memory_bytes: count("/engine/memory_bytes")?,
        taken_away_us: number(printed, "/engine/taken_away_us")?,
    })
}

/// Returns the median of one figure over the runs with these blocks.
fn median(rows: &[Row], blocks: &str, figure: impl Fn(&Row) -> f64) -> Option<f64> {
    let own = rows.iter().filter(|row| row.blocks == blocks);
    let mut figures: Vec<_> = own.map(figure).collect();
    figures.sort_unstable_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied()
}

fn table(rows: &[Row], blocks: &[&str]) {
    let mut table = Table::new(&[
        "blocks",
        "mean us",
        "p50 us",
        "p99 us",
        "processing us",
        "read hits %",
        "write hits %",
        "from core MiB",
        "to core MiB",
        "from cache MiB",
        "to cache MiB",
        "map KiB",
    ]);
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let columns: [fn(&Row) -> f64; 5] = [
        |row| row.mean_us,
        |row| row.p50_us,
        |row| row.p99_us,
        |row| row.processing_us,
        |row| row.read_hit_ratio * 100.0,
    ];
    for blocks in blocks {
        let mut cells = vec![(*blocks).to_owned()];
        let mut push = |value: Option<f64>| cells.push(figure(value.unwrap_or(0.0)));
        for column in columns {
            push(median(rows, blocks, column));
        }
        push(median(rows, blocks, |row| row.write_hit_ratio * 100.0));
        push(median(rows, blocks, |row| mib(row.read_from_core_bytes)));
        push(median(rows, blocks, |row| mib(row.write_to_core_bytes)));
        push(median(rows, blocks, |row| mib(row.read_from_cache_bytes)));
        push(median(rows, blocks, |row| mib(row.write_to_cache_bytes)));
        push(median(rows, blocks, |row| row.memory_bytes as f64 / 1024.0));
        table.row(cells);
    }
    table.print();
    println!();
}

/// Returns the claim that adaptive blocks are about as fast as the best fixed ones. `None` without
/// adaptive ones.
fn claim(trace: &str, rows: &[Row], adaptive: &str) -> Option<Claim> {
    let mean = |blocks: &str| median(rows, blocks, |row| row.mean_us);
    let ours = mean(adaptive)?;
    let best = FIXED
        .iter()
        .filter_map(|blocks| mean(blocks))
        .min_by(f64::total_cmp)?;
    Some(Claim {
        name: format!("replay/{trace}/mean"),
        paper_or_peer: Some(best),
        ours,
        unit: "us".to_owned(),
        kind: Kind::Emulated,
        bar: format!("at most {SLOWER} of the best fixed size"),
        holds: ours <= best * SLOWER,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_trace::sim::{Costs, DeviceCosts};

    #[test]
    fn the_devices_are_those_of_the_model() {
        let declared = |costs: &DeviceCosts, iops: bool| Speed {
            read_us: costs.read.latency_ns / 1000,
            write_us: costs.write.latency_ns / 1000,
            bytes_per_s: costs.read.bytes_per_s.min(costs.write.bytes_per_s),
            iops: iops.then(|| u32::try_from(costs.read.iops.min(costs.write.iops)).expect("few")),
        };
        assert_eq!(CORE, declared(&Costs::CLOUD.core, true));
        assert_eq!(CACHE, declared(&Costs::CLOUD.cache, false));
    }

    fn row_of(blocks: &str, mean_us: f64) -> Row {
        let printed = serde_json::json!({
            "failed": null, "past_end": 0, "requests": 1,
            "read_and_write": { "mean_us": mean_us, "p50_us": 1, "p99_us": 1 },
            "engine": {
                "processing_us": 1, "memory_bytes": 1, "taken_away_us": 0, "read_hit_ratio": null,
                "read_from_core": { "bytes": 1 }, "write_to_core": { "bytes": 1 },
                "read_from_cache": { "bytes": 1 }, "write_to_cache": { "bytes": 1 },
            },
        });
        row("t", blocks, 0, &printed).expect("all is there")
    }

    #[test]
    fn the_median_of_the_best_fixed_size_is_the_bar() {
        let mut rows = vec![
            row_of("32K", 110.0),
            row_of("64K", 100.0),
            row_of("64K", 90.0),
        ];
        rows.extend([row_of("64K", 500.0), row_of("all", 101.9)]);
        assert!(claim("t", &rows, "all").expect("there is one").holds);
        assert!(claim("t", &rows, "none").is_none());
        rows.push(row_of("all", 102.1));
        assert!(!claim("t", &rows, "all").expect("there is one").holds);
    }

    #[test]
    fn the_configuration_has_every_volume() {
        let text = configuration(3);
        assert_eq!(text.matches("[[volume]]").count(), 3);
        assert_eq!(text.matches("iops = 3000").count(), 3);
        assert!(text.contains("bandwidth = \"131072000B/s\""), "{text}");
    }
}
