//! Writes that the state directory cannot record are refused, and the log and the status say why.

use super::bypass::{Failure, fail, settle, until_noticed, write};
use super::room::errors_in_place_of_signals;
use super::support::{Daemon, Place};
use super::unnoted::Namespace;
use super::{block, write_blocks};

const REFUSES: &str = "VOLUME \"db\" REFUSES WRITES that cannot be recorded: ";

/// Checks the status, the metrics and the log of a daemon whose state directory is full.
fn assert_refuses(place: &Place, daemon: &Daemon) {
    let printed = place.ok(&["status"]);
    let line = printed.lines().find(|line| line.contains(REFUSES));
    assert!(
        line.is_some_and(|line| line.contains("cannot write")),
        "{printed}"
    );
    assert!(!printed.contains("reads and writes go to"), "{printed}");
    assert!(printed.contains("No space left on device"), "{printed}");
    let metrics = daemon.get("/metrics");
    assert!(metrics.contains("forebay_volume_refuses_writes{volume=\"db\"} 1"));
}

#[test]
fn without_the_cache_a_full_state_directory_is_named() {
    let place = Place::new("unrecorded-without", "wb");
    let Some(inside) = Namespace::new(&place) else {
        return;
    };
    inside.serve().terminate();
    let daemon = inside.serve_with(&["--without-cache", "db"]);
    let mut nbd = place.connect();
    // Before the log of ranges has a block of the file system.
    inside.fill();
    for _ in 0..3 {
        assert_ne!(write(&mut nbd, 0, &block(7)), 0);
    }
    let named = "cannot write the log of ranges";
    place.wait_for_log(named);
    let log = place.log();
    assert_eq!(log.matches(named).count(), 1, "{log}");
    assert!(log.contains("No space left on device"), "{log}");
    assert_refuses(&place, &daemon);
    inside.free();
    assert_eq!(write(&mut nbd, 0, &block(7)), 0, "{}", place.log());
    let metrics = daemon.get("/metrics");
    assert!(metrics.contains("forebay_volume_refuses_writes{volume=\"db\"} 0"));
    daemon.terminate();
}

#[test]
fn with_a_failed_cache_a_full_state_directory_is_named() {
    errors_in_place_of_signals();
    let place = Place::new("unrecorded-failed", "wt");
    let Some(inside) = Namespace::new(&place) else {
        return;
    };
    let daemon = inside.serve();
    let mut nbd = place.connect();
    write_blocks(&mut nbd, 0..4);
    settle(&place, &mut nbd);
    inside.fill();
    fail(&place, &daemon, Failure::Gone);
    until_noticed(&place, &mut nbd);
    assert_ne!(write(&mut nbd, 1, &block(7)), 0);
    assert_refuses(&place, &daemon);
    inside.free();
    assert_eq!(write(&mut nbd, 1, &block(7)), 0, "{}", place.log());
    let metrics = daemon.get("/metrics");
    assert!(metrics.contains("forebay_volume_refuses_writes{volume=\"db\"} 0"));
    daemon.kill();
}
