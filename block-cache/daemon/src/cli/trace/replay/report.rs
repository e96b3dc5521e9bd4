//! Result of a replay, for people and for programs.

use std::time::Duration;

use forebay_block::Error;
use forebay_trace::replay::{Fitted, Latencies, Report};
use serde_json::{Value, json};

use super::target::{EngineReport, Way};
use forebay_terminal::size::{human_bytes, human_count, human_duration};
use forebay_terminal::table::Table;

/// Percentiles of the latency that are shown.
const SHARES: [(&str, f64); 4] = [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999)];
/// Number of volumes of the trace that are named.
const ROUTES: usize = 20;

/// A replay and its results.
pub(super) struct Measured {
    pub(super) report: Report,
    pub(super) engine: Option<EngineReport>,
    /// Volumes of the trace and their targets.
    pub(super) routes: Vec<(String, String)>,
    /// Remarks about the trace.
    pub(super) remarks: Vec<String>,
    /// Description of the data that refused writes would have replaced.
    pub(super) refused: Option<String>,
    pub(super) depth: usize,
}

impl Measured {
    /// Whether no request completed.
    pub(super) fn is_empty(&self) -> bool {
        self.report.ops().iter().all(|(_, op)| op.requests == 0)
    }
}

fn us(time: Duration) -> f64 {
    (time.as_nanos() as f64 / 10.0).round() / 100.0
}

fn ratio(part: u64, other: u64) -> Option<f64> {
    let whole = part + other;
    (whole > 0).then(|| part as f64 / whole as f64)
}

fn latencies(of: &Latencies) -> Value {
    let mut all = json!({ "mean_us": us(of.mean()), "max_us": us(of.max()) });
    for (name, share) in SHARES {
        all[format!("{}_us", name.replace('.', "_"))] = us(of.quantile(share)).into();
    }
    all
}

/// Returns the result as JSON, with the error that ends the command.
pub(super) fn json(measured: &Measured, interrupted: bool, error: Option<&Error>) -> Value {
    let Measured { report, engine, .. } = measured;
    let ops = report.ops().map(|(name, op)| {
        let all = json!({
            "requests": op.requests,
            "bytes": op.bytes,
            "latency": latencies(&op.latency),
        });
        (name.to_owned(), all)
    });
    let Fitted {
        folded,
        left_out,
        widened,
        split,
    } = report.fitted;
    let way = |way: Way| json!({ "bytes": way.bytes, "ios": way.ios });
    let engine = engine.as_ref().map(|engine| {
        json!({
            "read_hits": engine.read_hits,
            "read_misses": engine.read_misses,
            "write_hits": engine.write_hits,
            "write_misses": engine.write_misses,
            "read_hit_ratio": ratio(engine.read_hits, engine.read_misses),
            "write_hit_ratio": ratio(engine.write_hits, engine.write_misses),
            "read_from_core": way(engine.read_from_core),
            "write_to_core": way(engine.write_to_core),
            "read_from_cache": way(engine.read_from_cache),
            "write_to_cache": way(engine.write_to_cache),
            "metadata_written_bytes": engine.metadata_bytes,
            "dirty_bytes": engine.dirty_bytes,
            "memory_bytes": engine.memory_bytes,
            "processing_us": us(engine.processing),
            "engine_us": us(engine.spent.engine),
            "device_us": us(engine.spent.device),
            "taken_away_us": us(engine.spent.taken_away),
            "emulated": engine.emulated,
        })
    });
    let routes: Vec<_> = (measured.routes.iter())
        .map(|(from, to)| json!({ "from": from, "to": to }))
        .collect();
    let error = error.map(|error| {
        json!({
            "kind": error.kind().as_str(),
            "message": error.report(),
        })
    });
    json!({
        "requests": report.requests,
        "elapsed_us": us(report.elapsed),
        "depth": measured.depth,
        "read_and_write": latencies(&report.read.latency.with(&report.write.latency)),
        "operations": ops.into_iter().collect::<serde_json::Map<_, _>>(),
        "late": report.late.as_ref().map(|late| json!({
            "requests": late.requests,
            "by": latencies(&late.by),
        })),
        "skipped_writes": report.skipped_writes,
        "past_end": folded + left_out,
        "skipped_past_end": left_out,
        "widened": widened,
        "split": split,
        "engine": engine,
        "verified": report.verified.as_ref().map(|verified| json!({
            "sectors": verified.sectors,
            "wrong": verified.wrong,
            "first_wrong": verified.first_wrong,
        })),
        "volumes": routes,
        "remarks": measured.remarks,
        "interrupted": interrupted,
        "failed": report.failed.as_ref().map(Error::report),
        "error": error,
    })
}

/// Returns the result for a terminal.
pub(super) fn text(title: &str, measured: &Measured, interrupted: bool) -> String {
    let report = &measured.report;
    let seconds = report.elapsed.as_secs_f64();
    let a_second = |count: u64| {
        if seconds > 0.0 {
            count as f64 / seconds
        } else {
            0.0
        }
    };
    let mut text = format!(
        "{title}: {}{} in {}, {:.0} a second, at most {} in flight\n\n",
        if interrupted {
            "interrupted after "
        } else {
            ""
        },
        human_count(report.requests, "request"),
        human_duration(report.elapsed),
        a_second(report.requests),
        measured.depth
    );
    let mut head = vec!["", ">requests", ">bytes", ">MiB/s", ">mean us"];
    let shares = SHARES.map(|(name, _)| format!(">{name} us"));
    head.extend(shares.iter().map(String::as_str));
    head.push(">max us");
    let mut table = Table::new(&head);
    let mut row = |name: &str, requests: String, bytes: String, rate: String, of: &Latencies| {
        let mut row = vec![
            name.to_owned(),
            requests,
            bytes,
            rate,
            format!("{:.1}", us(of.mean())),
        ];
        row.extend(SHARES.map(|(_, share)| format!("{:.1}", us(of.quantile(share)))));
        row.push(format!("{:.1}", us(of.max())));
        table.row(row);
    };
    for (name, op) in report.ops() {
        if op.requests > 0 {
            let rate = a_second(op.bytes) / f64::from(1 << 20);
            let (requests, bytes) = (op.requests.to_string(), human_bytes(op.bytes));
            row(name, requests, bytes, format!("{rate:.1}"), &op.latency);
        }
    }
    if let Some(late) = &report.late {
        let none = String::new;
        row(
            "late by",
            late.requests.to_string(),
            none(),
            none(),
            &late.by,
        );
    }
    text += &table.render(2);
    if let Some(engine) = &measured.engine {
        text += &of_engine(engine);
    }
    text.push('\n');
    for line in remarks(measured) {
        text += &format!("  {line}\n");
    }
    text
}

fn of_engine(engine: &EngineReport) -> String {
    let mut text = "\nCache\n".to_owned();
    let mut table = Table::new(&["", ">bytes", ">operations"]);
    for (name, way) in [
        ("read from core", engine.read_from_core),
        ("write to core", engine.write_to_core),
        ("read from cache", engine.read_from_cache),
        ("write to cache", engine.write_to_cache),
    ] {
        table.row(vec![
            name.to_owned(),
            human_bytes(way.bytes),
            way.ios.to_string(),
        ]);
    }
    text += &table.render(2);
    let percent = |hits, misses| {
        ratio(hits, misses).map_or("none".to_owned(), |ratio| format!("{:.2}%", ratio * 100.0))
    };
    text += &format!(
        "  hits: {} of reads, {} of writes (pieces: one for each block that a request touches)\n",
        percent(engine.read_hits, engine.read_misses),
        percent(engine.write_hits, engine.write_misses)
    );
    text += &format!(
        "  metadata written to the cache: {}; dirty at the end: {}; memory of the map: {}\n",
        human_bytes(engine.metadata_bytes),
        human_bytes(engine.dirty_bytes),
        human_bytes(engine.memory_bytes)
    );
    text += &format!(
        "  request processing: {:.2} us a request of the engine's own code (waiting and devices \
         not counted; {} left out, when the processor was taken away)\n",
        us(engine.processing),
        human_duration(engine.spent.taken_away)
    );
    for line in &engine.emulated {
        text += &format!("  {line}\n");
    }
    text
}

/// Returns the remarks about the result.
fn remarks(measured: &Measured) -> Vec<String> {
    let report = &measured.report;
    let mut remarks = Vec::new();
    for (from, to) in measured.routes.iter().take(ROUTES) {
        remarks.push(format!("volume {from:?} of the trace goes to {to}"));
    }
    if measured.routes.len() > ROUTES {
        remarks.push(format!(
            "and {} more volumes",
            measured.routes.len() - ROUTES
        ));
    }
    let mut say = |count: u64, what: &str| {
        if count > 0 {
            remarks.push(format!("{} {what}", human_count(count, "request")));
        }
    };
    let Fitted {
        folded,
        left_out,
        widened,
        split,
    } = report.fitted;
    say(
        report.late.as_ref().map_or(0, |late| late.requests),
        "started more than 1 ms late",
    );
    say(
        report.skipped_writes,
        "left out: writes and discards (--skip-writes)",
    );
    say(
        folded,
        "reached past the end of their volume: folded into it (--past-end fold)",
    );
    say(
        left_out,
        "left out: past the end of their volume (--past-end skip)",
    );
    say(widened, "widened to whole blocks of the volume");
    say(split, "longer than 4 MiB, issued in pieces");
    if let Some(verified) = &report.verified
        && verified.wrong == 0
    {
        let sectors = human_bytes(verified.sectors * 512);
        remarks.push(format!(
            "verified: the {sectors} that were written are there"
        ));
    }
    remarks.extend(measured.remarks.iter().cloned());
    remarks
}
