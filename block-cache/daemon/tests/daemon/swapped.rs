//! Backing devices that were exchanged: `check` and `serve` report the same, all volumes together.

use super::decisions::{live, place_of_two};
use super::support::{Place, last_error, text};
use super::{Nbd, check_blocks, write_blocks};

/// Returns what `check` and `serve` with no option say, which must be the same.
fn both_say(place: &Place) -> String {
    let config = place.path("forebay.toml");
    let [checked, served] = ["check", "serve"].map(|command| {
        let said = place.refused(&[command, text(&config)]);
        last_error(&said).to_owned()
    });
    assert_eq!(checked, served);
    served
}

/// Exchanges the backing files of the two volumes.
fn swap(place: &Place) {
    for (from, to) in [
        ("db.img", "aside"),
        ("second.img", "db.img"),
        ("aside", "second.img"),
    ] {
        std::fs::rename(place.path(from), place.path(to)).expect("moved");
    }
}

fn names_former(said: &str, former: &str) -> bool {
    said.contains(&format!(
        "its backing device was served as volume \"{former}\""
    ))
}

#[test]
fn exchanged_devices_with_dirty_data_are_reported_for_both_volumes() {
    let place = place_of_two("swapped-both");
    live(&place, &[]);
    swap(&place);
    let said = both_say(&place);
    assert!(
        names_former(&said, "db") && names_former(&said, "two"),
        "{said}"
    );
    // An option that another reason refuses is not recommended.
    assert!(!said.contains("--adopt"), "{said}");
    // As the remedy says.
    swap(&place);
    live(&place, &[]);
}

#[test]
fn exchanged_devices_are_reported_for_both_volumes_if_one_is_dirty() {
    for dirty in ["db", "two"] {
        let place = place_of_two(&format!("swapped-{dirty}"));
        let daemon = place.serve(&[]);
        let socket = match dirty {
            "db" => place.path("nbd.sock"),
            _ => place.path("two.sock"),
        };
        let mut nbd = Nbd::connect(&socket, dirty).expect("it answers");
        write_blocks(&mut nbd, 0..8);
        daemon.kill();
        swap(&place);
        let said = both_say(&place);
        for volume in ["db", "two"] {
            assert!(said.contains(&format!(": volume \"{volume}\"")), "{said}");
        }
        assert!(names_former(&said, dirty), "{said}");
        let adopt = format!("--adopt {dirty} if this is the same data");
        assert!(said.contains(&adopt), "{said}");
    }
}

#[test]
fn a_clone_without_its_journal_and_state_is_reported_with_its_place() {
    let place = Place::new("clone-place", "wb");
    let daemon = place.serve(&[]);
    write_blocks(&mut place.connect(), 0..8);
    let other = Place::new("clone-place-other", "wb");
    for name in ["cache", "db.img"] {
        std::fs::copy(place.path(name), other.path(name)).expect("copied");
    }
    daemon.kill();
    let cache = other.path("cache");
    other.ok(&["clone-id", "--cache", text(&cache)]);
    let said = both_say(&other);
    for part in [": volume \"db\": ", "--adopt db", "--accept-journal-loss"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    other
        .serve(&["--adopt", "db", "--accept-journal-loss"])
        .terminate();
}

/// Gives the volumes `db`, `two` and `three` these backing files.
fn serve_from(place: &Place, files: [&str; 3]) {
    let mut more = String::new();
    for (volume, file) in ["two", "three"].into_iter().zip(&files[1..]) {
        more.push_str(&format!(
            "[[device]]\nname = \"under-{volume}\"\nkind = \"file\"\npath = \"{file}\"\n\
             [[volume]]\nname = \"{volume}\"\nbacking = \"under-{volume}\"\nmode = \"wb\"\n\
             [[export]]\nvolume = \"{volume}\"\nnbd = \"unix:{volume}.sock\"\n"
        ));
    }
    place.configure("wb", &more);
    let path = place.path("forebay.toml");
    let config = std::fs::read_to_string(&path).expect("there");
    let own = format!("path = \"{}\"", files[0]);
    std::fs::write(&path, config.replacen("path = \"db.img\"", &own, 1)).expect("written");
}

/// A refused start attaches the volumes before the refused one. The cache then forgets the clean
/// volumes whose devices they have.
#[test]
fn devices_put_back_after_a_refused_rotation_need_no_decision() {
    let files = ["db.img", "second.img", "third.img"];
    let volumes = ["nbd", "two", "three"]
        .into_iter()
        .zip(["db", "two", "three"]);
    for dirty in ["db", "two", "three"] {
        let place = Place::new(&format!("rotated-{dirty}"), "wb");
        for file in &files[1..] {
            place.create_file(file, 64 << 20);
        }
        serve_from(&place, files);
        let daemon = place.serve(&[]);
        for (socket, volume) in volumes.clone() {
            let socket = place.path(&format!("{socket}.sock"));
            let mut nbd = Nbd::connect(&socket, volume).expect("it answers");
            write_blocks(&mut nbd, 0..8);
            if volume != dirty {
                place.ok(&["flush", volume]);
            }
        }
        daemon.kill();
        serve_from(&place, [files[1], files[2], files[0]]);
        let said = both_say(&place);
        assert!(said.contains(&format!("{dirty:?}")), "{said}");
        serve_from(&place, files);
        let config = place.path("forebay.toml");
        place.ok(&["check", text(&config)]);
        let daemon = place.serve(&[]);
        for (socket, volume) in volumes.clone() {
            let socket = place.path(&format!("{socket}.sock"));
            check_blocks(
                &mut Nbd::connect(&socket, volume).expect("it answers"),
                0..8,
            );
        }
        daemon.terminate();
    }
}

/// Writes without the cache count for the volume's name, on whichever device. The documented
/// procedure keeps the dirty data of a device that they did not reach.
#[test]
fn a_device_that_was_not_written_loses_no_dirty_data_by_adoption() {
    let place = place_of_two("swapped-without");
    live(&place, &[]);
    swap(&place);
    let without = ["--without-cache", "db", "--without-cache", "two"];
    place.serve(&without).terminate();
    swap(&place);
    place.ok(&["check", text(&place.path("forebay.toml"))]);
    swap(&place);
    let daemon = place.serve(&without);
    write_blocks(&mut place.connect(), 0..1);
    daemon.kill();
    swap(&place);
    let said = both_say(&place);
    for volume in ["db", "two"] {
        let discard = format!("--discard-stale-dirty {volume}");
        assert!(said.contains(&discard), "{said}");
    }
    for record in ["state/db.epoch", "state/db.ranges"] {
        std::fs::remove_file(place.path(record)).expect("there");
    }
    let daemon = place.serve(&["--adopt", "db", "--discard-stale-dirty", "two"]);
    check_blocks(&mut place.connect(), 0..8);
    daemon.terminate();
}
