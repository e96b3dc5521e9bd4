//! Dirty data that is older than writes without the cache: `check` foresees the refusal of `serve`,
//! with the numbers at stake.

use crate::checked::{LoopDevice, both_refuse};
use crate::support::{Place, text};
use crate::{check_blocks, write_blocks};

/// Leaves dirty data of blocks 0 to 7 and 1280 to 1287 in the cache, and writes the volume without
/// it.
fn written_without(place: &Place, killed: bool, without: std::ops::Range<u64>) {
    let daemon = place.serve(&[]);
    let mut nbd = place.connect();
    write_blocks(&mut nbd, 0..8);
    write_blocks(&mut nbd, 1280..1288);
    assert_eq!(nbd.flush().expect("an answer"), 0);
    drop(nbd);
    match killed {
        true => daemon.kill(),
        false => daemon.terminate(),
    }
    let daemon = place.serve(&["--without-cache", "db"]);
    write_blocks(&mut place.connect(), without);
    daemon.terminate();
}

fn check(place: &Place) -> String {
    place.ok(&["check", text(&place.path("forebay.toml"))])
}

const STALE: [&str; 4] = [
    "volume \"db\" was written without this cache",
    "holds older dirty data there: 1 block, 32768 bytes",
    "help: start with --discard-stale-dirty db",
    "--without-cache db",
];

#[test]
fn dirty_data_that_is_older_is_foreseen() {
    for killed in [false, true] {
        let place = Place::new(&format!("stale-{killed}"), "wb");
        written_without(&place, killed, 2..3);
        both_refuse(&place, &STALE);
        let before = std::fs::read(place.path("cache")).expect("there");
        let _ = place.refused(&["check", text(&place.path("forebay.toml"))]);
        assert!(before == std::fs::read(place.path("cache")).expect("there"));
        // After the decision both succeed.
        let daemon = place.serve(&["--discard-stale-dirty", "db"]);
        check_blocks(&mut place.connect(), 1280..1288);
        daemon.terminate();
        assert!(check(&place).contains("In order."));
    }
}

#[test]
fn writes_beside_dirty_data_are_no_reason_to_refuse() {
    let place = Place::new("stale-beside", "wb");
    // In another MiB than all dirty data.
    written_without(&place, false, 2560..2564);
    assert!(check(&place).contains("In order."));
    let daemon = place.serve(&[]);
    check_blocks(&mut place.connect(), 0..8);
    daemon.terminate();
}

#[test]
fn without_the_log_of_ranges_all_dirty_data_is_older() {
    let place = Place::new("stale-everywhere", "wb");
    written_without(&place, false, 2560..2564);
    let log = place.path("state/db.ranges");
    for damaged in [true, false] {
        match damaged {
            true => std::fs::write(&log, "a".repeat(100)).expect("written"),
            false => std::fs::remove_file(&log).expect("there"),
        }
        both_refuse(
            &place,
            &["older dirty data there: 2 blocks, 65536 bytes", STALE[2]],
        );
    }
}

#[test]
fn the_refusal_is_reported_to_programs() {
    let place = Place::new("stale-json", "wb");
    written_without(&place, false, 2..3);
    let refused = place.refused(&["check", text(&place.path("forebay.toml"))]);
    assert!(refused.contains(STALE[0]), "{refused}");
    let json = place.run(&["check", text(&place.path("forebay.toml")), "--json"]);
    let printed = String::from_utf8(json.stdout).expect("text");
    assert!(
        printed.contains("older dirty data there: 1 block"),
        "{printed}"
    );
}

#[test]
fn clean_data_that_is_older_is_no_reason_to_refuse() {
    let place = Place::new("stale-clean", "wt");
    written_without(&place, false, 2..3);
    assert!(check(&place).contains("In order."));
    place.serve(&[]).terminate();
}

/// Configures a volume on the device at `path` without a cache, as `name`.
fn configure_alone(place: &Place, name: &str, path: &str) {
    place.write_config(&format!(
        "[[device]]\nname = \"disk\"\nkind = \"file\"\npath = \"{path}\"\n\
         [[volume]]\nname = \"{name}\"\nbacking = \"disk\"\n\
         [[export]]\nvolume = \"{name}\"\nnbd = \"unix:nbd.sock\"\n\
         [server]\ncontrol = \"control.sock\"\nmetrics = \"127.0.0.1:0\"\nstate = \"state\"\n"
    ));
}

/// Checks that the start is refused with `--adopt db` for `stale`, and that a start with consent
/// keeps these blocks of the cache.
fn adopts_with_consent(place: &Place, stale: &str, dirty: std::ops::Range<u64>) {
    both_refuse(place, &["--adopt db", "--discard-stale-dirty db"]);
    let config = place.path("forebay.toml");
    let said = place.refused(&["serve", text(&config), "--adopt", "db"]);
    for part in [STALE[0], stale] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let daemon = place.serve(&["--adopt", "db", "--discard-stale-dirty", "db"]);
    check_blocks(&mut place.connect(), dirty);
    daemon.terminate();
    place.serve(&[]).terminate();
}

/// Leaves dirty data of blocks 0 to 7 and 1280 to 1287 in the cache.
fn leave_dirty(place: &Place) {
    let daemon = place.serve(&[]);
    let mut nbd = place.connect();
    write_blocks(&mut nbd, 0..8);
    write_blocks(&mut nbd, 1280..1288);
    assert_eq!(nbd.flush().expect("an answer"), 0);
    drop(nbd);
    daemon.terminate();
}

/// Leaves dirty data of blocks 0 to 7 and 1280 to 1287 in the cache, and loses the state directory.
fn without_state(name: &str) -> Place {
    let place = Place::new(name, "wb");
    leave_dirty(&place);
    std::fs::remove_dir_all(place.path("state")).expect("there");
    place
}

#[test]
fn a_lost_state_directory_does_not_hide_writes_without_the_cache() {
    let place = without_state("stale-unknown");
    for written in [2..3, 300..301] {
        let daemon = place.serve(&["--without-cache", "db"]);
        assert!(
            place.log().contains("knows no cache of it"),
            "{}",
            place.log()
        );
        write_blocks(&mut place.connect(), written);
        daemon.terminate();
    }
    // Blocks 1280 to 1287 are in a MiB that nothing wrote to.
    adopts_with_consent(&place, "1 block, 32768 bytes", 1280..1288);
}

#[test]
fn a_lost_state_directory_does_not_hide_writes_without_any_cache() {
    let place = without_state("stale-alone");
    configure_alone(&place, "db", "db.img");
    let daemon = place.serve(&[]);
    write_blocks(&mut place.connect(), 2..3);
    daemon.terminate();
    place.configure("wb", "");
    // No log was kept, since no cache was configured.
    adopts_with_consent(&place, "2 blocks, 65536 bytes", 0..0);
}

#[test]
fn a_lost_state_directory_does_not_hide_writes_under_another_name() {
    let place = without_state("stale-renamed");
    configure_alone(&place, "other", "db.img");
    let daemon = place.serve(&["--without-cache", "other"]);
    let mut nbd = crate::Nbd::connect(&place.path("nbd.sock"), "other").expect("an answer");
    write_blocks(&mut nbd, 2..3);
    drop(nbd);
    daemon.terminate();
    // Service under its own name does not make that unknown.
    configure_alone(&place, "db", "db.img");
    place.serve(&["--without-cache", "db"]).terminate();
    place.configure("wb", "");
    adopts_with_consent(&place, "2 blocks, 65536 bytes", 0..0);
}

#[test]
fn a_lost_state_directory_alone_leaves_all_dirty_data() {
    let place = without_state("stale-lost");
    let daemon = place.serve(&["--adopt", "db"]);
    let mut nbd = place.connect();
    check_blocks(&mut nbd, 0..8);
    check_blocks(&mut nbd, 1280..1288);
    daemon.terminate();
}

/// Writes a block of the device at `path` without a cache, as another volume.
fn write_as_other(place: &Place, path: &str, block: u64) {
    configure_alone(place, "other", path);
    let daemon = place.serve(&["--without-cache", "other"]);
    let mut nbd = crate::Nbd::connect(&place.path("nbd.sock"), "other").expect("an answer");
    write_blocks(&mut nbd, block..block + 1);
    drop(nbd);
    daemon.terminate();
}

/// Returns a device for a whole image, and one for its part from the fifth MiB on.
fn whole_and_part(place: &Place) -> Option<(LoopDevice, LoopDevice)> {
    let image = place.path("db.img");
    let whole = LoopDevice::new(&image, &[])?;
    let part = LoopDevice::new(&image, &["--offset", "4M"]).expect("as the first");
    Some((whole, part))
}

/// Configures the volume on the device at `path`, with its cache.
fn configure_on(place: &Place, path: &str) {
    place.configure("wb", "");
    let config = std::fs::read_to_string(place.path("forebay.toml")).expect("there");
    place.write_config(&config.replace("path = \"db.img\"", &format!("path = {path:?}")));
}

#[test]
fn writes_to_a_part_of_the_device_are_logged_at_its_place_in_the_device() {
    let place = Place::new("stale-part", "wb");
    let Some((whole, part)) = whole_and_part(&place) else {
        return;
    };
    configure_on(&place, text(&whole.0));
    leave_dirty(&place);
    write_as_other(&place, text(&part.0), 256);
    configure_on(&place, text(&whole.0));
    both_refuse(
        &place,
        &["1 block, 32768 bytes", "the blocks are at 5242880"],
    );
}

#[test]
fn writes_to_the_device_of_a_part_are_logged_at_their_place_in_the_part() {
    let place = Place::new("stale-whole", "wb");
    let Some((whole, part)) = whole_and_part(&place) else {
        return;
    };
    configure_on(&place, text(&part.0));
    leave_dirty(&place);
    // Before the part, and then in its sixth MiB.
    write_as_other(&place, text(&whole.0), 2);
    configure_on(&place, text(&part.0));
    check(&place);
    write_as_other(&place, text(&whole.0), 1024 + 1281);
    configure_on(&place, text(&part.0));
    both_refuse(
        &place,
        &["1 block, 32768 bytes", "the blocks are at 5242880"],
    );
}

#[test]
fn a_record_that_is_older_than_the_log_of_ranges_is_refused() {
    let place = Place::new("stale-record", "wb");
    let record = place.path("state/db.epoch");
    let daemon = place.serve(&[]);
    write_blocks(&mut place.connect(), 0..8);
    daemon.terminate();
    let older = std::fs::read(&record).expect("there");
    let daemon = place.serve(&["--without-cache", "db"]);
    write_blocks(&mut place.connect(), 2..3);
    daemon.terminate();
    std::fs::write(&record, older).expect("put back");
    adopts_with_consent(&place, "1 block, 32768 bytes", 0..0);
}

#[test]
fn a_damaged_last_line_of_the_log_makes_all_dirty_data_suspect() {
    let place = Place::new("stale-line", "wb");
    written_without(&place, false, 2..3);
    let log = place.path("state/db.ranges");
    let mut text = std::fs::read(&log).expect("there");
    text[20] ^= 1;
    std::fs::write(&log, text).expect("written");
    both_refuse(&place, &["older dirty data there: 2 blocks, 65536 bytes"]);
}
