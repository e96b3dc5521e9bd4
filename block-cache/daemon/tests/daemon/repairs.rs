//! Reports of `check` and `check --repair` about lost data, and the clients that get them.

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

/// Returns the state directory's record of clients that outlive the daemon: the generation and the
/// gap.
fn remembered(place: &Place) -> (String, String) {
    let disk = std::fs::read_to_string(place.path("state/db.disk")).expect("remembered");
    let (generation, gap) = disk.split_once('\n').expect("two parts");
    (generation.to_owned(), gap.to_owned())
}

#[test]
fn losses_found_by_a_repair_are_recorded_for_surviving_clients() {
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
    // docs/internals/format: the log begins at 128 KiB. The first unit records the opening and
    // stays.
    overwrite(&cache, (128 << 10) + 512, &[0x5a; 512]);
    // A cache alone does not name the clients to inform.
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
    let printed = String::from_utf8_lossy(&alone.stdout).into_owned();
    assert!(
        printed.contains("NOT RECORDED: without the configuration"),
        "{printed}"
    );
    assert_eq!(remembered(&place).0, before);
    // The original's journal does not repair a copy: all is restored in its place.
    for (path, bytes) in [&cache, &journal].into_iter().zip(before_repair) {
        std::fs::write(path, bytes).expect("put back");
    }
    let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&journal, private).expect("ours");

    // A repair that cannot record the loss forgets nothing.
    let (disk, disk_aside) = (place.path("state/db.disk"), place.path("disk"));
    std::fs::rename(&disk, &disk_aside).expect("moved");
    std::fs::create_dir(&disk).expect("made");
    let damaged = std::fs::read(&cache).expect("there");
    place.refused(&["check", text(&config), "--repair"]);
    assert!(std::fs::read(&cache).expect("there") == damaged);
    std::fs::remove_dir(&disk).expect("removed");
    std::fs::rename(&disk_aside, &disk).expect("moved back");

    let repaired = place.run(&["check", text(&config), "--repair"]);
    assert_eq!(repaired.status.code(), Some(3), "{repaired:?}");
    let logged = String::from_utf8_lossy(&repaired.stderr).into_owned();
    assert!(logged.contains("log is damaged"), "{logged}");
    let printed = String::from_utf8_lossy(&repaired.stdout).into_owned();
    for part in ["REPAIRED: rewrote the log without ", "\nLOST: dirty data"] {
        assert!(printed.contains(part), "{part} in {printed}");
    }
    let state = place.path("state");
    let recorded = format!("RECORDED in {}: loss of data of volume db", state.display());
    assert!(printed.contains(&recorded), "{printed}");
    let (after, gap) = remembered(&place);
    assert_ne!(after, before, "a machine with the former one is refused");
    // No other record informs the next start. A repair that finds no loss records nothing.
    let printed = place.ok(&["check", text(&config), "--repair"]);
    assert!(!printed.contains("RECORDED"), "{printed}");
    place.serve(&[]).terminate();
    assert_eq!(remembered(&place), (after, gap));
}

#[test]
fn check_names_the_consequence_of_a_missing_process_journal() {
    let place = Place::new("journal-gone", "wb");
    let (config, journal) = (place.path("forebay.toml"), place.path("journal"));
    let daemon = place.serve(&[]);
    write_blocks(&mut place.connect(), 0..16);
    daemon.kill();
    let aside = place.path("kept");
    std::fs::rename(&journal, &aside).expect("moved");
    let checked = place.run(&["check", text(&config)]);
    assert_eq!(checked.status.code(), Some(3), "{checked:?}");
    let printed = String::from_utf8_lossy(&checked.stdout).into_owned();
    let refused = format!(
        "the next start is refused without process journal {}\n",
        journal.display()
    );
    for part in [
        "its process journal is missing",
        &refused,
        "--accept-journal-loss",
    ] {
        assert!(printed.contains(part), "{part} in {printed}");
    }
    assert!(!printed.contains("check --repair"), "{printed}");
    let refused = place.refused(&["serve", text(&config)]);
    assert!(
        refused.contains("its process journal is missing"),
        "{refused}"
    );
    // Nor does a repair decide it.
    let refused = place.refused(&["check", text(&config), "--repair"]);
    assert!(
        refused.contains("a start of the daemon decides"),
        "{refused}"
    );

    // A journal whose owner was overwritten.
    std::fs::copy(&aside, &journal).expect("copied");
    overwrite(&journal, 0, &[0x5a; 64]);
    let refused = place.refused(&["serve", text(&config), "--accept-journal-loss"]);
    for part in [
        "is not a process journal, or was overwritten",
        "put a sound copy of it back",
        "move it away, start once with --accept-journal-loss",
    ] {
        assert!(refused.contains(part), "{part} in {refused}");
    }
    std::fs::rename(&aside, &journal).expect("moved back");
    let daemon = place.serve(&[]);
    check_blocks(&mut place.connect(), 0..16);
    daemon.terminate();
    place.ok(&["check", text(&config)]);
}

#[test]
fn a_journal_that_is_given_up_has_its_ranges_listed() {
    let place = Place::new("journal-ranges", "wb");
    let daemon = place.serve(&[]);
    write_blocks(&mut place.connect(), 0..16);
    daemon.kill();
    std::fs::remove_file(place.path("journal")).expect("there");
    place.serve(&["--accept-journal-loss"]).terminate();
    let log = place.log();
    for part in [
        "gives up the process journal: ACKNOWLEDGED WRITES MAY BE LOST",
        "help: check what the clients stored last in the ranges that may be concerned: 1 range",
        "MAY BE LOST with the process journal volume=\"db\" offset=0",
    ] {
        assert!(log.contains(part), "{part} in {log}");
    }
    // Where nothing is missing, nothing is given up.
    place.serve(&["--accept-journal-loss"]).terminate();
    let log = place.log();
    assert!(log.contains("no write of the cache is lost"), "{log}");
    assert!(!log.contains("MAY BE LOST"), "{log}");
}

/// Overwrites both copies of the superblock with zeroes.
fn lose_superblocks(place: &Place) {
    overwrite(&place.path("cache"), 0, &vec![0; 128 << 10]);
}

#[test]
fn a_cache_whose_superblocks_are_overwritten_is_not_taken_for_none() {
    let place = Place::new("superblocks", "wb");
    let (config, cache) = (place.path("forebay.toml"), place.path("cache"));
    let (config, cache) = (text(&config), text(&cache));
    place.serve(&[]).terminate();
    let whole = std::fs::read(cache).expect("there");
    let lost = |what: &[&str]| {
        let checked = place.run(&["check", config]);
        assert_eq!(checked.status.code(), Some(3), "{checked:?}");
        let checked = String::from_utf8_lossy(&checked.stderr).into_owned();
        let all = [
            "the superblocks of cache ",
            " are lost",
            "discards what is left",
        ];
        for said in [checked, place.refused(&["serve", config])] {
            for part in all.iter().chain(what) {
                assert!(said.contains(part), "{part} in {said}");
            }
        }
    };
    // The state directory records it, with nothing dirty.
    lose_superblocks(&place);
    lost(&["No dirty data of it is recorded"]);
    std::fs::write(cache, whole).expect("put back");
    let daemon = place.serve(&[]);
    write_blocks(&mut place.connect(), 0..16);
    daemon.kill();
    let whole = std::fs::read(cache).expect("there");
    // Dirty data, and acknowledged writes.
    lose_superblocks(&place);
    let journal = place.path("journal");
    let journal = text(&journal);
    lost(&["dirty data of volume db", journal]);
    // The journal alone records it.
    let alone = ["check", "--cache", cache, "--journal", journal];
    let alone = place.run(&alone);
    assert_eq!(alone.status.code(), Some(3), "{alone:?}");
    let format = place.refused(&["format", "--force", "--cache", cache]);
    for part in [
        "lost the superblocks of cache ",
        "--discard-dirty",
        "ARE LOST THEN",
    ] {
        assert!(format.contains(part), "{part} in {format}");
    }
    std::fs::write(cache, whole).expect("put back");
    let daemon = place.serve(&[]);
    check_blocks(&mut place.connect(), 0..16);
    daemon.terminate();
    // A device that never had a cache.
    let other = place.path("other");
    std::fs::write(&other, vec![0; 1 << 20]).expect("made");
    let none = place.refused(&["check", "--cache", text(&other)]);
    assert!(none.contains("there is no cache on"), "{none}");
}

/// Checks that clients of a volume that a configuration leaves out learn of lost writes, and of
/// writes to its backing device under another name.
#[test]
fn losses_and_changes_of_an_unconfigured_volume_are_recorded_for_clients() {
    let place = Place::new("noted-absent", "wt");
    let config = place.path("forebay.toml");
    place.configure("wt", MACHINE);
    place.serve(&[]).terminate();
    let (first, _) = remembered(&place);
    let configured = std::fs::read_to_string(&config).expect("there");
    let renamed = configured.replace(MACHINE, "").replace("\"db\"", "\"dc\"");
    std::fs::write(&config, &renamed).expect("written");
    place.serve(&["--without-cache", "dc"]).terminate();
    let (second, gap) = remembered(&place);
    assert_ne!(second, first, "its backing device was served as volume dc");
    assert!(!gap.is_empty());

    // Another volume takes its place in the configuration, and the cache loses its journal.
    std::fs::write(&config, &configured).expect("written");
    let daemon = place.serve(&[]);
    write_blocks(&mut place.connect(), 0..8);
    daemon.kill();
    let (third, _) = remembered(&place);
    std::fs::remove_file(place.path("journal")).expect("there");
    let image = std::fs::File::create(place.path("dc.img")).expect("made");
    image.set_len(64 << 20).expect("sparse");
    let another = renamed.replace("db.img", "dc.img");
    std::fs::write(&config, another).expect("written");
    place.serve(&["--accept-journal-loss"]).terminate();
    assert_ne!(remembered(&place).0, third, "writes may be lost");
}

#[test]
fn a_repair_is_reported_before_the_refusal_of_the_next_start() {
    let place = Place::new("repair-refused", "wb");
    let (config, cache) = (place.path("forebay.toml"), place.path("cache"));
    let daemon = place.serve(&[]);
    let mut client = place.connect();
    for round in 0..8 {
        write_blocks(&mut client, round * 8..round * 8 + 8);
        assert_eq!(client.flush().expect("an answer"), 0);
    }
    daemon.kill();
    overwrite(&cache, (128 << 10) + 512, &[0x5a; 512]);
    // The cache has none, so a start is refused.
    place.edit_config(&[("[cache]\n", "[cache]\nchecksums = true\n")]);
    let output = place.run(&["check", text(&config), "--repair"]);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(printed.contains("REPAIRED: "), "{printed}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("checksums"), "{said}");
}
