//! Figures of one simulated cache, as a row of a table and as JSON.

use forebay_policy::BlockSizes;
use forebay_terminal::size::human_bytes;
use forebay_terminal::table::Table;
use forebay_trace::sim::{Counts, Requests, Simulated};
use serde_json::{Value, json};

/// A simulated cache and its name.
pub(super) struct Row {
    pub(super) name: &'static str,
    pub(super) blocks: BlockSizes,
    pub(super) capacity_bytes: u64,
    /// Whether the command line names it; otherwise it is there for comparison.
    pub(super) asked_for: bool,
    pub(super) cache: Simulated,
}

fn percent(ratio: f64) -> String {
    format!("{:.2}%", ratio * 100.0)
}

/// Returns the mean latency over all requests, microseconds. Modelled.
pub(super) fn latency_us(counts: &Counts) -> f64 {
    let requests = counts.reads.count + counts.writes.count;
    counts.latency_sum_ns as f64 / 1000.0 / requests.max(1) as f64
}

/// Returns a latency for people.
pub(super) fn latency_words(us: f64) -> String {
    match us {
        short if short < 1000.0 => format!("{short:.0} us"),
        long => format!("{:.2} ms", long / 1000.0),
    }
}

/// Returns the mean size of requests that were no hits, bytes.
pub(super) fn mean_missed_bytes(counts: &Counts) -> f64 {
    let bytes = counts.reads.missed_request_bytes + counts.writes.missed_request_bytes;
    let of = |requests: &Requests| requests.count - requests.hits;
    bytes as f64 / (of(&counts.reads) + of(&counts.writes)).max(1) as f64
}

/// Returns all figures, a row for each cache.
pub(super) fn table(rows: &[Row]) -> Table {
    let mut table = Table::new(&[
        "cache",
        "blocks",
        "rules",
        ">read hits",
        ">write hits",
        ">from core",
        ">to core",
        ">from cache",
        ">to cache",
        ">mean block",
        ">mean miss",
        ">memory",
        ">latency, modelled",
    ]);
    for row in rows {
        let counts = row.cache.counts();
        let mean = counts.allocated_bytes / counts.allocated_blocks.max(1);
        table.row(vec![
            human_bytes(row.capacity_bytes),
            row.blocks.to_string(),
            row.name.to_owned(),
            percent(counts.reads.hit_ratio()),
            percent(counts.writes.hit_ratio()),
            human_bytes(counts.io.read_from_core.bytes),
            human_bytes(counts.io.write_to_core.bytes),
            human_bytes(counts.io.read_from_cache.bytes),
            human_bytes(counts.io.write_to_cache.bytes),
            human_bytes(mean),
            human_bytes(mean_missed_bytes(counts) as u64),
            human_bytes(counts.memory_max_bytes),
            latency_words(latency_us(counts)),
        ]);
    }
    table
}

/// Returns the figures of a row.
pub(super) fn as_json(row: &Row) -> Value {
    let counts = row.cache.counts();
    let requests = |requests: &Requests| {
        json!({
            "count": requests.count,
            "hits": requests.hits,
            "bytes": requests.bytes,
            "hit_bytes": requests.hit_bytes,
        })
    };
    let volume =
        |volume: &forebay_trace::sim::Volume| json!({"bytes": volume.bytes, "ios": volume.ios});
    json!({
        "capacity_bytes": row.capacity_bytes,
        "blocks": row.blocks.to_string(),
        "rules": row.name,
        "reads": requests(&counts.reads),
        "writes": requests(&counts.writes),
        "read_from_core": volume(&counts.io.read_from_core),
        "write_to_core": volume(&counts.io.write_to_core),
        "read_from_cache": volume(&counts.io.read_from_cache),
        "write_to_cache": volume(&counts.io.write_to_cache),
        "allocated_blocks": counts.allocated_blocks,
        "allocated_bytes": counts.allocated_bytes,
        "evicted_blocks": counts.evicted_blocks,
        "evicted_groups": counts.evicted_groups,
        "missed_request_mean_bytes": mean_missed_bytes(counts),
        "memory_max_bytes": counts.memory_max_bytes,
        "latency_modelled_us": latency_us(counts),
    })
}
