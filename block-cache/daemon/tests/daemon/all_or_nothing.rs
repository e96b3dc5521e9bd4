//! A start that is refused for one volume has decided nothing for another one.

use crate::decisions::{both_ask, live, place_of_two};
use crate::support::{Place, text};

/// Replaces a file by a copy, which is another device. The original gets the name `NAME.former`.
fn replace(place: &Place, name: &str) {
    let (file, former) = (place.path(name), place.path(&format!("{name}.former")));
    std::fs::rename(&file, &former).expect("renamed");
    std::fs::copy(&former, &file).expect("copied");
}

fn put_back(place: &Place, name: &str) {
    let (file, former) = (place.path(name), place.path(&format!("{name}.former")));
    std::fs::rename(former, file).expect("renamed");
}

/// Returns the error of a start with this option, which volume `two` prevents.
fn refused_with(place: &Place, options: &[&str]) -> String {
    let config = place.path("forebay.toml");
    let said = place.refused(&[&["serve", text(&config)][..], options].concat());
    assert!(said.contains("volume \"two\""), "{options:?}: {said}");
    assert!(!said.contains("volume \"db\""), "{options:?}: {said}");
    said
}

#[test]
fn a_refused_start_discards_no_stale_data() {
    let place = place_of_two("refused-stale");
    live(&place, &[]);
    live(&place, &["--without-cache", "db", "--without-cache", "two"]);
    refused_with(&place, &["--discard-stale-dirty", "db"]);
    let both = ["--discard-stale-dirty db", "--discard-stale-dirty two"];
    both_ask(&place, &[], &both);
}

#[test]
fn a_refused_start_needs_the_journal_as_before() {
    let place = place_of_two("refused-journal");
    live(&place, &[]);
    let (journal, saved) = (place.path("journal"), place.path("saved"));
    std::fs::rename(&journal, &saved).expect("there");
    replace(&place, "second.img");
    refused_with(&place, &["--accept-journal-loss"]);
    std::fs::rename(&saved, &journal).expect("there");
    put_back(&place, "second.img");
    live(&place, &[]);
}

#[test]
fn a_refused_start_adopts_nothing() {
    let place = place_of_two("refused-adopt");
    live(&place, &[]);
    for name in ["db.img", "second.img"] {
        replace(&place, name);
    }
    both_ask(&place, &[], &["--adopt db", "--adopt two"]);
    refused_with(&place, &["--adopt", "db"]);
    for name in ["db.img", "second.img"] {
        put_back(&place, name);
    }
    live(&place, &[]);
    // A state directory that does not know them.
    let (state, away) = (place.path("state"), place.path("away"));
    std::fs::rename(&state, &away).expect("renamed");
    refused_with(&place, &["--adopt", "db"]);
    assert!(!state.exists(), "the refused start made one");
    std::fs::rename(&away, &state).expect("renamed");
    live(&place, &[]);
}

#[test]
fn a_refused_start_moves_no_cache() {
    let place = place_of_two("refused-moved");
    live(&place, &[]);
    replace(&place, "cache");
    replace(&place, "second.img");
    std::fs::rename(place.path("cache.former"), place.path("elsewhere")).expect("renamed");
    refused_with(&place, &["--moved-cache"]);
    std::fs::rename(place.path("elsewhere"), place.path("cache")).expect("renamed");
    put_back(&place, "second.img");
    live(&place, &[]);
}
