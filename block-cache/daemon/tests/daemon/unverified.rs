//! After a kill, `check` reports the amount of cached data without a checksum.

use super::support::{Place, text};
use super::{check_blocks, write_blocks};

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
