//! Claims of a volume in object storage: a refused start leaves the writer in service, and a fenced
//! daemon does not write older data back.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::checked::both_refuse;
use crate::object_backing::{back_with, directory, make_folder};
use crate::support::nbd::Nbd;
use crate::support::{Place, slots_noted_in, text};
use crate::{block, check_blocks, write_blocks};

/// Data of another daemon, of this number of block.
fn write_others(nbd: &mut Nbd, numbers: std::ops::Range<u64>) {
    for number in numbers {
        let error = nbd.write(number * 4096, &block(number + 100));
        assert_eq!(error.expect("an answer"), 0, "block {number}");
    }
    assert_eq!(nbd.flush().expect("an answer"), 0);
}

fn check_others(nbd: &mut Nbd, numbers: std::ops::Range<u64>) {
    for number in numbers {
        let data = nbd.read(number * 4096, 4096).expect("an answer");
        assert_eq!(data, Ok(block(number + 100)), "block {number}");
    }
}

/// Two daemons with a state directory and a cache each, and the folder of their volume.
fn two(name: &str, mode: &str) -> (Place, Place, PathBuf) {
    let first = Place::new(&format!("{name}-first"), mode);
    let second = Place::new(&format!("{name}-second"), "wt");
    let folder = make_folder(&first);
    back_with(&first, &directory(&folder), mode);
    back_with(&second, &directory(&folder), "wt");
    (first, second, folder)
}

/// Returns the number of objects of the log, which each claim raises.
fn objects(folder: &Path) -> usize {
    std::fs::read_dir(folder.join("log")).map_or(0, Iterator::count)
}

#[test]
fn a_refused_start_leaves_the_writer_in_service() {
    let (first, second, folder) = two("object-refused", "wt");
    let config = second.path("forebay.toml");
    // The second daemon has had the volume, with dirty data, and lost its state directory.
    let daemon = {
        back_with(&second, &directory(&folder), "wb");
        let daemon = second.serve(&[]);
        write_blocks(&mut second.connect(), 0..8);
        daemon.terminate();
        std::fs::remove_dir_all(second.path("state")).expect("there");
        first.serve(&[])
    };
    let mut nbd = first.connect();
    let mut goes_on = |why: &str| {
        write_others(&mut nbd, 0..16);
        check_others(&mut nbd, 0..16);
        println!("it goes on after a start that was refused for {why}");
    };
    let before = objects(&folder);
    let refused = second.refused(&["serve", text(&config)]);
    assert!(refused.contains("--adopt db"), "{refused}");
    assert_eq!(objects(&folder), before, "nothing is claimed");
    goes_on("its state directory");
    // Its cache has older dirty data, which only the open cache shows.
    let before = objects(&folder);
    second.start().arguments(&["--adopt", "db"]).start().kill();
    drop(nbd);
    daemon.kill();
    assert!(objects(&folder) > before, "it is adopted and claimed");

    let daemon = first.serve(&[]);
    let mut nbd = first.connect();
    let mut goes_on = |why: &str| {
        write_others(&mut nbd, 0..16);
        check_others(&mut nbd, 0..16);
        println!("it goes on after a start that was refused for {why}");
    };
    let refused = second.refused(&["serve", text(&config)]);
    assert!(refused.contains("--discard-stale-dirty db"), "{refused}");
    goes_on("stale dirty data");
    let sound = second.read_config();
    let volume = "[[volume]]\nname = \"db\"";
    for is_first in [false, true] {
        let other = "[[volume]]\nname = \"other\"\nbacking = \"gone\"\n\n";
        let device = "[[device]]\nname = \"gone\"\nkind = \"file\"\npath = \"gone.img\"\n";
        second.write_config(&match is_first {
            true => sound.replace(volume, &format!("{device}{other}{volume}")),
            false => format!("{sound}{device}{other}"),
        });
        let discards = ["serve", text(&config), "--discard-stale-dirty", "db"];
        let refused = second.refused(&discards);
        assert!(refused.contains("gone.img"), "{refused}");
        goes_on("another volume");
    }
    second.write_config(&sound);
    let cache = second.path("cache");
    let whole = std::fs::read(&cache).expect("there");
    std::fs::write(&cache, vec![0; whole.len()]).expect("written");
    second.refused(&["serve", text(&config)]);
    goes_on("its cache");
    daemon.terminate();
}

const STALE: [&str; 3] = [
    "volume \"db\" was written without this cache",
    "holds older dirty data there",
    "help: start with --discard-stale-dirty db",
];

/// Lets the first daemon leave dirty data, and the second one write newer data meanwhile.
fn fenced(name: &str) -> (Place, Place, PathBuf) {
    let (first, second, folder) = two(name, "wb");
    let stale = first.serve(&[]);
    write_blocks(&mut first.connect(), 0..16);
    let daemon = second.serve(&[]);
    write_others(&mut second.connect(), 0..16);
    daemon.terminate();
    stale.kill();
    (first, second, folder)
}

#[test]
fn a_fenced_daemon_does_not_write_older_data_back() {
    let (first, second, folder) = fenced("object-stale");
    let before = objects(&folder);
    for _ in 0..2 {
        both_refuse(&first, &STALE);
    }
    assert_eq!(objects(&folder), before, "nothing is claimed");
    let said = first.refused(&["serve", text(&first.path("forebay.toml"))]);
    assert!(said.contains("another daemon, process "), "{said}");
    let daemon = first.serve(&["--discard-stale-dirty", "db"]);
    check_others(&mut first.connect(), 0..16);
    daemon.terminate();
    let daemon = first.serve(&[]);
    check_others(&mut first.connect(), 0..16);
    daemon.kill();
    // The other one has clean data of that time.
    let daemon = second.serve(&[]);
    check_others(&mut second.connect(), 0..16);
    daemon.terminate();
}

#[test]
fn dirty_data_of_a_fenced_daemon_can_be_forgotten() {
    let (first, ..) = fenced("object-forgotten");
    let config = first.path("forebay.toml");
    first.ok(&["forget", "db", "--discard-dirty", text(&config)]);
    let daemon = first.serve(&[]);
    check_others(&mut first.connect(), 0..16);
    daemon.terminate();
}

#[test]
fn a_fenced_daemon_that_serves_without_its_cache_still_refuses_that_cache() {
    let (first, ..) = fenced("object-stale-without");
    let daemon = first.serve(&["--without-cache", "db"]);
    check_others(&mut first.connect(), 0..16);
    daemon.terminate();
    // This daemon was the last writer by then.
    both_refuse(&first, &STALE);
}

#[test]
fn clean_data_that_another_daemon_has_overwritten_is_dropped() {
    let (first, second, _) = two("object-clean", "wt");
    let daemon = first.serve(&[]);
    write_blocks(&mut first.connect(), 0..16);
    daemon.terminate();
    let daemon = second.serve(&[]);
    write_others(&mut second.connect(), 0..16);
    daemon.terminate();
    let daemon = first.serve(&[]);
    check_others(&mut first.connect(), 0..16);
    daemon.terminate();
}

/// Starts a daemon, and kills it at once when `is_time`.
fn kill_when(place: &Place, is_time: impl Fn() -> bool) {
    let daemon = place.start().append_log().spawn();
    let began = Instant::now();
    while !is_time() {
        assert!(
            began.elapsed() < Duration::from_secs(60),
            "{}",
            daemon.log_tail()
        );
        std::thread::sleep(Duration::from_micros(200));
    }
    daemon.kill();
}

#[test]
fn a_daemon_that_is_killed_during_its_start_is_no_other_writer() {
    let place = Place::new("object-killed", "wb");
    let folder = make_folder(&place);
    back_with(&place, &directory(&folder), "wb");
    let daemon = place.serve(&[]);
    write_blocks(&mut place.connect(), 0..16);
    daemon.kill();
    let record = || std::fs::read_to_string(place.path("state/db.epoch")).expect("a record");
    for round in 0..8 {
        // Before or after the claim, with the writer recorded.
        let (claims, recorded) = (objects(&folder), record());
        kill_when(&place, || match round % 4 {
            0 | 3 => objects(&folder) > claims,
            _ => record() != recorded,
        });
        assert!(record().contains("\nwriters "), "{}", record());
    }
    place.ok(&["check", text(&place.path("forebay.toml"))]);
    let daemon = place.serve(&[]);
    check_blocks(&mut place.connect(), 0..16);
    daemon.terminate();
}

#[test]
fn writes_without_the_cache_are_not_those_of_another_daemon() {
    let place = Place::new("object-without", "wb");
    let folder = make_folder(&place);
    back_with(&place, &directory(&folder), "wb");
    let daemon = place.serve(&[]);
    write_blocks(&mut place.connect(), 0..16);
    daemon.terminate();
    for _ in 0..2 {
        let daemon = place.serve(&["--without-cache", "db"]);
        // In another MiB than all dirty data.
        write_blocks(&mut place.connect(), 2560..2564);
        daemon.kill();
    }
    let daemon = place.serve(&[]);
    check_blocks(&mut place.connect(), 0..16);
    daemon.terminate();
}

#[test]
fn older_data_of_a_transit_cache_is_not_sent_on() {
    let (first, second, folder) = two("object-transit", "wt");
    let transit = "[[device]]\nname = \"slots\"\nkind = \"transit\"\non = \"far\"\n\
                   capacity = \"16M\"\npolicy = \"lru\"\n\n[cache]";
    first.edit_config(&[
        ("[cache]", transit),
        ("backing = \"far\"", "backing = \"slots\""),
    ]);
    let stale = first.serve(&[]);
    write_blocks(&mut first.connect(), 0..16);
    stale.kill();
    // The second daemon is on another machine.
    let slots = slots_noted_in(&first.path("state"));
    let aside = |number: usize| first.path(&format!("slots.{number}"));
    assert!(!slots.is_empty());
    for (number, slots) in slots.iter().enumerate() {
        std::fs::copy(slots, aside(number)).expect("copied");
        std::fs::remove_file(slots).expect("there");
    }
    let daemon = second.serve(&[]);
    write_others(&mut second.connect(), 0..16);
    daemon.terminate();
    for (number, slots) in slots.iter().enumerate() {
        std::fs::copy(aside(number), slots).expect("copied");
    }
    let before = objects(&folder);
    for _ in 0..2 {
        both_refuse(&first, &["in transit cache \"slots\" are older"]);
    }
    let said = first.refused(&["serve", text(&first.path("forebay.toml"))]);
    assert!(said.contains("another daemon, process "), "{said}");
    assert_eq!(objects(&folder), before, "nothing is claimed");
    for slots in slots {
        std::fs::remove_file(slots).expect("there");
    }
    let daemon = first.serve(&["--accept-journal-loss"]);
    check_others(&mut first.connect(), 0..16);
    daemon.terminate();
}

/// Waits until all requests of clients fail.
fn await_fence(nbd: &mut Nbd) {
    let began = Instant::now();
    while nbd.read(0, 4096).expect("an answer").is_ok() {
        assert!(began.elapsed() < Duration::from_secs(60), "it is served");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_fenced_daemon_serves_nothing_from_its_cache() {
    for mode in ["wt", "wb"] {
        let (first, second, _) = two(&format!("object-hits-{mode}"), mode);
        let stale = first.serve(&[]);
        let mut nbd = first.connect();
        write_blocks(&mut nbd, 0..16);
        first.ok(&["flush", "db"]);
        let daemon = second.serve(&[]);
        write_others(&mut second.connect(), 0..16);
        // The first daemon learns of it by its next object.
        let _ = nbd.write(0, &crate::block(300)).expect("an answer");
        assert!(!first.run(&["flush", "db"]).status.success());
        await_fence(&mut nbd);
        assert_ne!(nbd.write(0, &crate::block(301)).expect("an answer"), 0);
        assert_ne!(nbd.flush().expect("an answer"), 0);
        let mut late = first.connect();
        assert!(late.read(4096, 4096).expect("an answer").is_err());
        first.wait_for_log("volume \"db\" serves no request any more");
        let status = first.ok(&["status"]);
        assert!(status.contains("took it over"), "{status}");
        stale.kill();
        check_others(&mut second.connect(), 0..16);
        daemon.terminate();
    }
}

/// Copies a folder.
fn copy(from: &Path, to: &Path) {
    let copied = std::process::Command::new("cp")
        .arg("-a")
        .arg(from)
        .arg(to)
        .status();
    assert!(copied.expect("it is installed").success());
}

#[test]
fn a_folder_that_is_empty_or_an_older_copy_is_refused() {
    for (mode, options) in [
        ("wb", &[][..]),
        ("wt", &[]),
        ("wt", &["--without-cache", "db"]),
    ] {
        let place = Place::new(&format!("object-older-{mode}-{}", options.len()), mode);
        let folder = make_folder(&place);
        back_with(&place, &directory(&folder), mode);
        let serve = || place.serve(options);
        let daemon = serve();
        write_blocks(&mut place.connect(), 0..8);
        daemon.terminate();
        let older = place.path("older");
        copy(&folder, &older);
        let daemon = serve();
        write_blocks(&mut place.connect(), 8..16);
        daemon.terminate();
        let newest = place.path("newest");
        std::fs::rename(&folder, &newest).expect("moved");
        std::fs::rename(&older, &folder).expect("moved");
        let config = place.path("forebay.toml");
        // A check reports the loss as damage.
        for (command, status) in [("serve", 1), ("check", 3)] {
            let mut words = vec![command, text(&config)];
            if command == "serve" {
                words.extend(options);
            }
            let output = place.run(&words);
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(status), "{command}: {said}");
            let older = "is older than the last writes of this daemon: DATA IS LOST\n    help: ";
            assert!(said.contains(older), "{command}: {said}");
        }
        std::fs::remove_dir_all(&folder).expect("removed");
        std::fs::create_dir(&folder).expect("a new directory");
        both_refuse(
            &place,
            &["is empty, and the volume was served", "help: mount its"],
        );
        assert!(!folder.join("volume").exists() && !folder.join("log").exists());
        std::fs::remove_dir_all(&folder).expect("removed");
        std::fs::rename(&newest, &folder).expect("moved");
        let daemon = serve();
        check_blocks(&mut place.connect(), 0..16);
        daemon.terminate();
    }
}

#[test]
fn a_flush_by_command_makes_bypassing_writes_durable() {
    for options in [&[][..], &["--without-cache", "db"]] {
        let place = Place::new(&format!("object-flush-{}", options.len()), "wt");
        let folder = make_folder(&place);
        back_with(&place, &directory(&folder), "wt");
        let daemon = place.serve(options);
        write_blocks(&mut place.connect(), 0..16);
        place.ok(&["flush"]);
        daemon.kill();
        let daemon = place.serve(&["--without-cache", "db"]);
        check_blocks(&mut place.connect(), 0..16);
        daemon.terminate();
    }
}

#[test]
fn a_check_refuses_a_folder_that_a_start_refuses() {
    let place = Place::new("object-agree", "wt");
    let folder = make_folder(&place);
    back_with(&place, &directory(&folder), "wt");
    let daemon = place.serve(&[]);
    write_blocks(&mut place.connect(), 0..8);
    daemon.terminate();
    let config = place.read_config();
    place.write_config(&config.replace("64M", "32M"));
    both_refuse(&place, &["a volume cannot shrink"]);
    place.write_config(&config);
    let superblock = std::fs::read(folder.join("volume")).expect("there");
    std::fs::remove_file(folder.join("volume")).expect("there");
    both_refuse(&place, &["there is a log in", "but no object volume"]);
    std::fs::write(folder.join("volume"), superblock).expect("written");
    place.serve(&[]).terminate();
}

#[test]
fn two_devices_in_one_directory_are_refused() {
    let place = Place::new("object-twice", "wt");
    let folder = make_folder(&place);
    back_with(&place, &directory(&folder), "wt");
    let other = place.path("link");
    std::os::unix::fs::symlink(&folder, &other).expect("made");
    let device = format!(
        "[[device]]\nname = \"too\"\nkind = \"object\"\n{}",
        directory(&other)
    );
    let volume = "[[volume]]\nname = \"two\"\nbacking = \"too\"\nmode = \"wt\"\n";
    place.edit_config(&[("[cache]", &format!("{device}{volume}[cache]"))]);
    let words = [
        "devices \"too\" and \"far\" are in one directory",
        text(&folder),
        text(&other),
    ];
    both_refuse(&place, &words);
    assert_eq!(objects(&folder), 0, "nothing was created");
}
