//! A cache whose daemon was killed, moved to another device: `--moved-cache` with every other
//! decision.

use std::path::Path;

use super::copies::copy;
use super::support::{Place, text};
use super::{check_blocks, write_blocks};

/// Sets the file of the cache's data in the configuration.
fn name_data(place: &Place, file: &str) {
    let path = place.path("forebay.toml");
    let config = std::fs::read_to_string(&path).expect("there");
    let config = config.replace("path = \"cache\"", &format!("path = \"{file}\""));
    std::fs::write(&path, config).expect("written");
}

/// Makes a cache of which only a flush extends the log. `apart` gives the metadata a file of its
/// own.
fn place_of(name: &str, more: &[&str], apart: bool) -> Place {
    let place = Place::new(name, "wb");
    let path = place.path("forebay.toml");
    let mut metadata = "";
    if apart {
        let map = std::fs::File::create(place.path("map")).expect("made");
        map.set_len(8 << 20).expect("room");
        place.configure(
            "wb",
            "[[device]]\nname = \"map\"\nkind = \"file\"\npath = \"map\"\n",
        );
        metadata = "\nmetadata = \"map\"";
    }
    let config = std::fs::read_to_string(&path).expect("there");
    let keys = format!("[cache]\ncommit_interval = \"60s\"{metadata}");
    std::fs::write(&path, config.replacen("[cache]", &keys, 1)).expect("written");
    let (cache, map) = (place.path("cache"), place.path("map"));
    let mut format = vec![
        "format",
        "--force",
        "--discard-dirty",
        "--cache",
        text(&cache),
    ];
    if apart {
        format.extend(["--metadata", text(&map)]);
    }
    place.ok(&[&format[..], more].concat());
    place
}

/// Writes, kills the daemon, and moves the cache's data to another file.
fn die_and_move(place: &Place) {
    let daemon = place.serve(&[]);
    let mut nbd = place.connect();
    write_blocks(&mut nbd, 0..16);
    assert_eq!(nbd.flush().expect("an answer"), 0);
    write_blocks(&mut nbd, 8..32);
    daemon.kill();
    move_data(place);
}

fn move_data(place: &Place) {
    copy(place, "cache", "moved");
    std::fs::remove_file(place.path("cache")).expect("there");
    name_data(place, "moved");
}

/// Checks that `check` and `serve` name these options together, and no others.
fn both_name(place: &Place, options: &[&str]) {
    let config = place.path("forebay.toml");
    for command in ["check", "serve"] {
        let said = place.refused(&[command, text(&config)]);
        for option in [
            "--moved-cache",
            "--adopt db",
            "--discard-stale-dirty db",
            "--accept-journal-loss",
        ] {
            let named = said.contains(option);
            assert_eq!(
                named,
                options.contains(&option),
                "{command}: {option}: {said}"
            );
        }
    }
}

fn serves(place: &Place, options: &[&str], blocks: std::ops::Range<u64>) {
    let daemon = place.serve(options);
    check_blocks(&mut place.connect(), blocks);
    daemon.terminate();
}

#[test]
fn a_moved_cache_with_checksums_is_served() {
    for (name, apart) in [("moved-sums", false), ("moved-sums-apart", true)] {
        let place = place_of(name, &["--checksums"], apart);
        die_and_move(&place);
        both_name(&place, &["--moved-cache"]);
        serves(&place, &["--moved-cache"], 0..32);
    }
}

#[test]
fn a_moved_cache_and_a_new_state_directory_are_decided_together() {
    for (name, more) in [
        ("moved-adopt", &[][..]),
        ("moved-adopt-sums", &["--checksums"]),
    ] {
        let place = place_of(name, more, false);
        die_and_move(&place);
        std::fs::remove_dir_all(place.path("state")).expect("there");
        both_name(&place, &["--moved-cache", "--adopt db"]);
        serves(&place, &["--moved-cache", "--adopt", "db"], 0..32);
    }
}

#[test]
fn a_moved_cache_behind_writes_without_it_is_decided_together() {
    for (name, at, options) in [
        ("moved-beside", 1000, &["--moved-cache"][..]),
        (
            "moved-stale",
            4,
            &["--moved-cache", "--discard-stale-dirty db"],
        ),
    ] {
        let place = place_of(name, &[], false);
        let daemon = place.serve(&[]);
        write_blocks(&mut place.connect(), 0..16);
        daemon.kill();
        let daemon = place.serve(&["--without-cache", "db"]);
        write_blocks(&mut place.connect(), at..at + 1);
        daemon.terminate();
        move_data(&place);
        both_name(&place, options);
        let asked: Vec<_> = options.iter().flat_map(|it| it.split(' ')).collect();
        serves(&place, &asked, at..at + 1);
    }
}

/// Checks that a copy next to its original names all decisions at once if the journal is gone.
#[test]
fn a_copied_cache_without_its_journal_is_decided_together() {
    let place = place_of("moved-no-journal", &[], false);
    let daemon = place.serve(&[]);
    let mut nbd = place.connect();
    write_blocks(&mut nbd, 0..16);
    assert_eq!(nbd.flush().expect("an answer"), 0);
    daemon.kill();
    std::fs::remove_file(place.path("journal")).expect("there");
    copy(&place, "cache", "moved");
    name_data(&place, "moved");
    both_name(&place, &["--moved-cache", "--accept-journal-loss"]);
    std::fs::remove_dir_all(place.path("state")).expect("there");
    let options = ["--moved-cache", "--adopt db", "--accept-journal-loss"];
    both_name(&place, &options);
    // Each option leaves the others.
    let config = place.path("forebay.toml");
    let said = place.refused(&["serve", text(&config), "--moved-cache"]);
    for option in &options[1..] {
        assert!(said.contains(option), "{option}: {said}");
    }
    let asked: Vec<_> = options.iter().flat_map(|it| it.split(' ')).collect();
    serves(&place, &asked, 0..16);
}

/// Checks that no decision lets a copy in that the journal does not belong to.
#[test]
fn an_earlier_copy_is_refused_with_every_decision() {
    let place = place_of("moved-earlier", &["--checksums"], false);
    place.serve(&[]).terminate();
    copy(&place, "cache", "earlier");
    die_and_move(&place);
    std::fs::rename(place.path("earlier"), place.path("moved")).expect("there");
    let config = place.path("forebay.toml");
    for more in [&["--moved-cache"][..], &["--moved-cache", "--adopt", "db"]] {
        let output = place.run(&[&["serve", text(&config)][..], more].concat());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{more:?}: {said}");
        assert!(said.contains("earlier state"), "{more:?}: {said}");
    }
    assert!(place.path("journal").exists());
}

/// Moves a file to another file system.
pub(crate) fn move_away(from: &Path, to: &Path) {
    std::fs::copy(from, to).expect("copied");
    std::fs::remove_file(from).expect("there");
}

/// Returns the default path of the journal of the place's cache.
pub(crate) fn usual_journal(place: &Place) -> std::path::PathBuf {
    let cache = place.path("cache");
    let checked = place.run(&["check", "--json", "--cache", text(&cache)]);
    let found: serde_json::Value = serde_json::from_slice(&checked.stdout).expect("JSON");
    let uuid = found["uuid"].as_str().expect("it has one");
    format!("/dev/shm/forebay-{uuid}.journal").into()
}

/// Checks that the data device is named where it alone is a copy, with paths of the devices.
#[test]
fn a_copy_of_the_data_device_alone_is_named_with_its_path() {
    let place = place_of("moved-data-named", &[], true);
    die_and_move(&place);
    let (data, map) = (place.path("moved"), place.path("map"));
    let config = place.path("forebay.toml");
    for command in ["check", "serve"] {
        let said = place.refused(&[command, text(&config)]);
        for part in [
            &*format!("{} is a copy of the data of this cache", data.display()),
            "--moved-cache",
            "was made after its daemon ended",
        ] {
            assert!(said.contains(part), "{command}: {part}: {said}");
        }
        assert!(!said.contains("clone-id"), "{command}: {said}");
        assert!(!said.contains(text(&map)), "{command}: {said}");
    }
    // Both are copies, and are named by their paths, not by the names of the devices.
    copy(&place, "map", "map2");
    std::fs::rename(place.path("map2"), &map).expect("moved");
    for command in ["check", "serve"] {
        let said = place.refused(&[command, text(&config)]);
        let remedy = format!(
            "forebay clone-id --cache {} --metadata {}",
            data.display(),
            map.display()
        );
        assert!(said.contains(&remedy), "{command}: {said}");
    }
}

/// Writes, kills the daemon, and returns its process journal: at the usual place, or where the
/// configuration names one.
fn leave_journal(place: &Place, usual: bool) -> std::path::PathBuf {
    if usual {
        let config = place.path("forebay.toml");
        let text = std::fs::read_to_string(&config).expect("there");
        let text = text.replace("journal = \"journal\"\n", "");
        std::fs::write(&config, text).expect("written");
    }
    let daemon = place.serve(&[]);
    write_blocks(&mut place.connect(), 0..8);
    daemon.kill();
    match usual {
        true => usual_journal(place),
        false => place.path("journal"),
    }
}

/// Checks that a journal with zeroes over its head is left as it is, and counts once its head is
/// back, wherever the journal is.
#[test]
fn a_journal_with_zeroes_over_its_head_is_not_changed() {
    for (usual, bytes) in [(true, 8), (true, 512), (true, 4096), (false, 8)] {
        let place = Place::new(&format!("zeroed-{usual}-{bytes}"), "wb");
        let config = place.path("forebay.toml");
        let journal = leave_journal(&place, usual);
        let whole = std::fs::read(&journal).expect("there");
        let mut zeroed = whole.clone();
        zeroed[..bytes].fill(0);
        std::fs::write(&journal, &zeroed).expect("written");
        let config = text(&config);
        for command in ["check", "serve"] {
            let said = place.refused(&[command, config]);
            assert!(said.contains("it is not changed"), "{command}: {said}");
            let now = std::fs::read(&journal).expect("there");
            assert!(now == zeroed, "{command} changed it");
        }
        std::fs::write(&journal, &whole).expect("written");
        let daemon = place.serve(&[]);
        check_blocks(&mut place.connect(), 0..8);
        daemon.terminate();
    }
}

/// Checks that a journal that was cut below its head is left as it is, and that the remedy works,
/// wherever the journal is.
#[test]
fn a_journal_cut_below_its_head_is_not_changed_before_it_is_moved_away() {
    for usual in [true, false] {
        for bytes in [10, 100, 3000] {
            let place = Place::new(&format!("headless-{usual}-{bytes}"), "wb");
            let config = place.path("forebay.toml");
            let journal = leave_journal(&place, usual);
            let file = std::fs::OpenOptions::new().write(true).open(&journal);
            file.expect("there").set_len(bytes).expect("cut");
            let before = std::fs::read(&journal).expect("there");
            let config = text(&config);
            for command in [
                &["check", config][..],
                &["serve", config],
                &["serve", config, "--accept-journal-loss"],
                &["check", config],
            ] {
                let said = place.refused(command);
                for part in ["or cut in its head", "move it away, start once with"] {
                    assert!(said.contains(part), "{command:?}: {said}");
                }
                let now = std::fs::read(&journal).expect("there");
                assert!(now == before, "{command:?} changed it");
            }
            // As the remedy says.
            move_away(&journal, &place.path("away"));
            place.serve(&["--accept-journal-loss"]).terminate();
        }
    }
}
