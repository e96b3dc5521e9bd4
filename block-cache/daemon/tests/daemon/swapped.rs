//! Backing devices that were exchanged: `check` and `serve` report the same, all volumes together.

use super::decisions::{live, place_of_two};
use super::support::{Place, last_error, text};
use super::{Nbd, write_blocks};

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
