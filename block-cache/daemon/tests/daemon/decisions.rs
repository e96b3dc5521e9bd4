//! Decisions that a start requires. All known ones are reported together, with the right names and
//! numbers.

use std::path::Path;

use crate::support::{Place, text};
use crate::write_blocks;

const SECOND: &str = "[[device]]\nname = \"second\"\nkind = \"file\"\npath = \"second.img\"\n\
    [[volume]]\nname = \"two\"\nbacking = \"second\"\nmode = \"wb\"\n\
    [[export]]\nvolume = \"two\"\nnbd = \"unix:two.sock\"\n";

pub(crate) fn place_of_two(name: &str) -> Place {
    let place = Place::new(name, "wb");
    let image = std::fs::File::create(place.path("second.img")).expect("made");
    image.set_len(64 << 20).expect("sparse");
    place.configure("wb", SECOND);
    place
}

/// Writes to both volumes and kills the daemon.
pub(crate) fn live(place: &Place, more: &[&str]) {
    let daemon = place.serve(more);
    for (socket, name) in [("nbd.sock", "db"), ("two.sock", "two")] {
        let socket = place.path(socket);
        let mut nbd = crate::Nbd::connect(&socket, name).expect("it answers");
        write_blocks(&mut nbd, 0..8);
        assert_eq!(nbd.flush().expect("an answer"), 0);
    }
    daemon.kill();
}

/// Checks that both commands refuse, each with all of these words.
pub(crate) fn both_ask(place: &Place, more: &[&str], parts: &[&str]) {
    let config = place.path("forebay.toml");
    let serve = [&["serve", text(&config)][..], more].concat();
    let commands = match more.is_empty() {
        true => vec![serve, vec!["check", text(&config)]],
        false => vec![serve],
    };
    for command in commands {
        let said = place.refused(&command);
        for part in parts {
            assert!(said.contains(part), "{command:?}: {part}: {said}");
        }
    }
}

#[test]
fn volumes_that_need_a_decision_each_are_refused_together() {
    let place = place_of_two("together-adopt");
    live(&place, &[]);
    std::fs::remove_dir_all(place.path("state")).expect("there");
    both_ask(&place, &[], &["--adopt db", "--adopt two"]);
    // One decision leaves the other.
    let config = place.path("forebay.toml");
    let said = place.refused(&["serve", text(&config), "--adopt", "db"]);
    assert!(
        said.contains("--adopt two") && !said.contains("--adopt db "),
        "{said}"
    );
    live(&place, &["--adopt", "db", "--adopt", "two"]);
}

#[test]
fn a_lost_journal_and_a_lost_state_directory_are_refused_together() {
    let place = place_of_two("together-journal");
    live(&place, &[]);
    std::fs::remove_dir_all(place.path("state")).expect("there");
    std::fs::remove_file(place.path("journal")).expect("there");
    both_ask(
        &place,
        &[],
        &["--adopt db", "--adopt two", "--accept-journal-loss"],
    );
    live(
        &place,
        &["--adopt", "db", "--adopt", "two", "--accept-journal-loss"],
    );
}

#[test]
fn stale_data_of_two_volumes_is_refused_together() {
    let place = place_of_two("together-stale");
    live(&place, &[]);
    live(&place, &["--without-cache", "db", "--without-cache", "two"]);
    both_ask(
        &place,
        &[],
        &["--discard-stale-dirty db", "--discard-stale-dirty two"],
    );
    live(
        &place,
        &[
            "--discard-stale-dirty",
            "db",
            "--discard-stale-dirty",
            "two",
        ],
    );
}

#[test]
fn stale_data_and_an_unknown_volume_are_refused_together() {
    let place = place_of_two("together-mixed");
    live(&place, &[]);
    live(&place, &["--without-cache", "db"]);
    std::fs::remove_file(place.path("state/two.epoch")).expect("there");
    both_ask(&place, &[], &["--discard-stale-dirty db", "--adopt two"]);
}

#[test]
fn a_lost_journal_is_reported_with_the_ranges_at_stake() {
    let place = place_of_two("stake");
    live(&place, &[]);
    std::fs::remove_file(place.path("journal")).expect("there");
    let config = place.path("forebay.toml");
    let stake = "lost writes would be within 2 ranges, 134217728 bytes (67108864 bytes at 0 of \
        volume \"db\"";
    let said = place.refused(&["serve", text(&config)]);
    assert!(said.contains(stake), "{said}");
    let checked = place.run(&["check", text(&config)]);
    assert_eq!(checked.status.code(), Some(3), "{checked:?}");
    let printed = String::from_utf8(checked.stdout).expect("text");
    assert!(printed.contains(stake), "{printed}");
    // A log with damaged records reports their number and place.
    let place = Place::new("stake-one", "wb");
    let daemon = place.serve(&[]);
    write_blocks(&mut place.connect(), 0..8);
    daemon.kill();
    std::fs::remove_file(place.path("journal")).expect("there");
    let said = place.refused(&["serve", text(&place.path("forebay.toml"))]);
    assert!(said.contains("within 1 range, 67108864 bytes"), "{said}");
}

fn copy(place: &Place, from: &str, to: &str) {
    std::fs::copy(place.path(from), place.path(to)).expect("copied");
}

/// Returns a place whose cache has its metadata on a device of its own, after a kill, and copies of
/// both.
fn with_metadata(name: &str) -> Place {
    let place = Place::new(name, "wb");
    let map = std::fs::File::create(place.path("map")).expect("made");
    map.set_len(16 << 20).expect("sparse");
    let (cache, map) = (place.path("cache"), place.path("map"));
    place.ok(&[
        "format",
        "--force",
        "--discard-dirty",
        "--cache",
        text(&cache),
        "--metadata",
        text(&map),
    ]);
    with_devices(&place, "cache", "map");
    let daemon = place.serve(&[]);
    write_blocks(&mut place.connect(), 0..8);
    daemon.kill();
    copy(&place, "cache", "cache2");
    copy(&place, "map", "map2");
    place
}

fn with_devices(place: &Place, cache: &str, map: &str) {
    place.configure(
        "wb",
        &format!("[[device]]\nname = \"map\"\nkind = \"file\"\npath = \"{map}\"\n"),
    );
    let config = place.path("forebay.toml");
    let written = std::fs::read_to_string(&config).expect("there");
    let written = written
        .replacen("path = \"cache\"", &format!("path = \"{cache}\""), 1)
        .replacen("data = \"ssd\"", "data = \"ssd\"\nmetadata = \"map\"", 1);
    std::fs::write(&config, written).expect("written");
}

fn clone_of(cache: &Path, map: &Path) -> String {
    format!(
        "forebay clone-id --cache {} --metadata {}",
        cache.display(),
        map.display()
    )
}

#[test]
fn a_copy_with_metadata_apart_is_reported_with_both_devices() {
    let place = with_metadata("clone-apart");
    let (cache, map) = (place.path("cache2"), place.path("map2"));
    let remedy = clone_of(&cache, &map);
    with_devices(&place, "cache2", "map2");
    both_ask(&place, &[], &[&remedy, "help: "]);
    let on = ["--cache", text(&cache), "--metadata", text(&map)];
    let checked = place.run(&[&["check"][..], &on].concat());
    let printed = String::from_utf8(checked.stdout).expect("text");
    assert!(printed.contains(&remedy), "{printed}");
    assert!(
        printed.contains("the daemon refuses this copy"),
        "{printed}"
    );
    assert!(!printed.contains("without process journal"), "{printed}");
    // The original is no copy, by both names.
    let original = (place.path("cache"), place.path("map"));
    let on = [
        "--cache",
        text(&original.0),
        "--metadata",
        text(&original.1),
    ];
    let journal = std::fs::read_link(format!("/dev/shm/forebay-{}.journal", uuid(&place)));
    assert!(journal.is_ok(), "its usual place leads to it");
    let said = place.refused(&[&["clone-id"][..], &on].concat());
    for part in ["is no copy", text(&original.0), text(&original.1)] {
        assert!(said.contains(part), "{part}: {said}");
    }
    // As the remedy says.
    let on = ["--cache", text(&cache), "--metadata", text(&map)];
    place.ok(&[&["clone-id"][..], &on].concat());
}

fn uuid(place: &Place) -> String {
    let (cache, map) = (place.path("cache"), place.path("map"));
    let on = ["--cache", text(&cache), "--metadata", text(&map)];
    let checked = place.run(&[&["check", "--json"][..], &on].concat());
    let found: serde_json::Value = serde_json::from_slice(&checked.stdout).expect("JSON");
    found["uuid"].as_str().expect("it has one").to_owned()
}

#[test]
fn a_copy_whose_original_was_stopped_since_is_reported_as_a_copy() {
    let place = Place::new("clone-later", "wb");
    let daemon = place.serve(&[]);
    write_blocks(&mut place.connect(), 0..8);
    daemon.kill();
    copy(&place, "cache", "cache2");
    // The original ends cleanly and removes its journal.
    place.serve(&[]).terminate();
    let cache = place.path("cache2");
    let checked = place.run(&["check", "--cache", text(&cache)]);
    let printed = String::from_utf8(checked.stdout).expect("text");
    assert_eq!(checked.status.code(), Some(3), "{printed}");
    for part in [
        "is a copy of the cache on",
        text(&place.path("cache")),
        "clone-id --cache",
        "the daemon refuses this copy",
    ] {
        assert!(printed.contains(part), "{part}: {printed}");
    }
    assert!(!printed.contains("put the journal back"), "{printed}");
}

#[test]
fn a_file_in_the_place_of_the_former_one_is_not_named_twice() {
    let place = Place::new("same-path", "wb");
    place.serve(&[]).terminate();
    copy(&place, "cache", "cache2");
    std::fs::rename(place.path("cache2"), place.path("cache")).expect("moved");
    let cache = place.path("cache");
    let message = "was last served on another file or disk at this path";
    let checked = place.run(&["check", text(&place.path("forebay.toml"))]);
    let said = String::from_utf8(checked.stderr).expect("text");
    assert!(said.contains(message), "{said}");
    let twice = format!("{} was last served on {}", cache.display(), cache.display());
    assert!(!said.contains(&twice), "{said}");
    let daemon = place.serve(&[]);
    place.wait_for_log(message);
    daemon.terminate();
}

#[test]
fn sizes_that_format_cannot_make_are_refused_with_the_range() {
    let place = Place::new("create-range", "wb");
    let new = place.path("new");
    let refused = |size: &str| place.refused(&["format", "--cache", text(&new), "--create", size]);
    for size in ["0", "1", "512", "65535", "63K"] {
        let said = refused(size);
        assert!(said.contains("help: write 224 KiB to "), "{size}: {said}");
        let is_hinted = said.contains("a number without a unit means bytes");
        assert_eq!(is_hinted, ["1", "512"].contains(&size), "{size}: {said}");
    }
    for size in ["64K", "65537", "100KB"] {
        let said = refused(size);
        for part in [
            "at least 229376 bytes",
            "give --create that size at least, and at most ",
        ] {
            assert!(said.contains(part), "{size}: {said}");
        }
        assert!(!new.exists(), "{size}");
    }
    for size in ["8000T", "8000000T", "16000000TB"] {
        let said = refused(size);
        for part in [
            "cannot have ",
            "its file system has room",
            "help: write 224 KiB to ",
        ] {
            assert!(said.contains(part), "{size}: {said}");
        }
        assert!(!new.exists(), "{size}");
    }
    for (size, part) in [
        ("64X", "there is no unit \"X\""),
        ("X", "it does not begin with a number"),
        ("6.4.1G", "\"6.4.1\" is not a number"),
        ("99999999999T", "maximum, 16 EiB"),
    ] {
        let output = place.run(&["format", "--cache", text(&new), "--create", size]);
        let said = String::from_utf8(output.stderr).expect("text");
        assert_eq!(output.status.code(), Some(2), "{size}: {said}");
        assert!(said.contains(part), "{size}: {said}");
    }
}

#[test]
fn all_wrong_arguments_of_format_are_reported_together() {
    let place = Place::new("format-several", "wb");
    let (gone, none) = (place.path("gone/new"), place.path("none"));
    let said = place.refused(&[
        "format",
        "--cache",
        text(&gone),
        "--create",
        "10",
        "--metadata",
        text(&none),
        "--block-size",
        "3K",
    ]);
    for part in ["--block-size: 3 KiB", "--create: ", "none does not exist"] {
        assert!(said.contains(part), "{part} in {said}");
    }
    assert_eq!(said.matches("    help: ").count(), 3, "{said}");
    assert!(!gone.exists() && !none.exists());
}

#[test]
fn forget_asks_no_daemon_of_another_configuration() {
    let here = Place::new("forget-here", "wb");
    let there = Place::new("forget-there", "wb");
    let daemon = here.serve(&[]);
    write_blocks(&mut here.connect(), 0..16);
    // Both configurations have one control socket.
    let config = there.path("forebay.toml");
    let refused = here.refused(&["forget", "db", "--discard-dirty", text(&config)]);
    assert!(refused.contains("does not know volume"), "{refused}");
    assert!(here.status()["volumes"][0]["dirty_bytes"].as_u64() > Some(0));
    daemon.terminate();
}
