//! Copies of cache devices, and earlier states of devices, journals and state directories.

use std::os::unix::fs::FileExt as _;
use std::path::Path;

use super::support::{Place, text};
use super::{check_blocks, write_blocks};

/// Sets the file of the cache in the configuration, and whether its journal has the default path.
pub(crate) fn configure(place: &Place, cache: &str, usual_journal: bool) {
    place.configure("wb", "");
    let config = place.path("forebay.toml");
    let mut written = std::fs::read_to_string(&config).expect("there");
    written = written.replace("path = \"cache\"", &format!("path = \"{cache}\""));
    if usual_journal {
        written = written.replace("journal = \"journal\"\n", "");
    }
    std::fs::write(&config, written).expect("written");
}

pub(crate) fn copy(place: &Place, from: &str, to: &str) {
    std::fs::copy(place.path(from), place.path(to)).expect("copied");
}

/// Restores the contents of a file without replacing it.
pub(crate) fn put_back(place: &Place, from: &str, to: &str) {
    let bytes = std::fs::read(place.path(from)).expect("there");
    let file = std::fs::OpenOptions::new().write(true).open(place.path(to));
    let file = file.expect("there");
    file.write_all_at(&bytes, 0).expect("written");
    file.set_len(bytes.len() as u64).expect("as long");
}

/// Returns the path of the journal of the place's cache.
fn journal(place: &Place, usual: bool) -> std::path::PathBuf {
    if !usual {
        return place.path("journal");
    }
    let said = place.run(&["check", "--json", "--cache", text(&place.path("cache"))]);
    let found: serde_json::Value = serde_json::from_slice(&said.stdout).expect("JSON");
    let uuid = found["uuid"].as_str().expect("it has one");
    format!("/dev/shm/forebay-{uuid}.journal").into()
}

#[test]
fn a_copy_of_a_cache_never_harms_the_original() {
    for usual in [false, true] {
        let place = Place::new(&format!("copy-{usual}"), "wb");
        configure(&place, "cache", usual);
        let config = place.path("forebay.toml");
        // A copy from before the last start, and one from after the kill.
        place.serve(&[]).terminate();
        copy(&place, "cache", "older");
        let daemon = place.serve(&[]);
        write_blocks(&mut place.connect(), 0..100);
        daemon.kill();
        copy(&place, "cache", "same");
        let journal = journal(&place, usual);
        let before = std::fs::read(&journal).expect("there");
        let is_whole = |what: &str| {
            let now = std::fs::read(&journal).unwrap_or_default();
            assert!(now == before, "{what}: the original's journal was changed");
        };
        for name in ["older", "same"] {
            let path = place.path(name);
            let cache = text(&path);
            configure(&place, name, usual);
            for more in [&[][..], &["--accept-journal-loss"], &["--adopt", "db"]] {
                let arguments = [&["serve", text(&config)][..], more].concat();
                let said = place.refused(&arguments);
                for part in [name, text(&place.path("cache")), "clone-id", "help: "] {
                    assert!(said.contains(part), "{part}: {said}");
                }
                is_whole("serve");
            }
            let checked = place.run(&["check", "--cache", cache]);
            let said = String::from_utf8_lossy(&checked.stdout).into_owned();
            match name {
                // It is sound, and the journal does not contradict it.
                "older" => assert!(
                    checked.status.success() && said.contains("NOTE: "),
                    "{said}"
                ),
                _ => assert!(said.contains("is a copy of the cache on"), "{said}"),
            }
            is_whole("check");
            let repaired = place.run(&["check", "--repair", "--cache", cache]);
            assert_eq!(repaired.status.success(), name == "older", "{repaired:?}");
            is_whole("check --repair");
            let cloned = format!("{name}-cloned");
            copy(&place, name, &cloned);
            let said = place.ok(&["clone-id", "--cache", text(&place.path(&cloned))]);
            assert!(said.contains("which was a copy of"), "{said}");
            is_whole("clone-id");
            place.ok(&["format", "--force", "--discard-dirty", "--cache", cache]);
            is_whole("format");
        }
        let original = place.path("cache");
        let refused = place.refused(&["clone-id", "--cache", text(&original)]);
        assert!(refused.contains("is no copy"), "{refused}");
        configure(&place, "cache", usual);
        let daemon = place.serve(&[]);
        check_blocks(&mut place.connect(), 0..100);
        daemon.terminate();
        assert!(!journal.exists(), "a clean end removes it");
    }
}

#[test]
fn a_copy_with_an_identity_of_its_own_is_served_beside_the_original() {
    let place = Place::new("cloned", "wb");
    configure(&place, "cache", true);
    let daemon = place.serve(&[]);
    write_blocks(&mut place.connect(), 0..50);
    daemon.terminate();
    copy(&place, "cache", "copy");
    copy(&place, "db.img", "copy.img");
    let daemon = place.serve(&[]);
    write_blocks(&mut place.connect(), 50..60);
    let said = place.ok(&["clone-id", "--cache", text(&place.path("copy"))]);
    assert!(
        said.contains("volume \"db\": 200 KiB of dirty data"),
        "{said}"
    );
    // In a place of its own, since the first one is served.
    let other = Place::new("cloned-other", "wb");
    for name in ["cache", "db.img"] {
        std::fs::remove_file(other.path(name)).expect("there");
    }
    std::fs::rename(place.path("copy"), other.path("cache")).expect("moved");
    std::fs::rename(place.path("copy.img"), other.path("db.img")).expect("moved");
    configure(&other, "cache", true);
    let refused = other.refused(&["serve", text(&other.path("forebay.toml"))]);
    assert!(refused.contains("--adopt db"), "{refused}");
    let second = other.serve(&["--adopt", "db"]);
    check_blocks(&mut other.connect(), 0..50);
    write_blocks(&mut other.connect(), 80..90);
    second.terminate();
    check_blocks(&mut place.connect(), 0..60);
    daemon.terminate();
}

#[test]
fn of_two_copies_both_are_named_and_a_moved_cache_is_served() {
    let place = Place::new("moved", "wb");
    let config = place.path("forebay.toml");
    let daemon = place.serve(&[]);
    write_blocks(&mut place.connect(), 0..20);
    daemon.terminate();
    copy(&place, "cache", "copy");
    let both = |said: &str| {
        for name in ["cache", "copy"] {
            assert!(said.contains(text(&place.path(name))), "{name}: {said}");
        }
        assert!(
            said.contains("clone-id") && said.contains("--moved-cache"),
            "{said}"
        );
    };
    configure(&place, "copy", false);
    both(&place.refused(&["serve", text(&config)]));
    both(&place.refused(&["check", text(&config)]));
    // Another state directory does not help.
    let with_state = std::fs::read_to_string(&config).expect("there");
    let other = with_state.replace("state = \"state\"", "state = \"other\"");
    std::fs::write(&config, other).expect("written");
    both(&place.refused(&["serve", text(&config), "--adopt", "db"]));
    std::fs::write(&config, with_state).expect("written");
    // The original is served as before, also under another name.
    std::fs::rename(place.path("cache"), place.path("renamed")).expect("renamed");
    configure(&place, "renamed", false);
    let daemon = place.serve(&[]);
    assert!(!place.log().contains("takes its place"), "{}", place.log());
    check_blocks(&mut place.connect(), 0..20);
    daemon.terminate();
    // The copy is older now, whether the original exists or not.
    configure(&place, "copy", false);
    both(
        &place
            .refused(&["serve", text(&config)])
            .replace("renamed", "cache"),
    );
    std::fs::rename(place.path("renamed"), place.path("aside")).expect("renamed");
    let older = place.run(&["serve", text(&config), "--moved-cache"]);
    let said = String::from_utf8_lossy(&older.stderr).into_owned();
    assert!(
        !older.status.success() && said.contains("an earlier state"),
        "{said}"
    );
    // A copy of the newest state is served if the original is missing, or in its place.
    copy(&place, "aside", "copy");
    let daemon = place.serve(&[]);
    assert!(place.log().contains("takes its place"), "{}", place.log());
    check_blocks(&mut place.connect(), 0..20);
    write_blocks(&mut place.connect(), 20..30);
    daemon.kill();
    // Killed, and moved with the contents of the journal: only with the user's consent.
    copy(&place, "copy", "moved");
    configure(&place, "moved", false);
    let said = place.refused(&["serve", text(&config)]);
    assert!(said.contains("--moved-cache"), "{said}");
    let daemon = place.serve(&["--moved-cache"]);
    check_blocks(&mut place.connect(), 0..30);
    daemon.terminate();
    let daemon = place.serve(&[]);
    check_blocks(&mut place.connect(), 0..30);
    daemon.terminate();
}

#[test]
fn an_earlier_state_that_is_put_back_onto_the_cache_device_is_refused() {
    let place = Place::new("rolled-back", "wb");
    let config = place.path("forebay.toml");
    place.serve(&[]).terminate();
    copy(&place, "cache", "older");
    let daemon = place.serve(&[]);
    write_blocks(&mut place.connect(), 0..20);
    daemon.kill();
    copy(&place, "cache", "killed");
    let journal = std::fs::read(place.path("journal")).expect("there");
    put_back(&place, "older", "cache");
    for more in [
        &[][..],
        &["--accept-journal-loss"],
        &["--adopt", "db"],
        &["--moved-cache"],
    ] {
        let said = place.run(&[&["serve", text(&config)][..], more].concat());
        let said = String::from_utf8_lossy(&said.stderr).into_owned();
        assert!(
            said.contains("put the newest state of the device back"),
            "{said}"
        );
    }
    let cache = place.path("cache");
    let repaired = place.run(&["check", "--repair", "--cache", text(&cache)]);
    assert!(!repaired.status.success(), "{repaired:?}");
    let now = std::fs::read(place.path("journal")).expect("it is kept");
    assert!(now == journal, "the journal was changed");
    put_back(&place, "killed", "cache");
    let daemon = place.serve(&[]);
    check_blocks(&mut place.connect(), 0..20);
    daemon.terminate();
    // After a clean end there is no journal: the state directory knows.
    copy(&place, "cache", "newest");
    put_back(&place, "killed", "cache");
    let said = place.run(&["serve", text(&config)]);
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(said.contains("an earlier state"), "{said}");
    let checked = place.run(&["check", text(&config)]);
    assert_eq!(checked.status.code(), Some(3), "{checked:?}");
    put_back(&place, "newest", "cache");
    let daemon = place.serve(&[]);
    check_blocks(&mut place.connect(), 0..20);
    daemon.terminate();
}

/// A repair gives a copy a high generation. The state directory must not record it if a volume
/// refuses the start. Otherwise the newest state would count as an earlier one.
#[test]
fn a_start_that_a_volume_refuses_is_not_remembered() {
    let place = Place::new("refused-start", "wb");
    let config = place.path("forebay.toml");
    place.serve(&[]).terminate();
    copy(&place, "cache", "older");
    let older = place.path("older");
    place.ok(&["check", "--repair", "--cache", text(&older)]);
    let daemon = place.serve(&[]);
    write_blocks(&mut place.connect(), 0..20);
    daemon.terminate();
    copy(&place, "cache", "newest");
    put_back(&place, "older", "cache");
    for more in [&[][..], &["--moved-cache"]] {
        place.refused(&[&["serve", text(&config)][..], more].concat());
    }
    put_back(&place, "newest", "cache");
    let daemon = place.serve(&[]);
    check_blocks(&mut place.connect(), 0..20);
    daemon.terminate();
}

#[test]
fn an_earlier_journal_that_is_put_back_is_refused() {
    let place = Place::new("old-journal", "wb");
    let config = place.path("forebay.toml");
    let daemon = place.serve(&[]);
    write_blocks(&mut place.connect(), 0..20);
    daemon.kill();
    copy(&place, "journal", "older");
    let daemon = place.serve(&[]);
    write_blocks(&mut place.connect(), 20..40);
    daemon.kill();
    copy(&place, "journal", "newest");
    put_back(&place, "older", "journal");
    let said = place.run(&["serve", text(&config)]);
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(said.contains("put the newest journal back"), "{said}");
    put_back(&place, "newest", "journal");
    let daemon = place.serve(&[]);
    check_blocks(&mut place.connect(), 0..40);
    daemon.terminate();
}

#[test]
fn a_state_directory_that_is_removed_in_service_is_reported_at_once() {
    let place = Place::new("state-gone", "wb");
    let daemon = place.serve(&[]);
    assert!(
        daemon
            .get("/metrics")
            .contains("forebay_state_directory_lost 0")
    );
    std::fs::remove_dir_all(place.path("state")).expect("there");
    place.wait_for_log("WAS REMOVED OR REPLACED");
    assert!(
        daemon
            .get("/metrics")
            .contains("forebay_state_directory_lost 1")
    );
    let status = place.ok(&["status"]);
    assert!(status.contains("WAS REMOVED OR REPLACED"), "{status}");
    let status = place.status();
    assert!(status["state_trouble"].is_string(), "{status}");
    daemon.kill();
}

fn set_len(path: &Path, bytes: u64) {
    let file = std::fs::OpenOptions::new().write(true).open(path);
    file.expect("there").set_len(bytes).expect("it may be cut");
}

/// Returns whether the file system of the place reports holes in files.
pub(super) fn tells_holes(place: &Place) -> bool {
    use std::os::fd::AsRawFd as _;
    let file = std::fs::File::open(place.path("db.img")).expect("there");
    // SAFETY: the descriptor is open; no memory is involved.
    let hole = unsafe { libc::lseek(file.as_raw_fd(), 0, libc::SEEK_HOLE) };
    if hole != 0 {
        eprintln!(
            "SKIPPED: the file system of {:?} does not tell holes",
            place.path("")
        );
    }
    hole == 0
}

/// Returns the first byte of the data, after which the blocks follow in order.
pub(super) fn data_offset(place: &Place) -> u64 {
    let cache = std::fs::File::open(place.path("cache")).expect("there");
    let mut bytes = [0; 8];
    cache.read_exact_at(&mut bytes, 80).expect("a superblock");
    u64::from_le_bytes(bytes)
}

#[test]
fn data_cut_off_a_cache_file_is_named_as_lost_and_not_written_back() {
    // In service and noticed; in service and restored to its length at once; and without a daemon.
    for (name, in_service, pause_ms) in [
        ("seen", true, 2500),
        ("at-once", true, 0),
        ("stopped", false, 0),
    ] {
        let place = Place::new(&format!("cut-{name}"), "wb");
        if pause_ms == 0 && !tells_holes(&place) {
            continue;
        }
        let daemon = place.serve(&[]);
        write_blocks(&mut place.connect(), 0..128);
        let (cache, full) = (place.path("cache"), 64 << 20);
        // Blocks of 32 KiB: eight of 4 KiB each.
        let at = data_offset(&place) + 10 * (32 << 10);
        if in_service {
            set_len(&cache, at);
            std::thread::sleep(std::time::Duration::from_millis(pause_ms));
            set_len(&cache, full);
            // Nothing of it is written back.
            let _ = place.run(&["flush"]);
            daemon.signal(libc::SIGTERM);
            let status = daemon.wait();
            assert_ne!(status.code(), Some(0), "{name}: no clean end");
        } else {
            daemon.terminate();
            set_len(&cache, at);
            set_len(&cache, full);
        }
        let backing = std::fs::read(place.path("db.img")).expect("there");
        assert!(backing.len() == 64 << 20);
        let checked = place.run(&["check", "--cache", text(&cache)]);
        let said = String::from_utf8_lossy(&checked.stdout).into_owned();
        assert!(
            said.contains("ARE LOST: the cache device was truncated there"),
            "{name}: {said}"
        );
        let daemon = place.serve(&[]);
        let log = place.log();
        assert!(
            log.contains("LOST: dirty data where the cache device was truncated"),
            "{log}"
        );
        let metrics = daemon.get("/metrics");
        assert!(
            metrics.contains("forebay_volume_loss{volume=\"db\"} 1"),
            "{metrics}"
        );
        let mut nbd = place.connect();
        check_blocks(&mut nbd, 0..80);
        for number in 80..128 {
            let data = nbd
                .read(number * 4096, 4096)
                .expect("an answer")
                .expect("read");
            let was = &backing[number as usize * 4096..][..4096];
            assert!(
                data == was,
                "{name}: block {number} is not the backing device's"
            );
        }
        place.ok(&["flush"]);
        daemon.terminate();
        let daemon = place.serve(&[]);
        assert!(!place.log().contains("LOST"), "{}", place.log());
        daemon.terminate();
    }
}

/// Returns the warnings of `check` that an earlier state would not be recognized.
fn warnings(place: &Place) -> usize {
    let output = place.run(&["check", text(&place.path("forebay.toml"))]);
    let said = String::from_utf8(output.stderr).expect("text");
    said.matches("would not be recognized").count()
}

#[test]
fn a_missing_record_of_the_openings_is_warned_of_as_a_damaged_one() {
    let place = Place::new("openings", "wb");
    assert_eq!(warnings(&place), 0, "a new cache has none");
    let daemon = place.serve(&[]);
    write_blocks(&mut place.connect(), 0..8);
    daemon.terminate();
    assert_eq!(warnings(&place), 0);
    let entries = std::fs::read_dir(place.path("state")).expect("there");
    let paths = entries.map(|entry| entry.expect("read").path());
    let mut records = paths.filter(|path| path.extension().is_some_and(|end| end == "cache"));
    let record = records.next().expect("one");
    let before = std::fs::read(&record).expect("there");
    std::fs::write(&record, "notes").expect("written");
    assert_eq!(warnings(&place), 1, "damaged");
    std::fs::remove_file(&record).expect("there");
    assert_eq!(warnings(&place), 1, "missing");
    place.serve(&[]).kill();
    assert!(
        place.log().contains("is missing: an earlier state"),
        "{}",
        place.log()
    );
    // The start has stored it again.
    assert_ne!(std::fs::read(&record).expect("there"), before);
    assert_eq!(warnings(&place), 0);
    // The volumes of another state directory have to be adopted anyway.
    std::fs::rename(place.path("state"), place.path("former")).expect("renamed");
    assert_eq!(warnings(&place), 0);
}

#[test]
fn a_copy_at_the_path_of_its_original_is_not_a_copy_of_itself() {
    let place = Place::new("copy-same-path", "wb");
    let config = place.path("forebay.toml");
    let daemon = place.serve(&[]);
    write_blocks(&mut place.connect(), 0..20);
    daemon.kill();
    let (cache, original) = (place.path("cache"), place.path("original"));
    std::fs::rename(&cache, &original).expect("there");
    std::fs::copy(&original, &cache).expect("copied");
    for arguments in [
        &["serve", text(&config)][..],
        &["serve", text(&config), "--adopt", "db"],
        &["check", text(&config)],
    ] {
        let output = place.run(arguments);
        assert!(!output.status.success(), "{output:?}");
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said).into_owned();
        let itself = format!("copy of the cache on {}", cache.display());
        assert!(!said.contains(&itself), "{arguments:?}: {said}");
        assert!(
            said.contains("put the original back"),
            "{arguments:?}: {said}"
        );
    }
    std::fs::rename(&original, &cache).expect("put back");
    let daemon = place.serve(&[]);
    check_blocks(&mut place.connect(), 0..20);
    daemon.terminate();
}
