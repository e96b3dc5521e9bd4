//! Counters of the simulator.

use serde::{Deserialize, Serialize};

/// Requests of one kind.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub(super) struct Requests {
    pub(super) count: u64,
    pub(super) hits: u64,
    pub(super) bytes: u64,
    pub(super) hit_bytes: u64,
    pub(super) missed_request_bytes: u64,
}

impl Requests {
    /// The part that were hits, if there were any.
    pub(super) fn hit_ratio(&self) -> Option<f64> {
        (self.count > 0).then(|| self.hits as f64 / self.count as f64)
    }
}

/// Bytes and operations of one direction.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub(super) struct Volume {
    pub(super) bytes: u64,
    pub(super) ios: u64,
}

/// One configuration.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(super) struct Row {
    pub(super) name: String,
    /// The cache's size, percent of the working set.
    pub(super) percent: u64,
    pub(super) capacity_bytes: u64,
    pub(super) reads: Requests,
    pub(super) writes: Requests,
    pub(super) read_from_core: Volume,
    pub(super) write_to_core: Volume,
    pub(super) read_from_cache: Volume,
    pub(super) write_to_cache: Volume,
    pub(super) allocated_blocks: u64,
    pub(super) allocated_bytes: u64,
    pub(super) cached_blocks_sum: u64,
    pub(super) memory_max_bytes: u64,
    pub(super) latency_sum_ns: u64,
}

impl Row {
    pub(super) fn core_bytes(&self) -> u64 {
        self.read_from_core.bytes + self.write_to_core.bytes
    }

    pub(super) fn cache_bytes(&self) -> u64 {
        self.read_from_cache.bytes + self.write_to_cache.bytes
    }

    fn requests(&self) -> f64 {
        ((self.reads.count + self.writes.count) as f64).max(1.0)
    }

    /// Mean over all requests. Modelled.
    pub(super) fn latency_us(&self) -> f64 {
        self.latency_sum_ns as f64 / 1000.0 / self.requests()
    }

    pub(super) fn mean_block_bytes(&self) -> f64 {
        self.allocated_bytes as f64 / (self.allocated_blocks as f64).max(1.0)
    }

    pub(super) fn mean_cached_blocks(&self) -> f64 {
        self.cached_blocks_sum as f64 / self.requests()
    }

    /// Mean size of requests that were no hits.
    pub(super) fn mean_missed_bytes(&self) -> f64 {
        let bytes = self.reads.missed_request_bytes + self.writes.missed_request_bytes;
        let hits = self.reads.hits + self.writes.hits;
        bytes as f64 / (self.requests() - hits as f64).max(1.0)
    }

    /// Of all bytes asked for, the part that was cached.
    pub(super) fn byte_hit_ratio(&self) -> f64 {
        let hits = self.reads.hit_bytes + self.writes.hit_bytes;
        hits as f64 / ((self.reads.bytes + self.writes.bytes) as f64).max(1.0)
    }
}

/// One trace in all configurations.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(super) struct Simulation {
    pub(super) reads: u64,
    pub(super) writes: u64,
    pub(super) read_bytes: u64,
    pub(super) write_bytes: u64,
    pub(super) working_set_bytes: u64,
    pub(super) volumes: u64,
    /// Bytes, and how many requests are not larger.
    pub(super) sizes_at_most: Vec<(u64, u64)>,
    pub(super) rows: Vec<Row>,
}

impl Simulation {
    pub(super) fn requests(&self) -> u64 {
        self.reads + self.writes
    }

    /// A configuration by its name; none if the cache was too small for it.
    pub(super) fn find(&self, name: &str, percent: u64) -> Option<&Row> {
        let mut rows = self.rows.iter();
        rows.find(|row| row.name == name && row.percent == percent)
    }

    /// A configuration that every trace has.
    ///
    /// # Panics
    /// If the trace does not have it.
    pub(super) fn row(&self, name: &str) -> &Row {
        let row = self.find(name, PERCENT);
        row.unwrap_or_else(|| panic!("each trace has the configuration {name}"))
    }

    /// Whether the trace has verdicts. Short excerpts and caches of a few groups have none.
    pub(super) fn counts(&self) -> bool {
        self.requests() >= 50_000 && self.groups() >= 64
    }

    /// Groups of the cache.
    pub(super) fn groups(&self) -> u64 {
        self.row("ours").capacity_bytes / GROUP_BYTES
    }
}

/// The cache's size that counts, percent of the working set: the paper's.
pub(super) const PERCENT: u64 = 10;
/// Size of the largest block, in bytes.
pub(super) const GROUP_BYTES: u64 = 256 << 10;
/// The fixed sizes as rows are named.
pub(super) const SIZES: [&str; 4] = ["32K", "64K", "128K", "256K"];

/// Where a trace is from, and what it may prove.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Origin {
    /// Real; the constants of our rules were chosen on it.
    Tuned,
    /// Real, and never looked at for that.
    HeldOut,
    /// Real, in full, from the paper's own selection.
    Public,
    /// Generated with the numbers of the paper's Table II.
    TableTwo,
    /// The same with another seed and fewer requests.
    OtherSeed,
}

/// A trace that was simulated.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Trace {
    pub(super) title: String,
    /// The set that it belongs to: of generated and public ones.
    pub(super) set: &'static str,
    pub(super) origin: Origin,
    pub(super) result: Simulation,
}
