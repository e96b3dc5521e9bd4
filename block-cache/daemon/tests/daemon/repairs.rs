//! What `check` and `check --repair` say of what is lost, and who hears of it.

use std::path::Path;

use super::support::{Place, text};
use super::{check_blocks, write_blocks};

const MACHINE: &str = "[[export]]\nvolume = \"db\"\nvhost-user-blk = \"vm.sock\"\n";

/// Overwrites a part of a file.
fn overwrite(path: &Path, offset: u64, bytes: &[u8]) {
    use std::os::unix::fs::FileExt as _;
    let file = std::fs::OpenOptions::new().write(true).open(path);
    let written = file.expect("there").write_all_at(bytes, offset);
    written.expect("written");
}

/// What the state directory says of the clients that outlive the daemon: the generation, and what is missing.
fn remembered(place: &Place) -> (String, String) {
    let disk = std::fs::read_to_string(place.path("state/db.disk")).expect("remembered");
    let (generation, gap) = disk.split_once('\n').expect("two parts");
    (generation.to_owned(), gap.to_owned())
}

#[test]
fn what_a_repair_finds_lost_is_noted_for_clients_that_outlive_the_daemon() {
    let place = Place::new("noted", "wb");
    place.configure("wb", MACHINE);
    let (config, cache) = (place.path("forebay.toml"), place.path("cache"));
    let daemon = place.serve(&[]);
    let mut client = place.connect();
    for round in 0..8 {
        write_blocks(&mut client, round * 8..round * 8 + 8);
        assert_eq!(client.flush().expect("an answer"), 0);
    }
    daemon.kill();
    let (before, _) = remembered(&place);
    // docs/internals/format: the log begins at 128 KiB. Not its first unit, which says that the cache was opened.
    overwrite(&cache, (128 << 10) + 512, &[0x5a; 512]);
    // By itself, a cache does not say who is to be told.
    let journal = place.path("journal");
    let before_repair = [&cache, &journal].map(|path| std::fs::read(path).expect("there"));
    let named = [text(&cache), text(&journal)];
    let alone = place.run(&[
        "check",
        "--cache",
        named[0],
        "--journal",
        named[1],
        "--repair",
    ]);
    assert_eq!(alone.status.code(), Some(3), "{alone:?}");
    let told = String::from_utf8_lossy(&alone.stdout).into_owned();
    assert!(told.contains("NOT NOTED: which state directory"), "{told}");
    assert_eq!(remembered(&place).0, before);
    // A copy would not be repaired with the original's journal: all is put back in its place.
    for (path, bytes) in [&cache, &journal].into_iter().zip(before_repair) {
        std::fs::write(path, bytes).expect("put back");
    }
    let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&journal, private).expect("ours");

    let repaired = place.run(&["check", text(&config), "--repair"]);
    assert_eq!(repaired.status.code(), Some(3), "{repaired:?}");
    let told = String::from_utf8_lossy(&repaired.stdout).into_owned();
    assert!(told.contains("of the log left behind. LOST"), "{told}");
    let state = place.path("state");
    let noted = format!("NOTED in {}, of volume db", state.display());
    assert!(told.contains(&noted), "{told}");
    let (after, gap) = remembered(&place);
    assert_ne!(after, before, "a machine with the former one is refused");
    // Nothing else tells the next start, and a repair that finds nothing lost notes nothing.
    let told = place.ok(&["check", text(&config), "--repair"]);
    assert!(!told.contains("NOTED"), "{told}");
    place.serve(&[]).terminate();
    assert_eq!(remembered(&place), (after, gap));
}

#[test]
fn check_says_what_becomes_of_a_cache_whose_process_journal_is_gone() {
    let place = Place::new("journal-gone", "wb");
    let (config, journal) = (place.path("forebay.toml"), place.path("journal"));
    let daemon = place.serve(&[]);
    write_blocks(&mut place.connect(), 0..16);
    daemon.kill();
    let kept = place.path("kept");
    std::fs::rename(&journal, &kept).expect("moved");
    let checked = place.run(&["check", text(&config)]);
    assert_eq!(checked.status.code(), Some(3), "{checked:?}");
    let told = String::from_utf8_lossy(&checked.stdout).into_owned();
    let refused = format!(
        "The next start is refused until the process journal {} is there",
        journal.display()
    );
    for part in [
        "its process journal is gone",
        &refused,
        "--accept-journal-loss",
    ] {
        assert!(told.contains(part), "{part} in {told}");
    }
    assert!(!told.contains("mends what can be mended"), "{told}");
    let refused = place.refused(&["serve", text(&config)]);
    assert!(refused.contains("its process journal is gone"), "{refused}");
    // Nor does a repair decide it.
    let refused = place.refused(&["check", text(&config), "--repair"]);
    assert!(
        refused.contains("by how the daemon is started"),
        "{refused}"
    );

    // One that was overwritten where it says whose it is.
    std::fs::copy(&kept, &journal).expect("copied");
    overwrite(&journal, 0, &[0x5a; 64]);
    let refused = place.refused(&["serve", text(&config), "--accept-journal-loss"]);
    for part in [
        "is not a process journal, or was overwritten",
        "put a sound copy of it back",
        "move it away and start once with --accept-journal-loss",
    ] {
        assert!(refused.contains(part), "{part} in {refused}");
    }
    std::fs::rename(&kept, &journal).expect("moved back");
    let daemon = place.serve(&[]);
    check_blocks(&mut place.connect(), 0..16);
    daemon.terminate();
    place.ok(&["check", text(&config)]);
}
