//! A volume whose backing device is in object storage: a directory, or a real S3 server.

use std::path::Path;
use std::time::Duration;

use forebay_testkit::s3_server::{S3Server, SECRET};

use super::nbd_backing::{BLOCKS, write_through};
use super::support::{Place, text};
use super::{block, check_blocks, write_blocks};

/// Keys of a device of 64 MiB in a directory.
pub(crate) fn directory(folder: &Path) -> String {
    format!("url = {:?}\nsize = \"64M\"\n", text(folder))
}

/// Gives the volume of `place` a device with these keys as backing device.
pub(crate) fn back_with(place: &Place, keys: &str, mode: &str) {
    place.configure(mode, "");
    let device = format!("[[device]]\nname = \"far\"\nkind = \"object\"\n{keys}");
    place.edit_config(&[
        ("[cache]", &format!("{device}\n[cache]")),
        ("backing = \"disk\"", "backing = \"far\""),
    ]);
}

pub(crate) fn make_folder(place: &Place) -> std::path::PathBuf {
    let folder = place.path("objects");
    std::fs::create_dir(&folder).expect("a new directory");
    folder
}

#[test]
fn a_check_creates_nothing_and_a_start_creates_the_volume() {
    let place = Place::new("object-new", "wt");
    let folder = place.path("objects");
    let config = place.path("forebay.toml");
    back_with(&place, &directory(&folder), "wt");
    for command in ["check", "serve"] {
        let refused = place.refused(&[command, text(&config)]);
        assert!(refused.contains("mkdir -p"), "{refused}");
    }
    assert!(!folder.exists());
    std::fs::create_dir(&folder).expect("a new directory");
    let sized = place.read_config();
    place.edit_config(&[("size = \"64M\"\n", "")]);
    for command in ["check", "serve"] {
        let refused = place.refused(&[command, text(&config)]);
        assert!(refused.contains("there is no volume in"), "{refused}");
        assert!(refused.contains("help: set a size"), "{refused}");
    }
    place.write_config(&sized);
    let checked = || {
        let output = place.run(&["check", text(&config)]);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert!(
        checked().contains("the start creates it in"),
        "{}",
        checked()
    );
    assert!(!folder.join("volume").exists() && !folder.join("log").exists());
    let daemon = place.serve(&[]);
    write_blocks(&mut place.connect(), 0..16);
    daemon.terminate();
    place.wait_for_log("a volume of 64 MiB is created");
    assert!(!checked().contains("the start creates it"), "{}", checked());
    // A volume that exists needs no size, and a larger one extends it.
    place.edit_config(&[("size = \"64M\"\n", "")]);
    let daemon = place.serve(&[]);
    check_blocks(&mut place.connect(), 0..16);
    daemon.terminate();
    place.write_config(&sized.replace("64M", "96M"));
    let daemon = place.serve(&[]);
    assert_eq!(place.status()["volumes"][0]["size_bytes"], 96 << 20);
    check_blocks(&mut place.connect(), 0..16);
    daemon.terminate();
}

#[test]
fn a_daemon_that_is_killed_in_the_middle_of_writes_loses_nothing_that_was_flushed() {
    let place = Place::new("object-kill", "wt");
    let folder = make_folder(&place);
    back_with(&place, &directory(&folder), "wt");
    let mut written = 0;
    for round in 0..3 {
        let daemon = place.serve(&[]);
        let mut nbd = place.connect();
        check_blocks(&mut nbd, 0..written);
        let begin = written;
        let writer = std::thread::spawn(move || {
            let mut flushed = begin;
            for number in begin..begin + 4096 {
                match nbd.write(number * 4096, &block(number)) {
                    Ok(0) => {}
                    _ => return flushed,
                }
                if number % 8 == 7 {
                    match nbd.flush() {
                        Ok(0) => flushed = number + 1,
                        _ => return flushed,
                    }
                }
            }
            flushed
        });
        let objects = || std::fs::read_dir(folder.join("log")).map_or(0, Iterator::count);
        let before = objects();
        let waited = std::time::Instant::now();
        while objects() < before + 12 {
            assert!(
                waited.elapsed() < Duration::from_secs(60),
                "no flush makes an object"
            );
            std::thread::sleep(Duration::from_millis(1));
        }
        daemon.kill();
        written = writer.join().expect("it ends");
        assert!(
            written > begin && written < begin + 4096,
            "round {round}: {written}"
        );
    }
    // Without the cache, which may have clean copies.
    let daemon = place.serve(&["--without-cache", "db"]);
    check_blocks(&mut place.connect(), 0..written);
    daemon.terminate();
    let left = std::fs::read_dir(folder.join(".incomplete"));
    assert_eq!(left.expect("it is there").count(), 0, "temporary files");
}

#[test]
fn a_start_after_a_kill_reports_unflushed_writes_as_lost() {
    let place = Place::new("object-unflushed", "wt");
    let folder = make_folder(&place);
    back_with(&place, &directory(&folder), "wt");
    let loss = || place.status()["volumes"][0]["loss"].clone();
    let daemon = place.serve(&[]);
    let mut nbd = place.connect();
    write_blocks(&mut nbd, 0..16);
    assert_eq!(nbd.flush().expect("an answer"), 0);
    daemon.kill();
    let daemon = place.serve(&[]);
    assert!(loss().is_null(), "everything was flushed: {}", loss());
    let mut nbd = place.connect();
    assert_eq!(nbd.write(0, &block(100)).expect("an answer"), 0);
    daemon.kill();
    let daemon = place.serve(&[]);
    place.wait_for_log("AN EARLIER PROCESS ENDED BEFORE A FLUSH");
    let message = loss().to_string();
    assert!(
        message.contains("UNFLUSHED WRITES MAY BE LOST"),
        "{message}"
    );
    // The volume and the cache agree.
    check_blocks(&mut place.connect(), 0..16);
    daemon.terminate();
    let daemon = place.serve(&[]);
    assert!(loss().is_null(), "it was reported: {}", loss());
    check_blocks(&mut place.connect(), 0..16);
    daemon.terminate();
}

#[test]
fn a_second_daemon_fences_the_first_whose_writes_fail_by_name() {
    let first = Place::new("object-first", "wt");
    let second = Place::new("object-second", "wt");
    let folder = make_folder(&first);
    for place in [&first, &second] {
        back_with(place, &directory(&folder), "wt");
    }
    let stale = first.serve(&[]);
    let mut nbd = first.connect();
    write_blocks(&mut nbd, 0..16);
    assert_eq!(nbd.flush().expect("an answer"), 0);
    let daemon = second.serve(&[]);
    let mut successor = second.connect();
    check_blocks(&mut successor, 0..16);
    for number in 0..16 {
        let data = block(number + 100);
        assert_eq!(successor.write(number * 4096, &data).expect("an answer"), 0);
    }
    assert_eq!(successor.flush().expect("an answer"), 0);
    // Acknowledged into memory at most: the flush reports it.
    let _ = nbd.write(0, &block(200)).expect("an answer");
    assert_ne!(nbd.flush().expect("an answer"), 0, "it is fenced");
    for number in 0..16 {
        let error = nbd.write(number * 4096, &block(number + 200));
        assert_ne!(error.expect("an answer"), 0, "block {number} is fenced");
    }
    first.wait_for_log(&format!("process {}", daemon.id()));
    first.wait_for_log("4096 unflushed bytes ARE LOST");
    let status = first.status();
    let devices = status["devices"].as_array().expect("devices");
    let far = devices.iter().find(|device| device["name"] == "far");
    let far = far.expect("the device");
    assert!(far["errors"].as_u64() > Some(0), "{far}");
    let last = far["last_error"].as_str().expect("an error");
    assert!(last.contains(&format!("process {}", daemon.id())), "{last}");
    stale.kill();
    daemon.terminate();
    let daemon = second.serve(&["--without-cache", "db"]);
    let mut nbd = second.connect();
    for number in 0..16 {
        let data = nbd.read(number * 4096, 4096).expect("an answer");
        assert_eq!(
            data,
            Ok(block(number + 100)),
            "block {number} is the successor's"
        );
    }
    daemon.terminate();
}

#[test]
fn a_snapshot_is_served_as_a_read_only_device() {
    let place = Place::new("object-snapshot", "wb");
    let folder = make_folder(&place);
    let refused = {
        let daemon = place.serve(&[]);
        let refused = place.refused(&["snapshot", "db", "monday"]);
        daemon.terminate();
        refused
    };
    assert!(
        refused.contains("volume \"db\" is not in object storage"),
        "{refused}"
    );
    back_with(&place, &directory(&folder), "wb");
    let daemon = place.serve(&["--adopt", "db"]);
    let mut nbd = place.connect();
    write_blocks(&mut nbd, 0..64);
    assert!(
        place
            .ok(&["snapshot", "db", "--list"])
            .contains("has no snapshots")
    );
    assert!(
        place
            .ok(&["snapshot", "db", "monday"])
            .contains("has the snapshot monday")
    );
    let twice = place.refused(&["snapshot", "db", "monday"]);
    assert!(
        twice.contains("monday") && twice.contains("help: "),
        "{twice}"
    );
    let listed = place.ok(&["snapshot", "db", "--list"]);
    assert!(listed.starts_with("monday: 64 MiB, made "), "{listed}");
    let listed = place.ok(&["snapshot", "db", "--list", "--json"]);
    let listed: serde_json::Value = serde_json::from_str(&listed).expect("JSON");
    let monday = &listed["snapshots"][0];
    assert_eq!(monday["name"], "monday", "{listed}");
    assert_eq!(monday["size_bytes"], 64 << 20, "{listed}");
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed().expect("a time");
    let age = monday["created_s"].as_u64().map(|it| now.as_secs() - it);
    assert!(age.is_some_and(|age| age < 600), "{listed}");
    for number in 0..64 {
        assert_eq!(
            nbd.write(number * 4096, &block(number + 500))
                .expect("an answer"),
            0
        );
    }
    place.ok(&["snapshot", "db", "tuesday"]);
    place.ok(&["snapshot", "db", "--delete", "tuesday"]);
    let gone = place.refused(&["snapshot", "db", "--delete", "tuesday"]);
    assert!(gone.contains("tuesday"), "{gone}");
    let status = place.status();
    let objects = &status["object_volumes"][0];
    assert_eq!(objects["name"], "far", "{status}");
    assert!(objects["uploaded_bytes"].as_u64() > Some(0), "{objects}");
    assert!(objects["creations"].as_u64() > Some(2), "{objects}");
    let metrics = daemon.get("/metrics");
    assert!(
        metrics.contains("forebay_object_stored_bytes{device=\"far\"}"),
        "{metrics}"
    );
    daemon.terminate();

    let reader = Place::new("object-snapshot-reader", "wt");
    back_with(
        &reader,
        &format!("url = {:?}\nsnapshot = \"monday\"\n", text(&folder)),
        "wt",
    );
    reader.edit_config(&[("mode = \"wt\"", "mode = \"wt\"\nread_only = true")]);
    // The volume itself is served at the same time.
    let daemon = place.serve(&[]);
    let snapshot = reader.serve(&[]);
    let mut nbd = reader.connect();
    check_blocks(&mut nbd, 0..64);
    assert_ne!(
        nbd.write(0, &block(7)).expect("an answer"),
        0,
        "it takes no writes"
    );
    let data = place.connect().read(0, 4096).expect("an answer");
    assert_eq!(data, Ok(block(500)));
    snapshot.terminate();
    daemon.terminate();
}

#[test]
fn a_check_of_data_names_damaged_objects() {
    let place = Place::new("object-verified", "wt");
    let folder = make_folder(&place);
    back_with(&place, &directory(&folder), "wt");
    let daemon = place.serve(&[]);
    write_blocks(&mut place.connect(), 0..64);
    let config = place.path("forebay.toml");
    let output = place.run(&["check", text(&config), "--data"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("warning: no object was verified"), "{said}");
    daemon.terminate();
    let intact = place.ok(&["check", text(&config), "--data"]);
    assert!(intact.contains("device \"far\": 1 object with"), "{intact}");
    let entries = std::fs::read_dir(folder.join("log")).expect("there");
    let objects = entries.map(|entry| entry.expect("read").path());
    let size = |path: &std::path::PathBuf| path.metadata().expect("there").len();
    let path = objects.max_by_key(size).expect("it has data");
    let mut content = std::fs::read(&path).expect("there");
    *content.last_mut().expect("some") ^= 1;
    std::fs::write(&path, content).expect("written");
    place.ok(&["check", text(&config)]);
    let output = place.run(&["check", text(&config), "--data"]);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    let name = path.file_name().expect("a name").to_string_lossy();
    for part in ["DATA IS LOST", "1 object missing or damaged", &*name] {
        assert!(said.contains(part), "{part}: {said}");
    }
}

#[test]
fn an_s3_server_that_is_killed_between_writes_loses_nothing_that_was_flushed() {
    let Some(mut server) = S3Server::start("fb-object-s3") else {
        return;
    };
    let place = Place::new("object-s3", "wt");
    let keys = format!(
        "url = \"s3://bucket/volumes/db\"\nendpoint = {:?}\ncredentials = {:?}\n\
         region = \"us-east-1\"\nsize = \"64M\"\nprices = \"put 0.005, stored 0.023\"\n",
        server.endpoint(),
        server.credentials(),
    );
    back_with(&place, &keys, "wt");
    let config = place.path("forebay.toml");
    place.ok(&["check", text(&config)]);
    let daemon = place.serve(&[]);
    write_through(&place, || {
        server.kill();
        std::thread::sleep(Duration::from_millis(500));
        server.restart();
    });
    assert!(
        place.ok(&["status"]).contains(" a month"),
        "the price is estimated"
    );
    daemon.kill();
    let daemon = place.serve(&["--without-cache", "db"]);
    check_blocks(&mut place.connect(), 0..BLOCKS);
    daemon.terminate();
    for text in [place.raw_log(), place.ok(&["check", text(&config)])] {
        assert!(!text.contains(SECRET), "a secret is shown");
    }
    let mode = |mode| std::os::unix::fs::PermissionsExt::from_mode(mode);
    std::fs::set_permissions(server.credentials(), mode(0o644)).expect("its owner's");
    let refused = place.refused(&["serve", text(&config)]);
    assert!(refused.contains("chmod 0600"), "{refused}");
}
