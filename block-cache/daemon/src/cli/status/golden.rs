//! Compares each view of the status with recorded files.

use crate::config::{Mode, Promotion};
use crate::control::protocol::line;
use crate::status::{
    CacheStatus, ChecksumStatus, DeviceStatus, Latency, ObjectStatus, OpeningStatus,
    OperationStatus, ReactorStatus, ScrubStatus, Status, TransitStatus, VolumeStatus,
};

use super::render;

/// Directory of the recorded views, relative to the package.
const FOLDER: &str = "tests/golden";

/// Compares the four views of `status` with the recorded files.
fn check(name: &str, status: &Status, before: Option<&Status>) {
    let json = String::from_utf8(line(status)).expect("JSON is UTF-8");
    let read: Status = serde_json::from_str(&json).expect("the status can be read");
    assert_eq!(&read, status, "JSON loses nothing");
    for (view, text) in [
        ("json", json),
        ("prom", forebay_terminal::metrics::render(status)),
        ("txt", render(status, before)),
        ("html", crate::page::render(status)),
    ] {
        let path = format!("{}/{FOLDER}/{name}.{view}", env!("CARGO_MANIFEST_DIR"));
        if std::env::var_os("FOREBAY_WRITE_GOLDEN").is_some() {
            std::fs::write(&path, &text).expect("the file can be written");
        }
        let recorded = std::fs::read_to_string(&path).expect("the view is recorded");
        assert!(
            text == recorded,
            "{name}.{view} differs from the recorded view:\n{text}\n\
             Set FOREBAY_WRITE_GOLDEN to record it, and read the difference."
        );
    }
}

#[test]
fn an_open_cache_is_shown_as_recorded() {
    let status = open();
    let mut before = open();
    for operation in &mut before.volumes[0].operations {
        operation.count -= 11;
    }
    check("open", &status, Some(&before));
}

#[test]
fn a_cache_that_is_opening_is_shown_as_recorded() {
    let mut status = open();
    let cache = CacheStatus {
        opening: Some(OpeningStatus {
            done_bytes: 3 << 20,
            bytes: 12 << 20,
            left_ms: Some(4500),
        }),
        checksums: None,
        scrub: None,
        failure: None,
        ..status.cache.expect("it has a cache")
    };
    status.cache = Some(cache);
    status.volumes.truncate(1);
    status.transits.clear();
    status.object_volumes.clear();
    status.reactors.clear();
    check("opening", &status, None);
}

#[test]
fn a_daemon_without_anything_is_shown_as_recorded() {
    check("empty", &Status::default(), None);
}

/// Returns a status with every field set to a different number.
fn open() -> Status {
    Status {
        version: "0.1.0".into(),
        pid: 4711,
        uptime_s: 86_461,
        configuration: "/etc/forebay.toml".into(),
        state: "/var/lib/forebay".into(),
        io_engine: "io_uring".into(),
        shutting_down: true,
        cache: Some(cache()),
        volumes: vec![
            volume("db", 1, Some(Mode::WriteBack)),
            volume("quo\"ted", 2, None),
            volume("logs", 3, Some(Mode::WriteOnly)),
        ],
        devices: vec![device("ssd", "cache", 1), device("disk", "backing", 2)],
        transits: vec![transit("fast", 1), transit("faster", 2)],
        object_volumes: vec![object_volume("far", 1)],
        state_trouble: Some("the state directory is gone".into()),
        file_troubles: vec!["the metadata file is gone".into()],
        listening: vec![
            "NBD on 127.0.0.1:10809".into(),
            "NVMe/TCP on 127.0.0.1:4420".into(),
        ],
        reactors: vec![
            ReactorStatus {
                name: "engine".into(),
                connections: 3,
            },
            ReactorStatus {
                name: "front-1".into(),
                connections: 5,
            },
        ],
    }
}

fn cache() -> CacheStatus {
    CacheStatus {
        uuid: "00112233445566778899aabbccddeeff".into(),
        durability: "flush".into(),
        recovery: "recovered: 9 blocks kept, 4 of them dirty".into(),
        damaged_records: 101,
        recovery_ms: 10_203,
        opening: None,
        recovered_blocks: 104,
        recovering_blocks: 63,
        recovering_ms: Some(106_000),
        recovery_compared_bytes: 107 << 20,
        recovery_same_bytes: 108 << 19,
        dirty_tracking: "abt".into(),
        tree_persists: 109,
        tree_written_bytes: 110 << 12,
        tree_memory_bytes: 111 << 10,
        checksums: Some(ChecksumStatus {
            unverified: 112,
            refetched: 113,
            condemned: 114,
            corrupt_bytes: 115 << 12,
            written_bytes: 116 << 10,
        }),
        scrub: Some(ScrubStatus {
            text: "a scrub has read 5 MiB".into(),
            running: true,
            stopped: true,
            read_bytes: 117 << 10,
            blocks_done: 118,
            blocks: 119,
            refetched: 120,
            corrupt_blocks: 121,
            errors: 122,
            first: Some("64 KiB at byte 0 of volume \"db\"".into()),
        }),
        block_size_bytes: 32 << 10,
        block_sizes: "32K..256K".into(),
        capacity_bytes: 1 << 40,
        used_bytes: 123 << 30,
        dirty_bytes: 45 << 30,
        dirty_blocks: 124,
        dirty_limit_percent: 60,
        dirty_low_percent: 20,
        cleaning: "auto".into(),
        evictions: 125,
        promotions: 126,
        cleaned_blocks: 127,
        cleaned_bytes: 128 << 20,
        commits: 129,
        commit_time_us: 130_131,
        metadata_written_bytes: 132 << 12,
        write_back_errors: 133,
        read_errors: 134,
        memory_bytes: 135 << 20,
        failure: Some("the cache device is gone".into()),
    }
}

fn volume(name: &str, number: u64, mode: Option<Mode>) -> VolumeStatus {
    let of = |value: u64| value + 1000 * number;
    VolumeStatus {
        name: name.into(),
        state: match number {
            3 => "not configured".into(),
            _ => "served".into(),
        },
        size_bytes: number << 40,
        mode,
        promotion: Promotion::Nhit { hits: 3 },
        read_only: true,
        epoch: of(1),
        dirty_bytes: of(2) << 12,
        cached_bytes: of(3) << 20,
        read_hits: of(4),
        read_misses: of(5),
        write_hits: of(6),
        write_misses: of(7),
        bypassed_reads: of(8),
        bypassed_writes: of(9),
        split_reads: of(10),
        bypassed_for_room: of(11),
        in_flight: of(12),
        iops_limit: Some(5000),
        bandwidth_limit_bytes_per_s: Some(100 << 20),
        limited: of(13),
        limited_us: of(14) * 1001,
        timed_out: of(15),
        overdue: of(16),
        loss: Some("a flush failed".into()),
        diverged: number == 1,
        refuses_writes: number == 3,
        refusal: (number == 2).then(|| "cannot write db.ranges".into()),
        operations: ["read", "write", "flush", "discard", "write_zeroes"]
            .iter()
            .zip(of(20)..)
            .map(|(kind, value)| operation(kind, value))
            .collect(),
    }
}

fn operation(kind: &str, value: u64) -> OperationStatus {
    let buckets = [(50_000, value), (1_500_000, 10), (90_000_000_000, 1)];
    OperationStatus {
        kind: kind.into(),
        count: 10 * value,
        bytes: value << 12,
        errors: value % 7,
        latency: Latency::from_buckets(buckets.into_iter(), value * 51_003),
    }
}

fn device(name: &str, role: &str, number: u64) -> DeviceStatus {
    let of = |value: u64| value + 100 * number;
    DeviceStatus {
        name: name.into(),
        what: "file <a&b>".into(),
        role: role.into(),
        size_bytes: number << 40,
        reads: of(1),
        read_bytes: of(2) << 12,
        writes: of(3),
        write_bytes: of(4) << 12,
        flushes: of(5),
        fua_writes: of(6),
        discard_bytes: of(7) << 12,
        write_zeroes_bytes: of(8) << 12,
        errors: of(9),
        last_error: Some("write of 512 bytes at byte 0 of a: No space left".into()),
    }
}

fn object_volume(name: &str, number: u64) -> ObjectStatus {
    let of = |value: u64| value + 10_000 * number;
    ObjectStatus {
        name: name.into(),
        creations: of(1),
        reads: of(2),
        lists: of(3),
        deletions: of(4),
        failures: of(5),
        uploaded_bytes: of(6) << 20,
        downloaded_bytes: of(7) << 20,
        stored_bytes: of(8) << 20,
        live_bytes: of(9) << 20,
        mapped_bytes: of(10) << 20,
        objects: of(11),
        has_prices: true,
        monthly_cents: of(12),
    }
}

fn transit(name: &str, number: u64) -> TransitStatus {
    let of = |value: u64| value + 10_000 * number;
    TransitStatus {
        name: name.into(),
        policy: "caiti".into(),
        capacity_bytes: 512 << 20,
        used_bytes: of(1) << 12,
        owed_bytes: of(2) << 12,
        written: of(3),
        rewritten: of(4),
        bypassed: of(5),
        fua: of(6),
        waited: of(7),
        evicted: of(8),
        refused: of(9),
        read_hits: of(10),
        read_misses: of(11),
        flushes: of(12),
        flushed: of(13),
    }
}
