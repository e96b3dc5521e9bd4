//! The status for people, in lines and tables: `forebay status` and the page show the same.

use std::time::Duration;

use crate::config::block_sizes::block_sizes_in_words;
use crate::status::{CacheStatus, DeviceStatus, Latency, Status, VolumeStatus, percent};
use forebay_terminal::record::Record as _;
use forebay_terminal::size::{human_bytes, human_count, human_duration};
use forebay_terminal::table::Table;

/// Returns version, process, state and time, as one line.
pub(crate) fn process(status: &Status) -> String {
    let state = match status.shutting_down {
        true => "shutting down",
        false => "running",
    };
    format!(
        "{}, process {}, {state} for {}, I/O by {}",
        status.version,
        status.pid,
        human_duration(Duration::from_secs(status.uptime_s)),
        status.io_engine,
    )
}

/// Returns the addresses of the exports, and the number of connections of each reactor.
pub(crate) fn reach(status: &Status) -> Vec<String> {
    let mut lines = status.listening.clone();
    let reactors = status.reactors.iter();
    let connections: Vec<_> = reactors
        .map(|reactor| format!("{} on {}", reactor.connections, reactor.name))
        .collect();
    if !connections.is_empty() {
        lines.push(format!("connections: {}", connections.join(", ")));
    }
    lines
}

/// Returns the lines about the cache, or that there is none.
pub(crate) fn cache(cache: Option<&CacheStatus>) -> Vec<String> {
    let Some(cache) = cache else {
        return vec!["none: volumes are served straight from their backing devices".into()];
    };
    if let Some(opening) = &cache.opening {
        let left = match opening.left_ms {
            Some(ms) => format!("{} left", human_duration(Duration::from_millis(ms))),
            None => "just begun".to_owned(),
        };
        return vec![format!(
            "being opened: {} of {} of its log read ({left}); until then, reads of clean \
             zones are served, and other requests wait",
            human_bytes(opening.done_bytes),
            human_bytes(opening.bytes),
        )];
    }
    let share = |bytes| percent(bytes, cache.capacity_bytes).unwrap_or(0.0);
    let mut lines = vec![
        format!(
            "{} of {} used ({:.0}%), {} dirty ({:.0}%, marks {}% and {}%, cleaning {}), blocks of \
             {}, durability {}",
            human_bytes(cache.used_bytes),
            human_bytes(cache.capacity_bytes),
            share(cache.used_bytes),
            human_bytes(cache.dirty_bytes),
            share(cache.dirty_bytes),
            cache.dirty_low_percent,
            cache.dirty_limit_percent,
            cache.cleaning,
            block_sizes_in_words(cache.block_size_bytes, &cache.block_sizes),
            cache.durability,
        ),
        format!(
            "{}, {} written back, {} ({} us each), {}",
            human_count(cache.evictions, "eviction"),
            human_bytes(cache.cleaned_bytes),
            human_count(cache.commits, "commit"),
            cache.commit_us(),
            human_count(cache.errors(), "error"),
        ),
        format!(
            "start: {} ({} ms); the map takes {} of memory",
            cache.recovery,
            cache.recovery_ms,
            human_bytes(cache.memory_bytes)
        ),
    ];
    if cache.dirty_tracking == "abt" {
        lines.push(format!(
            "bit-tree: {}, {}; it takes {} of memory",
            human_count(cache.tree_persists, "write"),
            human_bytes(cache.tree_written_bytes),
            human_bytes(cache.tree_memory_bytes)
        ));
    }
    if let Some(sums) = &cache.checksums {
        lines.push(format!(
            "checksums: {} refetched, {} unverified, {} written",
            human_count(sums.refetched, "corrupt piece"),
            human_count(sums.unverified, "piece"),
            human_bytes(sums.written_bytes),
        ));
        if sums.corrupt_bytes > 0 {
            lines.push(format!(
                "DIRTY DATA IS CORRUPT: {}; the log names the ranges, which are errors until they \
                 are rewritten whole",
                human_bytes(sums.corrupt_bytes)
            ));
        }
    }
    if let Some(scrub) = &cache.scrub {
        lines.push(scrub.text.clone());
        lines.extend(scrub.first.iter().map(|first| format!("found: {first}")));
    }
    if cache.recovering_blocks > 0 {
        let left = match cache.recovering_ms {
            Some(ms) => format!("{} left", human_duration(Duration::from_millis(ms))),
            None => "just begun".to_owned(),
        };
        lines.push(format!(
            "recovery: {} of {} that may be dirty to be written back ({left}){}",
            cache.recovering_blocks,
            human_count(cache.recovered_blocks, "block"),
            match cache.recovery_compared_bytes {
                0 => String::new(),
                bytes => format!(
                    "; of {} that were compared, the backing device had {}",
                    human_bytes(bytes),
                    human_bytes(cache.recovery_same_bytes)
                ),
            }
        ));
    }
    if let Some(failure) = &cache.failure {
        lines.push(format!("THE CACHE TAKES NO MORE WRITES: {failure}"));
    }
    lines
}

/// Returns the effect of limits on volumes, one line each.
pub(crate) fn limits(status: &Status) -> Vec<String> {
    let volumes = status.volumes.iter();
    volumes
        .filter_map(|volume| {
            let iops = volume.iops_limit.map(|iops| format!("{iops} requests/s"));
            let bandwidth = volume
                .bandwidth_limit_bytes_per_s
                .map(|rate| format!("{}/s", human_bytes(rate)));
            let limits: Vec<_> = iops.into_iter().chain(bandwidth).collect();
            let mean_us = volume.limited_us.checked_div(volume.limited).unwrap_or(0);
            (!limits.is_empty()).then(|| {
                format!(
                    "volume {:?} is limited to {}: {} waited, {} on average",
                    volume.name,
                    limits.join(" and "),
                    human_count(volume.limited, "request"),
                    human_duration(Duration::from_micros(mean_us)),
                )
            })
        })
        .collect()
}

/// Returns the transit caches, one line each.
pub(crate) fn transits(status: &Status) -> Vec<String> {
    let transits = status.transits.iter();
    transits
        .map(|transit| {
            let refused = match transit.refused {
                0 => String::new(),
                refused => format!(", {refused} evictions FAILED"),
            };
            format!(
                "transit cache {:?} ({}): {} of {} used, {} not yet on the device; blocks: {} \
                 written ({} rewritten), {} evicted, {} bypassed, {} by FUA, {} waited{refused}",
                transit.name,
                transit.policy,
                human_bytes(transit.used_bytes),
                human_bytes(transit.capacity_bytes),
                human_bytes(transit.owed_bytes),
                transit.written,
                transit.rewritten,
                transit.evicted,
                transit.bypassed,
                transit.fua,
                transit.waited,
            )
        })
        .collect()
}

/// Returns the volumes in object storage, one line each.
pub(crate) fn object_volumes(status: &Status) -> Vec<String> {
    let volumes = status.object_volumes.iter();
    volumes
        .map(|volume| {
            let price = match volume.has_prices {
                true => format!(
                    "; about {}.{:02} a month",
                    volume.monthly_cents / 100,
                    volume.monthly_cents % 100
                ),
                false => String::new(),
            };
            let failed = match volume.failures {
                0 => String::new(),
                failures => format!(", {failures} FAILED"),
            };
            format!(
                "object storage {:?}: {} in {}, {} of it live; requests: {} PUT, {} GET, {} LIST, \
                 {} DELETE{failed}; {} up, {} down{price}",
                volume.name,
                human_bytes(volume.stored_bytes),
                human_count(volume.objects, "object"),
                human_bytes(volume.live_bytes),
                volume.creations,
                volume.reads,
                volume.lists,
                volume.deletions,
                human_bytes(volume.uploaded_bytes),
                human_bytes(volume.downloaded_bytes),
            )
        })
        .collect()
}

/// Returns the problems of volumes and devices, one line each.
pub(crate) fn trouble(status: &Status) -> Vec<String> {
    let late = status.volumes.iter().filter(|volume| volume.timed_out > 0);
    let late = late.map(|volume| {
        format!(
            "volume {:?}: {} timed out, {} of them still in the device, and their ranges not \
             served",
            volume.name,
            human_count(volume.timed_out, "request"),
            volume.overdue,
        )
    });
    let lost = status.volumes.iter().filter_map(|volume| {
        let loss = volume.loss.as_ref()?;
        Some(format!(
            "VOLUME {:?} MAY HAVE LOST DATA: {loss}",
            volume.name
        ))
    });
    let has_failed = (status.cache.as_ref()).is_some_and(|cache| cache.failure.is_some());
    let cached = status.volumes.iter().filter(|volume| volume.mode.is_some());
    let failed_cache = cached.filter(|volume| has_failed || volume.diverged);
    let is_explained = |volume: &&VolumeStatus| volume.diverged || volume.refusal.is_none();
    let failed_cache = failed_cache.filter(is_explained);
    let failed_cache = failed_cache.map(without_failed_cache);
    let refused = status.volumes.iter().filter_map(|volume| {
        let (name, refusal) = (&volume.name, volume.refusal.as_ref()?);
        Some(format!(
            "VOLUME {name:?} REFUSES WRITES that cannot be recorded: {refusal}"
        ))
    });
    let failed = status.devices.iter().filter(|device| device.errors > 0);
    let failed = failed.map(|device| {
        format!(
            "device {:?}: {}, the last: {}",
            device.name,
            human_count(device.errors, "error"),
            device.last_error.as_deref().unwrap_or("not known")
        )
    });
    let damaged = status
        .cache
        .as_ref()
        .map_or(0, |cache| cache.damaged_records);
    let damaged = (damaged > 0).then(|| {
        format!(
            "THE CACHE MAY HAVE LOST DATA: {} of its log are damaged, and reads may return older \
             data. Check the newest data of the clients, stop the daemon, and run `forebay check \
             --repair`: until then each start drops clean data",
            human_count(damaged, "record")
        )
    });
    let state = status.state_trouble.iter().cloned();
    let files = status.file_troubles.iter().cloned();
    (state
        .chain(files)
        .chain(lost)
        .chain(damaged)
        .chain(refused)
        .chain(failed_cache)
        .chain(late)
        .chain(failed))
    .collect()
}

/// Describes how a volume with a failed cache is served.
fn without_failed_cache(volume: &VolumeStatus) -> String {
    let name = &volume.name;
    match volume.mode {
        _ if volume.diverged => format!(
            "VOLUME {name:?} CONTINUES WITHOUT ITS CACHE, which has failed: writes go to \
             the backing device alone"
        ),
        Some(mode) if volume.refuses_writes => format!(
            "VOLUME {name:?} REFUSES WRITES: its cache has failed, and its mode is {mode}. Restart \
             when the cache device works, or serve it from its backing device: forebay mode \
             {name} wt"
        ),
        _ => format!(
            "volume {name:?}: its cache has failed; reads and writes go to the backing device"
        ),
    }
}

/// Returns `p50 / p99`, or a dash without measurements.
fn latency(latency: &Latency) -> String {
    if latency.count == 0 {
        return "-".into();
    }
    let time = |us: f64| human_duration(Duration::from_secs_f64(us / 1e6));
    format!("{} / {}", time(latency.p50_us), time(latency.p99_us))
}

/// Returns the volumes. `before` is the status of a second ago, for rates.
pub(crate) fn volumes(status: &Status, before: Option<&Status>) -> Table {
    let fields = VolumeStatus::TABLE;
    let mut titles = fields.titles();
    titles.extend([
        ">hits",
        ">read",
        ">written",
        ">read p50/p99",
        ">write p50/p99",
        ">errors",
    ]);
    if before.is_some() {
        titles.extend([">reads/s", ">writes/s"]);
    }
    let mut table = Table::new(&titles);
    for volume in &status.volumes {
        let (read, write) = (volume.operation("read"), volume.operation("write"));
        let hits = volume.read_hit_percent();
        let errors: u64 = volume.operations.iter().map(|of| of.errors).sum();
        let mut row = fields.cells(volume);
        row.extend([
            hits.map_or_else(|| "-".into(), |percent| format!("{percent:.1}%")),
            human_bytes(read.bytes),
            human_bytes(write.bytes),
            latency(&read.latency),
            latency(&write.latency),
            errors.to_string(),
        ]);
        if let Some(before) = before {
            let former = before.volumes.iter().find(|v| v.name == volume.name);
            let count = |kind| former.map_or(0, |former| former.operation(kind).count);
            row.push(read.count.saturating_sub(count("read")).to_string());
            row.push(write.count.saturating_sub(count("write")).to_string());
        }
        table.row(row);
    }
    table
}

/// Returns the devices.
pub(crate) fn devices(status: &Status) -> Table {
    let fields = DeviceStatus::TABLE;
    let mut table = Table::new(&fields.titles());
    for device in &status.devices {
        table.row(fields.cells(device));
    }
    table
}
