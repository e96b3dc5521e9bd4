//! What the daemon says about itself. The status table, `--json`, the page and the metrics are four
//! views of this one value.

use serde::{Deserialize, Serialize};

use crate::config::{Mode, Promotion};

/// The whole daemon at one moment. Counters start at zero with the process.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Status {
    /// The program's version.
    pub version: String,
    /// The process.
    pub pid: u32,
    /// Time since the start, seconds.
    pub uptime_s: u64,
    /// `io_uring` or `threads`.
    pub io_engine: String,
    /// Whether the daemon is on its way out.
    pub shutting_down: bool,
    /// The cache; none where volumes are served straight from their backing devices.
    pub cache: Option<CacheStatus>,
    /// The volumes.
    pub volumes: Vec<VolumeStatus>,
    /// The devices that the cache and the volumes stand on.
    pub devices: Vec<DeviceStatus>,
    /// The transit caches among them.
    #[serde(default)]
    pub transits: Vec<TransitStatus>,
    /// What is wrong with the state directory, in words; none if nothing is.
    #[serde(default)]
    pub state_trouble: Option<String>,
    /// Where clients find what, in words.
    pub listening: Vec<String>,
    /// The reactors that serve connections.
    #[serde(default)]
    pub reactors: Vec<ReactorStatus>,
}

/// A reactor that serves connections, of NBD and NVMe/TCP.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct ReactorStatus {
    /// The name of its thread.
    pub name: String,
    /// The connections that it serves now.
    pub connections: usize,
}

/// Checksums of cached data, one for each 4 KiB.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct ChecksumStatus {
    /// Pieces of 4 KiB whose checksum was not known when they were seen: believed, and given one.
    pub unverified: u64,
    /// Pieces of 4 KiB that were clean and corrupt: served from the backing device.
    pub refetched: u64,
    /// Dirty granules that were found corrupt.
    pub condemned: u64,
    /// Dirty data that is corrupt now, bytes: reading it is an error.
    pub corrupt_bytes: u64,
    /// Bytes of checksums written, which are among those of metadata.
    pub written_bytes: u64,
}

/// A scrub.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct ScrubStatus {
    /// All of this in words.
    pub text: String,
    /// It goes on.
    pub running: bool,
    /// It was stopped before its end.
    pub stopped: bool,
    /// Cached bytes that were read.
    pub read_bytes: u64,
    /// Blocks that were looked at.
    pub blocks_done: u64,
    /// Blocks that it began with.
    pub blocks: u64,
    /// Pieces of 4 KiB that were clean and corrupt, and were brought in anew.
    pub refetched: u64,
    /// Blocks with dirty data that is corrupt.
    pub corrupt_blocks: u64,
    /// Reads that failed.
    pub errors: u64,
    /// The first range that was found corrupt or unreadable, in words.
    pub first: Option<String>,
}

/// How far the opening of a cache is.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct OpeningStatus {
    /// Bytes of its log that were read.
    pub done_bytes: u64,
    /// Bytes of it that are to be read; zero if nobody can tell yet.
    pub bytes: u64,
    /// Time until they are read, milliseconds, if it goes on as it did; none if nobody can tell yet.
    pub left_ms: Option<u64>,
}

/// The cache.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct CacheStatus {
    /// The cache's identity, 32 hexadecimal digits.
    pub uuid: String,
    /// `sync` or `flush`.
    pub durability: String,
    /// What the recovery at the start found, in words.
    pub recovery: String,
    /// Records and units of its log that the start found damaged: dirty data may be lost with them.
    #[serde(default)]
    pub damaged_records: u64,
    /// Time from the start of recovery to the first I/O, milliseconds.
    pub recovery_ms: u64,
    /// How far its opening is; none when it is open. What is counted of a cache is counted from then on.
    #[serde(default)]
    pub opening: Option<OpeningStatus>,
    /// Blocks that counted as dirty then though no record said so.
    #[serde(default)]
    pub recovered_blocks: u64,
    /// Of these, blocks that were not written back yet.
    #[serde(default)]
    pub recovering_blocks: u64,
    /// Time until they are written back, milliseconds, if it goes on as it did; none if nobody can tell yet.
    #[serde(default)]
    pub recovering_ms: Option<u64>,
    /// Bytes of those blocks that were compared with the backing device.
    #[serde(default)]
    pub recovery_compared_bytes: u64,
    /// Of these, bytes that it had already, so that they were not written back.
    #[serde(default)]
    pub recovery_same_bytes: u64,
    /// How the cache knows what was overwritten in place: `exact`, `abt` or `none`.
    #[serde(default)]
    pub dirty_tracking: String,
    /// Writes of the bit-tree's units, if it has one.
    #[serde(default)]
    pub tree_persists: u64,
    /// Bytes of these, which are among those of metadata.
    #[serde(default)]
    pub tree_written_bytes: u64,
    /// Memory that it takes, whatever is cached, bytes.
    #[serde(default)]
    pub tree_memory_bytes: u64,
    /// Of the checksums of cached data, if it has some.
    #[serde(default)]
    pub checksums: Option<ChecksumStatus>,
    /// How far the scrub is, or how the last one ended; none since the start.
    #[serde(default)]
    pub scrub: Option<ScrubStatus>,
    /// The smallest cache block size, bytes.
    pub block_size_bytes: u64,
    /// All cache block sizes: `32K`, `32K..256K`.
    pub block_sizes: String,
    /// Room for data, bytes.
    pub capacity_bytes: u64,
    /// Room that is in use, bytes.
    pub used_bytes: u64,
    /// Data that the backing devices do not have yet, bytes.
    pub dirty_bytes: u64,
    /// Blocks with dirty data.
    pub dirty_blocks: u64,
    /// Share of the capacity that may be dirty.
    pub dirty_limit_percent: u8,
    /// Share of the capacity below which writing back is in no hurry.
    #[serde(default)]
    pub dirty_low_percent: u8,
    /// When dirty blocks are written back: `auto`, `alru`, `acp` or `nop`.
    #[serde(default)]
    pub cleaning: String,
    /// Blocks that made room for others.
    pub evictions: u64,
    /// Blocks that were taken in by reads.
    pub promotions: u64,
    /// Blocks that were written back.
    pub cleaned_blocks: u64,
    /// Bytes that were written back.
    pub cleaned_bytes: u64,
    /// Durable writes of metadata.
    pub commits: u64,
    /// How long these took, all together, microseconds.
    pub commit_time_us: u64,
    /// Bytes of metadata that were written.
    pub metadata_written_bytes: u64,
    /// Write-backs that failed; they are tried again.
    pub write_back_errors: u64,
    /// Reads of the cache device that failed.
    pub read_errors: u64,
    /// Memory of the map, bytes.
    pub memory_bytes: u64,
    /// Why the cache takes no more writes, if so.
    pub failure: Option<String>,
}

/// A volume.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct VolumeStatus {
    /// Its name.
    pub name: String,
    /// Size, bytes.
    pub size_bytes: u64,
    /// Its cache mode; none when it is served without the cache.
    pub mode: Option<Mode>,
    /// What a miss needs to be taken into the cache.
    pub promotion: Promotion,
    /// Whether clients may not write.
    pub read_only: bool,
    /// The epoch of this attach.
    pub epoch: u64,
    /// Data that the backing device does not have yet, bytes.
    pub dirty_bytes: u64,
    /// Its data in the cache, bytes.
    pub cached_bytes: u64,
    /// Pieces of reads (one for each cache block that a request touches) that the cache answered.
    pub read_hits: u64,
    /// Pieces of reads that needed the backing device.
    pub read_misses: u64,
    /// Pieces of writes to blocks that were in the cache.
    pub write_hits: u64,
    /// Pieces of writes to blocks that were not.
    pub write_misses: u64,
    /// Reads that were not taken into the cache.
    pub bypassed_reads: u64,
    /// Writes that went to the backing device only.
    pub bypassed_writes: u64,
    /// Of the read hits, those that the backing device answered, since it does so sooner (`admission = "measured"`).
    #[serde(default)]
    pub split_reads: u64,
    /// Writes that found no room and went to the backing device, since that takes less (`admission = "measured"`).
    #[serde(default)]
    pub sent_round_writes: u64,
    /// Requests that have started and not ended.
    pub in_flight: u64,
    /// Requests a second that it lets through at most; none without a limit.
    #[serde(default)]
    pub iops_limit: Option<u32>,
    /// Bytes a second that it lets through at most; none without a limit.
    #[serde(default)]
    pub bandwidth_limit_bytes_per_s: Option<u64>,
    /// Requests that waited for these limits.
    #[serde(default)]
    pub limited: u64,
    /// How long they waited for these, together, microseconds.
    #[serde(default)]
    pub limited_us: u64,
    /// Requests that timed out.
    #[serde(default)]
    pub timed_out: u64,
    /// Of these, those that the device still has: what they change is not served.
    #[serde(default)]
    pub overdue: u64,
    /// Why what clients wrote to the backing device may be lost, if so.
    #[serde(default)]
    pub loss: Option<String>,
    /// Whether it is written without its cache, which has failed.
    #[serde(default)]
    pub diverged: bool,
    /// Whether it refuses writes, since its cache has failed.
    #[serde(default)]
    pub refuses_writes: bool,
    /// Requests by kind: `read`, `write`, `flush`, `discard`, `write_zeroes`.
    pub operations: Vec<OperationStatus>,
}

/// One kind of request to one volume.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct OperationStatus {
    /// The kind.
    pub kind: String,
    /// Requests that ended, well or not.
    pub count: u64,
    /// Bytes of those that ended well.
    pub bytes: u64,
    /// Requests that failed or were refused.
    pub errors: u64,
    /// How long they took, of a sample.
    pub latency: Latency,
}

/// A device.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct DeviceStatus {
    /// Its name.
    pub name: String,
    /// What it is, in words.
    pub what: String,
    /// `cache`, `metadata` or `backing`.
    pub role: String,
    /// Size, bytes.
    pub size_bytes: u64,
    /// Reads.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Writes.
    pub writes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Writes that had to be on media at once.
    pub fua_writes: u64,
    /// Bytes given back.
    pub discard_bytes: u64,
    /// Bytes written as zeroes.
    pub write_zeroes_bytes: u64,
    /// Operations that failed.
    #[serde(default)]
    pub errors: u64,
    /// The last failure, in words.
    #[serde(default)]
    pub last_error: Option<String>,
}

/// A transit cache. Counts are of blocks where nothing else is said.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct TransitStatus {
    /// The device's name.
    pub name: String,
    /// What it does with its slots.
    pub policy: String,
    /// Room for data, bytes.
    pub capacity_bytes: u64,
    /// Room that is in use, bytes.
    pub used_bytes: u64,
    /// Acknowledged data that the device under it does not have yet, bytes.
    pub owed_bytes: u64,
    /// Written into slots.
    pub written: u64,
    /// Of these, newer versions of what was in one.
    pub rewritten: u64,
    /// Written round them, because none was free.
    pub bypassed: u64,
    /// Written round them, because of FUA.
    pub fua: u64,
    /// Writes that waited for a slot.
    pub waited: u64,
    /// Evicted.
    pub evicted: u64,
    /// Evictions that the device under it refused.
    pub refused: u64,
    /// Read from slots.
    pub read_hits: u64,
    /// Read from the device under it.
    pub read_misses: u64,
    /// Flushes, each one request.
    pub flushes: u64,
    /// That flushes found waiting.
    pub flushed: u64,
}

/// A distribution of latencies.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Latency {
    /// Number of measured requests.
    pub count: u64,
    /// Sum of their latencies, microseconds.
    pub sum_us: f64,
    /// The latency that half of them do not exceed, microseconds.
    pub p50_us: f64,
    /// The latency that 99 in 100 do not exceed, microseconds.
    pub p99_us: f64,
    /// How many took no longer than each of [`LATENCY_BOUNDS_US`].
    pub within: Vec<u64>,
}

/// The bounds of the latency histograms, microseconds.
pub const LATENCY_BOUNDS_US: [u64; 19] = [
    1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000,
    1_000_000, 10_000_000, 60_000_000,
];

impl Latency {
    /// A distribution from the buckets of a histogram: (largest value in ns, how many), in order.
    /// A bucket that straddles a bound counts for the next one, so that no bucket claims too much.
    pub fn from_buckets(buckets: impl Iterator<Item = (u64, u64)>, sum_ns: u64) -> Self {
        let buckets: Vec<_> = buckets.filter(|(_, count)| *count > 0).collect();
        let count: u64 = buckets.iter().map(|(_, count)| count).sum();
        let quantile_us = |share: f64| {
            let rank = ((count as f64 * share).ceil() as u64).max(1);
            let mut seen = 0;
            let found = buckets.iter().find(|(_, n)| {
                seen += n;
                seen >= rank
            });
            found.map_or(0.0, |(upper_ns, _)| *upper_ns as f64 / 1e3)
        };
        let within = |bound_us: &u64| {
            let fits = buckets
                .iter()
                .filter(|(upper_ns, _)| *upper_ns <= bound_us * 1000);
            fits.map(|(_, count)| count).sum()
        };
        Self {
            count,
            sum_us: sum_ns as f64 / 1e3,
            p50_us: quantile_us(0.50),
            p99_us: quantile_us(0.99),
            within: LATENCY_BOUNDS_US.iter().map(within).collect(),
        }
    }
}

impl VolumeStatus {
    /// Share of reads that the cache answered, in percent; none before the first.
    #[must_use]
    pub fn read_hit_percent(&self) -> Option<f64> {
        percent(self.read_hits, self.read_hits + self.read_misses)
    }

    /// The counters of one kind of request; zeroes where there are none.
    #[must_use]
    pub fn operation(&self, kind: &str) -> OperationStatus {
        let found = self
            .operations
            .iter()
            .find(|operation| operation.kind == kind);
        found.cloned().unwrap_or_default()
    }

    /// The mode, or that there is no cache.
    #[must_use]
    pub fn mode_text(&self) -> String {
        self.mode
            .map_or_else(|| "no cache".into(), |mode| mode.to_string())
    }
}

impl CacheStatus {
    /// Failures of the cache's own work.
    #[must_use]
    pub fn errors(&self) -> u64 {
        self.write_back_errors + self.read_errors
    }

    /// Mean time of a durable write of metadata, microseconds; zero before the first.
    #[must_use]
    pub fn commit_us(&self) -> u64 {
        self.commit_time_us.checked_div(self.commits).unwrap_or(0)
    }
}

/// `part` of `whole` in percent; none of nothing.
#[must_use]
pub fn percent(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 * 100.0 / whole as f64)
}

/// A daemon with one volume, for the tests of the views.
#[cfg(test)]
pub(crate) fn example() -> Status {
    let read = OperationStatus {
        kind: "read".into(),
        count: 100,
        bytes: 409_600,
        errors: 1,
        latency: Latency::from_buckets([(50_000, 90), (1_500_000, 10)].into_iter(), 20_000_000),
    };
    Status {
        version: "0.1.0".into(),
        pid: 7,
        uptime_s: 61,
        io_engine: "io_uring".into(),
        shutting_down: false,
        state_trouble: None,
        cache: Some(CacheStatus {
            uuid: "00112233445566778899aabbccddeeff".into(),
            durability: "flush".into(),
            recovery: "clean shutdown".into(),
            damaged_records: 0,
            recovery_ms: 12,
            opening: None,
            recovered_blocks: 40,
            recovering_blocks: 10,
            recovering_ms: Some(1500),
            recovery_compared_bytes: 1 << 20,
            recovery_same_bytes: 1 << 19,
            dirty_tracking: "abt".into(),
            tree_persists: 7,
            tree_written_bytes: 7 << 12,
            tree_memory_bytes: 335 << 10,
            block_size_bytes: 32 << 10,
            block_sizes: "32K".into(),
            capacity_bytes: 1 << 30,
            used_bytes: 1 << 20,
            dirty_bytes: 64 << 10,
            dirty_limit_percent: 60,
            dirty_low_percent: 20,
            cleaning: "auto".into(),
            ..CacheStatus::default()
        }),
        volumes: vec![VolumeStatus {
            name: "db".into(),
            size_bytes: 1 << 30,
            mode: Some(Mode::WriteBack),
            promotion: Promotion::Always,
            read_only: false,
            epoch: 3,
            dirty_bytes: 64 << 10,
            cached_bytes: 1 << 20,
            read_hits: 90,
            read_misses: 10,
            write_hits: 0,
            write_misses: 0,
            bypassed_reads: 0,
            bypassed_writes: 0,
            split_reads: 0,
            sent_round_writes: 7,
            in_flight: 0,
            iops_limit: Some(5000),
            bandwidth_limit_bytes_per_s: None,
            limited: 4,
            limited_us: 10_000,
            timed_out: 5,
            overdue: 2,
            loss: Some("a flush failed".into()),
            diverged: true,
            refuses_writes: false,
            operations: vec![read],
        }],
        devices: vec![DeviceStatus {
            name: "ssd".into(),
            what: "file <a&b>".into(),
            role: "cache".into(),
            size_bytes: 1 << 30,
            write_bytes: 4096,
            errors: 2,
            last_error: Some("write of 512 bytes at byte 0 of a: No space left".into()),
            ..DeviceStatus::default()
        }],
        transits: vec![TransitStatus {
            name: "fast".into(),
            policy: "caiti".into(),
            capacity_bytes: 512 << 20,
            used_bytes: 8 << 10,
            owed_bytes: 4 << 10,
            written: 12,
            bypassed: 3,
            ..TransitStatus::default()
        }],
        listening: vec!["NBD on 127.0.0.1:10809".into()],
        reactors: vec![ReactorStatus {
            name: "engine".into(),
            connections: 1,
        }],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_distribution_counts_each_value_once() {
        let buckets = [(900, 2), (40_000, 96), (3_000_000, 1), (90_000_000_000, 1)];
        let latency = Latency::from_buckets(buckets.into_iter(), 5_000);
        assert_eq!(latency.count, 100);
        assert_eq!(latency.p50_us, 40.0);
        assert_eq!(latency.p99_us, 3_000.0);
        assert_eq!(latency.within[0], 2);
        assert_eq!(latency.within[4], 2);
        assert_eq!(latency.within[5], 98);
        assert_eq!(latency.within[18], 99);
        assert_eq!(Latency::from_buckets([].into_iter(), 0).p99_us, 0.0);
    }
}
