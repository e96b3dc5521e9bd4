//! Small matters of a user: levels of the log, tiny caches, empty traces.

use std::io::Write as _;

use crate::support::{PROGRAM, Place, text};

#[test]
fn a_level_of_the_log_that_there_is_not_is_an_error() {
    let place = Place::new("log-level", "wt");
    let config = place.path("forebay.toml");
    for (level, said) in [
        ("inof", "did you mean info?"),
        ("warn,forebay_cache=loud", "\"loud\" is not a log level"),
        ("7", "\"7\" is not a log level"),
    ] {
        // `timeout` ends the daemon if it serves.
        let mut command = std::process::Command::new("timeout");
        command.args(["60", PROGRAM, "serve", text(&config)]);
        let output = command.env("FOREBAY_LOG", level).output().expect("it runs");
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{printed}");
        assert!(
            printed.contains("FOREBAY_LOG") && printed.contains(said),
            "{printed}"
        );
    }
    assert!(!place.path("control.sock").exists());
}

#[test]
fn lines_have_priorities_if_the_journal_reads_them() {
    let place = Place::new("journal", "wt");
    // systemd sets the variable to the device and the inode of its socket.
    let journal = "export JOURNAL_STREAM=$(stat -L -c %d:%i /proc/self/fd/2)";
    let log_after = |line: &str| {
        place.serve_after(line, &[]).terminate();
        place.raw_log()
    };
    let log = log_after(journal);
    assert!(
        log.lines().any(|line| line.starts_with("<6> INFO ")),
        "{log}"
    );
    let priorities = ["<3>", "<4>", "<6>"];
    let has_priority = |line: &str| priorities.iter().any(|it| line.starts_with(it));
    assert!(log.lines().all(has_priority), "{log}");
    for other in ["export JOURNAL_STREAM=1:1", "unset JOURNAL_STREAM"] {
        let log = log_after(other);
        assert!(!log.is_empty() && !log.contains("<6>"), "{log}");
    }
    place.edit_config(&[("mode = \"wt\"", "mode = \"xx\"")]);
    let refused = place.start().after_shell(journal);
    assert!(refused.try_start_until(|_| false).is_err());
    let log = place.raw_log();
    assert!(log.starts_with("<3>forebay: "), "{log}");
    assert!(log.lines().all(|line| line.starts_with("<3>")), "{log}");
}

#[test]
fn a_tiny_cache_is_warned_of_and_another_one_is_not() {
    let place = Place::new("tiny", "wt");
    let config = place.path("forebay.toml");
    let cache = place.path("cache");
    for (size, blocks, warned) in [
        ("4M", "32K", true),
        ("64M", "1M", true),
        ("4M", "4K", false),
        ("64M", "32K", false),
    ] {
        std::fs::remove_file(&cache).expect("there");
        let _ = std::fs::remove_dir_all(place.path("state"));
        let format = [
            "format",
            "--create",
            size,
            "--block-size",
            blocks,
            "--cache",
            text(&cache),
        ];
        let formatted = place.run(&format);
        let checked = place.run(&["check", text(&config)]);
        place.serve(&[]).terminate();
        let said = [
            String::from_utf8_lossy(&formatted.stderr).into_owned(),
            String::from_utf8_lossy(&checked.stderr).into_owned(),
            place.log(),
        ];
        for said in said {
            assert_eq!(
                said.contains("the cache has room for"),
                warned,
                "{size}, {blocks}: {said}"
            );
        }
    }
}

const EVENTS: &str = "  8,16   0        1     0.000017985  5314  D   R 1611592 + 256 [java]\n\
                      \x20 8,16   0        2     0.001092325  5314  C   R 1611592 + 256 [0]\n";

#[test]
fn a_trace_says_which_events_it_takes_and_one_without_any_is_an_error() {
    let place = Place::new("trace-events", "wt");
    let trace = place.path("trace.txt");
    std::fs::write(&trace, EVENTS).expect("written");
    for command in [
        &["trace", "stats", text(&trace)][..],
        &["mrc", text(&trace)],
        &["simulate", text(&trace), "--cache", "1M"],
    ] {
        let printed = place.ok(command);
        assert!(
            printed.contains("the requests are the D events"),
            "{command:?}: {printed}"
        );
    }
    let printed = place.ok(&["trace", "stats", "--json", text(&trace)]);
    let printed: serde_json::Value = serde_json::from_str(&printed).expect("JSON");
    assert_eq!(printed["requests"], 1);
    assert!(
        printed["remarks"][0]
            .as_str()
            .expect("text")
            .contains("D events"),
        "{printed}"
    );
    std::fs::write(&trace, EVENTS.replace(" D ", " G ").replace(" C ", " U ")).expect("written");
    let out = place.path("out");
    for command in [
        &["trace", "stats", text(&trace)][..],
        &["mrc", text(&trace)],
        &["simulate", text(&trace), "--cache", "1M"],
        &["trace", "convert", text(&trace), text(&out)],
    ] {
        let format = if command[1] == "convert" {
            "--from"
        } else {
            "--format"
        };
        let said = place.refused(&[command, &[format, "blkparse"]].concat());
        assert!(
            said.contains("there is no request in it, read as blkparse"),
            "{said}"
        );
    }
    assert!(!out.exists());
}

#[test]
fn a_compressed_trace_that_was_cut_is_corrupt() {
    let place = Place::new("trace-cut", "wt");
    let trace = place.path("trace.csv");
    let line = |number: u64| {
        format!(
            "419,W,{},16384,{}\n",
            number * 7919 * 4096,
            1_577_808_144 + number * 31
        )
    };
    let lines: String = (0..20_000).map(line).collect();
    std::fs::write(&trace, lines).expect("written");
    for program in ["gzip", "xz", "zstd"] {
        let packed = std::process::Command::new(program)
            .args(["--stdout", text(&trace)])
            .output();
        let Some(packed) = packed.ok().filter(|packed| packed.status.success()) else {
            eprintln!("SKIPPED: there is no {program}");
            continue;
        };
        let cut = place.path("cut.csv.packed");
        let mut file = std::fs::File::create(&cut).expect("made");
        let bytes = &packed.stdout[..packed.stdout.len() / 2];
        file.write_all(bytes).expect("written");
        let output = place.run(&["trace", "stats", "--json", text(&cut)]);
        assert_eq!(output.status.code(), Some(1), "{program}");
        let printed: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!(printed["error"]["kind"], "corrupt", "{program}: {printed}");
    }
}
