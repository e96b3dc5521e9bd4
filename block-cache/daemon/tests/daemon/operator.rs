//! Actions of operators, and the messages that they get.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use super::support::{PROGRAM, Place, text};
use super::{block, check_blocks, write_blocks};

fn set_len(path: &Path, bytes: u64) {
    let file = std::fs::OpenOptions::new().write(true).open(path);
    file.expect("there").set_len(bytes).expect("set");
}

#[test]
fn a_refused_grow_changes_nothing_and_failures_are_reported() {
    let place = Place::new("shrunk", "wb");
    let daemon = place.serve(&[]);
    let backing = place.path("db.img");
    let mut nbd = place.connect();
    write_blocks(&mut nbd, 0..8);
    // The answer follows the first check.
    place.status();
    set_len(&backing, 32 << 20);
    let refused = place.refused(&["grow", "db"]);
    assert!(
        refused.contains("give the device its 67108864 bytes back"),
        "{refused}"
    );
    assert_eq!(place.status()["volumes"][0]["size_bytes"], 64 << 20);
    write_blocks(&mut nbd, 8..16);
    check_blocks(&mut nbd, 0..16);
    // The data is missing, and zeroes would be wrong. The read-ahead fails first, then the read of
    // the request alone.
    let gone = nbd.read(48 << 20, 4096).expect("an answer");
    assert_eq!(gone, Err(5), "EIO");
    place.wait_for_log("read of 4096 bytes at byte 50331648");
    place.wait_for_log("device \"disk\" has shrunk from 64 MiB to 32 MiB");
    let device = &place.status()["devices"][1];
    assert_eq!(device["errors"], 2, "{device}");
    let shown = place.ok(&["status"]);
    assert!(
        shown.contains("device \"disk\": 2 errors, the last: read"),
        "{shown}"
    );
    assert!(daemon.get("/").contains("2 errors, the last: read"));
    // The daemon serves as before once the device is as before.
    set_len(&backing, 64 << 20);
    assert_eq!(nbd.write(48 << 20, &block(1)).expect("an answer"), 0);
    assert_eq!(nbd.read(48 << 20, 4096).expect("an answer"), Ok(block(1)));
    assert!(place.ok(&["grow", "db"]).contains("stays at 64 MiB"));
    daemon.terminate();
}

#[test]
fn the_control_socket_is_where_the_command_line_says() {
    let place = Place::new("socket", "wt");
    let other = place.path("other.sock");
    let daemon = place.serve(&["--control", text(&other)]);
    assert!(
        daemon.listening().contains("other.sock"),
        "{}",
        daemon.listening()
    );
    assert!(!place.path("control.sock").exists());
    let status = Command::new(PROGRAM)
        .args(["status", "--control", text(&other)])
        .output()
        .expect("it runs");
    assert!(status.status.success(), "{status:?}");
    daemon.terminate();
    assert!(!other.exists());
    let long = format!("/tmp/{}", "x".repeat(120));
    let config = place.path("forebay.toml");
    let refused = Command::new(PROGRAM)
        .args(["serve", text(&config), "--control", &long])
        .output()
        .expect("it runs");
    assert_eq!(refused.status.code(), Some(1));
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(said.contains("at most 107 bytes"), "{said}");
}

#[test]
fn a_file_that_ends_within_a_block_is_served_and_reported() {
    let place = Place::new("odd", "wt");
    set_len(&place.path("db.img"), (1 << 20) + 65);
    let checked = place.run(&["check", text(&place.path("forebay.toml"))]);
    assert!(checked.status.success(), "{checked:?}");
    let said = String::from_utf8_lossy(&checked.stderr);
    let expected = "the last 65 of the 1048641 bytes of ";
    assert!(
        said.contains(expected) && said.contains("forebay.toml:8: "),
        "{said}"
    );
    let daemon = place.serve(&[]);
    assert!(place.log().contains(expected), "{}", place.log());
    assert_eq!(place.connect().size_bytes, 1 << 20);
    daemon.terminate();
}

#[test]
fn missing_and_duplicate_files_are_named_before_anything_is_opened() {
    let place = Place::new("missing", "wb");
    std::os::unix::fs::symlink("cache", place.path("c.img")).expect("linked");
    place.configure(
        "wb",
        "[[device]]\nname = \"b\"\nkind = \"file\"\npath = \"b.img\"\n\
         [[device]]\nname = \"c\"\nkind = \"file\"\npath = \"c.img\"\n\
         [[volume]]\nname = \"b\"\nbacking = \"b\"\n\
         [[volume]]\nname = \"c\"\nbacking = \"c\"\n",
    );
    let config = place.path("forebay.toml");
    let said = place.refused(&["serve", text(&config)]);
    for part in [
        "b.img does not exist",
        "take volume \"b\" and its exports out of the configuration",
        "devices \"ssd\" and \"c\" are one and the same",
    ] {
        assert!(said.contains(part), "{part} in {said}");
    }
    assert!(!said.contains("invalid input"), "{said}");
    assert!(!place.path("state").exists(), "nothing was begun");
    // Without them, the existing data is served.
    place.configure("wb", "");
    place.serve(&[]).terminate();
}

#[test]
fn a_process_journal_is_found_wherever_it_lies_and_never_overwritten() {
    let place = Place::new("journal", "wb");
    let (cache, journal) = (place.path("cache"), place.path("journal"));
    let daemon = place.serve(&[]);
    write_blocks(&mut place.connect(), 0..16);
    let uuid = place.status()["cache"]["uuid"]
        .as_str()
        .expect("text")
        .to_owned();
    let link = format!("/dev/shm/forebay-{uuid}.journal");
    assert_eq!(std::fs::read_link(&link).expect("a link"), journal);
    daemon.kill();
    let config = place.path("forebay.toml");
    let serve = ["serve", text(&config)];

    // The configuration was moved, the journal was not.
    let moved = std::fs::read_to_string(&config).expect("there");
    let moved = moved.replace("journal = \"journal\"", "journal = \"elsewhere\"");
    std::fs::write(&config, moved).expect("written");
    // Nothing is lost, so no message may ask to abandon data.
    for command in [
        &serve[..],
        &["check", text(&config)],
        &["serve", text(&config), "--accept-journal-loss"],
    ] {
        let refused = place.refused(command);
        assert!(refused.contains("move it there"), "{command:?}: {refused}");
    }
    place.configure("wb", "");

    // Another cache in the same place, with the same path for its journal.
    std::fs::rename(&cache, place.path("kept")).expect("moved");
    place.ok(&["format", "--create", "64M", "--cache", text(&cache)]);
    let refused = place.refused(&serve);
    assert!(
        refused.contains("acknowledged writes of a cache that was not stopped"),
        "{refused}"
    );
    assert!(refused.contains(&uuid), "{refused}");
    std::fs::rename(place.path("kept"), &cache).expect("moved back");

    // The daemon leaves files that are no journal.
    std::fs::rename(&journal, place.path("kept")).expect("moved");
    std::fs::write(&journal, "my notes of this morning\n").expect("written");
    let refused = place.refused(&serve);
    assert!(refused.contains("is not a process journal"), "{refused}");
    assert_eq!(
        std::fs::read(&journal).expect("there"),
        b"my notes of this morning\n"
    );
    std::fs::rename(place.path("kept"), &journal).expect("moved back");

    // No write was lost in between.
    let daemon = place.serve(&[]);
    check_blocks(&mut place.connect(), 0..16);
    write_blocks(&mut place.connect(), 16..32);
    daemon.kill();
    let format = ["format", "--force", "--cache", text(&cache)];
    assert!(place.refused(&format).contains("nowhere else"));
    assert!(journal.exists(), "its writes are in it alone");
    place.ok(&[&format[..], &["--discard-dirty"]].concat());
    assert!(!journal.exists() && !Path::new(&link).is_symlink());
    let daemon = place.serve(&["--adopt", "db"]);
    let uuid = place.status()["cache"]["uuid"]
        .as_str()
        .expect("text")
        .to_owned();
    daemon.terminate();
    let link = format!("/dev/shm/forebay-{uuid}.journal");
    assert!(!journal.exists() && !Path::new(&link).is_symlink());
}

/// A cache whose journal is gone after a kill does not open, so no other cache may use it up.
#[test]
fn an_empty_journal_of_a_killed_cache_stays() {
    let place = Place::new("journal-empty", "wb");
    let (cache, journal) = (place.path("cache"), place.path("journal"));
    place.serve(&[]).kill();
    std::fs::rename(&cache, place.path("first")).expect("moved");
    place.ok(&["format", "--create", "64M", "--cache", text(&cache)]);
    let config = place.path("forebay.toml");
    for command in [&["check", text(&config)][..], &["serve", text(&config)]] {
        let refused = place.refused(command);
        assert!(
            refused.contains("belongs to a cache that was not stopped"),
            "{refused}"
        );
        assert!(refused.contains("help: serve and stop cache "), "{refused}");
    }
    assert!(journal.exists());
    std::fs::rename(place.path("first"), &cache).expect("moved back");
    place.serve(&[]).terminate();
}

/// Returns a pipe without a reader.
fn broken_pipe() -> Stdio {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    writer.into()
}

#[test]
fn commands_end_quietly_when_nobody_reads() {
    let place = Place::new("pipe", "wb");
    let config = place.path("forebay.toml");
    let (cache, new) = (place.path("cache"), place.path("new"));
    let ends = |arguments: &[&str]| {
        let mut command = place.command(arguments);
        let output = command.stdout(broken_pipe()).output().expect("it runs");
        assert_eq!(output.status.code(), Some(141), "{arguments:?}: {output:?}");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        // The configuration has a warning.
        assert!(!said.contains("forebay: "), "{arguments:?}: {said}");
    };
    ends(&["check", text(&config)]);
    ends(&["check", "--cache", text(&cache), "--json"]);
    ends(&["format", "--create", "64M", "--cache", text(&new)]);
    ends(&["bench", "--seconds", "0.01"]);
    // The daemon itself has other work than printing.
    let serve = place.start().stdout(broken_pipe());
    let daemon = serve.start_until(|_| place.log().contains("ready"));
    for arguments in [
        &["status"][..],
        &["status", "--json"],
        &["flush"],
        &["mode", "db", "wt"],
    ] {
        ends(arguments);
    }
    let mut watch = place.command(&["status", "--watch"]);
    let watch = watch.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = watch.spawn().expect("it runs");
    let mut lines = BufReader::new(child.stdout.take().expect("piped"));
    lines.read_line(&mut String::new()).expect("a line");
    drop(lines);
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(141), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
    // Neither is read.
    let mut deaf = place.command(&["status"]);
    let deaf = deaf.stdout(broken_pipe()).stderr(broken_pipe()).status();
    assert_eq!(deaf.expect("it runs").code(), Some(141));
    daemon.terminate();
}

#[test]
fn an_error_is_one_chain_of_sentences() {
    let place = Place::new("chain", "wb");
    let said = place.refused(&["serve", "/nonexistent.toml"]);
    let expected = "forebay: cannot read the configuration /nonexistent.toml: No such file or \
                    directory (os error 2)\n    \
                    help: name a file that exists and that you may read\n";
    assert_eq!(said, expected);
    let daemon = place.serve(&[]);
    let said = place.refused(&["mode", "dc", "wt"]);
    assert_eq!(
        said,
        "forebay: there is no volume \"dc\" (not found)\n    help: there are: db\n"
    );
    daemon.terminate();
}

#[test]
fn a_flood_of_garbage_is_one_line_in_the_log() {
    let place = Place::new("garbage", "wb");
    let daemon = place.serve(&[]);
    for _ in 0..64 {
        let mut stream = UnixStream::connect(place.path("nbd.sock")).expect("it listens");
        let _ = stream.write_all(b"GET / HTTP/1.1\r\nHost: not for you\r\n\r\n");
    }
    write_blocks(&mut place.connect(), 0..8);
    place.wait_for_log("an NBD connection was closed");
    daemon.terminate();
    let warnings = place.log().matches("WARN forebay_frontend").count();
    assert_eq!(warnings, 1, "{}", place.log());
}

#[test]
fn connections_of_one_export_are_spread_over_the_reactors() {
    let place = Place::new("spread", "wb");
    place.configure("wb", "reactors = 2");
    let daemon = place.serve(&[]);
    let (mut first, mut second) = (place.connect(), place.connect());
    write_blocks(&mut first, 0..32);
    write_blocks(&mut second, 32..64);
    assert_eq!(first.flush().expect("an answer"), 0);
    check_blocks(&mut first, 0..64);
    check_blocks(&mut second, 0..64);
    let expected = serde_json::json!([
        { "name": "net-1", "connections": 1 },
        { "name": "engine", "connections": 1 },
    ]);
    assert_eq!(place.status()["reactors"], expected);
    assert!(
        place
            .ok(&["status"])
            .contains("connections: 1 on net-1, 1 on engine")
    );
    // The next user gets a free place.
    drop(second);
    place.wait_until(|status| status["reactors"][1]["connections"] == 0);
    let third = place.connect();
    assert_eq!(place.status()["reactors"], expected);
    drop((first, third));
    daemon.terminate();
    let daemon = place.serve(&[]);
    check_blocks(&mut place.connect(), 0..64);
    daemon.terminate();
}

#[test]
fn the_status_page_refuses_requests_for_other_hosts() {
    let place = Place::new("host", "wt");
    let daemon = place.serve(&[]);
    for path in ["/", "/metrics", "/status.json", "/healthz"] {
        for host in ["127.0.0.1", "127.0.0.1:9809", "[::1]:9809", "localhost:1"] {
            let answer = daemon.request(path, host);
            assert!(
                answer.starts_with("HTTP/1.1 200"),
                "{path} {host}: {answer}"
            );
        }
        // A page of another site whose name resolves to this address could read it in a browser.
        for host in ["evil.example:9809", "127.0.0.1.evil.example"] {
            let answer = daemon.request(path, host);
            assert!(
                answer.starts_with("HTTP/1.1 421"),
                "{path} {host}: {answer}"
            );
            assert!(!answer.contains("forebay_"), "{answer}");
        }
    }
    daemon.terminate();
}

/// The directory of the test is on a disk, in most places.
#[test]
fn a_journal_on_a_disk_is_warned_of() {
    let place = Place::new("journal-disk", "wb");
    let config = place.path("forebay.toml");
    let is_in_memory = forebay_io::file::is_in_memory(&place.path(""));
    let said = |place: &Place| {
        let checked = place.run(&["check", text(&config)]);
        assert!(checked.status.success(), "{checked:?}");
        place.serve(&[]).terminate();
        [
            String::from_utf8_lossy(&checked.stderr).into_owned(),
            place.log(),
        ]
    };
    for printed in said(&place) {
        let warns = printed.contains("is on the file system of a disk");
        assert_eq!(warns, !is_in_memory, "{printed}");
        assert!(
            is_in_memory || printed.contains("help: set `journal`"),
            "{printed}"
        );
    }
    let changed = std::fs::read_to_string(&config).expect("there");
    std::fs::write(&config, changed.replace("journal = \"journal\"\n", "")).expect("written");
    for printed in said(&place) {
        assert!(
            !printed.contains("is on the file system of a disk"),
            "{printed}"
        );
    }
}

#[test]
fn dirty_data_of_a_volume_that_is_not_served_is_in_each_view_of_the_status() {
    let place = Place::new("not-configured", "wb");
    let daemon = place.serve(&[]);
    write_blocks(&mut place.connect(), 0..8);
    daemon.terminate();
    let dirty = 8 * 4096;
    let volume = |place: &Place| {
        let status = place.status();
        let volumes = status["volumes"].as_array().expect("a list").clone();
        assert_eq!(status["cache"]["dirty_bytes"], dirty, "{status}");
        volumes
            .into_iter()
            .find(|it| it["name"] == "db")
            .expect("listed")
    };
    // Another volume takes its place in the configuration.
    let config = place.path("forebay.toml");
    let configured = std::fs::read_to_string(&config).expect("there");
    std::fs::copy(place.path("db.img"), place.path("dc.img")).expect("copied");
    let changed = configured.replace("\"db\"", "\"dc\"");
    std::fs::write(&config, changed.replace("db.img", "dc.img")).expect("written");
    let daemon = place.serve(&[]);
    let found = volume(&place);
    assert_eq!(
        (&found["state"], &found["dirty_bytes"]),
        (&"not configured".into(), &dirty.into())
    );
    let shown = place.ok(&["status"]);
    let line = shown.lines().find(|line| line.contains("not configured"));
    assert!(
        line.is_some_and(|line| line.contains("db") && line.contains("32 KiB")),
        "{shown}"
    );
    let metrics = daemon.get("/metrics");
    for sample in [
        format!("forebay_volume_dirty_bytes{{volume=\"db\"}} {dirty}"),
        "forebay_volume_info{volume=\"db\",state=\"not configured\"} 1".into(),
    ] {
        assert!(
            metrics.lines().any(|line| line == sample),
            "{sample} in {metrics}"
        );
    }
    daemon.terminate();
}
