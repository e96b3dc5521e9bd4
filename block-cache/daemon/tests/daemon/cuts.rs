//! Cache files that look truncated and are not.

use std::process::Command;

use super::checked::set_len;
use super::copies::{data_offset, tells_holes};
use super::gone::in_two_files;
use super::starts::{DISK, configure};
use super::support::{Place, text};
use super::{check_blocks, write_blocks};

#[test]
fn holes_that_a_tool_digs_into_a_cache_file_lose_nothing() {
    for (name, dig) in [
        ("dug", "fallocate --dig-holes \"$0\""),
        (
            "copied",
            "cp --sparse=never \"$0\" \"$0.new\" && cp --sparse=always \"$0.new\" \"$0\"",
        ),
    ] {
        let place = Place::new(&format!("holes-{name}"), "wb");
        if !tells_holes(&place) {
            return;
        }
        // Its contents differ from the cached data.
        std::fs::write(place.path("db.img"), vec![1; 64 << 20]).expect("written");
        let daemon = place.serve(&[]);
        let mut nbd = place.connect();
        write_blocks(&mut nbd, 0..16);
        for number in 16..40 {
            let written = nbd.write(number * 4096, &[0; 4096]).expect("an answer");
            assert_eq!(written, 0);
        }
        write_blocks(&mut nbd, 40..64);
        drop(nbd);
        daemon.terminate();
        let cache = place.path("cache");
        let dug = Command::new("sh").args(["-c", dig, text(&cache)]).status();
        assert!(dug.expect("a shell").success());
        let is_right = || {
            let mut nbd = place.connect();
            check_blocks(&mut nbd, 0..16);
            check_blocks(&mut nbd, 40..64);
            for number in 16..40 {
                let data = nbd.read(number * 4096, 4096).expect("an answer");
                assert!(data.expect("read") == [0; 4096], "{name}: block {number}");
            }
        };
        place.ok(&["check", "--cache", text(&cache)]);
        let daemon = place.serve(&[]);
        is_right();
        place.ok(&["flush"]);
        is_right();
        daemon.terminate();
        assert!(!place.log().contains("LOST"), "{name}: {}", place.log());
        let daemon = place.serve(&[]);
        is_right();
        daemon.terminate();
    }
}

/// The file was cut while stopped, or in service and given its length back at once. Its new part
/// reads as zeroes.
#[test]
fn clean_copies_in_a_cut_part_of_a_cache_file_are_read_from_the_backing_device() {
    for in_service in [false, true] {
        let place = Place::new(&format!("clean-cut-{in_service}"), "wb");
        if !tells_holes(&place) {
            return;
        }
        let daemon = place.serve(&[]);
        write_blocks(&mut place.connect(), 0..128);
        place.ok(&["flush"]);
        let cache = place.path("cache");
        let at = data_offset(&place) + 10 * (32 << 10);
        let cut = || {
            set_len(&cache, at);
            set_len(&cache, 64 << 20);
        };
        if in_service {
            cut();
            daemon.signal(libc::SIGTERM);
            daemon.wait();
        } else {
            daemon.terminate();
            cut();
        }
        let daemon = place.serve(&[]);
        let mut nbd = place.connect();
        check_blocks(&mut nbd, 0..128);
        let status = place.status();
        let hits = status["volumes"][0]["read_hits"].as_u64();
        assert!(
            hits.is_some_and(|hits| (1..128).contains(&hits)),
            "{status}"
        );
        assert!(!place.log().contains("LOST"), "{}", place.log());
        // They are cached once more.
        check_blocks(&mut nbd, 0..128);
        daemon.terminate();
        let daemon = place.serve(&[]);
        check_blocks(&mut place.connect(), 0..128);
        daemon.terminate();
    }
}

/// Returns a place whose cache file was cut in service, after block 80 of 128 dirty ones, and has
/// its length again. Returns `None` if its file system tells no holes.
fn after_a_cut(name: &str) -> Option<Place> {
    let place = Place::new(name, "wb");
    if !tells_holes(&place) {
        return None;
    }
    let daemon = place.serve(&[]);
    write_blocks(&mut place.connect(), 0..128);
    let cache = place.path("cache");
    set_len(&cache, data_offset(&place) + 10 * (32 << 10));
    set_len(&cache, 64 << 20);
    daemon.signal(libc::SIGTERM);
    daemon.wait();
    Some(place)
}

/// A start is refused after it found lost data. The next check names the loss, and so does the
/// first start that serves the volume.
#[test]
fn a_refused_start_leaves_the_report_of_a_loss_to_the_next_one() {
    let Some(place) = after_a_cut("loss-refused") else {
        return;
    };
    let backing = place.path("db.img");
    let configuration = std::fs::read_to_string(place.path("forebay.toml")).expect("there");
    for refuses in ["the length", "the state directory"] {
        match refuses {
            "the length" => set_len(&backing, 1 << 16),
            _ => place.write_config(&configuration.replace("\"state\"", "\"other\"")),
        }
        assert!(
            place.start().try_start().is_err(),
            "{refuses} does not matter"
        );
        assert!(place.log().contains("LOST"), "{refuses}: {}", place.log());
        set_len(&backing, 64 << 20);
        place.write_config(&configuration);
        let checked = place.run(&["check", text(&place.path("forebay.toml"))]);
        let said = String::from_utf8_lossy(&checked.stdout).into_owned();
        assert_eq!(checked.status.code(), Some(3), "{refuses}: {said}");
        assert!(
            said.contains("LOST: volume db: an earlier start"),
            "{refuses}: {said}"
        );
    }
    let daemon = place.serve(&[]);
    assert!(
        place.log().contains("an earlier start found"),
        "{}",
        place.log()
    );
    let metrics = daemon.get("/metrics");
    assert!(
        metrics.contains("forebay_volume_loss{volume=\"db\"} 1"),
        "{metrics}"
    );
    daemon.terminate();
    place.ok(&["check", text(&place.path("forebay.toml"))]);
    let daemon = place.serve(&[]);
    assert!(!place.log().contains("LOST"), "{}", place.log());
    daemon.terminate();
}

/// `check --repair` is a report, too: it lists the ranges in the state directory.
#[test]
fn a_repair_lists_the_ranges_that_a_cut_took() {
    let Some(place) = after_a_cut("loss-repaired") else {
        return;
    };
    let config = place.path("forebay.toml");
    let repaired = place.run(&["check", "--repair", text(&config)]);
    let said = String::from_utf8_lossy(&repaired.stdout).into_owned();
    assert!(said.contains("LOST: volume db: "), "{said}");
    let list = std::fs::read_to_string(place.path("state/db.lost")).expect("a list");
    let ranges = list.lines().skip(1).map(|line| {
        let (offset, len) = line.split_once(' ').expect("two numbers");
        (offset.parse().expect("bytes"), len.parse().expect("bytes"))
    });
    let ranges: Vec<(u64, u64)> = ranges.collect();
    assert_eq!(ranges, [(80 * 4096, 48 * 4096)], "{list}");
    place.ok(&["check", text(&config)]);
    let daemon = place.serve(&[]);
    assert!(!place.log().contains("LOST"), "{}", place.log());
    daemon.terminate();
}

#[test]
fn a_wrong_device_for_the_data_costs_nothing() {
    let place = Place::new("wrong-data", "wb");
    let (data, map) = (place.path("data"), place.path("map"));
    for (path, bytes) in [(&data, 64 << 20), (&map, 32 << 20)] {
        let file = std::fs::File::create(path).expect("made");
        file.set_len(bytes).expect("sparse");
    }
    let parts = ["--cache", text(&data), "--metadata", text(&map)];
    place.ok(&[&["format"][..], &parts].concat());
    let wrong = std::fs::File::create(place.path("wrong")).expect("made");
    wrong.set_len(16 << 20).expect("sparse");
    let other = place.path("other");
    place.ok(&["format", "--create", "16M", "--cache", text(&other)]);
    let with = |data: &str, metadata: Option<&str>| {
        let mut devices =
            format!("{DISK}, {{ name = \"ssd\", kind = \"file\", path = \"{data}\" }}");
        let mut cache = "data = \"ssd\", journal = \"journal\", cleaning = \"nop\"".to_owned();
        if let Some(path) = metadata {
            devices += &format!(", {{ name = \"map\", kind = \"file\", path = \"{path}\" }}");
            cache += ", metadata = \"map\"";
        }
        let lines = format!(
            "cache = {{ {cache} }}\nvolume = [{{ name = \"db\", backing = \"disk\", \
             mode = \"wb\" }}]"
        );
        configure(&place, &devices, &lines);
    };
    with("data", Some("map"));
    let daemon = place.serve(&[]);
    write_blocks(&mut place.connect(), 0..100);
    daemon.terminate();
    let before = std::fs::read(&map).expect("there");
    let config = place.path("forebay.toml");
    for (data, metadata) in [
        ("wrong", Some("map")),
        ("other", Some("map")),
        ("map", None),
        ("map", Some("data")),
    ] {
        with(data, metadata);
        place.refused(&["serve", text(&config)]);
        place.refused(&["check", text(&config)]);
        let now = std::fs::read(&map).expect("there");
        assert!(
            now == before,
            "{data}, {metadata:?}: the metadata was changed"
        );
    }
    with("data", Some("map"));
    let daemon = place.serve(&[]);
    assert!(!place.log().contains("LOST"), "{}", place.log());
    check_blocks(&mut place.connect(), 0..100);
    daemon.terminate();
}

/// A refused start must not use the journal up, or raise a generation: the whole file may come
/// back.
#[test]
fn a_metadata_file_that_was_cut_while_stopped_is_refused_until_it_is_back() {
    let place = Place::new("cut-map", "wb");
    in_two_files(&place);
    let daemon = place.serve(&[]);
    write_blocks(&mut place.connect(), 0..64);
    daemon.kill();
    let names = ["data", "map", "journal", "db.img"];
    let before = names.map(|name| std::fs::read(place.path(name)).expect("there"));
    let config = place.path("forebay.toml");
    for bytes in [100 << 10, 132 << 10, 140 << 10, 200 << 10, 400 << 10] {
        set_len(&place.path("map"), bytes);
        let checked = place.run(&["check", text(&config)]);
        let said = String::from_utf8_lossy(&checked.stderr).into_owned();
        let needed = format!("map shrank to {bytes} bytes, and the cache's metadata needs ");
        assert_eq!(checked.status.code(), Some(1), "{bytes}: {said}");
        let refused = place.start().refused();
        for message in [&said, &refused] {
            assert!(message.contains(" shrank to "), "{bytes}: {message}");
            assert!(message.contains(&needed), "{bytes}: {message}");
        }
        for (name, was) in names.iter().zip(&before) {
            let now = std::fs::read(place.path(name)).expect("there");
            let len = now.len();
            assert!(now == was[..len], "{bytes}: a refused start changed {name}");
        }
        std::fs::write(place.path("map"), &before[1]).expect("put back");
    }
    let daemon = place.serve(&[]);
    assert!(!place.log().contains("LOST"), "{}", place.log());
    check_blocks(&mut place.connect(), 0..64);
    daemon.terminate();
}

#[test]
fn the_entries_that_a_cut_journal_has_left_count() {
    let place = Place::new("cut-journal", "wb");
    let config = place.path("forebay.toml");
    let text_of = std::fs::read_to_string(&config).expect("there");
    let text_of = text_of.replacen("[cache]", "[cache]\ncommit_interval = \"1h\"", 1);
    std::fs::write(&config, text_of).expect("written");
    let daemon = place.serve(&[]);
    write_blocks(&mut place.connect(), 0..2000);
    daemon.kill();
    let journal = place.path("journal");
    let whole = std::fs::metadata(&journal).expect("there").len();
    // An entry takes 64 bytes, after a header of 4 KiB.
    set_len(&journal, 4096 + 1500 * 64);
    let said = place.run(&["check", text(&config)]);
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    let refused = place.start().refused();
    for message in [&said, &refused] {
        let what = format!("the process journal was truncated: it had {whole} bytes: 500 ");
        assert!(message.contains(&what), "{message}");
        assert!(
            message.contains("2000 acknowledged writes are not in the log"),
            "{message}"
        );
    }
    let daemon = place.serve(&["--accept-journal-loss"]);
    check_blocks(&mut place.connect(), 0..1500);
    daemon.terminate();
}

/// The advice to adopt the volume would give its dirty data up.
#[test]
fn devices_in_wrong_roles_give_no_advice_to_adopt() {
    let place = Place::new("cut-roles", "wb");
    in_two_files(&place);
    let daemon = place.serve(&[]);
    write_blocks(&mut place.connect(), 0..64);
    daemon.kill();
    let config = place.path("forebay.toml");
    let right = std::fs::read_to_string(&config).expect("there");
    let alone = right.replace("metadata = \"map\", ", "");
    let exchanged = right.replace(
        "data = \"ssd\", metadata = \"map\"",
        "data = \"map\", metadata = \"ssd\"",
    );
    for (wrong, message) in [
        (alone, "holds only the data"),
        (exchanged, "in the wrong roles"),
    ] {
        assert_ne!(wrong, right);
        std::fs::write(&config, wrong).expect("written");
        for command in [&["check", text(&config)][..], &["serve", text(&config)]] {
            let refused = place.refused(command);
            assert!(refused.contains(message), "{refused}");
            assert!(!refused.contains("--adopt"), "{refused}");
        }
    }
    std::fs::write(&config, right).expect("written");
    let daemon = place.serve(&[]);
    check_blocks(&mut place.connect(), 0..64);
    daemon.terminate();
}
