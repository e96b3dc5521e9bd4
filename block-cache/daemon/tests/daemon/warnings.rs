//! Texts that tell an operator of a moved cache, and of damage in the state directory.

use super::checked::both_refuse;
use super::copies::{configure, copy};
use super::support::{Place, text};
use super::{check_blocks, write_blocks};

/// The warning says where the cache was, whether that still exists, and how to end a mistake.
#[test]
fn a_moved_cache_is_warned_of_with_its_former_place() {
    for (is_left, is_killed) in [(true, true), (false, true), (false, false)] {
        let place = Place::new(&format!("warned-{is_left}-{is_killed}"), "wb");
        let daemon = place.serve(&[]);
        write_blocks(&mut place.connect(), 0..8);
        match is_killed {
            true => daemon.kill(),
            false => daemon.terminate(),
        }
        copy(&place, "cache", "moved");
        if !is_left {
            std::fs::remove_file(place.path("cache")).expect("there");
        }
        configure(&place, "moved", false);
        let daemon = place.serve(&["--moved-cache"]);
        let (cache, moved) = (place.path("cache"), place.path("moved"));
        let (cache, moved) = (text(&cache), text(&moved));
        let state = match is_left {
            true => "still exists",
            false => "is not there any more",
        };
        let expected = format!(
            "WARN forebay::stack::cache: the cache on {moved} was last served on {cache}, which \
             {state}: {moved} takes its place\n    \
             help: if both are in use, stop, and run `forebay clone-id --cache {moved}` on the \
             copy\n"
        );
        let log = place.log();
        assert_eq!(log.matches(&expected).count(), 1, "{expected} in {log}");
        check_blocks(&mut place.connect(), 0..8);
        daemon.terminate();
        // It is at home now.
        let daemon = place.serve(&[]);
        assert!(!place.log().contains("takes its place"), "{}", place.log());
        daemon.terminate();
    }
}

#[test]
fn a_damaged_epoch_file_is_named_with_its_remedy() {
    let place = Place::new("epoch-text", "wb");
    let daemon = place.serve(&[]);
    write_blocks(&mut place.connect(), 0..8);
    daemon.terminate();
    let path = place.path("state/db.epoch");
    let whole = std::fs::read(&path).expect("there");
    let mut flipped = whole.clone();
    flipped[whole.len() / 2] ^= 1;
    for damaged in [&flipped[..], &whole[..whole.len() - 1], b"", b"\xff\xfe"] {
        std::fs::write(&path, damaged).expect("written");
        let first = format!(
            "{} is damaged: writes without the cache are unknown",
            text(&path)
        );
        let help = "    help: restore the file. Or remove it and start with --adopt db, if nothing \
                    wrote to the backing device without this cache, or db.ranges has";
        both_refuse(&place, &[&first, help]);
    }
    // Each of the remedies works.
    std::fs::write(&path, &whole).expect("written");
    let daemon = place.serve(&[]);
    check_blocks(&mut place.connect(), 0..8);
    daemon.terminate();
    std::fs::remove_file(&path).expect("there");
    let daemon = place.serve(&["--adopt", "db"]);
    check_blocks(&mut place.connect(), 0..8);
    daemon.terminate();
}
