//! A daemon that was killed with dirty data, and a cache device that is slow at the next start.
//! Certainly clean data is read at once. All other requests wait for the cache and return correct
//! data.

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::support::{Daemon, Place};
use super::{block, check_blocks, write_blocks};

const MIB: u64 = 1 << 20;
/// Offset in a zone without writes, of which some data is cached, bytes.
const CLEAN: u64 = 128 * MIB;
/// Offset in a zone without cached data, bytes.
const UNTOUCHED: u64 = 64 * MIB;

/// Returns the place of a killed daemon. Its cache has dirty data of the first zone and clean data
/// of the third. Its device takes `latency` for each operation.
pub(crate) fn killed(name: &str, latency: &str) -> Place {
    let place = Place::new(name, "wb");
    let mut image = vec![0; CLEAN as usize];
    image.extend(block(1000));
    image.resize(192 * MIB as usize, 0);
    std::fs::write(place.path("db.img"), image).expect("written");
    place.edit_config(&[("[cache]", "[cache]\ncommit_interval = \"60s\"")]);
    let daemon = place.serve(&[]);
    let mut nbd = place.connect();
    let clean = nbd.read(CLEAN, 4096).expect("an answer");
    assert_eq!(clean, Ok(block(1000)));
    write_blocks(&mut nbd, 0..64);
    daemon.kill();
    let slow = format!(
        "[[device]]\nname = \"slow\"\nkind = \"emulate\"\non = \"ssd\"\n\
         read_latency = \"{latency}\"\n\
         write_latency = \"{latency}\"\n\n[cache]"
    );
    place.edit_config(&[("[cache]", &slow), ("data = \"ssd\"", "data = \"slow\"")]);
    place
}

fn opening(place: &Place) -> serde_json::Value {
    place.status()["cache"]["opening"].take()
}

/// Returns the daemon of such a place while its cache opens, after a first clean read.
fn begin(place: &Place) -> Daemon {
    let daemon = place.serve(&[]);
    let clean = place.connect().read(CLEAN, 4096).expect("an answer");
    assert_eq!(clean, Ok(block(1000)));
    assert!(opening(place).is_object(), "it waited for the cache");
    daemon
}

/// A service manager believes a daemon that says that it is ready.
#[test]
fn a_start_that_is_refused_is_never_ready() {
    let place = killed("never-ready", "30ms");
    std::fs::remove_file(place.path("journal")).expect("there");
    let refused = place.start().refused();
    assert!(refused.contains("journal"), "{refused}");
    let is_ready = |line: &str| line.ends_with(" ready");
    assert!(!place.log().lines().any(is_ready), "{}", place.log());
}

#[test]
fn clean_reads_do_not_wait_and_the_rest_is_right() {
    let place = killed("early", "300ms");
    // Starts that end in one way and in the other.
    begin(&place).kill();
    begin(&place).terminate();
    let config = place.read_config();
    place.configure("wb", "");
    let daemon = place.serve(&[]);
    let mut nbd = place.connect();
    check_blocks(&mut nbd, 1..64);
    assert_eq!(nbd.write(0, &block(500)).expect("an answer"), 0);
    daemon.kill();
    // A slower device: the daemon reports progress for the length of one operation.
    let config = config.replace("300ms", "1200ms");
    place.write_config(&config);

    let daemon = begin(&place);
    assert!(place.ok(&["status"]).contains("being opened"));
    assert!(daemon.get("/metrics").contains("forebay_"));
    let (began, answers) = (Instant::now(), AtomicU32::new(0));
    let (mut reader, mut writer) = (place.connect(), place.connect());
    thread::scope(|scope| {
        scope.spawn(|| {
            // The request may precede the map, and its result must be correct then as well.
            let data = reader.read(0, 4096).expect("an answer");
            assert_eq!(data, Ok(block(500)), "the backing device was asked");
        });
        scope.spawn(|| {
            let error = writer.write(UNTOUCHED, &block(7)).expect("an answer");
            answers.fetch_add(1, Ordering::SeqCst);
            assert_eq!(error, 0);
            let data = writer.read(UNTOUCHED, 4096).expect("an answer");
            assert_eq!(data, Ok(block(7)));
        });
        let mut nbd = place.connect();
        let data = nbd.read(CLEAN + 4096, 4096).expect("an answer");
        assert_eq!(data, Ok(vec![0; 4096]));
        let (mut has_progress, mut last) = (false, 0);
        while opening(&place).is_object() {
            let seen = opening(&place);
            let (Some(done), Some(all)) = (seen["done_bytes"].as_u64(), seen["bytes"].as_u64())
            else {
                break;
            };
            assert!(last <= done && done <= all, "{seen} after {last}");
            last = done;
            has_progress |= done > 0 && seen["left_ms"].is_u64();
            let answered = answers.load(Ordering::SeqCst);
            if opening(&place).is_object() {
                assert_eq!(answered, 0, "a write was taken before the cache was open");
            }
            assert!(began.elapsed() < Duration::from_secs(60), "{seen}");
        }
        assert!(has_progress, "no progress was told");
    });
    check_blocks(&mut place.connect(), 1..3);
    daemon.kill();
    // And on the device as it is.
    place.configure("wb", "");
    let daemon = place.serve(&[]);
    let mut nbd = place.connect();
    check_blocks(&mut nbd, 1..64);
    for (offset, number) in [(0, 500), (UNTOUCHED, 7)] {
        let data = nbd.read(offset, 4096).expect("an answer");
        assert_eq!(data, Ok(block(number)), "block {number}");
    }
    daemon.terminate();
}

#[test]
fn a_cache_that_cannot_be_opened_fails_waiting_requests_and_ends_the_daemon() {
    let place = killed("early-lost", "500ms");
    // Only the acknowledged writes are there.
    let mut journal = std::fs::read(place.path("journal")).expect("there");
    journal[4096..].fill(0);
    std::fs::write(place.path("journal"), journal).expect("written");
    let daemon = begin(&place);
    let mut nbd = place.connect();
    assert_ne!(nbd.write(UNTOUCHED, &block(7)).expect("an answer"), 0);
    let status = daemon.wait();
    assert_eq!(status.code(), Some(1), "{status:?}");
    let log = place.log();
    assert!(log.contains("--accept-journal-loss"), "{log}");
}
