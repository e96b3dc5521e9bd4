//! A cache file that cannot grow where it is sparse, as on a file system that is full: what a user sees, and what
//! becomes of the volume when that hits the cache's own log. A limit of the process on the size of files stands for the
//! file system.

use super::support::{Daemon, Place, text};
use super::{block, check_blocks, write_blocks};

/// The size that files may have. Where they end before it, they cannot grow to it.
fn limit_files(daemon: &Daemon, bytes: u64) {
    let limit = libc::rlimit {
        rlim_cur: bytes,
        rlim_max: libc::RLIM_INFINITY,
    };
    let pid = libc::pid_t::try_from(daemon.child.id()).expect("a process");
    // SAFETY: `limit` outlives the call, which writes nothing.
    let set = unsafe { libc::prlimit(pid, libc::RLIMIT_FSIZE, &limit, std::ptr::null_mut()) };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
}

/// The daemon is to be told by errors, not by the signal that goes with them.
fn errors_in_place_of_signals() {
    // SAFETY: no handler runs; what is ignored stays so in the programs that are started.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// What the superblock of the place's cache says of where the data begins, bytes.
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
    // Misses go round the cache, written and read.
    write_blocks(&mut nbd, 0..4);
    check_blocks(&mut nbd, 0..4);
    assert_eq!(nbd.flush().expect("an answer"), 0);
    let status = place.status();
    assert_eq!(status["cache"]["used_bytes"], 0, "{status}");
    assert_eq!(status["cache"]["failure"], serde_json::Value::Null);
    let told = place.ok(&["status"]);
    assert!(told.contains("device \"ssd\":"), "{told}");
    assert!(told.contains("make room on its file system"), "{told}");
    limit_files(&daemon, libc::RLIM_INFINITY);
    write_blocks(&mut nbd, 4..8);
    check_blocks(&mut nbd, 0..8);
    assert_ne!(place.status()["cache"]["used_bytes"], 0);
    daemon.terminate();
}

/// A daemon whose cache has dirty data and whose cache device takes no more of its log.
fn failing(place: &Place, more: &[&str]) -> Daemon {
    let daemon = place.serve(more);
    let mut nbd = place.connect();
    write_blocks(&mut nbd, 0..8);
    // The log has come further than what the backing device and the state directory need.
    for round in 0..40 {
        write_blocks(&mut nbd, round % 8..round % 8 + 1);
        let at = (16 + round) * 4096;
        assert_eq!(nbd.write(at, &block(round)).expect("an answer"), 0);
        assert_eq!(nbd.flush().expect("an answer"), 0);
    }
    // Acknowledged, and still to be logged.
    assert_eq!(nbd.write(60 * 4096, &block(60)).expect("an answer"), 0);
    limit_files(&daemon, 64 << 10);
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
    let told = place.ok(&["status"]);
    assert!(
        told.contains("VOLUME \"db\" GOES ON WITHOUT ITS CACHE"),
        "{told}"
    );
    let metrics = daemon.get("/metrics");
    assert!(
        metrics.contains("forebay_volume_diverged{volume=\"db\"} 1"),
        "{metrics}"
    );
    assert_ne!(nbd.flush().expect("an answer"), 0, "some of it may be gone");
    assert_eq!(nbd.flush().expect("an answer"), 0, "told once");
    let read =
        |nbd: &mut super::Nbd, number: u64| nbd.read(number * 4096, 4096).expect("an answer");
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
    assert!(place.log().contains("stale dirty data is discarded"));
    daemon.terminate();
}
