//! A refused start changes no record that a later start decides by.

use std::collections::BTreeMap;
use std::path::Path;

use crate::support::{Place, text};
use crate::write_blocks;

const SECOND: &str = "[[device]]\nname = \"second\"\nkind = \"file\"\npath = \"second.img\"\n\
    [[volume]]\nname = \"two\"\nbacking = \"second\"\nmode = \"wb\"\n\
    [[export]]\nvolume = \"two\"\nnbd = \"unix:two.sock\"\n";

fn create(path: &Path) {
    let image = std::fs::File::create(path).expect("made");
    image.set_len(64 << 20).expect("sparse");
}

fn place_of_two(name: &str) -> Place {
    let place = Place::new(name, "wb");
    create(&place.path("second.img"));
    place.configure("wb", SECOND);
    place
}

/// Serves both volumes, leaves dirty data of each in the cache, and ends.
fn leave_dirty(place: &Place, arguments: &[&str]) {
    let daemon = place.serve(arguments);
    for (socket, name) in [("nbd.sock", "db"), ("two.sock", "two")] {
        let mut nbd = crate::Nbd::connect(&place.path(socket), name).expect("it answers");
        write_blocks(&mut nbd, 0..8);
        assert_eq!(nbd.flush().expect("an answer"), 0);
    }
    daemon.terminate();
}

/// Returns the records of all volumes, by file name.
fn records(place: &Place) -> BTreeMap<String, String> {
    let entries = std::fs::read_dir(place.path("state")).expect("there");
    let names = entries.map(|entry| entry.expect("read").file_name());
    let names = names.map(|name| name.into_string().expect("text"));
    names
        .filter(|name| name.contains(".epoch") || name.contains(".ranges"))
        .map(|name| {
            let content = std::fs::read(place.path("state").join(&name)).expect("there");
            (name, String::from_utf8_lossy(&content).into_owned())
        })
        .collect()
}

/// Returns the lines of a record that name its backing device and its cache.
fn identity(record: &str) -> Vec<&str> {
    let words = ["cache ", "backing ", "born ", "start ", "may-be-dirty "];
    let is_part = |line: &&str| words.iter().any(|word| line.starts_with(word));
    record.lines().filter(is_part).collect()
}

/// Starts in vain with these arguments, and checks the reason and the records of these volumes.
fn refuse(place: &Place, arguments: &[&str], reason: &str, unchanged: &[&str]) {
    let before = records(place);
    let config = place.path("forebay.toml");
    let said = place.refused(&[&["serve", text(&config)][..], arguments].concat());
    assert!(said.contains(reason), "{reason} in {said}");
    let after = records(place);
    for name in unchanged {
        let file = format!("{name}.epoch");
        assert_eq!(after.get(&file), before.get(&file), "{reason}: {file}");
    }
    // A volume beside them may have been attached: its epoch is raised, and nothing else.
    assert_eq!(
        before.keys().collect::<Vec<_>>(),
        after.keys().collect::<Vec<_>>(),
        "{reason}"
    );
    for (file, record) in &after {
        assert_eq!(
            identity(record),
            identity(&before[file]),
            "{reason}: {file}"
        );
    }
}

/// Exchanges two files.
fn swap(place: &Place, one: &str, other: &str) {
    let rename = |from: &str, to: &str| {
        std::fs::rename(place.path(from), place.path(to)).expect("renamed");
    };
    rename(one, "between");
    rename(other, one);
    rename("between", other);
}

/// Writes a configuration that serves `db.img` as `renamed`, through `cache` or without a cache.
fn configure_renamed(place: &Place, cache: Option<&str>) {
    place.configure("wt", "");
    let path = place.path("forebay.toml");
    let config = std::fs::read_to_string(&path).expect("there");
    let (begin, end) = (config.find("[cache]"), config.find("[[volume]]"));
    let section = &config[begin.expect("there")..end.expect("there")];
    let config = match cache {
        None => config.replace(section, ""),
        Some(cache) => config
            .replace("path = \"cache\"", &format!("path = \"{cache}\""))
            .replace("\"journal\"", "\"other-journal\""),
    };
    std::fs::write(path, config.replace("\"db\"", "\"renamed\"")).expect("written");
}

/// Checks that the device of `db` cannot be served as another volume without a decision, neither
/// without a cache nor through another one.
fn refuse_renamed(place: &Place) {
    configure_renamed(place, None);
    crate::checked::both_refuse(place, &["as volume \"db\"", "--without-cache renamed"]);
    let other = place.path("other-cache");
    place.ok(&["format", "--create", "32M", "--cache", text(&other)]);
    configure_renamed(place, Some("other-cache"));
    crate::checked::both_refuse(place, &["as volume \"db\"", "--adopt renamed"]);
    std::fs::remove_file(other).expect("there");
}

#[test]
fn a_wrong_backing_device_leaves_the_record_of_the_right_one() {
    let place = Place::new("refused-wrong", "wb");
    let daemon = place.serve(&[]);
    write_blocks(&mut place.connect(), 0..8);
    daemon.terminate();
    create(&place.path("wrong.img"));
    swap(&place, "db.img", "wrong.img");
    for _ in 0..2 {
        refuse(&place, &[], "another backing device", &["db"]);
    }
    swap(&place, "db.img", "wrong.img");
    refuse_renamed(&place);
    place.configure("wb", "");
    let daemon = place.serve(&[]);
    crate::check_blocks(&mut place.connect(), 0..8);
    daemon.terminate();
}

#[test]
fn a_wrong_device_beside_an_accepted_one_leaves_both_records() {
    let place = place_of_two("refused-beside");
    leave_dirty(&place, &[]);
    create(&place.path("wrong.img"));
    for (image, volume) in [("second.img", "two"), ("db.img", "db")] {
        swap(&place, image, "wrong.img");
        refuse(&place, &[], "another backing device", &[volume]);
        swap(&place, image, "wrong.img");
    }
    // Each has the device of the other.
    swap(&place, "db.img", "second.img");
    refuse(
        &place,
        &[],
        "its backing device was served as volume",
        &["db", "two"],
    );
    swap(&place, "db.img", "second.img");
    refuse_renamed(&place);
    place.configure("wb", SECOND);
    leave_dirty(&place, &[]);
}

#[test]
fn a_start_that_lacks_a_decision_leaves_the_records() {
    let place = place_of_two("refused-undecided");
    leave_dirty(&place, &[]);
    // The record of one volume is lost.
    let record = std::fs::read(place.path("state/two.epoch")).expect("there");
    std::fs::remove_file(place.path("state/two.epoch")).expect("there");
    refuse(&place, &[], "--adopt two", &["two"]);
    std::fs::write(place.path("state/two.epoch"), record).expect("written");
    // Dirty data that is older than writes without the cache.
    leave_dirty(&place, &["--without-cache", "db"]);
    for _ in 0..2 {
        refuse(&place, &[], "--discard-stale-dirty db", &["db"]);
    }
    refuse_renamed(&place);
    place.configure("wb", SECOND);
    leave_dirty(&place, &["--discard-stale-dirty", "db"]);
}

#[test]
fn a_sample_that_differs_leaves_the_record() {
    let place = Place::new("refused-sample", "wb");
    let daemon = place.serve(&[]);
    write_blocks(&mut place.connect(), 0..8);
    place.ok(&["flush"]);
    write_blocks(&mut place.connect(), 20..24);
    daemon.terminate();
    let newest = std::fs::read(place.path("db.img")).expect("there");
    std::fs::write(place.path("db.img"), vec![0; newest.len()]).expect("written");
    for _ in 0..2 {
        refuse(&place, &[], "differs at byte", &["db"]);
    }
    refuse_renamed(&place);
    std::fs::write(place.path("db.img"), newest).expect("put back");
    place.configure("wb", "");
    let daemon = place.serve(&[]);
    crate::check_blocks(&mut place.connect(), 0..8);
    crate::check_blocks(&mut place.connect(), 20..24);
    daemon.terminate();
}

#[test]
fn a_device_that_shrank_leaves_the_record() {
    let place = Place::new("refused-shrunk", "wb");
    let daemon = place.serve(&[]);
    write_blocks(&mut place.connect(), 2048..2056);
    daemon.terminate();
    crate::checked::set_len(&place.path("db.img"), 4 << 20);
    refuse(&place, &[], "shrank", &["db"]);
    crate::checked::set_len(&place.path("db.img"), 64 << 20);
    refuse_renamed(&place);
    place.configure("wb", "");
    let daemon = place.serve(&[]);
    crate::check_blocks(&mut place.connect(), 2048..2056);
    daemon.terminate();
}

/// The refused volume would have marked the data of another volume as stale.
#[test]
fn a_refused_volume_leaves_the_record_of_the_former_name_of_its_device() {
    let place = Place::new("refused-former", "wt");
    let daemon = place.serve(&[]);
    write_blocks(&mut place.connect(), 0..8);
    daemon.terminate();
    // Volume `renamed` has dirty data of another device, in another cache.
    create(&place.path("own.img"));
    let other = place.path("other-cache");
    place.ok(&["format", "--create", "32M", "--cache", text(&other)]);
    configure_renamed(&place, Some("other-cache"));
    let path = place.path("forebay.toml");
    let config = std::fs::read_to_string(&path).expect("there");
    let config = config.replace("mode = \"wt\"", "mode = \"wb\"");
    std::fs::write(&path, config.replace("db.img", "own.img")).expect("written");
    let daemon = place.serve(&[]);
    let mut nbd = crate::Nbd::connect(&place.path("nbd.sock"), "renamed").expect("it answers");
    write_blocks(&mut nbd, 0..8);
    daemon.terminate();
    std::fs::write(&path, config).expect("written");
    refuse(&place, &[], "another backing device", &["db", "renamed"]);
}

/// The cache opens slowly, so that the volume is served before its attach is refused.
#[test]
fn an_attach_that_is_refused_after_the_start_leaves_the_record() {
    let place = Place::new("refused-late", "wb");
    let daemon = place.serve(&[]);
    write_blocks(&mut place.connect(), 0..8);
    daemon.terminate();
    create(&place.path("wrong.img"));
    swap(&place, "db.img", "wrong.img");
    slow_down(&place, "300ms");
    refuse(&place, &[], "another backing device", &["db"]);
    swap(&place, "db.img", "wrong.img");
    refuse_renamed(&place);
}

/// Puts the cache on a device that takes `latency` for each operation.
fn slow_down(place: &Place, latency: &str) {
    let path = place.path("forebay.toml");
    let config = std::fs::read_to_string(&path).expect("there");
    let slow = format!(
        "[[device]]\nname = \"slow\"\nkind = \"emulate\"\non = \"ssd\"\n\
         read_latency = \"{latency}\"\nwrite_latency = \"{latency}\"\n\n[cache]"
    );
    let config =
        config
            .replacen("[cache]", &slow, 1)
            .replacen("data = \"ssd\"", "data = \"slow\"", 1);
    std::fs::write(&path, config).expect("written");
}

#[test]
fn check_knows_the_daemon_of_its_configuration_while_that_starts() {
    let place = Place::new("refused-starting", "wb");
    let config = place.path("forebay.toml");
    // It has an answer before its time is up, whenever it begins.
    slow_down(&place, "20ms");
    let daemon = place.start().spawn();
    for _ in 0..8 {
        let said = place.run(&["check", text(&config)]);
        let said = String::from_utf8(said.stderr).expect("text");
        assert!(!said.contains("already"), "{said}");
        let is_known = !said.contains("forebay: ") || said.contains("a daemon (process ");
        assert!(is_known, "{said}");
    }
    daemon.kill();
    // The socket of the killed daemon must not be taken for that of the next one.
    std::fs::remove_file(place.path("control.sock")).expect("left behind");
    // It has none.
    place.configure("wb", "");
    slow_down(&place, "5s");
    let daemon = place.start().spawn();
    while !place.path("control.sock").exists() {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let said = place.refused(&["--timeout", "1s", "check", text(&config)]);
    let first = said.lines().next().expect("text");
    assert!(
        first.contains("the daemon of this configuration starts"),
        "{said}"
    );
    assert!(first.len() <= 200 && said.contains("help: "), "{said}");
    // Another configuration has another daemon.
    let other = place.path("other.toml");
    let copy = std::fs::read_to_string(&config).expect("there");
    std::fs::write(&other, copy.replace("\"state\"", "\"other\"")).expect("written");
    let said = place.refused(&["--timeout", "1s", "check", text(&other)]);
    assert!(
        said.contains("does not answer (") && !said.contains("starts"),
        "{said}"
    );
    daemon.kill();
}

#[test]
fn options_that_contradict_each_other_are_refused_by_name() {
    let place = place_of_two("refused-options");
    leave_dirty(&place, &[]);
    let other = ["--without-cache", "two"];
    for (arguments, named) in [
        (&["--adopt", "db"][..], "--adopt db"),
        (&["--discard-stale-dirty", "db"], "--discard-stale-dirty db"),
        (
            &["--moved-cache", "--without-cache", "two"],
            "--moved-cache",
        ),
        (&["--adopt", "two", "--without-cache", "two"], "--adopt two"),
    ] {
        let arguments = [&["--without-cache", "db"][..], arguments].concat();
        refuse(&place, &arguments, named, &["db", "two"]);
        refuse(&place, &arguments, "contradicts", &["db", "two"]);
    }
    // Options of different volumes.
    place
        .serve(&[&other[..], &["--adopt", "db", "--moved-cache"]].concat())
        .terminate();
}

#[test]
fn a_holder_is_named_at_the_beginning_of_the_wait_and_in_the_refusal() {
    let place = Place::new("holder-named", "wb");
    // Its process journal stays.
    place.serve(&[]).kill();
    let holder = format!("process {}", std::process::id());
    // The state directory and the process journal are refused at once.
    for (held, waits) in [
        ("journal", false),
        ("state/lock", false),
        ("cache", true),
        ("db.img", true),
    ] {
        let file = std::fs::File::open(place.path(held)).expect("there");
        file.lock().expect("free");
        for command in ["serve", "check"] {
            let said = place.refused(&[command, text(&place.path("forebay.toml"))]);
            let refusal = said.rfind("forebay: ").expect("a refusal");
            let (before, refusal) = said.split_at(refusal);
            assert!(refusal.contains(&holder), "{command}, {held}: {said}");
            let wait = format!("{held} is locked by {holder}");
            let is_said = before.contains(&wait) && before.contains("waiting up to 3 s");
            assert_eq!(is_said, waits, "{command}, {held}: {said}");
        }
    }
    // A holder that ends during the wait is no obstacle.
    let file = std::fs::File::open(place.path("db.img")).expect("there");
    file.lock().expect("free");
    let leaving = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(300));
        drop(file);
    });
    place.serve(&[]).terminate();
    leaving.join().expect("it left");
}
