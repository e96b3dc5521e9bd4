//! The program from outside: it starts, serves, is controlled, ends and restarts.

mod agreement;
mod all_or_nothing;
mod bypass;
mod checked;
mod clones;
mod copies;
mod cuts;
mod decisions;
mod earlier;
mod exports;
mod foreseen;
mod gone;
mod hung;
mod identity;
mod irregular;
mod kinds;
mod limits;
mod moved;
mod nbd_backing;
mod nvme;
mod object_backing;
mod object_claims;
mod online_open;
mod operator;
mod originals;
mod outputs;
mod parts;
mod rbd_backing;
mod refused;
mod repairs;
mod replays;
mod room;
mod sizes;
mod slots;
mod small;
mod sparse;
mod stale;
mod stalls;
mod starts;
mod stopped;
mod support;
mod swapped;
mod traces;
mod unnoted;
mod unrecorded;
mod unverified;
mod unwritable;
mod warnings;

use support::nbd::Nbd;
use support::{Place, text};

fn block(number: u64) -> Vec<u8> {
    (0..4096_u64)
        .map(|at| (number.wrapping_mul(31).wrapping_add(at) % 251) as u8)
        .collect()
}

fn write_blocks(nbd: &mut Nbd, numbers: std::ops::Range<u64>) {
    for number in numbers {
        let error = nbd.write(number * 4096, &block(number)).expect("an answer");
        assert_eq!(error, 0, "block {number}");
    }
}

fn check_blocks(nbd: &mut Nbd, numbers: std::ops::Range<u64>) {
    for number in numbers {
        let data = nbd.read(number * 4096, 4096).expect("an answer");
        assert_eq!(data, Ok(block(number)), "block {number}");
    }
}

#[test]
fn it_serves_ends_and_restarts() {
    let place = Place::new("serve", "wb");
    let daemon = place.serve(&[]);
    assert!(
        daemon.listening().contains("nbd+unix:///db?socket="),
        "{}",
        daemon.listening()
    );
    let mut nbd = place.connect();
    assert_eq!(nbd.size_bytes, 64 << 20);
    write_blocks(&mut nbd, 0..64);
    assert_eq!(nbd.flush().expect("an answer"), 0);
    check_blocks(&mut nbd, 0..64);

    let status = place.status();
    let volume = &status["volumes"][0];
    assert_eq!(volume["mode"], "wb");
    assert_eq!(volume["operations"][1]["count"], 64, "{volume}");
    assert_eq!(volume["operations"][1]["bytes"], 64 * 4096);
    assert!(volume["dirty_bytes"].as_u64() > Some(0), "{volume}");
    assert!(place.ok(&["status"]).contains("durability flush"));
    let metrics = daemon.get("/metrics");
    for line in [
        "forebay_volume_requests_total{volume=\"db\",op=\"write\"} 64",
        "forebay_volume_bytes_total{volume=\"db\",op=\"read\"} 262144",
        "forebay_shutting_down 0",
    ] {
        assert!(
            metrics.lines().any(|metric| metric == line),
            "{line} in {metrics}"
        );
    }
    assert!(daemon.get("/").contains("<h2>Volumes</h2>"));
    assert_eq!(daemon.get("/healthz"), "ok\n");
    // A second daemon on the same files is refused, and the first continues.
    assert!(
        place
            .refused(&["serve", text(&place.path("forebay.toml"))])
            .contains("already")
    );
    check_blocks(&mut nbd, 60..64);
    daemon.signal(libc::SIGHUP);
    daemon.signal(libc::SIGTERM);
    daemon.terminate();
    assert!(place.log().contains("SIGHUP is ignored"), "{}", place.log());
    assert!(place.log().contains("clean shutdown"), "{}", place.log());
    assert!(!place.path("control.sock").exists());
    assert!(
        place
            .ok(&["check", "--cache", text(&place.path("cache"))])
            .contains("shut down cleanly")
    );

    let daemon = place.serve(&[]);
    check_blocks(&mut place.connect(), 0..64);
    let status = place.status();
    assert!(
        status["volumes"][0]["read_hits"].as_u64() > Some(0),
        "still cached: {status}"
    );
    daemon.terminate();
}

#[test]
fn it_is_controlled_while_it_serves() {
    let place = Place::new("control", "wb");
    let daemon = place.serve(&[]);
    let mut nbd = place.connect();
    write_blocks(&mut nbd, 0..32);
    assert!(place.ok(&["flush"]).contains("of all volumes back"));
    assert_eq!(place.status()["volumes"][0]["dirty_bytes"], 0);
    assert!(place.ok(&["mode", "db", "wt"]).contains("now in mode wt"));
    write_blocks(&mut nbd, 32..64);
    let status = place.status();
    assert_eq!(status["volumes"][0]["mode"], "wt");
    assert_eq!(status["volumes"][0]["dirty_bytes"], 0);
    for (arguments, expected) in [
        (&["mode", "dc", "wt"][..], "there are: db"),
        (&["flush", "dc"], "no volume"),
        (&["detach", "dc"], "no volume"),
    ] {
        assert!(place.refused(arguments).contains(expected));
    }
    assert!(place.ok(&["grow", "db"]).contains("stays at 64 MiB"));
    let backing = std::fs::OpenOptions::new()
        .write(true)
        .open(place.path("db.img"));
    backing.expect("there").set_len(80 << 20).expect("grown");
    assert!(
        nbd.read(72 << 20, 4096).expect("an answer").is_err(),
        "not yet"
    );
    assert!(
        place
            .ok(&["grow", "db"])
            .contains("grew from 64 MiB to 80 MiB")
    );
    assert_eq!(nbd.write(72 << 20, &block(7)).expect("an answer"), 0);
    assert_eq!(nbd.read(72 << 20, 4096).expect("an answer"), Ok(block(7)));
    assert_eq!(place.connect().size_bytes, 80 << 20);
    assert!(
        place
            .ok(&["detach", "db", "--json"])
            .contains("is detached")
    );
    // Only the backing device has the data now.
    let data = std::fs::read(place.path("db.img")).expect("there");
    for number in 0..64 {
        let at = number as usize * 4096;
        assert_eq!(data[at..at + 4096], block(number), "block {number}");
    }
    assert_eq!(nbd.read(0, 4096).expect("an answer"), Err(108), "ESHUTDOWN");
    assert!(
        Nbd::connect(&place.path("nbd.sock"), "db").is_err(),
        "not offered any more"
    );
    daemon.terminate();
    assert!(place.refused(&["status"]).contains("forebay serve CONFIG"));
}

#[test]
fn a_killed_daemon_keeps_acknowledged_writes() {
    let place = Place::new("kill", "wb");
    let daemon = place.serve(&[]);
    let mut nbd = place.connect();
    write_blocks(&mut nbd, 0..256);
    daemon.kill();
    let cache = place.path("cache");
    let journal = place.path("journal");
    let arguments = [
        "check",
        "--cache",
        text(&cache),
        "--journal",
        text(&journal),
    ];
    assert!(
        place
            .ok(&arguments)
            .contains("the next start replays the log")
    );
    // It may hold the only copy of some data.
    let forced = ["format", "--force", "--cache", text(&cache)];
    assert!(place.refused(&forced).contains("nowhere else"));
    let daemon = place.serve(&[]);
    check_blocks(&mut place.connect(), 0..256);
    write_blocks(&mut place.connect(), 0..256);
    daemon.kill();
    // Lost data is named, and lost only with the user's consent.
    assert!(place.refused(&forced).contains("volume \"db\""));
    let lost = place.ok(&[
        "format",
        "--force",
        "--discard-dirty",
        "--cache",
        text(&cache),
    ]);
    assert!(
        lost.contains("LOST") && lost.contains("volume \"db\""),
        "{lost}"
    );
    // The state directory knows that the volume's data was in a missing cache.
    let refused = place.refused(&["serve", text(&place.path("forebay.toml"))]);
    assert!(refused.contains("--adopt db"), "{refused}");
    place.serve(&["--adopt", "db"]).terminate();
}

#[test]
fn without_its_cache_a_volume_is_newer_than_the_cache() {
    let place = Place::new("without", "wt");
    let daemon = place.serve(&[]);
    write_blocks(&mut place.connect(), 0..64);
    check_blocks(&mut place.connect(), 0..64);
    daemon.terminate();

    let daemon = place.serve(&["--without-cache", "db"]);
    assert_eq!(
        place.status()["volumes"][0]["mode"],
        serde_json::Value::Null
    );
    let mut nbd = place.connect();
    check_blocks(&mut nbd, 0..64);
    for number in 0..8 {
        let error = nbd
            .write(number * 4096, &block(number + 1000))
            .expect("an answer");
        assert_eq!(error, 0);
    }
    // No volume to detach: the clients lose no access.
    assert!(place.refused(&["detach", "db"]).contains("without a cache"));
    let flushed = place.ok(&["flush"]);
    assert!(flushed.contains("the cache is bypassed"), "{flushed}");
    let refused = place.refused(&["cleaning", "nop"]);
    assert!(
        refused.contains("restart the daemon without --without-cache"),
        "{refused}"
    );
    check_blocks(&mut place.connect(), 8..16);
    // Killed: the log is durable before a write is acknowledged.
    daemon.kill();

    let daemon = place.serve(&[]);
    let mut nbd = place.connect();
    for number in 0..8 {
        let data = nbd.read(number * 4096, 4096).expect("an answer");
        assert_eq!(data, Ok(block(number + 1000)), "not what the cache had");
    }
    check_blocks(&mut nbd, 8..64);
    daemon.terminate();
    assert!(!place.path("state/db.ranges").exists());
}

#[test]
fn a_daemon_that_cannot_start_names_the_cause() {
    let place = Place::new("refuse", "wb");
    let config = place.path("forebay.toml");
    place.configure("wbb", "");
    let wrong = place.refused(&["serve", text(&config)]);
    assert!(
        wrong.contains("forebay.toml:20: ") && wrong.contains("help: "),
        "{wrong}"
    );
    assert_eq!(place.refused(&["check", text(&config)]), wrong);
    let fuse = format!(
        "[[export]]\nvolume = \"db\"\nfuse = {:?}",
        text(&place.path(""))
    );
    place.configure("wb", &fuse);
    let itself = place.refused(&["serve", text(&config)]);
    assert!(
        itself.contains("the daemon would wait for itself"),
        "{itself}"
    );
    place.configure("wb", "");
    let cache = place.path("cache");
    std::fs::write(&cache, vec![0; 1 << 20]).expect("written");
    let none = place.refused(&["serve", text(&config)]);
    assert!(none.contains("forebay format --cache"), "{none}");
    let held = place.refused(&["format", "--cache", text(&place.path("state"))]);
    assert!(
        held.contains("neither a regular file nor a block device"),
        "{held}"
    );
}
