//! Status of an open stack.

use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;

use forebay_cache::{BlockSizes, IdleVolume};
use forebay_io::rt;
use forebay_volume::{OpStats, bucket_upper_ns};

use super::cache::{OpenCache, Opened};
use super::presence::{LOOK, Paths};
use super::transit::OpenTransit;
use super::watched::Watched;
use super::{Served, Stack};
use crate::state::hex;
use crate::status::{
    CacheStatus, ChecksumStatus, DeviceStatus, Latency, ObjectStatus, OpeningStatus,
    OperationStatus, Status, TransitStatus, VolumeStatus,
};
use forebay_terminal::size::human_count;

impl Stack {
    /// Returns statistics and faults of the devices.
    #[must_use]
    pub fn devices(&self) -> Vec<DeviceStatus> {
        self.devices.borrow().iter().map(Watched::status).collect()
    }

    /// Checks whether a device of the cache was truncated since the last check. Returns whether the
    /// cache reports a truncation.
    pub async fn look_for_cut(&self) -> bool {
        match self.cache.as_ref().and_then(|cache| cache.if_open()) {
            Some(opened) => opened.cache.look_for_cut().await,
            None => false,
        }
    }

    /// Describes the problem of the state directory; `None` if there is none.
    #[must_use]
    pub fn state_trouble(&self) -> Option<String> {
        self.state.trouble()
    }

    /// Returns the paths of the files that the daemon has open.
    pub(crate) fn paths(&self) -> Paths {
        let devices = self.devices.borrow();
        let files = devices
            .iter()
            .filter_map(|watched| watched.presence.clone());
        let transits = devices.iter().flat_map(|watched| &watched.transits);
        let slots = transits.filter_map(OpenTransit::presence);
        let journal = self
            .cache
            .as_ref()
            .and_then(|cache| cache.journal_presence());
        Paths {
            files: files.chain(slots).chain(journal).collect(),
            state: Arc::clone(&self.state),
        }
    }

    /// Looks at the paths of open files. A path that does not answer delays this by [`LOOK`].
    pub(super) async fn look_at_paths(&self) {
        if let Some(Err(error)) = rt::at_most(LOOK, self.paths().look()).await {
            tracing::warn!(
                "the paths of open files are not checked: {}",
                error.report()
            );
        }
    }

    /// Describes open files that were not at their paths at the last look or were truncated, with
    /// the remedy.
    #[must_use]
    pub fn file_troubles(&self) -> Vec<String> {
        let devices = self.devices.borrow();
        let files = devices.iter().filter_map(Watched::trouble);
        let transits = devices.iter().flat_map(|watched| &watched.transits);
        let slots = transits.filter_map(OpenTransit::trouble);
        let cache = self.cache.as_ref();
        let journal = cache.and_then(|cache| cache.journal_trouble());
        let opened = cache.and_then(|cache| cache.if_open());
        let cut = opened.and_then(|opened| opened.cache.metadata_trouble());
        let cut = cut.map(|error| error.report());
        files.chain(slots).chain(journal).chain(cut).collect()
    }

    /// Returns statistics of the transit caches among the devices.
    fn transits(&self) -> Vec<TransitStatus> {
        let devices = self.devices.borrow();
        let transits = devices.iter().flat_map(|watched| &watched.transits);
        transits.map(OpenTransit::status).collect()
    }

    /// Returns statistics of the volumes in object storage among the devices.
    fn object_volumes(&self) -> Vec<ObjectStatus> {
        let devices = self.devices.borrow();
        devices.iter().filter_map(Watched::object_status).collect()
    }

    /// Returns the present status, without the fields about the process.
    #[must_use]
    pub fn status(&self) -> Status {
        let opened = self.cache.as_ref().and_then(|cache| cache.if_open());
        let stats = opened.as_ref().map(|opened| opened.cache.stats());
        let served = self.volumes.borrow();
        let idle = (opened.as_ref()).map_or_else(Vec::new, |opened| opened.cache.idle_volumes());
        let volumes = served.iter().map(|served| {
            let volumes = stats.iter().flat_map(|stats| &stats.volumes);
            let own = volumes
                .filter(|_| served.cached)
                .find(|stats| stats.name == served.config.name);
            let idle = idle.iter().find(|idle| idle.name == served.config.name);
            let lost = opened.as_ref().filter(|_| served.cached);
            let lost = lost.and_then(|opened| {
                super::cache::recovery::lost_of(&opened.recovery, &served.config.name)
            });
            let refusal = self.state.refusals().of(&served.config.name);
            volume(served, own, idle, lost, refusal)
        });
        let is_served = |name: &str| served.iter().any(|served| served.config.name == name);
        let unserved = (idle.iter().filter(|idle| !is_served(&idle.name)))
            .zip(&self.cache)
            .map(|(idle, cache)| unserved_volume(idle, &cache.configured));
        let volumes = volumes.chain(unserved).collect();
        let cache = self.cache.as_ref().map(|cache| match (&opened, &stats) {
            (Some(opened), Some(stats)) => cache_status(cache, opened, stats, &idle),
            _ => opening_status(cache),
        });
        Status {
            version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            cache,
            volumes,
            devices: self.devices(),
            transits: self.transits(),
            object_volumes: self.object_volumes(),
            state_trouble: self.state.trouble(),
            file_troubles: self.file_troubles(),
            ..Status::default()
        }
    }
}

/// Returns the status of a cache that is being opened.
fn opening_status(cache: &OpenCache) -> CacheStatus {
    let found = &cache.found;
    let elapsed_ms = u64::try_from(cache.began.elapsed().as_millis()).unwrap_or(u64::MAX);
    let (done_bytes, bytes) = cache.progress.bytes();
    CacheStatus {
        uuid: hex(&cache.uuid),
        durability: format!("{:?}", cache.config.durability).to_lowercase(),
        recovery: "being opened".to_owned(),
        recovery_ms: elapsed_ms,
        opening: Some(OpeningStatus {
            done_bytes,
            bytes,
            left_ms: (bytes - done_bytes)
                .saturating_mul(elapsed_ms)
                .checked_div(done_bytes),
        }),
        dirty_tracking: found.dirty_tracking.to_string(),
        block_size_bytes: u64::from(found.block_size_bytes),
        block_sizes: BlockSizes::from_mask(found.block_size_bytes, found.classes).to_string(),
        capacity_bytes: u64::from(found.slots) * u64::from(found.block_size_bytes),
        dirty_limit_percent: cache.config.dirty_limit_percent,
        dirty_low_percent: cache.config.dirty_low_percent,
        cleaning: cache.config.cleaning.to_string(),
        ..CacheStatus::default()
    }
}

fn cache_status(
    cache: &OpenCache,
    opened: &Opened,
    stats: &forebay_cache::CacheStats,
    idle: &[IdleVolume],
) -> CacheStatus {
    let attached = stats.volumes.iter().map(|volume| volume.dirty_bytes);
    let idle = idle.iter().map(|volume| volume.dirty_bytes);
    let found = &opened.recovery;
    let mut recovery = match (cache.memory, found.clean_shutdown) {
        (Some(_), _) => "new, in memory".to_owned(),
        (None, _) if found.never_used => "never used before".to_owned(),
        (None, true) => format!(
            "after a clean shutdown, {} kept",
            human_count(found.cached_blocks, "block")
        ),
        (None, false) => format!(
            "recovered: {} kept, {} of them dirty, {} from the process journal",
            human_count(found.cached_blocks, "block"),
            found.dirty_blocks,
            human_count(found.journal_entries, "acknowledged write")
        ),
    };
    for (count, what) in [
        (found.damaged_records, ("damaged record", "")),
        (found.unreadable_units, ("unreadable unit", " of metadata")),
        (
            found.distrusted_blocks,
            ("clean block", " dropped as uncertain"),
        ),
        (
            found.cut.len() as u64,
            ("range", " LOST where the cache device was cut"),
        ),
        (
            found.lost.len() as u64,
            match found.lost_in_flight {
                true => ("range", " BEING WRITTEN when the cache device failed"),
                false => ("range", " LOST"),
            },
        ),
    ] {
        if count > 0 {
            let (noun, more) = what;
            recovery.push_str(&format!(", {}{more}", human_count(count, noun)));
        }
    }
    let tree = stats.tree.unwrap_or_default();
    CacheStatus {
        uuid: hex(&cache.uuid),
        durability: format!("{:?}", cache.config.durability).to_lowercase(),
        recovery,
        damaged_records: found.damaged_records + found.unreadable_units,
        recovery_ms: u64::try_from(opened.recovery_time.as_millis()).unwrap_or(u64::MAX),
        recovered_blocks: stats.recovery.found_blocks,
        recovering_blocks: stats.recovery.left_blocks,
        recovering_ms: stats.recovery.left_ms(),
        recovery_compared_bytes: stats.recovery.compared_bytes,
        recovery_same_bytes: stats.recovery.same_bytes,
        dirty_tracking: stats.dirty_tracking.to_string(),
        tree_persists: tree.persists,
        tree_written_bytes: tree.bytes,
        tree_memory_bytes: tree.memory_bytes,
        opening: None,
        scrub: opened.cache.scrub_progress().map(super::scrub::status),
        checksums: stats.checksums.map(|sums| ChecksumStatus {
            unverified: sums.unverified,
            refetched: sums.refetched,
            condemned: sums.condemned,
            corrupt_bytes: sums.corrupt_bytes,
            written_bytes: sums.table_bytes,
        }),
        block_size_bytes: stats.block_size_bytes,
        block_sizes: stats.block_sizes.clone(),
        capacity_bytes: stats.blocks * stats.block_size_bytes,
        used_bytes: stats.cached_bytes,
        dirty_bytes: attached.chain(idle).sum(),
        dirty_blocks: stats.dirty_blocks,
        dirty_limit_percent: cache.config.dirty_limit_percent,
        dirty_low_percent: cache.config.dirty_low_percent,
        cleaning: stats.cleaning.to_string(),
        evictions: stats.evictions,
        promotions: stats.promotions,
        cleaned_blocks: stats.write_backs,
        cleaned_bytes: stats.write_back_bytes,
        commits: stats.commits,
        commit_time_us: stats.commit_time_us,
        metadata_written_bytes: stats.log_bytes + tree.bytes,
        write_back_errors: stats.write_back_errors,
        read_errors: stats.cache_read_errors,
        memory_bytes: stats.memory_bytes,
        failure: stats.failure.clone(),
    }
}

/// Returns the status of a volume that is not served, and of which the cache has data.
fn unserved_volume(idle: &IdleVolume, configured: &[String]) -> VolumeStatus {
    let operations = ["read", "write", "flush", "discard", "write_zeroes"];
    VolumeStatus {
        name: idle.name.clone(),
        state: match configured.contains(&idle.name) {
            true => "not served".into(),
            false => "not configured".into(),
        },
        size_bytes: idle.size_bytes,
        epoch: idle.epoch,
        dirty_bytes: idle.dirty_bytes,
        cached_bytes: idle.cached_bytes,
        operations: (operations.iter())
            .map(|kind| operation(kind, &OpStats::default()))
            .collect(),
        ..VolumeStatus::default()
    }
}

/// Returns the status of a volume. `idle` is what the cache has of it if it is not attached. `lost`
/// is a loss that the opening of the cache found. `refusal` is the reason why the last write was
/// refused, since it could not be recorded.
fn volume(
    served: &Served,
    stats: Option<&forebay_cache::VolumeStats>,
    idle: Option<&IdleVolume>,
    lost: Option<&str>,
    refusal: Option<String>,
) -> VolumeStatus {
    let handle = served.volume.handle();
    let counted = handle.stats();
    let number = |value: fn(&forebay_cache::VolumeStats) -> u64| stats.map_or(0, value);
    VolumeStatus {
        name: served.config.name.clone(),
        state: match served.is_unexported.get() {
            true => "not exported".into(),
            false => "served".into(),
        },
        size_bytes: handle.info().size_bytes,
        mode: served.cached.then(|| served.mode.get()),
        promotion: served.config.promotion,
        read_only: served.config.read_only,
        epoch: served.record.get().epoch,
        dirty_bytes: idle.map_or_else(|| number(|it| it.dirty_bytes), |idle| idle.dirty_bytes),
        cached_bytes: idle.map_or_else(|| number(|it| it.cached_bytes), |idle| idle.cached_bytes),
        read_hits: number(|stats| stats.read_hits),
        read_misses: number(|stats| stats.read_misses),
        write_hits: number(|stats| stats.write_hits),
        write_misses: number(|stats| stats.write_misses),
        bypassed_reads: number(|stats| stats.bypassed_reads),
        bypassed_writes: number(|stats| stats.bypassed_writes),
        split_reads: number(|stats| stats.split_reads),
        bypassed_for_room: number(|stats| stats.bypassed_for_room),
        in_flight: counted.in_flight,
        iops_limit: served.config.limits.iops.map(NonZeroU32::get),
        bandwidth_limit_bytes_per_s: served
            .config
            .limits
            .bandwidth_bytes_per_s
            .map(NonZeroU64::get),
        limited: counted.limited,
        timed_out: counted.timed_out,
        overdue: counted.overdue,
        loss: (lost.map(str::to_owned)).or_else(|| stats.and_then(|stats| stats.loss.clone())),
        diverged: stats.is_some_and(|stats| stats.diverged),
        refuses_writes: refusal.is_some() || stats.is_some_and(|stats| stats.refuses_writes),
        refusal,
        limited_us: u64::try_from(counted.limited_time.as_micros()).unwrap_or(u64::MAX),
        operations: vec![
            operation("read", &counted.read),
            operation("write", &counted.write),
            operation("flush", &counted.flush),
            operation("discard", &counted.discard),
            operation("write_zeroes", &counted.write_zeroes),
        ],
    }
}

fn operation(kind: &str, stats: &OpStats) -> OperationStatus {
    let buckets = stats.latency.counts.iter().enumerate();
    let buckets = buckets.map(|(bucket, count)| (bucket_upper_ns(bucket), *count));
    OperationStatus {
        kind: kind.into(),
        count: stats.ops,
        bytes: stats.bytes,
        errors: stats.errors,
        latency: Latency::from_buckets(buckets, stats.latency.sum_ns),
    }
}
