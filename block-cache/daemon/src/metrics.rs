//! The status as Prometheus reads it: text format 0.0.4, base units (bytes, seconds), `_total` on
//! counters.

use std::fmt::{Display, Write as _};

use crate::control::status::{
    ChecksumStatus, LATENCY_BOUNDS_US, Latency, Status, TransitStatus, VolumeStatus,
};

/// Text under construction.
struct Text(String);

/// Label names and values of one sample.
type Labels<'a> = &'a [(&'a str, &'a str)];

impl Text {
    /// Begins a family: all its samples follow.
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: Labels<'_>, value: impl Display) {
        self.0.push_str(name);
        for (index, (label, text)) in labels.iter().enumerate() {
            self.0.push(if index == 0 { '{' } else { ',' });
            let text = text
                .replace('\\', "\\\\")
                .replace('"', "\\\"")
                .replace('\n', "\\n");
            let _ = write!(self.0, "{label}=\"{text}\"");
        }
        if !labels.is_empty() {
            self.0.push('}');
        }
        let _ = writeln!(self.0, " {value}");
    }

    fn single(&mut self, name: &str, kind: &str, help: &str, value: impl Display) {
        self.family(name, kind, help);
        self.sample(name, &[], value);
    }

    fn histogram(&mut self, name: &str, labels: Labels<'_>, latency: &Latency) {
        let bucket = format!("{name}_bucket");
        let mut sample = |bound: &str, count| {
            let labels = [labels, &[("le", bound)]].concat();
            self.sample(&bucket, &labels, count);
        };
        for (bound_us, within) in LATENCY_BOUNDS_US.iter().zip(&latency.within) {
            sample(&(*bound_us as f64 / 1e6).to_string(), *within);
        }
        sample("+Inf", latency.count);
        self.sample(&format!("{name}_sum"), labels, latency.sum_us / 1e6);
        self.sample(&format!("{name}_count"), labels, latency.count);
    }
}

/// The metrics of `status`.
#[must_use]
pub fn render(status: &Status) -> String {
    let mut text = Text(String::with_capacity(16 << 10));
    text.family(
        "forebay_build_info",
        "gauge",
        "The program's version and its I/O engine.",
    );
    let build = [
        ("version", status.version.as_str()),
        ("io_engine", status.io_engine.as_str()),
    ];
    text.sample("forebay_build_info", &build, 1);
    text.single(
        "forebay_uptime_seconds",
        "gauge",
        "Time since the start.",
        status.uptime_s,
    );
    let ending = u8::from(status.shutting_down);
    let help = "1 while the daemon is on its way out.";
    text.single("forebay_shutting_down", "gauge", help, ending);
    let lost = u8::from(status.state_trouble.is_some());
    let help = "1 while the state directory is not where it was at the start.";
    text.single("forebay_state_directory_lost", "gauge", help, lost);
    if !status.reactors.is_empty() {
        let name = "forebay_connections";
        text.family(
            name,
            "gauge",
            "NBD and NVMe/TCP connections that a reactor serves.",
        );
        for reactor in &status.reactors {
            let labels = [("reactor", reactor.name.as_str())];
            text.sample(name, &labels, reactor.connections);
        }
    }
    cache(&mut text, status);
    volumes(&mut text, &status.volumes);
    devices(&mut text, status);
    transits(&mut text, &status.transits);
    text.0
}

fn cache(text: &mut Text, status: &Status) {
    let Some(cache) = &status.cache else { return };
    let gauges = [
        (
            "capacity_bytes",
            "Room for cached data.",
            cache.capacity_bytes,
        ),
        ("used_bytes", "Room that is in use.", cache.used_bytes),
        (
            "dirty_bytes",
            "Data that the backing devices do not have yet.",
            cache.dirty_bytes,
        ),
        (
            "recovering_blocks",
            "Blocks that counted as dirty at the start though no record said so, and were not compared with the backing device, and written back where they differ, yet.",
            cache.recovering_blocks,
        ),
        (
            "block_size_bytes",
            "Size of a cache block.",
            cache.block_size_bytes,
        ),
    ];
    for (name, help, value) in gauges {
        text.single(&format!("forebay_cache_{name}"), "gauge", help, value);
    }
    text.family(
        "forebay_cache_cleaning_info",
        "gauge",
        "When dirty blocks are written back.",
    );
    let policy = [("policy", cache.cleaning.as_str())];
    text.sample("forebay_cache_cleaning_info", &policy, 1);
    let counters = [
        (
            "evictions",
            "Blocks that made room for others.",
            cache.evictions,
        ),
        (
            "cleaned_blocks",
            "Blocks that were written back.",
            cache.cleaned_blocks,
        ),
        (
            "cleaned_bytes",
            "Bytes that were written back.",
            cache.cleaned_bytes,
        ),
        (
            "recovery_compared_bytes",
            "Bytes that counted as dirty at the start though no record said so, and were compared with the backing device.",
            cache.recovery_compared_bytes,
        ),
        (
            "recovery_same_bytes",
            "Of these, bytes that it had already.",
            cache.recovery_same_bytes,
        ),
        ("commits", "Durable writes of metadata.", cache.commits),
        (
            "promotions",
            "Blocks that were taken in by reads.",
            cache.promotions,
        ),
        (
            "metadata_written_bytes",
            "Bytes of metadata that were written.",
            cache.metadata_written_bytes,
        ),
        (
            "tree_persists",
            "Writes of the bit-tree's units.",
            cache.tree_persists,
        ),
        (
            "tree_written_bytes",
            "Bytes of metadata that were written for the bit-tree.",
            cache.tree_written_bytes,
        ),
        (
            "write_back_errors",
            "Write-backs that failed; they are tried again.",
            cache.write_back_errors,
        ),
        (
            "read_errors",
            "Reads of the cache device that failed.",
            cache.read_errors,
        ),
    ];
    for (name, help, value) in counters {
        text.single(
            &format!("forebay_cache_{name}_total"),
            "counter",
            help,
            value,
        );
    }
    if let Some(sums) = &cache.checksums {
        checksums(text, sums);
    }
    if let Some(scrub) = &cache.scrub {
        for (name, help, value) in [
            (
                "running",
                "1 while a scrub goes on.",
                u64::from(scrub.running),
            ),
            (
                "blocks",
                "Blocks that the last scrub began with.",
                scrub.blocks,
            ),
            (
                "blocks_done",
                "Blocks that it has looked at.",
                scrub.blocks_done,
            ),
            (
                "refetched",
                "Corrupt pieces of 4 KiB that it brought in anew.",
                scrub.refetched,
            ),
            (
                "corrupt_blocks",
                "Blocks with corrupt dirty data that it found.",
                scrub.corrupt_blocks,
            ),
            ("errors", "Reads of it that failed.", scrub.errors),
        ] {
            text.single(&format!("forebay_cache_scrub_{name}"), "gauge", help, value);
        }
    }
    text.single(
        "forebay_cache_commit_seconds_total",
        "counter",
        "Time that durable writes of metadata took; divide by the number of commits.",
        cache.commit_time_us as f64 / 1e6,
    );
    text.single(
        "forebay_cache_failed",
        "gauge",
        "1 when the cache takes no more writes.",
        u8::from(cache.failure.is_some()),
    );
    text.single(
        "forebay_cache_damaged_records",
        "gauge",
        "Records of the cache's log that the start found damaged: dirty data may be lost with them.",
        cache.damaged_records,
    );
    text.single(
        "forebay_cache_map_memory_bytes",
        "gauge",
        "Memory of the map.",
        cache.memory_bytes,
    );
    text.single(
        "forebay_cache_tree_memory_bytes",
        "gauge",
        "Memory of the bit-tree, which does not grow; zero without one.",
        cache.tree_memory_bytes,
    );
    text.single(
        "forebay_cache_recovery_seconds",
        "gauge",
        "Time that the recovery at the start took.",
        cache.recovery_ms as f64 / 1e3,
    );
}

fn checksums(text: &mut Text, sums: &ChecksumStatus) {
    let counters = [
        (
            "unverified",
            "Pieces of 4 KiB that had no checksum that was known: believed, and given one.",
            sums.unverified,
        ),
        (
            "refetched",
            "Pieces of 4 KiB that were clean and corrupt: served from the backing device.",
            sums.refetched,
        ),
        (
            "condemned",
            "Dirty granules that were found corrupt.",
            sums.condemned,
        ),
        (
            "written_bytes",
            "Bytes of checksums that were written, which are among those of metadata.",
            sums.written_bytes,
        ),
    ];
    for (name, help, value) in counters {
        let name = format!("forebay_cache_checksum_{name}_total");
        text.single(&name, "counter", help, value);
    }
    text.single(
        "forebay_cache_corrupt_bytes",
        "gauge",
        "Dirty data that is corrupt on the cache device: reading it is an error.",
        sums.corrupt_bytes,
    );
}

/// Name, help and value of a number that each volume has.
type VolumeNumber = (&'static str, &'static str, fn(&VolumeStatus) -> u64);

fn volumes(text: &mut Text, volumes: &[VolumeStatus]) {
    let gauges: [VolumeNumber; 8] = [
        ("size_bytes", "Size of the volume.", |v| v.size_bytes),
        (
            "dirty_bytes",
            "Data that the backing device does not have yet.",
            |v| v.dirty_bytes,
        ),
        ("cached_bytes", "The volume's data in the cache.", |v| {
            v.cached_bytes
        }),
        (
            "in_flight_requests",
            "Requests that have started and not ended.",
            |v| v.in_flight,
        ),
        (
            "overdue_requests",
            "Requests that timed out and that the device still has.",
            |v| v.overdue,
        ),
        (
            "loss",
            "1 when what clients wrote to the backing device may be lost.",
            |v| u64::from(v.loss.is_some()),
        ),
        (
            "diverged",
            "1 when the volume is written without its cache, which has failed.",
            |v| u64::from(v.diverged),
        ),
        (
            "refuses_writes",
            "1 when the volume refuses writes, since its cache has failed.",
            |v| u64::from(v.refuses_writes),
        ),
    ];
    let counters: [VolumeNumber; 10] = [
        (
            "read_hits",
            "Pieces of reads (a cache block each) that the cache answered.",
            |v| v.read_hits,
        ),
        (
            "read_misses",
            "Pieces of reads that needed the backing device.",
            |v| v.read_misses,
        ),
        (
            "write_hits",
            "Pieces of writes to blocks in the cache.",
            |v| v.write_hits,
        ),
        (
            "write_misses",
            "Pieces of writes to blocks that were not in the cache.",
            |v| v.write_misses,
        ),
        (
            "bypassed_reads",
            "Pieces of reads that were not taken in.",
            |v| v.bypassed_reads,
        ),
        (
            "bypassed_writes",
            "Pieces of writes that went to the backing device only.",
            |v| v.bypassed_writes,
        ),
        (
            "split_reads",
            "Pieces of read hits that the backing device answered, since it does so sooner.",
            |v| v.split_reads,
        ),
        (
            "sent_round_writes",
            "Writes that found no room and went round, since that takes less.",
            |v| v.sent_round_writes,
        ),
        (
            "limited_requests",
            "Requests that waited for the volume's limits.",
            |v| v.limited,
        ),
        (
            "timed_out_requests",
            "Requests that the device did not end in time.",
            |v| v.timed_out,
        ),
    ];
    let mut family = |name: &str, kind: &str, help: &str, value: fn(&VolumeStatus) -> u64| {
        text.family(name, kind, help);
        for volume in volumes {
            text.sample(name, &[("volume", &volume.name)], value(volume));
        }
    };
    for (name, help, value) in gauges {
        family(&format!("forebay_volume_{name}"), "gauge", help, value);
    }
    for (name, help, value) in counters {
        let name = format!("forebay_volume_{name}_total");
        family(&name, "counter", help, value);
    }
    let name = "forebay_volume_limited_seconds_total";
    text.family(name, "counter", "Time that requests waited for limits.");
    for volume in volumes {
        let seconds = volume.limited_us as f64 / 1e6;
        text.sample(name, &[("volume", &volume.name)], seconds);
    }
    let operations = [
        ("requests", "Requests that ended, well or not."),
        ("bytes", "Bytes of the requests that ended well."),
        ("errors", "Requests that failed or were refused."),
    ];
    for (name, help) in operations {
        let full = format!("forebay_volume_{name}_total");
        text.family(&full, "counter", help);
        for volume in volumes {
            for operation in &volume.operations {
                let labels = [("volume", volume.name.as_str()), ("op", &operation.kind)];
                let value = match name {
                    "requests" => operation.count,
                    "bytes" => operation.bytes,
                    _ => operation.errors,
                };
                text.sample(&full, &labels, value);
            }
        }
    }
    let name = "forebay_volume_latency_seconds";
    text.family(
        name,
        "histogram",
        "How long requests took, of a sample of reads and writes and of all others.",
    );
    for volume in volumes {
        for operation in &volume.operations {
            let labels = [("volume", volume.name.as_str()), ("op", &operation.kind)];
            text.histogram(name, &labels, &operation.latency);
        }
    }
}

fn devices(text: &mut Text, status: &Status) {
    let name = "forebay_device_size_bytes";
    text.family(name, "gauge", "Size of the device.");
    for device in &status.devices {
        let labels = [("device", device.name.as_str()), ("role", &device.role)];
        text.sample(name, &labels, device.size_bytes);
    }
    type Number = (
        &'static str,
        &'static str,
        fn(&crate::control::status::DeviceStatus) -> u64,
    );
    let counters: [Number; 9] = [
        ("errors", "Operations that failed.", |d| d.errors),
        ("reads", "Reads.", |d| d.reads),
        ("read_bytes", "Bytes read.", |d| d.read_bytes),
        ("writes", "Writes.", |d| d.writes),
        ("written_bytes", "Bytes written.", |d| d.write_bytes),
        ("flushes", "Flushes.", |d| d.flushes),
        (
            "fua_writes",
            "Writes that had to be on media at once.",
            |d| d.fua_writes,
        ),
        ("discarded_bytes", "Bytes given back.", |d| d.discard_bytes),
        ("zeroed_bytes", "Bytes written as zeroes.", |d| {
            d.write_zeroes_bytes
        }),
    ];
    for (name, help, value) in counters {
        let name = format!("forebay_device_{name}_total");
        text.family(&name, "counter", help);
        for device in &status.devices {
            let labels = [("device", device.name.as_str()), ("role", &device.role)];
            text.sample(&name, &labels, value(device));
        }
    }
}

fn transits(text: &mut Text, transits: &[TransitStatus]) {
    if transits.is_empty() {
        return;
    }
    type Number = (&'static str, &'static str, fn(&TransitStatus) -> u64);
    let gauges: [Number; 3] = [
        ("capacity_bytes", "Room for data.", |t| t.capacity_bytes),
        ("used_bytes", "Room that is in use.", |t| t.used_bytes),
        (
            "owed_bytes",
            "Acknowledged data that the device under it does not have yet.",
            |t| t.owed_bytes,
        ),
    ];
    let counters: [Number; 11] = [
        ("written_blocks", "Written into slots.", |t| t.written),
        (
            "rewritten_blocks",
            "Written over what was in a slot.",
            |t| t.rewritten,
        ),
        (
            "bypassed_blocks",
            "Written round the slots, because none was free.",
            |t| t.bypassed,
        ),
        ("fua_blocks", "Written round slots, for FUA.", |t| t.fua),
        ("waited_blocks", "Writes that waited for a slot.", |t| {
            t.waited
        }),
        ("evicted_blocks", "Evicted.", |t| t.evicted),
        ("refused_blocks", "Evictions that failed.", |t| t.refused),
        ("read_hit_blocks", "Read from slots.", |t| t.read_hits),
        ("read_miss_blocks", "Read from the device under it.", |t| {
            t.read_misses
        }),
        ("flushes", "Flushes.", |t| t.flushes),
        ("flushed_blocks", "That flushes found waiting.", |t| {
            t.flushed
        }),
    ];
    let mut family = |name: &str, kind: &str, help: &str, value: fn(&TransitStatus) -> u64| {
        text.family(name, kind, help);
        for transit in transits {
            let labels = [
                ("device", transit.name.as_str()),
                ("policy", &transit.policy),
            ];
            text.sample(name, &labels, value(transit));
        }
    };
    for (name, help, value) in gauges {
        family(&format!("forebay_transit_{name}"), "gauge", help, value);
    }
    for (name, help, value) in counters {
        let name = format!("forebay_transit_{name}_total");
        family(&name, "counter", help, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::status::example;
    use std::collections::HashSet;

    #[test]
    fn the_text_is_what_prometheus_reads() {
        let text = render(&example());
        let mut families = HashSet::new();
        let mut current = String::new();
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').expect("a type line has two words");
                assert!(families.insert(name.to_owned()), "{name} begins once");
                assert_eq!(kind == "counter", name.ends_with("_total"), "{name}");
                current = name.to_owned();
            } else if !line.starts_with("# HELP ") {
                assert!(line.starts_with(&current), "{line} belongs to {current}");
                let value = line.rsplit(' ').next().expect("a sample has a value");
                value.parse::<f64>().expect(line);
            }
        }
        assert!(families.len() > 25, "{families:?}");
        for sample in [
            "forebay_cache_dirty_bytes 65536",
            "forebay_cache_cleaning_info{policy=\"auto\"} 1",
            "forebay_volume_read_hits_total{volume=\"db\"} 90",
            "forebay_volume_sent_round_writes_total{volume=\"db\"} 7",
            "forebay_volume_requests_total{volume=\"db\",op=\"read\"} 100",
            "forebay_volume_latency_seconds_bucket{volume=\"db\",op=\"read\",le=\"0.0001\"} 90",
            "forebay_volume_latency_seconds_bucket{volume=\"db\",op=\"read\",le=\"+Inf\"} 100",
            "forebay_connections{reactor=\"engine\"} 1",
            "forebay_device_errors_total{device=\"ssd\",role=\"cache\"} 2",
            "forebay_transit_bypassed_blocks_total{device=\"fast\",policy=\"caiti\"} 3",
            "forebay_device_written_bytes_total{device=\"ssd\",role=\"cache\"} 4096",
        ] {
            assert!(
                text.lines().any(|line| line == sample),
                "{sample} in\n{text}"
            );
        }
    }
}
