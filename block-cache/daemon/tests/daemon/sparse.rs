//! `check` changes and allocates nothing, and answers programs whatever it finds.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::slots::slots_file;
use crate::starts::{DISK, configure, leave_something, transit};
use crate::support::{Place, text};

/// Blocks and contents of files.
fn seen(paths: &[PathBuf]) -> Vec<(u64, u64)> {
    let look = |path: &PathBuf| {
        let found = std::fs::metadata(path).expect("there");
        (found.blocks(), found.size())
    };
    paths.iter().map(look).collect()
}

fn dig_holes(path: &Path) {
    let dug = Command::new("fallocate")
        .arg("--dig-holes")
        .arg(path)
        .status();
    assert!(dug.expect("fallocate runs").success());
}

#[test]
fn check_allocates_nothing() {
    let place = Place::new("check-sparse", "wb");
    let (cache, map, table) = (place.path("data"), place.path("map"), place.path("medium"));
    for (path, bytes) in [(&cache, 64 << 20), (&map, 64 << 20), (&table, 64 << 20)] {
        let file = std::fs::File::create(path).expect("made");
        file.set_len(bytes).expect("sparse");
    }
    place.ok(&[
        "format",
        "--cache",
        text(&cache),
        "--metadata",
        text(&map),
        "--pmem",
    ]);
    place.ok(&["format", "--btt", text(&table)]);
    let devices = format!(
        "{DISK}, {{ name = \"ssd\", kind = \"file\", path = \"data\" }}, \
         {{ name = \"map\", kind = \"pmem\", path = \"map\" }}, \
         {{ name = \"pm\", kind = \"pmem\", path = \"medium\" }}, {{ name = \"table\", \
         kind = \"btt\", on = \"pm\" }}"
    );
    let lines = "cache = { data = \"ssd\", metadata = \"map\", journal = \"journal\" }\n\
                 volume = [{ name = \"db\", backing = \"disk\", mode = \"wb\" }, { name = \"b\", \
                 backing = \"table\" }]";
    configure(&place, &devices, lines);
    let config = place.path("forebay.toml");
    let daemon = place.serve(&[]);
    crate::write_blocks(&mut place.connect(), 0..64);
    daemon.kill();
    let journal = place.path("journal");
    let files = [
        cache.clone(),
        map.clone(),
        table.clone(),
        journal.clone(),
        place.path("db.img"),
    ];
    for path in &files {
        dig_holes(path);
    }
    let before = seen(&files);
    assert!(before[1].0 * 512 < 32 << 20, "it is sparse: {before:?}");
    assert!(before[3].0 * 512 < before[3].1, "it is sparse: {before:?}");
    let contents: Vec<_> = files
        .iter()
        .map(|path| std::fs::read(path).expect("there"))
        .collect();
    let named = ["check", "--cache", text(&cache), "--metadata", text(&map)];
    for command in [
        &["check", text(&config)][..],
        &["check", text(&config), "--json"],
        &["check", text(&config), "--data"],
        &named,
        &[&named[..], &["--journal", text(&journal)]].concat(),
    ] {
        place.ok(command);
        assert_eq!(seen(&files), before, "{command:?}");
    }
    // A table under a cache that no state directory knows yet.
    std::fs::remove_dir_all(place.path("state")).expect("there");
    place.ok(&["format", "--cache", text(&table), "--force"]);
    dig_holes(&table);
    let before = seen(&files);
    let devices = devices.replace("{ name = \"ssd\", kind = \"file\", path = \"data\" }, ", "");
    let devices = devices.replace("{ name = \"map\", kind = \"pmem\", path = \"map\" }, ", "");
    configure(
        &place,
        &devices,
        "cache = { data = \"table\" }\nvolume = [{ name = \"db\", backing = \"disk\" }]",
    );
    for command in [
        &["check", text(&config)][..],
        &["check", "--cache", text(&table)],
    ] {
        place.ok(command);
        assert_eq!(seen(&files), before, "{command:?}");
    }
    for (path, content) in files.iter().zip(&contents) {
        if path != &table {
            assert!(std::fs::read(path).expect("there") == *content, "{path:?}");
        }
    }
}

#[test]
fn check_allocates_no_slots() {
    let place = Place::new("check-slots", "wt");
    let with = || {
        let devices = format!("{DISK}, {}", transit("fast", "disk", "8M"));
        configure(
            &place,
            &devices,
            "volume = [{ name = \"db\", backing = \"fast\" }]",
        );
    };
    let without = || {
        configure(
            &place,
            DISK,
            "volume = [{ name = \"db\", backing = \"disk\" }]",
        )
    };
    with();
    leave_something(&place);
    let slots = slots_file(&place, with, without);
    dig_holes(&slots);
    let files = [slots];
    let before = seen(&files);
    assert!(before[0].0 * 512 < 1 << 20, "it is sparse: {before:?}");
    let config = place.path("forebay.toml");
    // Used memory has no holes, so these count as truncated.
    for configure in [&with as &dyn Fn(), &without] {
        configure();
        place.refused(&["check", text(&config)]);
        assert_eq!(seen(&files), before);
    }
    with();
    place.serve(&["--accept-journal-loss"]).terminate();
}

#[test]
fn check_prints_one_json_document_whatever_it_finds() {
    let place = Place::new("check-json", "wb");
    let config = place.path("forebay.toml");
    let json = |code: i32| {
        let output = place.run(&["check", text(&config), "--json"]);
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        let found: serde_json::Value =
            serde_json::from_slice(&output.stdout).expect("one JSON document");
        found
    };
    let found = json(0);
    assert_eq!(found["configuration"]["devices"], 2);
    assert!(found["uuid"].is_string(), "{found}");
    let volume = "volume = [{ name = \"db\", backing = \"disk\" }]";
    configure(&place, DISK, volume);
    let found = json(0);
    assert_eq!(found["configuration"]["volumes"], 1, "{found}");
    assert_eq!(found["configuration"]["path"], text(&config));
    let memory = "{ name = \"ram\", kind = \"mem\", size = \"64M\" }";
    configure(
        &place,
        &format!("{DISK}, {memory}"),
        &format!("cache = {{ data = \"ram\" }}\n{volume}"),
    );
    let found = json(0);
    let warnings = found["configuration"]["warnings"]
        .as_array()
        .expect("a list");
    assert!(
        warnings[0]
            .as_str()
            .expect("text")
            .contains("is lost when the daemon ends"),
        "{found}"
    );
    configure(
        &place,
        DISK,
        "volume = [{ name = \"db\", backing = \"disc\" }]",
    );
    assert_eq!(json(1)["error"]["kind"], "invalid input");
    place.configure("wb", "");
    let daemon = place.serve(&[]);
    assert_eq!(json(1)["error"]["kind"], "busy");
    daemon.terminate();
}
