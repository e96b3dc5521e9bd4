//! Files that are removed, moved, replaced or truncated while a daemon uses them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::copies::tells_holes;
use super::starts::{DISK, SSD, configure, transit};
use super::support::{Daemon, Place, text};
use super::{check_blocks, write_blocks};

/// Cache and metadata in files of their own.
pub(crate) fn in_two_files(place: &Place) {
    for (name, bytes) in [("data", 64 << 20), ("map", 32 << 20)] {
        let file = std::fs::File::create(place.path(name)).expect("made");
        file.set_len(bytes).expect("sparse");
    }
    let (data, map) = (place.path("data"), place.path("map"));
    place.ok(&["format", "--cache", text(&data), "--metadata", text(&map)]);
    let devices = format!(
        "{DISK}, {{ name = \"ssd\", kind = \"file\", path = \"data\" }}, \
         {{ name = \"map\", kind = \"file\", path = \"map\" }}"
    );
    let lines = "cache = { data = \"ssd\", metadata = \"map\", journal = \"journal\", \
        cleaning = \"nop\" }\n\
                 volume = [{ name = \"db\", backing = \"disk\", mode = \"wb\" }]";
    configure(place, &devices, lines);
}

/// Returns the file that the status tells the user to copy instead of a path.
fn copy_of(place: &Place, path: &Path) -> PathBuf {
    let status = place.status().to_string();
    let at = status.find(text(path)).expect("it is reported");
    let at = at + status[at..].find("/proc/").expect("it can be copied");
    status[at..]
        .split([' ', '"', ')'])
        .next()
        .expect("a path")
        .into()
}

fn files_lost(daemon: &Daemon) -> bool {
    !daemon.get("/metrics").contains("forebay_files_lost 0")
}

/// Ends a daemon whose files are missing.
fn stop(daemon: Daemon) {
    daemon.signal(libc::SIGTERM);
    assert_ne!(daemon.wait().code(), Some(0), "what is gone is an error");
}

/// Stops or kills the daemon after the removed files were copied. The copies serve either way.
#[test]
fn a_copy_of_removed_cache_files_serves_after_any_end() {
    for (name, files) in [
        ("one", &["cache"][..]),
        ("map", &["map"]),
        ("both", &["data", "map"]),
    ] {
        for is_killed in [true, false] {
            let place = Place::new(&format!("gone-{name}-{is_killed}"), "wb");
            if name != "one" {
                in_two_files(&place);
            }
            let daemon = place.serve(&[]);
            let mut nbd = place.connect();
            write_blocks(&mut nbd, 0..64);
            assert_eq!(nbd.flush().expect("an answer"), 0);
            drop(nbd);
            for file in files {
                std::fs::remove_file(place.path(file)).expect("there");
                place.wait_for_log(&format!("{} was REMOVED", text(&place.path(file))));
            }
            assert!(place.ok(&["status"]).contains("--moved-cache"));
            // Writes without a waiting client reach the log of the cache within this time.
            std::thread::sleep(Duration::from_secs(3));
            for file in files {
                let copy = place.path(&format!("{file}.copy"));
                std::fs::copy(copy_of(&place, &place.path(file)), copy).expect("copied");
            }
            match is_killed {
                true => daemon.kill(),
                false => stop(daemon),
            }
            for file in files {
                let copy = place.path(&format!("{file}.copy"));
                std::fs::rename(copy, place.path(file)).expect("put there");
            }
            let daemon = place.serve(&["--moved-cache"]);
            check_blocks(&mut place.connect(), 0..64);
            daemon.terminate();
        }
    }
}

#[test]
fn a_file_that_is_moved_is_reported_until_it_is_back() {
    let place = Place::new("gone-moved", "wb");
    in_two_files(&place);
    let daemon = place.serve(&[]);
    write_blocks(&mut place.connect(), 0..32);
    for (file, role) in [
        ("data", "device \"ssd\" (cache)"),
        ("map", "device \"map\" (metadata)"),
        ("db.img", "device \"disk\" (backing)"),
        ("journal", "the process journal"),
    ] {
        assert!(!files_lost(&daemon));
        let (path, elsewhere) = (place.path(file), place.path("elsewhere"));
        std::fs::rename(&path, &elsewhere).expect("moved");
        std::fs::write(&path, "another file").expect("put in its place");
        let message = format!("{role}: {} WAS MOVED OR REPLACED", text(&path));
        place.wait_for_log(&message);
        let status = place.ok(&["status"]);
        assert!(
            status.contains(&message) && status.contains("help: "),
            "{status}"
        );
        assert!(files_lost(&daemon));
        std::fs::rename(&elsewhere, &path).expect("moved back");
        place.wait_until(|status| {
            status["file_troubles"]
                .as_array()
                .is_some_and(Vec::is_empty)
        });
    }
    daemon.terminate();
    let daemon = place.serve(&[]);
    check_blocks(&mut place.connect(), 0..32);
    daemon.terminate();
}

/// A stop loses nothing, since it logs everything.
#[test]
fn a_process_journal_that_is_removed_is_reported_at_once() {
    for replaced in [false, true] {
        let place = Place::new(&format!("gone-journal-{replaced}"), "wb");
        let daemon = place.serve(&[]);
        write_blocks(&mut place.connect(), 0..32);
        let journal = place.path("journal");
        let other = place.path("other");
        std::fs::write(&other, "another file").expect("written");
        match replaced {
            // Another file gets the name of the journal.
            true => std::fs::rename(&other, &journal).expect("moved"),
            false => std::fs::remove_file(&journal).expect("there"),
        }
        place.wait_for_log("the process journal: ");
        let log = place.log();
        for part in [
            "WAS REMOVED",
            "acknowledged writes are LOST",
            "help: stop the daemon",
        ] {
            assert!(log.contains(part), "{part}: {log}");
        }
        assert!(place.ok(&["status"]).contains("WAS REMOVED"));
        assert!(files_lost(&daemon));
        write_blocks(&mut place.connect(), 32..64);
        daemon.terminate();
        if replaced {
            let left = std::fs::read_to_string(&journal).expect("it is somebody's");
            assert_eq!(left, "another file");
            std::fs::remove_file(&journal).expect("there");
        }
        let daemon = place.serve(&[]);
        check_blocks(&mut place.connect(), 0..64);
        daemon.terminate();
    }
}

#[test]
fn slots_of_a_transit_cache_that_are_removed_are_reported_at_once() {
    for replaced in [false, true] {
        let place = Place::new(&format!("gone-slots-{replaced}"), "wt");
        let devices = format!("{DISK}, {}", transit("fast", "disk", "1M"));
        configure(
            &place,
            &devices,
            "volume = [{ name = \"db\", backing = \"fast\" }]",
        );
        let daemon = place.serve(&[]);
        write_blocks(&mut place.connect(), 0..32);
        let slots = super::support::slots_noted_in(&place.path("state"));
        let slots = slots.first().expect("they are in use");
        let other = Path::new("/dev/shm").join(format!("fb-other-{}", std::process::id()));
        std::fs::write(&other, "another file").expect("written");
        match replaced {
            true => std::fs::rename(&other, slots).expect("moved"),
            false => std::fs::remove_file(slots).expect("there"),
        }
        let message = format!(
            "the slots of transit cache \"fast\": {} WAS REMOVED",
            text(slots)
        );
        place.wait_for_log(&message);
        assert!(place.ok(&["status"]).contains(&message));
        assert!(files_lost(&daemon));
        daemon.terminate();
        let left = std::fs::read_to_string(slots).ok();
        assert_eq!(left.as_deref(), replaced.then_some("another file"));
        let _ = std::fs::remove_file(slots);
        let _ = std::fs::remove_file(&other);
        let daemon = place.serve(&[]);
        check_blocks(&mut place.connect(), 0..32);
        daemon.terminate();
    }
}

/// No operation notices the removal of mapped memory.
#[test]
fn a_file_that_is_mapped_and_removed_is_reported_and_no_stop_is_clean() {
    let place = Place::new("gone-mapped", "wt");
    place.ok(&["format", "--btt", text(&place.path("db.img"))]);
    let devices = "{ name = \"pm\", kind = \"pmem\", path = \"db.img\" }, { name = \"table\", \
        kind = \"btt\", on = \"pm\" }";
    configure(
        &place,
        devices,
        "volume = [{ name = \"db\", backing = \"table\" }]",
    );
    let daemon = place.serve(&[]);
    write_blocks(&mut place.connect(), 0..32);
    let path = place.path("db.img");
    std::fs::remove_file(&path).expect("there");
    place.wait_for_log(&format!("{} WAS REMOVED", text(&path)));
    std::fs::copy(copy_of(&place, &path), place.path("copy")).expect("copied");
    stop(daemon);
    std::fs::rename(place.path("copy"), &path).expect("put there");
    let daemon = place.serve(&["--adopt", "db"]);
    check_blocks(&mut place.connect(), 0..32);
    daemon.terminate();
}

/// A metadata file that is cut in service. A tool restores its length at once, the daemon does so
/// at its next look, or a client writes before that look.
#[test]
fn a_metadata_file_that_is_cut_is_written_anew() {
    for (name, left) in [
        ("back", 64 << 10),
        ("short", 64 << 10),
        ("empty", 0),
        ("busy", 64 << 10),
    ] {
        let place = Place::new(&format!("gone-cut-{name}"), "wb");
        if !tells_holes(&place) {
            return;
        }
        in_two_files(&place);
        let daemon = place.serve(&[]);
        let mut nbd = place.connect();
        write_blocks(&mut nbd, 0..64);
        assert_eq!(nbd.flush().expect("an answer"), 0);
        // A look at the data before.
        std::thread::sleep(Duration::from_secs(2));
        let map = std::fs::OpenOptions::new()
            .write(true)
            .open(place.path("map"));
        let map = map.expect("there");
        map.set_len(left).expect("cut");
        match name {
            "back" => map.set_len(32 << 20).expect("as long again"),
            // The status sees the size, and each of these writes goes to the log.
            "busy" => {
                place.ok(&["status"]);
                for number in 64..128 {
                    write_blocks(&mut nbd, number..number + 1);
                    assert_eq!(nbd.flush().expect("an answer"), 0);
                }
            }
            _ => {}
        }
        place.wait_for_log("all metadata is rewritten");
        assert_eq!(map.metadata().expect("open").len(), 32 << 20);
        assert_eq!(place.log().matches("was truncated while").count(), 1);
        place.wait_until(|status| {
            status["file_troubles"]
                .as_array()
                .is_some_and(Vec::is_empty)
        });
        daemon.kill();
        let daemon = place.serve(&[]);
        let blocks = if name == "busy" { 128 } else { 64 };
        check_blocks(&mut place.connect(), 0..blocks);
        assert!(!place.log().contains("damaged"), "{}", place.log());
        daemon.terminate();
        place.ok(&["check", text(&place.path("forebay.toml"))]);
    }
}

#[test]
fn one_file_with_data_and_metadata_has_its_devices_named_once() {
    let place = Place::new("gone-once", "wb");
    configure(
        &place,
        &format!("{SSD}, {DISK}"),
        "cache = { data = \"ssd\", journal = \"journal\" }\nvolume = [{ name = \"db\", \
         backing = \"disk\", mode = \"wb\" }]",
    );
    let daemon = place.serve(&[]);
    std::fs::remove_file(place.path("cache")).expect("there");
    place.wait_for_log("was REMOVED");
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(place.log().matches("REMOVED").count(), 1, "{}", place.log());
    drop(daemon);
}

/// The cache and the watch of the daemon both see it.
#[test]
fn a_file_of_the_cache_that_is_cut_is_logged_once() {
    for (name, file) in [("one", "cache"), ("data", "data"), ("map", "map")] {
        let place = Place::new(&format!("gone-logged-{name}"), "wb");
        if name != "one" {
            in_two_files(&place);
        }
        let daemon = place.serve(&[]);
        write_blocks(&mut place.connect(), 0..16);
        std::thread::sleep(Duration::from_secs(2));
        let path = place.path(file);
        let opened = std::fs::OpenOptions::new().write(true).open(&path);
        opened.expect("there").set_len(64 << 10).expect("cut");
        place.wait_for_log("was truncated ");
        std::thread::sleep(Duration::from_secs(3));
        let log = place.log();
        let about = |line: &&str| {
            line.contains("was truncated while")
                || line.contains("was truncated in use")
                || line.contains("has shrunk")
        };
        let lines: Vec<_> = log.lines().filter(about).collect();
        assert_eq!(lines.len(), 1, "{name}: {lines:#?}");
        drop(daemon);
    }
}
