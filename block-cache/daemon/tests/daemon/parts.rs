//! Earlier states and copies of one of two devices, and backups that were made in service.

use super::copies::{copy, put_back};
use super::support::{Place, text};
use super::{check_blocks, write_blocks};

/// A cache whose metadata is in a file of its own.
fn two_devices(name: &str) -> Place {
    let place = Place::new(name, "wb");
    let map = std::fs::File::create(place.path("map")).expect("made");
    map.set_len(8 << 20).expect("room");
    configure(&place, "cache");
    let (cache, map) = (place.path("cache"), place.path("map"));
    let devices = ["--cache", text(&cache), "--metadata", text(&map)];
    place.ok(&[&["format", "--force", "--discard-dirty"][..], &devices].concat());
    place
}

/// Sets the file of the data in the configuration.
fn configure(place: &Place, data: &str) {
    let more = "[[device]]\nname = \"map\"\nkind = \"file\"\npath = \"map\"\n";
    place.configure("wb", more);
    let path = place.path("forebay.toml");
    let config = std::fs::read_to_string(&path).expect("there");
    let config = config.replace("data = \"ssd\"", "data = \"ssd\"\nmetadata = \"map\"");
    let config = config.replace("path = \"cache\"", &format!("path = \"{data}\""));
    std::fs::write(&path, config).expect("written");
}

/// Returns the message of a refused start; `check` must report it as well.
fn refused(place: &Place, more: &[&str]) -> String {
    let config = place.path("forebay.toml");
    let started = place.run(&[&["serve", text(&config)][..], more].concat());
    let said = String::from_utf8_lossy(&started.stderr).into_owned();
    assert!(!started.status.success(), "{said}");
    assert!(said.contains("help: "), "{said}");
    let checked = place.run(&["check", text(&config)]);
    assert!(!checked.status.success(), "{checked:?}");
    said
}

#[test]
fn an_earlier_state_of_one_of_two_devices_is_refused() {
    let place = two_devices("parts-rolled-back");
    let daemon = place.serve(&[]);
    write_blocks(&mut place.connect(), 0..20);
    for name in ["cache", "map"] {
        copy(&place, name, &format!("{name}-running"));
    }
    daemon.terminate();
    for name in ["cache", "map"] {
        copy(&place, name, &format!("{name}-older"));
    }
    let daemon = place.serve(&[]);
    write_blocks(&mut place.connect(), 20..40);
    daemon.terminate();
    for (name, part) in [("cache", "data"), ("map", "metadata")] {
        copy(&place, name, "newest");
        for older in ["older", "running"] {
            put_back(&place, &format!("{name}-{older}"), name);
            for more in [&[][..], &["--accept-journal-loss"], &["--moved-cache"]] {
                let said = refused(&place, more);
                let expected = format!("({part}) has an earlier state");
                assert!(said.contains(&expected), "{older}: {said}");
            }
            // No other record exists.
            std::fs::rename(place.path("state"), place.path("aside")).expect("moved");
            refused(&place, &["--accept-journal-loss"]);
            let _ = std::fs::remove_dir_all(place.path("state"));
            std::fs::rename(place.path("aside"), place.path("state")).expect("moved");
        }
        put_back(&place, "newest", name);
    }
    let daemon = place.serve(&[]);
    check_blocks(&mut place.connect(), 0..40);
    daemon.terminate();
}

#[test]
fn a_copy_of_the_data_device_beside_the_original_is_refused() {
    let place = two_devices("parts-twin");
    let daemon = place.serve(&[]);
    write_blocks(&mut place.connect(), 0..20);
    daemon.terminate();
    copy(&place, "cache", "older");
    let daemon = place.serve(&[]);
    write_blocks(&mut place.connect(), 20..40);
    daemon.terminate();
    copy(&place, "cache", "copy");
    configure(&place, "copy");
    let said = refused(&place, &[]);
    for name in ["cache", "copy"] {
        assert!(said.contains(text(&place.path(name))), "{name}: {said}");
    }
    assert!(!said.contains(text(&place.path("map"))), "{said}");
    configure(&place, "older");
    let said = refused(&place, &["--moved-cache"]);
    assert!(said.contains("(data) has an earlier state"), "{said}");
    // It replaces the original, with the user's consent.
    configure(&place, "copy");
    let daemon = place.serve(&["--moved-cache"]);
    check_blocks(&mut place.connect(), 0..40);
    daemon.terminate();
    configure(&place, "cache");
    let said = refused(&place, &["--moved-cache"]);
    assert!(said.contains("(data) has an earlier state"), "{said}");
    // The original is missing: the message names it.
    copy(&place, "copy", "third");
    std::fs::rename(place.path("copy"), place.path("gone")).expect("moved");
    configure(&place, "third");
    let daemon = place.serve(&[]);
    let log = place.log();
    let message = format!("on {}, which is not there", place.path("copy").display());
    assert!(
        log.contains("takes its place") && log.contains(&message),
        "{log}"
    );
    check_blocks(&mut place.connect(), 0..40);
    daemon.terminate();
}

#[test]
fn a_backup_made_in_service_is_refused_behind_a_clean_end() {
    let place = Place::new("backup-running", "wb");
    let config = place.path("forebay.toml");
    let daemon = place.serve(&[]);
    write_blocks(&mut place.connect(), 0..20);
    copy(&place, "cache", "backup");
    write_blocks(&mut place.connect(), 0..40);
    daemon.terminate();
    copy(&place, "cache", "newest");
    put_back(&place, "backup", "cache");
    // As after a reboot: a missing journal proves nothing.
    for more in [&[][..], &["--accept-journal-loss"], &["--moved-cache"]] {
        let said = refused(&place, more);
        assert!(
            said.contains("holds an earlier state of the cache"),
            "{said}"
        );
    }
    put_back(&place, "newest", "cache");
    // A repair is recorded like an opening and a clean end.
    place.ok(&["check", "--repair", text(&config)]);
    copy(&place, "cache", "repaired");
    put_back(&place, "newest", "cache");
    let said = refused(&place, &[]);
    assert!(
        said.contains("holds an earlier state of the cache"),
        "{said}"
    );
    put_back(&place, "repaired", "cache");
    let daemon = place.serve(&[]);
    check_blocks(&mut place.connect(), 0..40);
    daemon.terminate();
    // So is a forgotten volume.
    copy(&place, "cache", "newest");
    place.ok(&["forget", "db", text(&config), "--discard-dirty"]);
    put_back(&place, "newest", "cache");
    let said = refused(&place, &[]);
    assert!(
        said.contains("holds an earlier state of the cache"),
        "{said}"
    );
}
