//! Something else than a regular file, where the program reads or writes one. Neither `check` nor
//! `serve` waits for it, and both say the same.

use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;

use crate::support::{PROGRAM, Place, text};
use crate::write_blocks;

type Put = fn(&Path);

/// Kinds of files, in words, and how to make them.
const KINDS: [(&str, Put); 5] = [
    ("a named pipe", |path| {
        let made = Command::new("mkfifo").arg(path).status();
        assert!(made.expect("mkfifo runs").success());
    }),
    ("a socket", |path| {
        drop(UnixListener::bind(path).expect("bound"));
    }),
    ("a directory", |path| {
        std::fs::create_dir(path).expect("made");
    }),
    ("a symbolic link that leads nowhere", |path| {
        symlink("nowhere", path).expect("made");
    }),
    ("a character device", |path| {
        symlink("/dev/zero", path).expect("made");
    }),
];

fn remove(path: &Path) {
    if std::fs::remove_file(path).is_err() {
        std::fs::remove_dir(path).expect("there, and empty");
    }
}

/// Runs the program, which ends by itself with status 1. Returns its last lines, from its name on.
fn refusal(place: &Place, command: &str, config: &Path) -> String {
    let mut timed = Command::new("timeout");
    timed.args(["-s", "KILL", "60", PROGRAM, command, text(config)]);
    let output = timed.current_dir(place.path("")).output().expect("it runs");
    let said = String::from_utf8(output.stderr).expect("text");
    assert_eq!(output.status.code(), Some(1), "{command}: {said}");
    let begin = said.find("forebay: ").expect("an error");
    said[begin..].to_owned()
}

/// Checks that both commands name the file, its kind and a remedy in the same words.
fn both_name(place: &Place, config: &Path, parts: &[&str]) {
    let checked = refusal(place, "check", config);
    for part in parts.iter().chain(&["help: "]) {
        assert!(checked.contains(part), "{part} in {checked}");
    }
    assert_eq!(refusal(place, "serve", config), checked);
}

#[test]
fn files_of_the_state_directory_that_are_none_are_named() {
    let place = Place::new("irregular", "wb");
    let daemon = place.serve(&[]);
    write_blocks(&mut place.connect(), 0..8);
    daemon.terminate();
    let (config, state) = (place.path("forebay.toml"), place.path("state"));
    let entries = std::fs::read_dir(&state).expect("there");
    let names = entries.map(|entry| entry.expect("read").file_name());
    let names = names.map(|name| name.into_string().expect("text"));
    let mut names: Vec<_> = names.collect();
    assert!(
        names.iter().any(|name| name.ends_with(".cache")),
        "{names:?}"
    );
    names.extend(["db.epoch.new", "db.abandoned", "db.lost", "db.ranges"].map(String::from));
    for name in &names {
        let (path, former) = (state.join(name), std::fs::read(state.join(name)));
        let _ = std::fs::remove_file(&path);
        for (kind, put) in KINDS {
            put(&path);
            both_name(&place, &config, &["state directory", name, kind]);
            remove(&path);
        }
        if let Ok(former) = former {
            std::fs::write(&path, former).expect("put back");
        }
    }
    // All of them at once.
    for name in ["two.epoch", "db.dirty"] {
        KINDS[0].1(&state.join(name));
    }
    both_name(&place, &config, &["two.epoch", "db.dirty"]);
    for name in ["two.epoch", "db.dirty"] {
        remove(&state.join(name));
    }
    let daemon = place.serve(&[]);
    crate::check_blocks(&mut place.connect(), 0..8);
    daemon.terminate();
}

#[test]
fn a_state_directory_that_is_none_is_named() {
    let place = Place::new("irregular-state", "wb");
    for (kind, put) in KINDS {
        if kind != "a directory" {
            put(&place.path("state"));
            let config = place.path("forebay.toml");
            both_name(&place, &config, &["state", "is not a directory", kind]);
            remove(&place.path("state"));
        }
    }
    place.serve(&[]).terminate();
}

#[test]
fn a_configuration_that_is_no_file_is_named() {
    let place = Place::new("irregular-config", "wb");
    let config = place.path("other.toml");
    for (kind, put) in KINDS {
        put(&config);
        both_name(&place, &config, &["other.toml", kind]);
        remove(&config);
    }
}

#[test]
fn a_key_that_is_no_file_is_named() {
    let place = Place::new("irregular-key", "wb");
    let config = place.path("forebay.toml");
    let plain = std::fs::read_to_string(&config).expect("there");
    for key in ["tls_certificate", "tls_key", "tls_client_ca"] {
        let files: String = ["tls_certificate", "tls_key", "tls_client_ca"]
            .iter()
            .map(|name| format!("{name} = \"{}\"\n", if *name == key { "odd" } else { name }))
            .collect();
        let tls = format!("nbd = \"unix:nbd.sock\"\ntls = \"required\"\n{files}");
        std::fs::write(&config, plain.replace("nbd = \"unix:nbd.sock\"\n", &tls)).expect("written");
        let _ = Command::new("openssl")
            .args([
                "req", "-x509", "-newkey", "ed25519", "-nodes", "-subj", "/CN=x",
            ])
            .args(["-keyout", text(&place.path("tls_key"))])
            .args(["-out", text(&place.path("tls_certificate"))])
            .output()
            .expect("openssl runs");
        std::fs::copy(place.path("tls_certificate"), place.path("tls_client_ca")).expect("copied");
        for (kind, put) in KINDS {
            put(&place.path("odd"));
            both_name(&place, &config, &["odd", kind]);
            remove(&place.path("odd"));
        }
    }
}
