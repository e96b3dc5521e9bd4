//! A start that cannot write its files. `check` reports this in the words of `serve`, and leaves
//! nothing behind.

use std::process::{Command, Output};

use crate::checked::both_refuse;
use crate::object_backing::{back_with, directory};
use crate::support::{PROGRAM, Place, last_error, text};

/// Runs these commands where `small` is a small file system of its own, after these lines of shell.
/// Returns their output, and the contents of the folder afterwards; `None` where that is not
/// possible.
fn on_small_file_system<const COUNT: usize>(
    place: &Place,
    options: &str,
    lines: &str,
    commands: [&str; COUNT],
) -> Option<[(Output, String); COUNT]> {
    let folder = place.path("small");
    std::fs::create_dir_all(&folder).expect("made");
    let config = place.path("forebay.toml");
    let run = |command: &str| {
        let script = format!(
            "mount -t tmpfs -o {options} none \"$FOLDER\" || exit 99\n{lines}\n\
             timeout 60 \"$@\"; code=$?; mount -o remount,rw \"$FOLDER\"; find \"$FOLDER\" | \
             sort > \"$LEFT\"; exit $code"
        );
        Command::new("unshare")
            .args(["--map-root-user", "--mount", "sh", "-c", &script, "sh"])
            .args([PROGRAM, command, text(&config)])
            .env("FOLDER", &folder)
            .env("LEFT", place.path("left"))
            .output()
    };
    let mut results = Vec::new();
    for command in commands {
        let _ = std::fs::remove_file(place.path("left"));
        match run(command) {
            Ok(output) if output.status.code() != Some(99) && place.path("left").exists() => {
                let left = std::fs::read_to_string(place.path("left")).expect("written");
                results.push((output, left));
            }
            other => {
                println!("SKIPPED: no mounts of one's own here: {other:?}");
                return None;
            }
        }
    }
    Some(results.try_into().expect("one for each command"))
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn with_state_in_small(place: &Place, state: &str) {
    place.edit_config(&[("state = \"state\"", &format!("state = \"{state}\""))]);
}

#[test]
fn a_state_directory_that_cannot_be_written_is_foreseen_and_nothing_is_left() {
    let fill = "cat /dev/zero > \"$FOLDER/fill\" 2>/dev/null";
    let many = "i=0; while true > \"$FOLDER/$i\"; do i=$((i+1)); done 2>/dev/null";
    let cases = [
        // The directory exists or not. The file system is full, has no free inode, or is read-only.
        ("small", "size=64k", fill, "No space left"),
        ("small/state", "size=64k", fill, "No space left"),
        ("small/deep/state", "size=64k", fill, "No space left"),
        ("small", "size=1m,nr_inodes=8", many, "No space left"),
        ("small/state", "size=1m,nr_inodes=8", many, "No space left"),
        ("small", "size=64k,ro", "true", "Read-only file system"),
        (
            "small/state",
            "size=64k,ro",
            "true",
            "Read-only file system",
        ),
    ];
    for (number, (state, options, lines, why)) in cases.into_iter().enumerate() {
        let place = Place::new(&format!("unwritable-{number}"), "wb");
        with_state_in_small(&place, state);
        let commands = ["check", "serve"];
        let Some(results) = on_small_file_system(&place, options, lines, commands) else {
            return;
        };
        for (output, left) in &results {
            assert!(!left.contains("lock"), "{state}, {options}: {left}");
            assert_eq!(output.status.code(), Some(1), "{state}: {output:?}");
            let said = said(output);
            for part in ["state directory", "cannot be used: ", why, "help: "] {
                assert!(said.contains(part), "{state}, {options}: {part}: {said}");
            }
        }
        let last = |output: &Output| last_error(&said(output)).to_owned();
        let [(check, check_left), (serve, serve_left)] = results;
        assert_eq!(last(&check), last(&serve));
        assert_eq!(check_left, serve_left, "{state}, {options}");
    }
}

/// The store would answer each attempt with the same error.
#[test]
fn a_read_only_directory_of_objects_is_refused_at_once() {
    let place = Place::new("object-read-only", "wt");
    back_with(&place, &directory(&place.path("small")), "wt");
    let lines = "mkdir \"$FOLDER/log\" \"$FOLDER/.incomplete\"; mount -o remount,ro \"$FOLDER\"";
    let results = on_small_file_system(&place, "size=1m", lines, ["check", "serve"]);
    let Some(results) = results else {
        return;
    };
    let [check, serve] = results.map(|(output, _)| said(&output));
    assert_eq!(last_error(&check), last_error(&serve));
    let parts = [
        "device \"far\"",
        "is not writable",
        "Read-only file system",
        "help: mount its",
    ];
    for part in parts {
        assert!(check.contains(part), "{part}: {check}");
    }
}

#[test]
fn a_state_directory_with_room_is_in_order_and_untouched() {
    let place = Place::new("writable", "wb");
    with_state_in_small(&place, "small");
    let results = on_small_file_system(&place, "size=256k", "true", ["check"]);
    let Some([(check, left)]) = results else {
        return;
    };
    assert!(check.status.success(), "{check:?}");
    assert_eq!(left.lines().count(), 1, "{left}");
}

/// Checks that both commands refuse under this limit of file sizes, in KiB, with these words.
fn both_refuse_under(place: &Place, kib: u64, parts: &[&str]) {
    let config = place.path("forebay.toml");
    let line = format!("ulimit -f {}", kib * 2);
    let mut last = Vec::new();
    for command in ["check", "serve"] {
        let output = place.run_after(&line, &[command, text(&config)]);
        assert_eq!(output.status.code(), Some(1), "{command}: {output:?}");
        let said = said(&output);
        for part in parts {
            assert!(said.contains(part), "{command}: {part} in {said}");
        }
        assert!(
            said.contains("help: raise the limit of file sizes"),
            "{said}"
        );
        last.push(last_error(&said).to_owned());
    }
    assert_eq!(last[0], last[1]);
}

#[test]
fn a_limit_of_file_sizes_is_compared_with_all_that_is_written() {
    let place = Place::new("file-sizes", "wb");
    let file = place.path("forebay.toml");
    let config = std::fs::read_to_string(&file).expect("there");
    let write = |config: &str| std::fs::write(&file, config).expect("written");
    // The cache and the backing file have 64 MiB.
    both_refuse_under(
        &place,
        10 << 10,
        &["needs files of 64 MiB", "may write files of 10 MiB"],
    );
    assert!(!place.path("journal").exists(), "nothing is allocated");
    write(&config.replacen("[cache]", "[cache]\njournal_size = \"80M\"", 1));
    both_refuse_under(
        &place,
        70 << 10,
        &["the process journal needs files of 80 MiB"],
    );
    let transit = "[[device]]\nname = \"fast\"\nkind = \"transit\"\non = \"disk\"\n\
        capacity = \"80M\"\n\n[cache]";
    let with_transit = config
        .replacen("[cache]", transit, 1)
        .replacen("backing = \"disk\"", "backing = \"fast\"", 1)
        .replacen("mode = \"wb\"", "mode = \"wt\"", 1);
    write(&with_transit);
    both_refuse_under(&place, 70 << 10, &["the slots of \"fast\" needs files of"]);
    // A read-only volume needs only the state directory.
    let plain = "device = [{ name = \"disk\", kind = \"file\", path = \"db.img\" }]\n\
         volume = [{ name = \"db\", backing = \"disk\", mode = \"wt\", read_only = true }]\n\
         export = [{ volume = \"db\", nbd = \"unix:nbd.sock\" }]\n\
         [server]\ncontrol = \"control.sock\"\nmetrics = \"127.0.0.1:0\"\nstate = \"state\"\n";
    write(plain);
    both_refuse_under(
        &place,
        512,
        &["the state directory", "needs files of 1 MiB"],
    );
    let checked = place.run_after("ulimit -f 4096", &["check", text(&file)]);
    assert!(checked.status.success(), "{checked:?}");
    // The needed amount suffices.
    write(&config);
    let checked = place.run_after("ulimit -f 131072", &["check", text(&file)]);
    assert!(checked.status.success(), "{checked:?}");
    place.serve_after("ulimit -f 131072", &[]).terminate();
}

#[test]
fn another_daemon_on_the_control_socket_is_in_the_way_and_the_own_one_is_not() {
    let (place, other) = (Place::new("own", "wb"), Place::new("other", "wb"));
    let file = place.path("forebay.toml");
    let config = std::fs::read_to_string(&file).expect("there");
    let socket = other.path("control.sock");
    let config = config.replace("\"control.sock\"", &format!("{socket:?}"));
    std::fs::write(&file, &config).expect("written");
    let daemon = place.serve(&[]);
    let words = ["a daemon answers on the control socket", "help: stop it"];
    both_refuse(&other, &words);
    // Without a cache, nothing else prevents the start.
    let plain = "device = [{ name = \"disk\", kind = \"file\", path = \"db.img\" }]\n\
         volume = [{ name = \"db\", backing = \"disk\", mode = \"wt\" }]\n\
         export = [{ volume = \"db\", nbd = \"unix:nbd.sock\" }]\n\
         [server]\nmetrics = \"127.0.0.1:0\"\nstate = \"state\"\n";
    std::fs::write(other.path("forebay.toml"), plain).expect("written");
    both_refuse(&other, &words);
    let json = other.run(&["check", text(&other.path("forebay.toml")), "--json"]);
    assert_eq!(json.status.code(), Some(1), "{json:?}");
    // The configuration of the running daemon is checked beside it: edited, or under another name.
    std::fs::write(place.path("new.toml"), &config).expect("written");
    std::fs::write(&file, config.replace("\"wb\"", "\"wt\"")).expect("written");
    for name in ["forebay.toml", "new.toml"] {
        let checked = place.run_after("true", &["check", text(&place.path(name))]);
        let said = said(&checked);
        assert!(
            said.contains("is in use, and was not checked: a daemon"),
            "{name}: {said}"
        );
    }
    let status = other.status();
    assert_eq!(status["state"], text(&place.path("state")));
    assert_eq!(status["configuration"], text(&file));
    daemon.terminate();
}
