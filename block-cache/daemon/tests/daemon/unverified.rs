//! After a kill, `check` reports the amount of cached data without a checksum.

use std::os::unix::fs::FileExt as _;

use super::support::{Place, text};
use super::{block, check_blocks, write_blocks};

fn unverified(place: &Place, arguments: &[&str]) -> u64 {
    let mut json = arguments.to_vec();
    json.push("--json");
    let found: serde_json::Value = serde_json::from_str(&place.ok(&json)).expect("JSON");
    let bytes = found["unverified_bytes"].as_u64().expect("a number");
    let printed = place.ok(arguments);
    let all_is_well = printed.ends_with("In order.\n");
    assert_eq!(all_is_well, bytes == 0, "{bytes} bytes: {printed}");
    assert_eq!(printed.contains("UNVERIFIED: "), bytes > 0, "{printed}");
    bytes
}

#[test]
fn check_says_how_much_is_not_verified_behind_a_daemon_that_was_killed() {
    for tracking in ["exact", "abt", "none"] {
        let place = Place::new(&format!("unverified-{tracking}"), "wb");
        let cache = place.path("cache");
        let cache = text(&cache);
        std::fs::remove_file(cache).expect("made");
        let config = place.path("forebay.toml");
        place.ok(&[
            "format",
            "--create",
            "64M",
            "--checksums",
            "--dirty-tracking",
            tracking,
            "--cache",
            cache,
        ]);
        // Only a flush extends the log.
        let text_of = std::fs::read_to_string(&config).expect("there");
        let text_of = text_of.replacen("[cache]", "[cache]\ncommit_interval = \"60s\"", 1);
        std::fs::write(&config, text_of).expect("written");
        let daemon = place.serve(&[]);
        let mut nbd = place.connect();
        write_blocks(&mut nbd, 0..8);
        assert_eq!(nbd.flush().expect("an answer"), 0);
        // Overwritten in place, and new.
        write_blocks(&mut nbd, 4..16);
        daemon.kill();
        let whole = ["check", "--data", text(&config)];
        let bytes = unverified(&place, &whole);
        assert!(
            (1..=16 * 4096).contains(&bytes),
            "{tracking}: {bytes} of what was written"
        );
        assert_eq!(
            unverified(&place, &["check", text(&config)]),
            bytes,
            "{tracking}"
        );
        let printed = place.ok(&["check", text(&config)]);
        let cause = "of cached data have no valid checksum: as data written just before a crash\n";
        assert!(printed.contains(cause), "{tracking}: {printed}");
        // A clean end without a read or write of this data computes none.
        place.serve(&[]).terminate();
        let left = unverified(&place, &["check", text(&config)]);
        assert!(left > 0, "{tracking}");
        let printed = place.ok(&["check", text(&config)]);
        let cause = "of cached data have no valid checksum: a process died while it wrote, or \
                     checksums are damaged\n";
        assert!(printed.contains(cause), "{tracking}: {printed}");
        // Later writes and a clean end leave a checksum for all data.
        let daemon = place.serve(&[]);
        let mut nbd = place.connect();
        check_blocks(&mut nbd, 0..16);
        write_blocks(&mut nbd, 0..16);
        assert_eq!(nbd.flush().expect("an answer"), 0);
        daemon.terminate();
        for check in [&whole[..], &["check", text(&config)]] {
            assert_eq!(unverified(&place, check), 0, "{tracking}");
        }
    }
}

#[test]
fn a_repair_says_how_much_it_believed() {
    let place = Place::new("believed", "wb");
    let cache = place.path("cache");
    std::fs::remove_file(&cache).expect("made");
    let config = place.path("forebay.toml");
    let format = [
        "format",
        "--create",
        "64M",
        "--checksums",
        "--cache",
        text(&cache),
    ];
    place.ok(&format);
    let daemon = place.serve(&[]);
    let mut nbd = place.connect();
    write_blocks(&mut nbd, 0..8);
    assert_eq!(nbd.flush().expect("an answer"), 0);
    write_blocks(&mut nbd, 0..8);
    daemon.kill();
    let printed = place.ok(&["check", "--data", "--repair", text(&config)]);
    assert!(printed.contains("UNVERIFIED: 32 KiB"), "{printed}");
    assert!(!printed.contains("In order."), "{printed}");
    let printed = place.ok(&["check", "--data", text(&config)]);
    assert!(
        printed.ends_with("In order.\n"),
        "it has checksums now: {printed}"
    );
}

/// Checks that dirty data that rots on the cache device is listed once, and that a repair is
/// recommended only while it would change something.
#[test]
fn check_lists_rotten_dirty_data_once_and_recommends_no_second_repair() {
    let place = Place::new("rot-once", "wb");
    let (cache, config) = (place.path("cache"), place.path("forebay.toml"));
    std::fs::remove_file(&cache).expect("made");
    place.ok(&[
        "format",
        "--create",
        "64M",
        "--checksums",
        "--cache",
        text(&cache),
    ]);
    let daemon = place.serve(&[]);
    write_blocks(&mut place.connect(), 0..8);
    daemon.terminate();
    let bytes = std::fs::read(&cache).expect("there");
    let rotten = block(3);
    let mut at = bytes.chunks_exact(4096).enumerate();
    let (at, _) = at.find(|(_, part)| *part == rotten).expect("it is cached");
    let file = std::fs::OpenOptions::new().write(true).open(&cache);
    (file
        .expect("there")
        .write_all_at(&[0x5a; 64], at as u64 * 4096))
    .expect("written");
    let lost = "LOST: volume db: 4096 bytes at 12288: dirty, and corrupt";
    let commands = [
        &["check", text(&config), "--data"][..],
        &["check", text(&config), "--data", "--repair"],
        &["check", text(&config), "--data"],
        &["check", text(&config)],
    ];
    for (number, command) in commands.into_iter().enumerate() {
        let checked = place.run(command);
        let printed = String::from_utf8_lossy(&checked.stdout).into_owned();
        assert_eq!(checked.status.code(), Some(3), "{number}: {printed}");
        assert_eq!(printed.matches("12288").count(), 1, "{number}: {printed}");
        assert!(printed.contains(lost), "{number}: {printed}");
        assert!(!printed.contains("--repair"), "{number}: {printed}");
        let verdict = "NOT IN ORDER, see above: no repair restores lost data.\n";
        assert!(printed.ends_with(verdict), "{number}: {printed}");
    }
}

/// Checks that `check` counts the cached data that the next start keeps, and no other. After
/// unflushed writes to the backing device, clean copies of the region are dropped.
#[test]
fn check_counts_the_cached_data_that_a_crash_leaves() {
    let place = Place::new("survives", "wt");
    let config = place.path("forebay.toml");
    let written = std::fs::read_to_string(&config).expect("there");
    let written = written.replacen("[cache]", "[cache]\ncommit_interval = \"1ms\"", 1);
    std::fs::write(&config, written).expect("written");
    let cached = |found: &serde_json::Value| {
        let volume = &found["volumes"][0];
        volume["cached_bytes"].as_u64().expect("a number")
    };
    for (overwrites, kept) in [(false, true), (true, false)] {
        let daemon = place.serve(&[]);
        let mut nbd = place.connect();
        assert!(nbd.read(0, 32 << 10).expect("an answer").is_ok());
        assert_eq!(nbd.flush().expect("an answer"), 0);
        std::thread::sleep(std::time::Duration::from_millis(500));
        if overwrites {
            write_blocks(&mut nbd, 0..1);
        }
        daemon.kill();
        let found = place.ok(&["check", text(&config), "--json"]);
        let found = cached(&serde_json::from_str(&found).expect("JSON"));
        let printed = place.ok(&["check", text(&config)]);
        let daemon = place.serve(&[]);
        assert_eq!(found, cached(&place.status()), "{overwrites}");
        assert_eq!(found > 0, kept, "{overwrites}");
        assert!(
            printed.contains("clean data cached just before the crash"),
            "{printed}"
        );
        daemon.terminate();
    }
}
