//! Paths that name no file and no block device: a named pipe, a socket, a directory, a terminal.

use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use super::support::{Place, text};

/// Files that cannot be a medium, with the word for each.
fn others(place: &Place) -> Vec<(PathBuf, &'static str)> {
    let made = Command::new("mkfifo").arg(place.path("pipe")).status();
    assert!(made.expect("coreutils").success());
    drop(UnixListener::bind(place.path("socket")).expect("bound"));
    std::fs::create_dir(place.path("directory")).expect("made");
    std::os::unix::fs::symlink(place.path("pipe"), place.path("link")).expect("made");
    vec![
        (place.path("pipe"), "a named pipe"),
        (place.path("link"), "a named pipe"),
        (place.path("socket"), "a socket"),
        (place.path("directory"), "a directory"),
        (PathBuf::from("/dev/null"), "a character device"),
        (PathBuf::from("/dev/ptmx"), "a character device"),
    ]
}

/// Checks that a command is refused soon, with all of these words.
fn refused_soon(place: &Place, arguments: &[&str], parts: &[&str]) {
    let begin = Instant::now();
    let output = place.run(arguments);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        begin.elapsed() < Duration::from_secs(30),
        "{arguments:?} waits"
    );
    assert_eq!(output.status.code(), Some(1), "{arguments:?}: {said}");
    for part in parts {
        assert!(said.contains(part), "{arguments:?}: {part} in {said}");
    }
}

#[test]
fn a_path_that_names_no_medium_is_refused_by_all_commands() {
    let place = Place::new("kinds", "wb");
    let cache = place.path("cache");
    let plain = place.path("plain");
    let file = std::fs::File::create(&plain).expect("made");
    file.set_len(64 << 20).expect("sparse");
    for (path, kind) in others(&place) {
        let (name, good, plain) = (text(&path), text(&cache), text(&plain));
        for arguments in [
            &["format", "--cache", name][..],
            &["format", "--force", "--cache", name],
            &["format", "--cache", plain, "--metadata", name],
            &["format", "--btt", name],
            &["check", "--cache", name],
            &["check", "--cache", name, "--repair"],
            &["check", "--cache", good, "--metadata", name],
            &["clone-id", "--cache", name],
            &["clone-id", "--cache", good, "--metadata", name],
        ] {
            refused_soon(&place, arguments, &[name, kind, "help: "]);
        }
        refused_soon(
            &place,
            &["format", "--create", "64M", "--cache", name],
            &[name, kind, "help: "],
        );
    }
    // No file was created or changed.
    place.ok(&["check", "--cache", text(&cache)]);
}

#[test]
fn a_path_in_a_configuration_that_names_no_medium_is_refused_by_start_and_check() {
    let place = Place::new("kinds-config", "wb");
    let config = place.path("forebay.toml");
    let sound = std::fs::read_to_string(&config).expect("there");
    for (path, kind) in others(&place) {
        let name = text(&path);
        for (from, to) in [
            ("path = \"cache\"", format!("path = \"{name}\"")),
            ("path = \"db.img\"", format!("path = \"{name}\"")),
            (
                "data = \"ssd\"",
                "data = \"ssd\"\nmetadata = \"map\"".to_owned(),
            ),
        ] {
            let mut text_of = sound.replace(from, &to);
            if from.starts_with("data") {
                text_of +=
                    &format!("\n[[device]]\nname = \"map\"\nkind = \"file\"\npath = \"{name}\"\n");
            }
            std::fs::write(&config, text_of).expect("written");
            for command in ["serve", "check"] {
                refused_soon(&place, &[command, text(&config)], &[name, kind, "help: "]);
            }
        }
        let mapped = sound.replace(
            "kind = \"file\"\npath = \"db.img\"",
            &format!("kind = \"pmem\"\npath = \"{name}\""),
        );
        assert_ne!(mapped, sound);
        let mapped = mapped.replace("backing = \"disk\"", "backing = \"table\"")
            + "\n[[device]]\nname = \"table\"\nkind = \"btt\"\non = \"disk\"\n";
        std::fs::write(&config, mapped).expect("written");
        for command in ["serve", "check"] {
            refused_soon(&place, &[command, text(&config)], &[name, kind, "help: "]);
        }
        let journal = sound.replace("journal = \"journal\"", &format!("journal = \"{name}\""));
        std::fs::write(&config, journal).expect("written");
        for command in ["serve", "check"] {
            refused_soon(&place, &[command, text(&config)], &[name, "help: "]);
        }
    }
}
