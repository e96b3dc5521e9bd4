//! Something else than a regular file, under the name of a record.

use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;

use super::super::*;
use super::{HERE, Scratch, record};

/// Puts one thing of each kind at `path`, one after the other, and calls `look` with its words.
fn for_each_kind(path: &Path, mut look: impl FnMut(&str)) {
    let pipe = || {
        let made = std::process::Command::new("mkfifo").arg(path).status();
        assert!(made.expect("mkfifo runs").success());
    };
    type Put<'a> = &'a dyn Fn();
    let kinds: [(Put<'_>, &str); 6] = [
        (&pipe, "a named pipe"),
        (
            &|| drop(UnixListener::bind(path).expect("bound")),
            "a socket",
        ),
        (&|| std::fs::create_dir(path).expect("made"), "a directory"),
        (&|| symlink("none", path).expect("made"), "leads nowhere"),
        (
            &|| symlink("/dev/zero", path).expect("made"),
            "a character device",
        ),
        (&|| symlink("..", path).expect("made"), "a directory"),
    ];
    for (put, kind) in kinds {
        put();
        look(kind);
        if std::fs::remove_file(path).is_err() {
            std::fs::remove_dir(path).expect("empty");
        }
    }
}

#[test]
fn no_record_of_another_kind_is_waited_for() {
    let scratch = Scratch::new("kinds");
    let state = StateDirectory::open(&scratch.0).expect("opened");
    let (uuid, boot) = ([7; 16], [9; 16]);
    let opening = Opening::default();
    type Access<'a> = &'a dyn Fn() -> Result<()>;
    let others = || {
        let found = epoch::others(&scratch.0, "db", Identity::of(4), 1 << 20);
        found.map(drop)
    };
    let store = || state.store("db", &record(1, HERE));
    let cache = format!("{}.cache", hex(&uuid));
    let cases: [(&str, Access<'_>); 22] = [
        ("db.epoch", &|| state.load("db").map(drop)),
        ("db.epoch.new", &store),
        ("db.ranges", &|| state.ranges("db").map(drop)),
        ("db.ranges", &|| {
            RangeLog::open(&state.ranges_path("db"), true).map(drop)
        }),
        ("db.ranges-begun", &|| {
            RangeLog::open(&state.ranges_path("db"), false).map(drop)
        }),
        ("db.dirty", &|| state.dirty("db").map(drop)),
        ("db.dirty-new", &|| {
            state.store_with_dirty("db", &record(1, HERE), std::slice::from_ref(&(0..9)))
        }),
        ("db.disk", &|| state.disk_gap("db").map(drop)),
        ("db.disk", &|| state.disk_generation("db").map(drop)),
        ("db.disk.new", &|| state.clear_disk_gap("db")),
        ("db.abandoned", &|| {
            state
                .note_abandoned("db", 1, std::slice::from_ref(&(0..9)))
                .map(drop)
        }),
        ("db.lost", &|| {
            state.note_lost("db", "lost", std::slice::from_ref(&(0..9)))
        }),
        (&cache, &|| {
            StateDirectory::opening_in(&scratch.0, &uuid).map(drop)
        }),
        (&format!("{cache}.new"), &|| {
            state.store_opening(&uuid, &opening)
        }),
        ("slow.transit", &|| {
            StateDirectory::transit_boot_in(&scratch.0, "slow").map(drop)
        }),
        ("slow.transit", &|| state.note_transit("slow", Some(&boot))),
        ("slow.generation", &|| {
            StateDirectory::slots_generation_in(&scratch.0, "slow", &boot).map(drop)
        }),
        ("slow.generation.new", &|| {
            state.note_slots_generation("slow", &boot, 1)
        }),
        ("slow.size", &|| {
            StateDirectory::slots_size_in(&scratch.0, "slow", &boot).map(drop)
        }),
        ("slow.size.new", &|| state.note_slots_size("slow", &boot, 1)),
        ("slow.capacity", &|| {
            StateDirectory::slots_capacity_in(&scratch.0, "slow", &boot).map(drop)
        }),
        ("slow.capacity.new", &|| {
            state.note_slots_capacity("slow", &boot, 1)
        }),
    ];
    for (name, access) in cases {
        let path = scratch.0.join(name);
        for_each_kind(&path, |kind| {
            let refused = access().expect_err(name);
            assert_eq!(refused.kind(), ErrorKind::InvalidInput, "{name}, {kind}");
            let report = refused.report();
            let line = report.lines().next().expect("text");
            assert!(
                line.contains(name) && line.contains(kind),
                "{name}: {report}"
            );
            assert!(report.contains("\n    help: "), "{name}: {report}");
            // A start finds it before it reads or writes anything.
            let found = irregular_files(&scratch.0);
            assert!(
                found.len() == 1 && found[0].0 == *name && found[0].1.contains(kind),
                "{name}, {kind}: {found:?}"
            );
        });
        let _ = std::fs::remove_file(&path);
    }
    // The record of a volume that is not served refuses nothing.
    for_each_kind(&scratch.0.join("two.epoch"), |kind| {
        others().expect(kind);
    });
    drop(state);
    std::fs::remove_file(scratch.0.join("lock")).expect("there");
    for_each_kind(&scratch.0.join("lock"), |kind| {
        for opened in [
            StateDirectory::open(&scratch.0).map(drop),
            StateDirectory::look(&scratch.0),
        ] {
            let report = opened.expect_err("no file").report();
            assert!(report.contains("lock") && report.contains(kind), "{report}");
        }
    });
}

#[test]
fn foreign_entries_of_the_state_directory_are_ignored() {
    let scratch = Scratch::new("others");
    for name in ["lost+found", "images", "images.cache", "db.img"] {
        std::fs::create_dir(scratch.0.join(name)).expect("made");
    }
    drop(UnixListener::bind(scratch.0.join("control.sock")).expect("bound"));
    StateDirectory::open(&scratch.0).expect("opened");
}

#[test]
fn a_state_directory_of_another_kind_is_named() {
    let scratch = Scratch::new("none");
    let path = scratch.0.join("state");
    for_each_kind(&path, |kind| {
        let opened = StateDirectory::open(&path);
        if kind == "a directory" {
            drop(opened.expect("a directory"));
            let _ = std::fs::remove_file(path.join("lock"));
            return;
        }
        let report = opened.expect_err("no directory").report();
        assert!(
            report.contains("is not a directory: it is ") && report.contains(kind),
            "{report}"
        );
    });
}
