//! The daemon's status, defined once: the terminal, JSON, the page and the metrics show this table.

mod derived;
mod latency;

#[cfg(test)]
mod example;

pub use derived::percent;
#[cfg(test)]
pub(crate) use example::example;
pub use latency::LATENCY_BOUNDS_US;

use crate::config::{Mode, Promotion};

forebay_terminal::records! {
    /// The daemon at one moment. Counters start at zero with the process.
    #[derive(Default)]
    pub struct Status {
        /// Version of the program.
        version: String => info(
            "forebay_build_info", version, "The program's version and its I/O engine."
        );
        /// Number of the process.
        pid: u32;
        /// Time since the start.
        uptime_s: u64 => gauge("forebay_uptime_seconds");
        /// Path of the configuration. Empty from an earlier version.
        #[serde(default)]
        configuration: String;
        /// Path of the state directory. Empty from an earlier version.
        #[serde(default)]
        state: String;
        /// I/O engine: `io_uring` or `threads`.
        io_engine: String => info("forebay_build_info", io_engine);
        /// Whether the daemon ends.
        shutting_down: bool => gauge("forebay_shutting_down", "1 while the daemon ends.");
        /// The cache. Null if the backing devices serve the volumes alone.
        cache: Option<CacheStatus> => records;
        /// The volumes.
        volumes: Vec<VolumeStatus> => records(always);
        /// The devices under the cache and the volumes.
        devices: Vec<DeviceStatus> => records(always);
        /// The transit caches among the devices.
        #[serde(default)]
        transits: Vec<TransitStatus> => records;
        /// The volumes in object storage among the devices.
        #[serde(default)]
        object_volumes: Vec<ObjectStatus> => records;
        /// Fault of the state directory, in words.
        #[serde(default)]
        state_trouble: Option<String> => gauge(
            "forebay_state_directory_lost",
            "1 while the state directory is not where it was at the start."
        );
        /// Faults of files that the daemon has open, in words: a file is not at its path, or
        /// metadata was cut off.
        #[serde(default)]
        file_troubles: Vec<String> => gauge(
            "forebay_files_lost",
            "Open files that are not at their paths, or lack metadata that was cut off."
        );
        /// Addresses of the exports, in words. An address whose volumes were detached is listed
        /// without them.
        listening: Vec<String>;
        /// The reactors that serve connections.
        #[serde(default)]
        reactors: Vec<ReactorStatus> => records;
    }
    order: version io_engine uptime_s shutting_down state_trouble file_troubles reactors;

    /// A reactor that serves connections.
    #[derive(Default)]
    pub struct ReactorStatus {
        /// Name of its thread.
        name: String => label("reactor");
        /// NBD and NVMe/TCP connections that a reactor serves.
        connections: usize => gauge("forebay_connections");
    }

    /// Checksums of cached data, one for each 4 KiB.
    #[derive(Default, Eq)]
    pub struct ChecksumStatus {
        /// Pieces of 4 KiB without a known checksum: accepted, and given one.
        unverified: u64 => counter("forebay_cache_checksum_unverified_total");
        /// Pieces of 4 KiB that were clean and corrupt: served from the backing device.
        refetched: u64 => counter("forebay_cache_checksum_refetched_total");
        /// Dirty granules that were found corrupt.
        condemned: u64 => counter("forebay_cache_checksum_condemned_total");
        /// Dirty data that is corrupt on the cache device: reading it is an error.
        corrupt_bytes: u64 => gauge("forebay_cache_corrupt_bytes");
        /// Bytes of checksums that were written, which are among those of metadata.
        written_bytes: u64 => counter("forebay_cache_checksum_written_bytes_total");
    }
    order: unverified refetched condemned written_bytes;

    /// A scrub.
    #[derive(Default, Eq)]
    pub struct ScrubStatus {
        /// All of this in words.
        text: String;
        /// Whether it runs.
        running: bool => gauge("forebay_cache_scrub_running", "1 while a scrub runs.");
        /// Whether it was stopped before its end.
        stopped: bool;
        /// Cached bytes that it read.
        read_bytes: u64;
        /// Blocks that it has looked at.
        blocks_done: u64 => gauge("forebay_cache_scrub_blocks_done");
        /// Blocks that the last scrub began with.
        blocks: u64 => gauge("forebay_cache_scrub_blocks");
        /// Corrupt pieces of 4 KiB that it replaced from the backing device.
        refetched: u64 => gauge("forebay_cache_scrub_refetched");
        /// Blocks with corrupt dirty data that it found.
        corrupt_blocks: u64 => gauge("forebay_cache_scrub_corrupt_blocks");
        /// Reads of it that failed.
        errors: u64 => gauge("forebay_cache_scrub_errors");
        /// First range that was found corrupt or unreadable, in words.
        first: Option<String>;
    }
    order: running blocks;

    /// The opening of a cache.
    #[derive(Default)]
    pub struct OpeningStatus {
        /// Bytes of the log that were read.
        done_bytes: u64;
        /// Bytes of the log that are to be read; zero until this is known.
        bytes: u64;
        /// Estimated time until they are read. Null without an estimate.
        left_ms: Option<u64>;
    }

    /// The cache. Counts are zero until it is open.
    #[derive(Default)]
    pub struct CacheStatus {
        /// Identity of the cache, 32 hexadecimal digits.
        uuid: String;
        /// `sync` or `flush`.
        durability: String;
        /// Findings of the recovery at the start, in words.
        recovery: String;
        /// Records of the cache's log that the start found damaged: dirty data may be lost with
        /// them.
        #[serde(default)]
        damaged_records: u64 => gauge("forebay_cache_damaged_records");
        /// Time that the recovery at the start took.
        recovery_ms: u64 => gauge("forebay_cache_recovery_seconds");
        /// Progress of the opening. Null when the cache is open.
        #[serde(default)]
        opening: Option<OpeningStatus>;
        /// Blocks that counted as dirty at the start though no record said so.
        #[serde(default)]
        recovered_blocks: u64;
        /// Recovered blocks that are not yet compared with the backing device, and written back
        /// where they differ.
        #[serde(default)]
        recovering_blocks: u64 => gauge("forebay_cache_recovering_blocks");
        /// Estimated time until they are written back. Null without an estimate.
        #[serde(default)]
        recovering_ms: Option<u64>;
        /// Bytes that counted as dirty at the start though no record said so, and were compared
        /// with the backing device.
        #[serde(default)]
        recovery_compared_bytes: u64 => counter("forebay_cache_recovery_compared_bytes_total");
        /// Of these, bytes that it had already.
        #[serde(default)]
        recovery_same_bytes: u64 => counter("forebay_cache_recovery_same_bytes_total");
        /// Tracking of data that was overwritten in place: `exact`, `abt` or `none`.
        #[serde(default)]
        dirty_tracking: String;
        /// Writes of the bit-tree's units.
        #[serde(default)]
        tree_persists: u64 => counter("forebay_cache_tree_persists_total");
        /// Bytes of metadata that were written for the bit-tree.
        #[serde(default)]
        tree_written_bytes: u64 => counter("forebay_cache_tree_written_bytes_total");
        /// Memory of the bit-tree, which does not grow; zero without one.
        #[serde(default)]
        tree_memory_bytes: u64 => gauge("forebay_cache_tree_memory_bytes");
        /// Checksums of cached data. Null without checksums.
        #[serde(default)]
        checksums: Option<ChecksumStatus> => records;
        /// The scrub that runs, or the last one. Null before the first since the start.
        #[serde(default)]
        scrub: Option<ScrubStatus> => records;
        /// Smallest size of a cache block.
        block_size_bytes: u64 => gauge("forebay_cache_block_size_bytes", "Size of a cache block.");
        /// All sizes of cache blocks: `32K`, `32K..256K`.
        block_sizes: String;
        /// Room for cached data.
        capacity_bytes: u64 => gauge("forebay_cache_capacity_bytes");
        /// Room that is in use.
        used_bytes: u64 => gauge("forebay_cache_used_bytes");
        /// Data that the backing devices do not have yet.
        dirty_bytes: u64 => gauge("forebay_cache_dirty_bytes");
        /// Blocks with dirty data.
        dirty_blocks: u64;
        /// Share of the capacity that may be dirty.
        dirty_limit_percent: u8;
        /// Share of the capacity below which dirty blocks are written back slowly.
        #[serde(default)]
        dirty_low_percent: u8;
        /// Cleaning policy: `auto`, `alru`, `acp` or `nop`.
        #[serde(default)]
        cleaning: String => info(
            "forebay_cache_cleaning_info", policy, "When dirty blocks are written back."
        );
        /// Blocks evicted to make room.
        evictions: u64 => counter("forebay_cache_evictions_total");
        /// Blocks that reads filled.
        promotions: u64 => counter("forebay_cache_promotions_total");
        /// Blocks that were written back.
        cleaned_blocks: u64 => counter("forebay_cache_cleaned_blocks_total");
        /// Bytes that were written back.
        cleaned_bytes: u64 => counter("forebay_cache_cleaned_bytes_total");
        /// Durable writes of metadata.
        commits: u64 => counter("forebay_cache_commits_total");
        /// Time that durable writes of metadata took; divide by the number of commits.
        commit_time_us: u64 => counter("forebay_cache_commit_seconds_total");
        /// Bytes of metadata that were written.
        metadata_written_bytes: u64 => counter("forebay_cache_metadata_written_bytes_total");
        /// Write-backs that failed; they are retried.
        write_back_errors: u64 => counter("forebay_cache_write_back_errors_total");
        /// Reads of the cache device that failed.
        read_errors: u64 => counter("forebay_cache_read_errors_total");
        /// Memory of the map.
        memory_bytes: u64 => gauge("forebay_cache_map_memory_bytes");
        /// Reason why the cache takes no more writes.
        failure: Option<String> => gauge(
            "forebay_cache_failed", "1 when the cache takes no more writes."
        );
    }
    order: capacity_bytes used_bytes dirty_bytes recovering_blocks block_size_bytes cleaning
        evictions cleaned_blocks cleaned_bytes recovery_compared_bytes recovery_same_bytes commits
        promotions metadata_written_bytes tree_persists tree_written_bytes write_back_errors
        read_errors checksums scrub commit_time_us failure damaged_records memory_bytes
        tree_memory_bytes recovery_ms;

    /// A volume. A piece is the part of a request in one cache block.
    #[derive(Default)]
    pub struct VolumeStatus {
        /// Name of the volume.
        name: String => label("volume");
        /// `served`; `not exported` once a detach has begun; otherwise the cache has data of it:
        /// `not configured`, or `not served` if it is in the configuration.
        #[serde(default)]
        state: String => info("forebay_volume_info", state, "Whether the volume is served.");
        /// Size of the volume.
        size_bytes: u64 => gauge("forebay_volume_size_bytes");
        /// Cache mode. Null if the volume is served without the cache.
        mode: Option<Mode>;
        /// Condition for a miss to fill a block: `always` or `nhit:N`.
        promotion: Promotion;
        /// Whether the volume refuses writes of clients.
        read_only: bool;
        /// Epoch of this attach.
        epoch: u64;
        /// Data that the backing device does not have yet.
        dirty_bytes: u64 => gauge("forebay_volume_dirty_bytes");
        /// The volume's data in the cache.
        cached_bytes: u64 => gauge("forebay_volume_cached_bytes");
        /// Pieces of reads (a cache block each) that the cache served.
        read_hits: u64 => counter("forebay_volume_read_hits_total");
        /// Pieces of reads that needed the backing device.
        read_misses: u64 => counter("forebay_volume_read_misses_total");
        /// Pieces of writes to blocks in the cache.
        write_hits: u64 => counter("forebay_volume_write_hits_total");
        /// Pieces of writes to blocks that were not in the cache.
        write_misses: u64 => counter("forebay_volume_write_misses_total");
        /// Pieces of reads that filled no block.
        bypassed_reads: u64 => counter("forebay_volume_bypassed_reads_total");
        /// Pieces of writes to the backing device alone.
        bypassed_writes: u64 => counter("forebay_volume_bypassed_writes_total");
        /// Pieces of read hits that the backing device served, since it is faster.
        #[serde(default)]
        split_reads: u64 => counter("forebay_volume_split_reads_total");
        /// Writes that found no room and bypassed the cache, since that costs less.
        #[serde(default)]
        bypassed_for_room: u64 => counter("forebay_volume_bypassed_for_room_total");
        /// Requests that have started and not ended.
        in_flight: u64 => gauge("forebay_volume_in_flight_requests");
        /// Limit of requests a second. Null without a limit.
        #[serde(default)]
        iops_limit: Option<u32>;
        /// Limit of bytes a second. Null without a limit.
        #[serde(default)]
        bandwidth_limit_bytes_per_s: Option<u64>;
        /// Requests that waited for the volume's limits.
        #[serde(default)]
        limited: u64 => counter("forebay_volume_limited_requests_total");
        /// Time that requests waited for limits.
        #[serde(default)]
        limited_us: u64 => counter("forebay_volume_limited_seconds_total");
        /// Requests that the device did not end in time.
        #[serde(default)]
        timed_out: u64 => counter("forebay_volume_timed_out_requests_total");
        /// Requests that timed out and that the device still has.
        #[serde(default)]
        overdue: u64 => gauge("forebay_volume_overdue_requests");
        /// Reason why writes of clients are lost, or may be.
        #[serde(default)]
        loss: Option<String> => gauge(
            "forebay_volume_loss",
            "1 when writes of clients are lost, or may be."
        );
        /// Whether the volume is written without its cache, which has failed.
        #[serde(default)]
        diverged: bool => gauge(
            "forebay_volume_diverged",
            "1 when the volume is written without its cache, which has failed."
        );
        /// Whether the volume refuses writes, since its cache has failed, or since the state
        /// directory cannot record them.
        #[serde(default)]
        refuses_writes: bool => gauge(
            "forebay_volume_refuses_writes",
            "1 when the volume refuses writes: its cache has failed, or they cannot be recorded."
        );
        /// Reason why the state directory could not record the last write, which was refused.
        #[serde(default)]
        refusal: Option<String>;
        /// Requests by kind.
        operations: Vec<OperationStatus> => records(always);
    }
    order: state size_bytes dirty_bytes cached_bytes in_flight overdue loss diverged refuses_writes
        read_hits read_misses write_hits write_misses bypassed_reads bypassed_writes split_reads
        bypassed_for_room limited timed_out limited_us;
    columns: name "name" state "state" mode "mode" size_bytes ">size" cached_bytes ">cached"
        dirty_bytes ">dirty";

    /// The requests of one kind to one volume.
    #[derive(Default)]
    pub struct OperationStatus {
        /// `read`, `write`, `flush`, `discard` or `write_zeroes`.
        kind: String => label("op");
        /// Requests that ended, well or not.
        count: u64 => counter("forebay_volume_requests_total");
        /// Bytes of the requests that ended well.
        bytes: u64 => counter("forebay_volume_bytes_total");
        /// Requests that failed or were refused.
        errors: u64 => counter("forebay_volume_errors_total");
        /// How long requests took, of a sample of reads and writes and of all others.
        latency: Latency => histogram("forebay_volume_latency_seconds");
    }

    /// A device.
    #[derive(Default)]
    pub struct DeviceStatus {
        /// Name of the device.
        name: String => label("device");
        /// Kind and place of the device, in words.
        what: String;
        /// `cache`, `metadata` or `backing`.
        role: String => label("role");
        /// Size of the device.
        size_bytes: u64 => gauge("forebay_device_size_bytes");
        /// Reads.
        reads: u64 => counter("forebay_device_reads_total");
        /// Bytes read.
        read_bytes: u64 => counter("forebay_device_read_bytes_total");
        /// Writes.
        writes: u64 => counter("forebay_device_writes_total");
        /// Bytes written.
        write_bytes: u64 => counter("forebay_device_written_bytes_total");
        /// Flushes.
        flushes: u64 => counter("forebay_device_flushes_total");
        /// Writes that had to be on media at once.
        fua_writes: u64 => counter("forebay_device_fua_writes_total");
        /// Bytes given back.
        discard_bytes: u64 => counter("forebay_device_discarded_bytes_total");
        /// Bytes written as zeroes.
        write_zeroes_bytes: u64 => counter("forebay_device_zeroed_bytes_total");
        /// Operations that failed.
        #[serde(default)]
        errors: u64 => counter("forebay_device_errors_total");
        /// The last failure, in words.
        #[serde(default)]
        last_error: Option<String>;
    }
    order: size_bytes errors;
    columns: name "name" role "role" what "what" size_bytes ">size" read_bytes ">read"
        write_bytes ">written" flushes ">flushes" fua_writes ">FUA writes" errors ">errors";

    /// A transit cache. Counts are of blocks, unless they say otherwise.
    #[derive(Default)]
    pub struct TransitStatus {
        /// Name of the device.
        name: String => label("device");
        /// Policy of the slots.
        policy: String => label("policy");
        /// Room for data.
        capacity_bytes: u64 => gauge("forebay_transit_capacity_bytes");
        /// Room that is in use.
        used_bytes: u64 => gauge("forebay_transit_used_bytes");
        /// Acknowledged data that the device under it does not have yet.
        owed_bytes: u64 => gauge("forebay_transit_owed_bytes");
        /// Written into slots.
        written: u64 => counter("forebay_transit_written_blocks_total");
        /// Overwrote the data in a slot.
        rewritten: u64 => counter("forebay_transit_rewritten_blocks_total");
        /// Bypassed the slots, because none was free.
        bypassed: u64 => counter("forebay_transit_bypassed_blocks_total");
        /// Bypassed the slots, for FUA.
        fua: u64 => counter("forebay_transit_fua_blocks_total");
        /// Writes that waited for a slot.
        waited: u64 => counter("forebay_transit_waited_blocks_total");
        /// Evicted.
        evicted: u64 => counter("forebay_transit_evicted_blocks_total");
        /// Evictions that failed.
        refused: u64 => counter("forebay_transit_refused_blocks_total");
        /// Read from slots.
        read_hits: u64 => counter("forebay_transit_read_hit_blocks_total");
        /// Read from the device under it.
        read_misses: u64 => counter("forebay_transit_read_miss_blocks_total");
        /// Flushes.
        flushes: u64 => counter("forebay_transit_flushes_total");
        /// Found waiting by flushes.
        flushed: u64 => counter("forebay_transit_flushed_blocks_total");
    }

    /// A volume in object storage, and its use of the store since the start.
    #[derive(Default)]
    pub struct ObjectStatus {
        /// Name of the device.
        name: String => label("device");
        /// Creations of objects.
        creations: u64 => counter("forebay_object_creations_total");
        /// Reads of objects.
        reads: u64 => counter("forebay_object_reads_total");
        /// Lists of objects.
        lists: u64 => counter("forebay_object_lists_total");
        /// Deletions of objects.
        deletions: u64 => counter("forebay_object_deletions_total");
        /// Requests that failed. Most were repeated.
        failures: u64 => counter("forebay_object_failures_total");
        /// Contents of creations.
        uploaded_bytes: u64 => counter("forebay_object_uploaded_bytes_total");
        /// Contents of reads.
        downloaded_bytes: u64 => counter("forebay_object_downloaded_bytes_total");
        /// Objects of the volume and its snapshots in the store.
        stored_bytes: u64 => gauge("forebay_object_stored_bytes");
        /// Stored bytes that are not garbage; an estimate.
        live_bytes: u64 => gauge("forebay_object_live_bytes");
        /// Bytes of the volume that have data.
        mapped_bytes: u64 => gauge("forebay_object_mapped_bytes");
        /// Number of objects in the store.
        objects: u64 => gauge("forebay_object_objects");
        /// Whether the device has `prices`.
        has_prices: bool;
        /// Estimated price of a month, in hundredths of the currency of `prices`. Requests count as
        /// often as since the start. Zero without prices.
        monthly_cents: u64 => gauge("forebay_object_monthly_cents");
    }

    /// A distribution of latencies.
    #[derive(Default)]
    pub struct Latency {
        /// Number of measured requests.
        count: u64;
        /// Sum of their latencies.
        sum_us: f64;
        /// Median latency.
        p50_us: f64;
        /// Latency that 99 in 100 do not exceed.
        p99_us: f64;
        /// Numbers of requests within each bound of the histogram.
        within: Vec<u64>;
    }
}

#[cfg(test)]
mod tests;
