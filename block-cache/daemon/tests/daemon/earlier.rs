//! Slots of a transit cache that were restored after newer writes, or whose file was truncated.

use std::path::{Path, PathBuf};

use super::support::{Place, text};
use super::{block, write_blocks};

const UNDER: &str = "{ name = \"under\", kind = \"file\", path = \"db.img\" }";
const OVER: &str =
    "{ name = \"fast\", kind = \"transit\", on = \"under\", capacity = \"1M\", policy = \"lru\" }";

/// Returns a configuration without a cache: the volume is on a transit cache, or on the device
/// under it.
fn configure(place: &Place, with: bool) {
    let (devices, backing) = match with {
        true => (format!("{UNDER}, {OVER}"), "fast"),
        false => (UNDER.to_owned(), "under"),
    };
    let text = format!(
        "device = [{devices}]\nvolume = [{{ name = \"db\", backing = \"{backing}\" }}]\n\
         export = [{{ volume = \"db\", nbd = \"unix:nbd.sock\" }}]\n[server]\n\
         control = \"control.sock\"\n\
         metrics = \"127.0.0.1:0\"\nstate = \"state\"\n"
    );
    std::fs::write(place.path("forebay.toml"), text).expect("written");
}

/// Writes `numbers`, with the contents of blocks that are `newer` further on.
fn write_newer(place: &Place, numbers: std::ops::Range<u64>, newer: u64) {
    let mut nbd = place.connect();
    for number in numbers {
        let error = nbd
            .write(number * 4096, &block(number + newer))
            .expect("an answer");
        assert_eq!(error, 0);
    }
    assert_eq!(nbd.flush().expect("an answer"), 0);
}

/// Runs a daemon that writes blocks 10 to 19, and kills it. Returns the file of its slots.
fn kill_with_slots(place: &Place) -> PathBuf {
    configure(place, true);
    let daemon = place.serve(&[]);
    write_blocks(&mut place.connect(), 10..20);
    daemon.kill();
    configure(place, false);
    let said = place.refused(&["check", text(&place.path("forebay.toml"))]);
    configure(place, true);
    let begin = said.find("/dev/shm/").expect("it is named");
    said[begin..]
        .split([' ', ':'])
        .next()
        .expect("a path")
        .into()
}

/// Checks that all configurations refuse slots that are older than the medium's contents, and that
/// the medium stays unchanged.
fn assert_refused(place: &Place, slots: &Path, what: &str) {
    let config = place.path("forebay.toml");
    let medium = std::fs::read(place.path("db.img")).expect("there");
    for with in [true, false] {
        configure(place, with);
        for arguments in [
            &["serve", text(&config)][..],
            &["serve", text(&config), "--accept-journal-loss"],
            &["check", text(&config)],
        ] {
            let said = place.refused(arguments);
            for part in [text(slots), "was put back after newer writes", "remove it"] {
                assert!(said.contains(part), "{what}, {with}: {part}: {said}");
            }
        }
    }
    assert!(
        std::fs::read(place.path("db.img")).expect("there") == medium,
        "{what}"
    );
    configure(place, true);
}

#[test]
fn slots_that_are_put_back_after_newer_writes_are_refused() {
    for what in ["given up", "without", "stopped", "sent on"] {
        let place = Place::new(&format!("earlier-{}", what.replace(' ', "-")), "wt");
        let slots = kill_with_slots(&place);
        let earlier = std::fs::read(&slots).expect("there");
        match what {
            // They were missing, and abandoned.
            "given up" => {
                std::fs::remove_file(&slots).expect("there");
                let daemon = place.serve(&["--accept-journal-loss"]);
                write_newer(&place, 10..20, 500);
                daemon.kill();
            }
            // The user had the medium served without the transit cache.
            "without" => {
                std::fs::remove_file(&slots).expect("there");
                configure(&place, false);
                let daemon = place.serve(&["--accept-journal-loss"]);
                write_newer(&place, 10..20, 500);
                daemon.terminate();
            }
            // A daemon wrote them back and was stopped.
            "stopped" => {
                let daemon = place.serve(&[]);
                write_newer(&place, 10..20, 500);
                daemon.terminate();
            }
            // And by a daemon that was killed.
            _ => {
                let daemon = place.serve(&[]);
                write_newer(&place, 10..20, 500);
                daemon.kill();
            }
        }
        let newest = std::fs::read(&slots).ok();
        std::fs::write(&slots, &earlier).expect("put back");
        set_private(&slots);
        assert_refused(&place, &slots, what);
        // The remedy is the newest slots, or none where there are none.
        match newest {
            Some(newest) => std::fs::write(&slots, newest).expect("put back"),
            None => std::fs::remove_file(&slots).expect("there"),
        }
        // The configuration's own transit cache is still missed after a service of the medium
        // without it.
        let more: &[&str] = match what {
            "without" => &["--accept-journal-loss"],
            _ => &[],
        };
        let daemon = place.serve(more);
        let mut nbd = place.connect();
        for number in 10..20 {
            let data = nbd.read(number * 4096, 4096).expect("an answer");
            assert_eq!(data, Ok(block(number + 500)), "{what}: block {number}");
        }
        daemon.terminate();
        assert!(!slots.exists());
    }
}

fn set_private(path: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    let private = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(path, private).expect("ours");
}

/// Checks truncated files of slots: truncated data is reported as lost, and the rest is not lost.
/// The file is short, restored to its length, or empty.
#[test]
fn of_a_cut_file_of_slots_the_rest_is_sent_on() {
    for (what, remaining, is_lengthened) in
        [("short", 40, false), ("long", 40, true), ("all", 0, true)]
    {
        let place = Place::new(&format!("slots-cut-{what}"), "wt");
        let slots = kill_with_slots(&place);
        let config = place.path("forebay.toml");
        let whole = std::fs::read(&slots).expect("there");
        let word = |at: usize| u64::from_le_bytes(whole[at..at + 8].try_into().expect("8 bytes"));
        let (block_bytes, count) = (word(32), word(40));
        let data_at = (4096 + 16 * count).next_multiple_of(4096);
        // Place of the data of each block in use.
        let headers = (0..count).map(|slot| (slot, 4096 + 16 * slot as usize));
        let used = headers.filter(|(_, at)| word(at + 8) != 0);
        let mut used: Vec<(u64, u64)> = used
            .map(|(slot, at)| (data_at + slot * block_bytes, word(at)))
            .collect();
        used.sort_unstable();
        assert_eq!(used.len() as u64, 10 * 4096 / block_bytes);
        let cut = match remaining {
            0 => data_at,
            _ => used[remaining].0 / 4096 * 4096,
        };
        let lost = used.iter().filter(|(at, _)| at + block_bytes > cut);
        let lost: Vec<u64> = lost.map(|(_, block)| *block).collect();
        assert!(!lost.is_empty());
        let file = std::fs::OpenOptions::new().write(true).open(&slots);
        let file = file.expect("there");
        file.set_len(cut).expect("cut");
        if is_lengthened {
            file.set_len(whole.len() as u64).expect("lengthened");
        }
        drop(file);
        let before = std::fs::read(place.path("db.img")).expect("there");
        for _ in 0..2 {
            let said = place.refused(&["serve", text(&config)]);
            assert!(
                said.contains("cut") && said.contains("--accept-journal-loss"),
                "{said}"
            );
        }
        assert!(
            std::fs::read(place.path("db.img")).expect("there") == before,
            "{what}"
        );
        let daemon = place.serve(&["--accept-journal-loss"]);
        let log = place.log();
        for block in &lost {
            let named = format!("block {block}, which was truncated");
            assert!(log.contains(&named), "{what}: {named}: {log}");
        }
        assert_eq!(log.matches("which was truncated").count(), lost.len());
        daemon.terminate();
        let medium = std::fs::read(place.path("db.img")).expect("there");
        for (_, number) in &used {
            let at = (number * block_bytes) as usize;
            let sector = &medium[at..at + block_bytes as usize];
            let whole = block(at as u64 / 4096);
            let expected = match lost.contains(number) {
                true => &before[at..at + block_bytes as usize],
                false => &whole[at % 4096..at % 4096 + block_bytes as usize],
            };
            assert!(sector == expected, "{what}: block {number}");
        }
    }
}
