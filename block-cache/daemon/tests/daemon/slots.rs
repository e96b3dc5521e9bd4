//! A transit cache that is missing in the configuration while its slots have data that the medium
//! lacks.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::checked::LoopDevice;
use crate::support::{Place, text};
use crate::{block, check_blocks, write_blocks};

/// Blocks that a slow device gets at a stop.
const SLOW_BLOCKS: u64 = 56;

/// Returns a configuration over `devices`, with the volume on `backing`.
fn configure(place: &Place, devices: &str, backing: &str) {
    let config = format!(
        "device = [{devices}]\n\
         volume = [{{ name = \"db\", backing = \"{backing}\" }}]\n\
         export = [{{ volume = \"db\", nbd = \"unix:nbd.sock\" }}]\n\
         [server]\ncontrol = \"control.sock\"\nmetrics = \"127.0.0.1:0\"\nstate = \"state\"\n"
    );
    std::fs::write(place.path("forebay.toml"), config).expect("written");
}

/// Writes to the slots of a transit cache, and kills the daemon.
fn leave_something(place: &Place) {
    let daemon = place.serve(&[]);
    write_blocks(&mut place.connect(), 10..20);
    daemon.kill();
}

/// Checks that no service, check or format of the medium without its transit cache overwrites
/// acknowledged writes. They are there with the cache.
fn nobody_serves_without(name: &str, devices: &str) {
    let place = Place::new(name, "wt");
    let medium = place.path("db.img");
    let over = "{ name = \"fast\", kind = \"transit\", on = \"under\", capacity = \"1M\", \
        policy = \"lru\" }";
    let with = || configure(&place, &format!("{devices}, {over}"), "fast");
    if devices.contains("btt") {
        place.ok(&["format", "--btt", text(&medium)]);
    }
    with();
    leave_something(&place);
    let config = place.path("forebay.toml");
    configure(&place, devices, "under");
    for command in [
        &["serve", text(&config)][..],
        &["check", text(&config)],
        &["format", "--btt", text(&medium), "--force"],
        &["format", "--cache", text(&medium), "--force"],
    ] {
        let said = place.refused(command);
        for part in [" acknowledged blocks of it are in", "start the daemon once"] {
            assert!(said.contains(part), "{command:?}: {said}");
        }
    }
    with();
    let daemon = place.serve(&[]);
    check_blocks(&mut place.connect(), 10..20);
    daemon.terminate();
    configure(&place, devices, "under");
    place.ok(&["check", text(&config)]);
    let daemon = place.serve(&[]);
    check_blocks(&mut place.connect(), 10..20);
    daemon.terminate();
}

#[test]
fn a_file_is_not_served_without_the_slots_of_its_missing_blocks() {
    let devices = "{ name = \"under\", kind = \"file\", path = \"db.img\" }";
    nobody_serves_without("slots-file", devices);
}

#[test]
fn a_table_is_not_served_or_made_anew_without_the_slots_of_its_missing_blocks() {
    let devices = "{ name = \"pm\", kind = \"pmem\", path = \"db.img\" }, { name = \"under\", \
        kind = \"btt\", on = \"pm\" }";
    nobody_serves_without("slots-table", devices);
}

#[test]
fn a_check_says_as_a_start_does_that_slots_were_removed() {
    let place = Place::new("slots-removed", "wt");
    let devices = "{ name = \"under\", kind = \"file\", path = \"db.img\" }, \
                   { name = \"fast\", kind = \"transit\", on = \"under\", capacity = \"1M\", \
                   policy = \"lru\" }";
    configure(&place, devices, "fast");
    let config = place.path("forebay.toml");
    // The running daemon has the slots.
    let daemon = place.serve(&[]);
    place.ok(&["check", text(&config)]);
    write_blocks(&mut place.connect(), 10..20);
    daemon.kill();
    place.ok(&["check", text(&config)]);
    configure(
        &place,
        "{ name = \"under\", kind = \"file\", path = \"db.img\" }",
        "under",
    );
    let said = place.refused(&["check", text(&config)]);
    let file = said
        .split_whitespace()
        .find(|word| word.ends_with(".transit"));
    let file = PathBuf::from(file.expect("it is named"));
    std::fs::remove_file(&file).expect("it is there");
    configure(&place, devices, "fast");
    // Damage that the user may accept.
    for (command, status) in [("check", 3), ("serve", 1)] {
        let output = place.run(&[command, text(&config)]);
        assert_eq!(output.status.code(), Some(status), "{command}: {output:?}");
        let said = String::from_utf8(output.stderr).expect("text");
        for part in [
            "was removed, or overwritten",
            "ARE LOST (at most 1 MiB)",
            "--accept-journal-loss",
            "device \"fast\"",
        ] {
            assert!(said.contains(part), "{command}: {said}");
        }
        assert!(!file.exists(), "{command} left a file");
    }
    let daemon = place.serve(&["--accept-journal-loss"]);
    place.ok(&["check", text(&config)]);
    daemon.terminate();
    place.ok(&["check", text(&config)]);
}

/// Checks that missing slots are noticed whatever the configuration has over the medium.
#[test]
fn slots_that_were_removed_are_missed_by_configurations_without_them_or_with_another_name() {
    let place = Place::new("slots-renamed", "wt");
    let under = "{ name = \"under\", kind = \"file\", path = \"db.img\" }";
    let over = |name: &str| {
        format!(
            "{under}, {{ name = \"{name}\", kind = \"transit\", on = \"under\", \
             capacity = \"1M\", policy = \"lru\" }}"
        )
    };
    let config = place.path("forebay.toml");
    configure(&place, &over("fast"), "fast");
    // Slots are not missed under another name.
    leave_something(&place);
    configure(&place, &over("other"), "other");
    let daemon = place.serve(&[]);
    check_blocks(&mut place.connect(), 10..20);
    daemon.kill();
    configure(&place, under, "under");
    let slots = slots_file(
        &place,
        || configure(&place, &over("third"), "third"),
        || configure(&place, under, "under"),
    );
    std::fs::remove_file(&slots).expect("there");
    let missed = |amount: &str| {
        for (command, status) in [("check", 3), ("serve", 1)] {
            let output = place.run(&[command, text(&config)]);
            let said = String::from_utf8(output.stderr).expect("text");
            assert_eq!(output.status.code(), Some(status), "{command}: {said}");
            assert!(
                said.contains("was removed, or overwritten") && said.contains(amount),
                "{command}: {said}"
            );
        }
    };
    missed("at most 1 MiB");
    configure(&place, under, "under");
    missed("at most 1 MiB");
    // Earlier versions recorded no capacity.
    let note = slots.with_extension("capacity");
    let note = place
        .path("state")
        .join(note.file_name().expect("it is named"));
    std::fs::remove_file(note).expect("it is recorded");
    missed("how much is not known");
    let daemon = place.serve(&["--accept-journal-loss"]);
    let message = "LOST, as --accept-journal-loss says: the writes in";
    assert!(place.log().contains(message), "{}", place.log());
    assert!(
        place.log().contains("how much is not known"),
        "{}",
        place.log()
    );
    daemon.terminate();
    place.ok(&["check", text(&config)]);
    place.serve(&[]).terminate();
}

#[test]
fn a_stop_waits_for_a_slow_device_and_is_a_clean_one_when_that_has_all() {
    let place = Place::new("slots-slow", "wt");
    let under = "{ name = \"disk\", kind = \"file\", path = \"db.img\" }, \
                 { name = \"slow\", kind = \"emulate\", on = \"disk\", write_latency = \"1s\" }, \
                 { name = \"fast\", kind = \"transit\", on = \"slow\", capacity = \"4M\", \
                 policy = \"lru\" }";
    configure(&place, under, "fast");
    let daemon = place.serve(&[]);
    // A few blocks at a time: longer than any other limit of a stop.
    let written = (0..SLOW_BLOCKS).map(|number| number * 7);
    let mut nbd = place.connect();
    for number in written.clone() {
        write_blocks(&mut nbd, number..number + 1);
    }
    let begin = Instant::now();
    daemon.terminate();
    let took = begin.elapsed();
    assert!(
        took > Duration::from_secs(11),
        "too quick to show: {took:?}"
    );
    assert!(place.log().contains("clean shutdown"), "{}", place.log());
    let disk = std::fs::read(place.path("db.img")).expect("there");
    for number in written {
        let at = number as usize * 4096;
        assert_eq!(disk[at..at + 4096], block(number), "block {number}");
    }
}

/// Returns the file of the slots with acknowledged writes, as a refusing command names it.
pub(crate) fn slots_file(place: &Place, with: impl Fn(), without: impl Fn()) -> PathBuf {
    without();
    let said = place.refused(&["check", text(&place.path("forebay.toml"))]);
    with();
    let begin = said.find("/dev/shm/").expect("it is named");
    said[begin..]
        .split([' ', ':'])
        .next()
        .expect("a path")
        .into()
}

#[test]
fn slots_that_no_daemon_leaves_are_refused_before_anything_is_sent_on() {
    let place = Place::new("slots-damaged", "wt");
    let under = "{ name = \"under\", kind = \"file\", path = \"db.img\" }";
    let over = "{ name = \"fast\", kind = \"transit\", on = \"under\", capacity = \"1M\", \
        policy = \"lru\" }";
    let with = || configure(&place, &format!("{under}, {over}"), "fast");
    with();
    leave_something(&place);
    let slots = slots_file(&place, with, || configure(&place, under, "under"));
    let sound = std::fs::read(&slots).expect("there");
    // The first valid header: its block is far beyond the end of the device.
    let mut rotten = sound.clone();
    let at = (4096..).step_by(16).find(|at| rotten[at + 8] != 0);
    rotten[at.expect("a slot in use") + 7] ^= 0x3a;
    std::fs::write(&slots, &rotten).expect("written");
    let before = std::fs::read(place.path("db.img")).expect("there");
    for _ in 0..2 {
        let said = place.refused(&["serve", text(&place.path("forebay.toml"))]);
        for part in [text(&slots), "slots are damaged", "--accept-journal-loss"] {
            assert!(said.contains(part), "{part}: {said}");
        }
    }
    assert!(std::fs::read(place.path("db.img")).expect("there") == before);
    assert!(std::fs::read(&slots).expect("there") == rotten);
    // A sound copy suffices.
    std::fs::write(&slots, &sound).expect("written");
    let daemon = place.serve(&[]);
    check_blocks(&mut place.connect(), 10..20);
    daemon.kill();
    // Or the user's consent.
    let left = std::fs::read(&slots).expect("there");
    let at = (4096..).step_by(16).find(|at| left[at + 8] != 0);
    let mut rotten = left.clone();
    rotten[at.expect("lru keeps them until there is no room") + 7] ^= 0x3a;
    std::fs::write(&slots, &rotten).expect("written");
    let daemon = place.serve(&["--accept-journal-loss"]);
    assert!(
        place.log().contains("the writes in damaged slots"),
        "{}",
        place.log()
    );
    daemon.terminate();
    assert!(!slots.exists());
}

#[test]
fn slots_that_a_daemon_with_another_state_sent_on_may_not_be_lost() {
    let place = Place::new("slots-states", "wt");
    let devices = "{ name = \"under\", kind = \"file\", path = \"db.img\" }, \
                   { name = \"fast\", kind = \"transit\", on = \"under\", capacity = \"1M\", \
                   policy = \"lru\" }";
    configure(&place, devices, "fast");
    leave_something(&place);
    let config = place.path("forebay.toml");
    let first = std::fs::read_to_string(&config).expect("there");
    let other = first.replace("state = \"state\"", "state = \"other\"");
    std::fs::write(&config, other).expect("written");
    place.serve(&[]).terminate();
    std::fs::write(&config, first).expect("written");
    let said = place.refused(&["serve", text(&config)]);
    for part in [
        "unless another daemon, with another state directory",
        "--accept-journal-loss",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let daemon = place.serve(&["--accept-journal-loss"]);
    check_blocks(&mut place.connect(), 10..20);
    daemon.terminate();
}

/// Writes a configuration of the volume over a loop device, with a transit cache or without one.
fn over_loop(place: &Place, device: &LoopDevice, with: bool) {
    let under = format!(
        "{{ name = \"under\", kind = \"file\", path = \"{}\" }}",
        text(&device.0)
    );
    let over = "{ name = \"fast\", kind = \"transit\", on = \"under\", capacity = \"1M\", \
        policy = \"lru\" }";
    match with {
        true => configure(place, &format!("{under}, {over}"), "fast"),
        false => configure(place, &under, "under"),
    }
}

/// Checks that slots over a whole device, or a part of it, block overlapping devices and no others.
#[test]
fn slots_over_a_part_keep_the_whole_from_being_served_and_the_other_way_round() {
    let place = Place::new("slots-parts", "wt");
    let (image, config) = (place.path("db.img"), place.path("forebay.toml"));
    let part = |at: &str| LoopDevice::new(&image, &["--offset", at, "--sizelimit", "16M"]);
    let Some(whole) = LoopDevice::new(&image, &[]) else {
        return;
    };
    let first = part("16M").expect("as the first");
    let (next, across) = (part("32M"), part("24M"));
    let (next, across) = (next.expect("as the first"), across.expect("as the first"));
    for (slots, others) in [(&first, [&whole, &across]), (&whole, [&first, &next])] {
        over_loop(&place, slots, true);
        leave_something(&place);
        let file = slots_file(
            &place,
            || over_loop(&place, slots, true),
            || over_loop(&place, slots, false),
        );
        for other in others {
            for with in [false, true] {
                over_loop(&place, other, with);
                for command in ["serve", "check"] {
                    let said = place.refused(&[command, text(&config)]);
                    for part in [" acknowledged blocks of it are in", text(&file)] {
                        assert!(said.contains(part), "{command}: {said}");
                    }
                }
            }
            let said = place.refused(&["format", "--force", "--cache", text(&other.0)]);
            assert!(said.contains(text(&file)), "{said}");
        }
        // A device beside it does not matter.
        if slots.0 == first.0 {
            over_loop(&place, &next, false);
            let daemon = place.serve(&[]);
            write_blocks(&mut place.connect(), 0..3);
            daemon.terminate();
        }
        // Removed slots are missed over overlapping devices, and abandoned there, so that they
        // never return.
        let copy = std::fs::read(&file).expect("there");
        std::fs::remove_file(&file).expect("there");
        over_loop(&place, others[0], false);
        for (command, status) in [("check", 3), ("serve", 1)] {
            let output = place.run(&[command, text(&config)]);
            let said = String::from_utf8(output.stderr).expect("text");
            assert_eq!(output.status.code(), Some(status), "{command}: {said}");
            assert!(said.contains(text(&file)), "{command}: {said}");
        }
        place.serve(&["--accept-journal-loss"]).terminate();
        place.ok(&["check", text(&config)]);
        std::fs::write(&file, copy).expect("written");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&file, mode).expect("its mode");
        over_loop(&place, slots, true);
        let said = place.refused(&["serve", text(&config)]);
        assert!(said.contains("was put back after newer writes"), "{said}");
        std::fs::remove_file(&file).expect("there");
        // The name of the cache is recorded as well.
        place.serve(&["--accept-journal-loss"]).terminate();
    }
}

/// Checks that the remedy of each refusal works, and that only the option abandons data.
#[test]
fn slots_are_given_up_as_the_refusal_says() {
    let under = "{ name = \"under\", kind = \"file\", path = \"db.img\" }";
    let over = "{ name = \"fast\", kind = \"transit\", on = \"under\", capacity = \"1M\", \
        policy = \"lru\" }";
    for goes_on_with in [false, true] {
        let place = Place::new(&format!("slots-given-up-{goes_on_with}"), "wt");
        let config = place.path("forebay.toml");
        configure(&place, &format!("{under}, {over}"), "fast");
        leave_something(&place);
        configure(&place, under, "under");
        for command in ["serve", "check"] {
            let said = place.refused(&[command, text(&config)]);
            for part in [
                "help: ",
                "remove the file",
                "--accept-journal-loss",
                "IS LOST",
            ] {
                assert!(said.contains(part), "{command}: {said}");
            }
        }
        let slots = slots_file(&place, || (), || ());
        // The option alone drops no existing data.
        let said = place.refused(&["serve", text(&config), "--accept-journal-loss"]);
        assert!(said.contains(text(&slots)), "{said}");
        assert!(slots.exists());
        std::fs::remove_file(&slots).expect("there");
        let said = place.refused(&["serve", text(&config)]);
        assert!(said.contains("--accept-journal-loss"), "{said}");
        if goes_on_with {
            configure(&place, &format!("{under}, {over}"), "fast");
        }
        let daemon = place.serve(&["--accept-journal-loss"]);
        assert!(place.log().contains("LOST"), "{}", place.log());
        daemon.terminate();
        let daemon = place.serve(&[]);
        daemon.terminate();
        place.ok(&["check", text(&config)]);
    }
}
