//! A cache device that fails in service, as a user sees it. Volumes that do not need it continue at
//! their backing devices without a flag, also over the next start. A limit on the size of files
//! simulates a device that takes no more writes.

use std::fs::File;
use std::time::{Duration, Instant};

use super::checked::set_len;
use super::room::{errors_in_place_of_signals, limit_files};
use super::support::{Daemon, Place, text};
use super::{Nbd, block, check_blocks, write_blocks};

/// Size limit of files. The superblock's first copy and four blocks of the backing device are
/// below, and the log is above.
const LIMIT: u64 = 16 << 10;

/// Failure of the cache device.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Failure {
    /// Writes fail, reads succeed.
    TakesNothing,
    /// Writes and reads fail.
    Gone,
}

pub(crate) fn fail(place: &Place, daemon: &Daemon, failure: Failure) {
    if matches!(failure, Failure::Gone) {
        let cache = File::options().write(true).open(place.path("cache"));
        cache.expect("there").set_len(LIMIT).expect("cut off");
    }
    limit_files(daemon, LIMIT);
}

pub(crate) fn write(nbd: &mut Nbd, number: u64, data: &[u8]) -> u32 {
    nbd.write(number * 4096, data).expect("an answer")
}

fn read(nbd: &mut Nbd, number: u64) -> Result<Vec<u8>, u32> {
    nbd.read(number * 4096, 4096).expect("an answer")
}

/// Repeats a request until its error is logged.
fn until_logged(place: &Place, text: &str, mut request: impl FnMut()) {
    let begin = Instant::now();
    while !place.log().contains(text) {
        assert!(begin.elapsed() < Duration::from_secs(60), "{}", place.log());
        request();
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Makes the cache store its state durably, so that it must record a change before it holds more.
pub(crate) fn settle(place: &Place, nbd: &mut Nbd) {
    assert_eq!(nbd.flush().expect("an answer"), 0);
    place.ok(&["flush"]);
}

/// Writes until the cache notices that its device has failed. Announced writes do not need it.
pub(crate) fn until_noticed(place: &Place, nbd: &mut Nbd) {
    let begin = Instant::now();
    while place.status()["cache"]["failure"].is_null() {
        assert!(begin.elapsed() < Duration::from_secs(60), "{}", place.log());
        // The cache fails where it alone needs the state directory.
        let _ = write(nbd, 3, &block(3));
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Restores the cache as it was before the failure.
fn keep_copy(place: &Place) -> impl Fn() + use<'_> {
    std::fs::copy(place.path("cache"), place.path("copy")).expect("copied");
    || {
        std::fs::copy(place.path("copy"), place.path("cache")).expect("put back");
    }
}

fn assert_goes_on(place: &Place, daemon: &Daemon) {
    let printed = place.ok(&["status"]);
    assert!(
        printed.contains("VOLUME \"db\" CONTINUES WITHOUT ITS CACHE"),
        "{printed}"
    );
    let metrics = daemon.get("/metrics");
    for line in [
        "forebay_cache_failed 1",
        "forebay_volume_diverged{volume=\"db\"} 1",
        "forebay_volume_refuses_writes{volume=\"db\"} 0",
    ] {
        assert!(metrics.contains(line), "{line} in {metrics}");
    }
    place.wait_for_log("the cache device failed");
    place.wait_for_log("CONTINUES WITHOUT ITS CACHE");
}

#[test]
fn a_volume_in_a_mode_that_leaves_nothing_dirty_survives_its_cache_without_a_flag() {
    errors_in_place_of_signals();
    for mode in ["wt", "wa", "wi", "pt"] {
        for failure in [Failure::TakesNothing, Failure::Gone] {
            let place = Place::new(&format!("survives-{mode}-{failure:?}"), mode);
            let daemon = place.serve(&[]);
            let mut nbd = place.connect();
            write_blocks(&mut nbd, 0..4);
            // Pass-through caches nothing. In the other modes a read caches some of it.
            check_blocks(&mut nbd, 0..4);
            place.ok(&["mode", "db", "wt"]);
            write_blocks(&mut nbd, 0..4);
            assert_eq!(nbd.flush().expect("an answer"), 0);
            check_blocks(&mut nbd, 0..4);
            place.ok(&["mode", "db", mode]);
            let put_back = keep_copy(&place);
            fail(&place, &daemon, failure);
            check_blocks(&mut nbd, 2..4);
            for number in [0, 1] {
                let error = write(&mut nbd, number, &block(number + 100));
                assert_eq!(error, 0, "{mode}, {failure:?}: {}", place.log());
            }
            assert_eq!(nbd.flush().expect("an answer"), 0, "{}", place.log());
            assert_goes_on(&place, &daemon);
            assert_eq!(read(&mut nbd, 0), Ok(block(100)));
            check_blocks(&mut nbd, 2..4);
            let refused = place.refused(&["mode", "db", "wb"]);
            assert!(refused.contains("the cache has failed"), "{refused}");
            daemon.kill();
            // The cache is unchanged and does not know the later writes.
            put_back();
            let daemon = place.serve(&[]);
            let mut nbd = place.connect();
            for number in [0, 1] {
                assert_eq!(read(&mut nbd, number), Ok(block(number + 100)), "{mode}");
            }
            check_blocks(&mut nbd, 2..4);
            assert!(!place.path("state/db.dirty").exists());
            daemon.terminate();
            let daemon = place.serve(&[]);
            assert_eq!(read(&mut place.connect(), 0), Ok(block(100)), "{mode}");
            daemon.terminate();
        }
    }
}

#[test]
fn an_empty_cache_takes_the_place_of_one_that_failed_and_had_nothing_dirty() {
    errors_in_place_of_signals();
    // The second volume had dirty data, which is written back. Its state directory allowed for
    // some.
    for first in ["wt", "wb"] {
        let place = Place::new(&format!("replaced-{first}"), first);
        let daemon = place.serve(&[]);
        let mut nbd = place.connect();
        write_blocks(&mut nbd, 0..4);
        settle(&place, &mut nbd);
        place.ok(&["mode", "db", "wt"]);
        fail(&place, &daemon, Failure::Gone);
        until_noticed(&place, &mut nbd);
        assert_eq!(write(&mut nbd, 1, &block(101)), 0, "{}", place.log());
        assert_goes_on(&place, &daemon);
        daemon.kill();
        std::fs::remove_file(place.path("cache")).expect("there");
        let _ = std::fs::remove_file(place.path("journal"));
        place.ok(&[
            "format",
            "--create",
            "64M",
            "--cache",
            text(&place.path("cache")),
        ]);
        let daemon = place.serve(&[]);
        let mut nbd = place.connect();
        assert_eq!(read(&mut nbd, 1), Ok(block(101)));
        check_blocks(&mut nbd, 2..4);
        daemon.terminate();
    }
}

#[test]
fn dirty_data_of_an_earlier_mode_stays_and_is_named() {
    errors_in_place_of_signals();
    let place = Place::new("kept", "wb");
    let daemon = place.serve(&[]);
    let mut nbd = place.connect();
    write_blocks(&mut nbd, 0..4);
    place.ok(&["flush"]);
    // Far from the others, in another region.
    let apart = 1280..1282;
    write_blocks(&mut nbd, apart.clone());
    assert_eq!(nbd.flush().expect("an answer"), 0);
    let put_back = keep_copy(&place);
    fail(&place, &daemon, Failure::Gone);
    for _ in 0..2 {
        assert_ne!(
            write(&mut nbd, 0, &block(100)),
            0,
            "its mode needs the cache"
        );
    }
    let printed = place.ok(&["status"]);
    assert!(
        printed.contains("VOLUME \"db\" REFUSES WRITES"),
        "{printed}"
    );
    assert!(printed.contains("forebay mode db wt"), "{printed}");
    let metrics = daemon.get("/metrics");
    assert!(metrics.contains("forebay_volume_refuses_writes{volume=\"db\"} 1"));
    check_blocks(&mut nbd, 1..4);
    place.ok(&["mode", "db", "wt"]);
    assert_eq!(write(&mut nbd, 1, &block(101)), 0, "{}", place.log());
    assert_goes_on(&place, &daemon);
    // At most one error of a volume is logged in ten seconds.
    until_logged(&place, "overlap dirty data at 5242880", || {
        let error = write(&mut nbd, apart.start, &block(7));
        assert_ne!(error, 0, "it is dirty");
    });
    until_logged(&place, "4096 bytes at 5242880 are dirty", || {
        assert!(read(&mut nbd, apart.start).is_err(), "it cannot be read");
    });
    daemon.kill();
    put_back();
    // In write-back, as configured, without a decision of the user.
    let daemon = place.serve(&[]);
    let mut nbd = place.connect();
    assert_eq!(read(&mut nbd, 1), Ok(block(101)), "{}", place.log());
    check_blocks(&mut nbd, 2..4);
    check_blocks(&mut nbd, apart);
    daemon.terminate();
}

#[test]
fn a_state_directory_that_cannot_be_written_fails_the_write_by_name() {
    errors_in_place_of_signals();
    for name in ["db.dirty-new", "db.epoch.new"] {
        let place = Place::new(&format!("unwritable-{name}"), "wt");
        let daemon = place.serve(&[]);
        let mut nbd = place.connect();
        write_blocks(&mut nbd, 0..4);
        let in_the_way = place.path("state").join(name);
        std::fs::create_dir(&in_the_way).expect("made");
        settle(&place, &mut nbd);
        fail(&place, &daemon, Failure::TakesNothing);
        until_noticed(&place, &mut nbd);
        for _ in 0..2 {
            assert_ne!(nbd.flush().expect("an answer"), 0);
            assert_ne!(write(&mut nbd, 1, &block(101)), 0);
        }
        place.wait_for_log(name);
        place.wait_for_log("cannot continue without its cache");
        assert_eq!(
            std::fs::read(place.path("db.img")).expect("there")[4096..8192],
            block(1)
        );
        check_blocks(&mut nbd, 0..4);
        std::fs::remove_dir(&in_the_way).expect("removed");
        assert_eq!(write(&mut nbd, 1, &block(101)), 0, "{}", place.log());
        assert_goes_on(&place, &daemon);
        daemon.kill();
        let daemon = place.serve(&[]);
        assert_eq!(read(&mut place.connect(), 1), Ok(block(101)));
        daemon.terminate();
    }
}

#[test]
fn a_volume_that_needs_no_cache_starts_with_an_empty_one_after_its_cache_died_between_starts() {
    let place = Place::new("between", "wt");
    for round in 0..3 {
        let daemon = place.serve(&[]);
        let mut nbd = place.connect();
        write_blocks(&mut nbd, round..round + 1);
        check_blocks(&mut nbd, 0..round + 1);
        daemon.kill();
    }
    std::fs::remove_file(place.path("cache")).expect("there");
    let _ = std::fs::remove_file(place.path("journal"));
    place.ok(&[
        "format",
        "--create",
        "64M",
        "--cache",
        text(&place.path("cache")),
    ]);
    let daemon = place.serve(&[]);
    check_blocks(&mut place.connect(), 0..3);
    daemon.terminate();
}

/// Clients get a number. The cause is in the log, with and without a cache.
#[test]
fn the_log_names_the_cause_of_failed_requests() {
    for arguments in [&[][..], &["--without-cache", "db"]] {
        let place = Place::new("causes", "wt");
        let daemon = place.serve(arguments);
        let mut nbd = place.connect();
        set_len(&place.path("db.img"), 0);
        let answer = nbd.read(0, 4096).expect("an answer");
        assert!(answer.is_err(), "{arguments:?}");
        place.wait_for_log("a request failed: ");
        let log = place.log();
        let line = log.lines().find(|line| line.contains("a request failed: "));
        assert!(line.is_some_and(|line| line.contains("db.img")), "{log}");
        assert_eq!(log.matches("a request failed: ").count(), 1, "{log}");
        drop(nbd);
        daemon.kill();
    }
}
