//! A sparse cache file that cannot grow, as on a full file system, as a user sees it. The failure
//! concerns the cache's own log, or all of the cache. A limit on the size of files simulates the
//! file system.

use std::fs::File;
use std::time::{Duration, Instant};

use super::support::{Daemon, Place, text};
use super::{Nbd, block, check_blocks, write_blocks};

/// Numbers of blocks that are never written past the cache: they are in another range of the log.
const APART: std::ops::Range<u64> = 1280..1288;
/// Size limit of files. The backing device's blocks up to 15 are below. The log's end and all data
/// of the cache are above.
const LIMIT: u64 = 64 << 10;

/// Sets the size limit of files, bytes.
pub(super) fn limit_files(daemon: &Daemon, bytes: u64) {
    let limit = libc::rlimit {
        rlim_cur: bytes,
        rlim_max: libc::RLIM_INFINITY,
    };
    let pid = libc::pid_t::try_from(daemon.id()).expect("a process");
    // SAFETY: `limit` outlives the call, which writes nothing.
    let set = unsafe { libc::prlimit(pid, libc::RLIMIT_FSIZE, &limit, std::ptr::null_mut()) };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
}

/// Ignores the signal of the limit: the daemon must learn of it by errors.
pub(super) fn errors_in_place_of_signals() {
    // SAFETY: no handler runs; started programs inherit the ignored signal.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// Returns the start of the data, bytes, from the superblock of the place's cache.
fn data_offset(place: &Place) -> u64 {
    let cache = std::fs::read(place.path("cache")).expect("there");
    u64::from_le_bytes(cache[80..88].try_into().expect("eight bytes"))
}

#[test]
fn a_cache_file_without_room_takes_nothing_in_and_says_so() {
    errors_in_place_of_signals();
    let place = Place::new("room", "wb");
    let daemon = place.serve(&[]);
    let mut nbd = place.connect();
    limit_files(&daemon, data_offset(&place));
    // Misses bypass the cache, reads and writes.
    write_blocks(&mut nbd, 0..4);
    check_blocks(&mut nbd, 0..4);
    assert_eq!(nbd.flush().expect("an answer"), 0);
    let status = place.status();
    assert_eq!(status["cache"]["used_bytes"], 0, "{status}");
    assert_eq!(status["cache"]["failure"], serde_json::Value::Null);
    let printed = place.ok(&["status"]);
    assert!(printed.contains("device \"ssd\":"), "{printed}");
    assert!(
        printed.contains("make room on its file system"),
        "{printed}"
    );
    limit_files(&daemon, libc::RLIM_INFINITY);
    write_blocks(&mut nbd, 4..8);
    check_blocks(&mut nbd, 0..8);
    assert_ne!(place.status()["cache"]["used_bytes"], 0);
    daemon.terminate();
}

/// Returns a daemon whose cache has dirty data and cannot extend its log.
fn failing(place: &Place, more: &[&str]) -> Daemon {
    // Only a flush extends the log.
    place.edit_config(&[("[cache]", "[cache]\ncommit_interval = \"60s\"")]);
    let daemon = place.serve(more);
    let mut nbd = place.connect();
    write_blocks(&mut nbd, 0..8);
    write_blocks(&mut nbd, APART);
    // The log extends beyond the need of the backing device and the state directory.
    for round in 0..40 {
        write_blocks(&mut nbd, round % 8..round % 8 + 1);
        let at = (16 + round) * 4096;
        assert_eq!(nbd.write(at, &block(round)).expect("an answer"), 0);
        assert_eq!(nbd.flush().expect("an answer"), 0);
    }
    // Acknowledged, and not logged yet.
    assert_eq!(nbd.write(60 * 4096, &block(60)).expect("an answer"), 0);
    limit_files(&daemon, LIMIT);
    assert_ne!(nbd.flush().expect("an answer"), 0, "it cannot be logged");
    place.wait_until(|status| !status["cache"]["failure"].is_null());
    daemon
}

#[test]
fn without_leave_a_failed_cache_refuses_writes() {
    errors_in_place_of_signals();
    let place = Place::new("refuses", "wb");
    let daemon = failing(&place, &[]);
    let mut nbd = place.connect();
    assert_ne!(nbd.write(0, &block(7)).expect("an answer"), 0);
    assert!(
        place
            .ok(&["status"])
            .contains("THE CACHE TAKES NO MORE WRITES")
    );
    assert!(daemon.get("/metrics").contains("forebay_cache_failed 1"));
    daemon.kill();
}

#[test]
fn with_leave_a_volume_goes_on_without_its_failed_cache_until_the_next_start() {
    errors_in_place_of_signals();
    let place = Place::new("diverges", "wb");
    let daemon = failing(&place, &["--accept-divergence"]);
    let mut nbd = place.connect();
    for number in [1, 9] {
        let data = block(number + 100);
        assert_eq!(nbd.write(number * 4096, &data).expect("an answer"), 0);
    }
    let printed = place.ok(&["status"]);
    assert!(
        printed.contains("VOLUME \"db\" CONTINUES WITHOUT ITS CACHE"),
        "{printed}"
    );
    let metrics = daemon.get("/metrics");
    assert!(
        metrics.contains("forebay_volume_diverged{volume=\"db\"} 1"),
        "{metrics}"
    );
    for _ in 0..2 {
        assert_ne!(
            nbd.flush().expect("an answer"),
            0,
            "block 60 is not flushed"
        );
    }
    let read = |nbd: &mut Nbd, number: u64| nbd.read(number * 4096, 4096).expect("an answer");
    assert_eq!(read(&mut nbd, 1), Ok(block(101)));
    check_blocks(&mut nbd, 2..8);
    daemon.kill();
    assert!(place.path("state/db.ranges").exists());
    let refused = place.refused(&["serve", text(&place.path("forebay.toml"))]);
    assert!(refused.contains("--discard-stale-dirty db"), "{refused}");
    let daemon = place.serve(&["--discard-stale-dirty", "db"]);
    let mut nbd = place.connect();
    assert_eq!(
        read(&mut nbd, 1),
        Ok(block(101)),
        "newer than what the cache has"
    );
    check_blocks(&mut nbd, APART);
    assert!(place.log().contains("stale dirty data is discarded"));
    daemon.terminate();
}

#[test]
fn a_lost_cache_keeps_clean_data_in_service_and_names_dirty_data() {
    errors_in_place_of_signals();
    let place = Place::new("gone", "wb");
    let daemon = place.serve(&["--accept-divergence"]);
    let mut nbd = place.connect();
    write_blocks(&mut nbd, 0..8);
    place.ok(&["flush"]);
    write_blocks(&mut nbd, 8..12);
    assert_eq!(nbd.flush().expect("an answer"), 0);
    // The data can neither be read nor written any more.
    let cache = File::options().write(true).open(place.path("cache"));
    cache.expect("there").set_len(LIMIT).expect("cut off");
    limit_files(&daemon, LIMIT);
    check_blocks(&mut nbd, 0..8);
    assert!(nbd.read(9 * 4096, 4096).expect("an answer").is_err());
    place.wait_for_log("4096 bytes at 36864 are dirty");
    // In place of clean data, and of absent data.
    for number in [9, 1, 14] {
        let data = block(number + 100);
        assert_eq!(
            nbd.write(number * 4096, &data).expect("an answer"),
            0,
            "{}",
            place.log()
        );
    }
    for number in [9, 1, 14] {
        let data = nbd.read(number * 4096, 4096).expect("an answer");
        assert_eq!(data, Ok(block(number + 100)), "block {number}");
    }
    assert!(nbd.read(10 * 4096, 4096).expect("an answer").is_err());
    assert_eq!(nbd.flush().expect("an answer"), 0, "nothing else is owed");
    assert!(
        place
            .ok(&["status"])
            .contains("CONTINUES WITHOUT ITS CACHE")
    );
    // No volume can be detached. The daemon ends all the same, and the written data is there.
    assert_eq!(place.status()["volumes"][0]["state"], "served");
    assert!(place.refused(&["detach", "db"]).contains("abandon-dirty"));
    assert_eq!(place.status()["volumes"][0]["state"], "not exported");
    daemon.signal(libc::SIGTERM);
    daemon.wait();
    let disk = std::fs::read(place.path("db.img")).expect("there");
    for number in [1, 9, 14] {
        let at = number * 4096;
        assert_eq!(disk[at..at + 4096], block(number as u64 + 100), "{number}");
    }
}

/// Number of a block within a few, its last acknowledged version, and the one in flight.
struct Version {
    number: u64,
    acknowledged: u64,
    asked: u64,
    /// The version was acknowledged with its range in the log.
    past: bool,
}

impl Version {
    fn data(&self, version: u64) -> Vec<u8> {
        block(self.number * 1000 + version)
    }
}

/// Returns whether the log of ranges is not empty.
fn is_logged(place: &Place) -> bool {
    std::fs::read(place.path("state/db.ranges")).is_ok_and(|log| !log.is_empty())
}

/// Overwrites blocks repeatedly until the daemon is dead.
fn write_on(place: &Place, mut nbd: Nbd) -> Vec<Version> {
    let mut versions: Vec<_> = (0..4)
        .map(|number| Version {
            number,
            acknowledged: 0,
            asked: 0,
            past: false,
        })
        .collect();
    for turn in 0.. {
        let version = &mut versions[turn % 4];
        version.asked += 1;
        let (was_logged, data) = (is_logged(place), version.data(version.asked));
        match nbd.write(version.number * 4096, &data) {
            Ok(0) => {
                version.acknowledged = version.asked;
                version.past = was_logged;
            }
            Ok(error) => panic!("a write is refused: {error}"),
            Err(_) => return versions,
        }
        if turn % 8 == 7 && nbd.flush().is_err() {
            break;
        }
    }
    versions
}

#[test]
fn a_volume_without_its_cache_keeps_written_data_after_a_kill_at_any_moment() {
    errors_in_place_of_signals();
    let (mut diverged, mut not_yet) = (0, 0);
    for round in 0..18_u64 {
        let place = Place::new(&format!("killed-{round}"), "wb");
        let daemon = place.serve(&["--accept-divergence"]);
        let mut nbd = place.connect();
        write_blocks(&mut nbd, APART);
        for version in 0..4 {
            assert_eq!(
                nbd.write(version * 4096, &block(version * 1000))
                    .expect("an answer"),
                0
            );
        }
        for number in 0..20 {
            write_blocks(&mut nbd, 16 + number..17 + number);
            assert_eq!(nbd.flush().expect("an answer"), 0);
        }
        let writer = std::thread::scope(|scope| {
            let writer = scope.spawn(|| write_on(&place, nbd));
            std::thread::sleep(Duration::from_millis(20));
            limit_files(&daemon, LIMIT);
            // Each state is short: the kill follows its beginning after a varying time.
            let begun = || match round % 3 {
                0 => true,
                1 => place.path("state/db.ranges").exists(),
                _ => is_logged(&place),
            };
            let begin = Instant::now();
            while !begun() {
                assert!(begin.elapsed() < Duration::from_secs(30), "{}", place.log());
            }
            // Without a delay, the kill precedes logging in some rounds.
            if round % 3 > 0 {
                std::thread::sleep(Duration::from_micros(500 * round));
            }
            daemon.kill();
            writer.join().expect("it ends")
        });
        let logged = is_logged(&place);
        diverged += u32::from(logged);
        not_yet += u32::from(!logged);
        let daemon = place.serve(&["--discard-stale-dirty", "db"]);
        let mut nbd = place.connect();
        check_blocks(&mut nbd, APART);
        for version in &writer {
            let found = nbd.read(version.number * 4096, 4096).expect("an answer");
            let found = found.expect("it is read");
            let asked = found == version.data(version.asked);
            let acknowledged = found == version.data(version.acknowledged);
            // Data that only the cache had is abandoned where a write beside it bypassed the cache.
            let given_up = logged && !version.past;
            assert!(
                asked || acknowledged || given_up,
                "round {round}, block {} of version {}: {}",
                version.number,
                version.acknowledged,
                place.log()
            );
        }
        daemon.terminate();
    }
    eprintln!("killed after something was logged {diverged} times, before {not_yet} times");
    assert!(diverged > 5 && not_yet > 0, "{diverged} and {not_yet}");
}
