//! Files that the trace commands write: complete or absent. An earlier file stays until then.

use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::support::{PROGRAM, Place, Process, text};

/// Returns the names in a place that did not exist before.
fn more_than(place: &Place, before: &[String]) -> Vec<String> {
    let mut names = names(&place.path("."));
    names.retain(|name| !before.contains(name));
    names
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).expect("a folder");
    let names = entries.map(|entry| entry.expect("an entry").file_name());
    let mut names: Vec<_> = names
        .map(|name| name.into_string().expect("text"))
        .collect();
    names.sort();
    names
}

/// A trace in text whose last line is damaged.
fn damaged(place: &Place) -> String {
    let trace = place.path("trace.csv");
    let mut lines: String = (0..20_000)
        .map(|n| format!("7,R,{},4096,{}\n", n % 97 * 4096, 100 + n))
        .collect();
    lines += "7,R,zero,4096,30000\n";
    std::fs::write(&trace, lines).expect("written");
    text(&trace).to_owned()
}

#[test]
fn a_report_that_is_there_outlives_a_run_that_fails() {
    let place = Place::new("report-stays", "wt");
    let (trace, report) = (damaged(&place), place.path("report.html"));
    std::fs::write(&report, "of last week").expect("written");
    let before = names(&place.path("."));
    let simulate = [
        "simulate",
        &trace,
        "--cache",
        "64M",
        "--html",
        text(&report),
    ];
    let refused = place.refused(&simulate);
    assert!(
        refused.contains("exists") && refused.contains("--force"),
        "{refused}"
    );
    let mut forced = simulate.to_vec();
    forced.push("--force");
    let refused = place.refused(&forced);
    assert!(
        refused.contains("trace.csv, line 20001: the offset is no whole number")
            && refused.contains("--skip-bad"),
        "{refused}"
    );
    assert_eq!(
        std::fs::read_to_string(&report).expect("there"),
        "of last week"
    );
    assert_eq!(more_than(&place, &before), [""; 0]);
    forced.push("--skip-bad");
    let said = place.ok(&forced);
    assert!(said.contains("1 record left out"), "{said}");
    let page = std::fs::read_to_string(&report).expect("there");
    assert!(page.starts_with("<!DOCTYPE html>") && page.trim_end().ends_with("</html>"));
    assert_eq!(more_than(&place, &before), [""; 0]);
}

#[test]
fn an_output_that_is_an_input_is_refused_by_whatever_name() {
    let place = Place::new("own-input", "wt");
    let trace = place.path("a.fbt");
    place.ok(&["trace", "generate", text(&trace), "--requests", "100"]);
    symlink("a.fbt", place.path("link")).expect("made");
    std::fs::hard_link(&trace, place.path("hard")).expect("made");
    let roundabout = format!("{}/../{}/a.fbt", text(&place.path(".")), {
        let folder = trace.parent().and_then(Path::file_name).expect("a folder");
        folder.to_str().expect("text")
    });
    // From the parent of its folder, so that the relative path leads back.
    let roundabout = roundabout.replace("/./", "/");
    let content = std::fs::read(&trace).expect("there");
    for output in [
        text(&trace),
        text(&place.path("link")),
        text(&place.path("hard")),
        &roundabout,
    ] {
        for force in [&["--force"][..], &[]] {
            let mut convert = vec!["trace", "convert", text(&trace), output, "--to", "msr"];
            convert.extend(force);
            let said = place.refused(&convert);
            assert!(
                said.contains("this is the trace that is read"),
                "{output}: {said}"
            );
        }
        let said = place.refused(&["simulate", text(&trace), "--html", output, "--force"]);
        assert!(
            said.contains("this is the trace that is read"),
            "{output}: {said}"
        );
    }
    assert!(std::fs::read(&trace).expect("there") == content);
}

/// Starts a command that writes for a long time, and waits until it writes.
fn begun(place: &Place, arguments: &[&str], part: &str) -> Process {
    let mut command = place.command(arguments);
    let child = Process::spawn_piped(&mut command);
    let begin = Instant::now();
    let is_there = |name: &String| name.starts_with(part) && name.ends_with(".part");
    while !names(&place.path(".")).iter().any(is_there) {
        assert!(
            begin.elapsed() < Duration::from_secs(30),
            "{part} is not begun"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    child
}

#[test]
fn a_command_that_is_interrupted_leaves_nothing_and_says_so() {
    let place = Place::new("interrupted", "wt");
    let out = place.path("big.fbt");
    std::fs::write(&out, "before").expect("written");
    let before = names(&place.path("."));
    let generate = [
        "trace",
        "generate",
        text(&out),
        "--requests",
        "1000000000",
        "--force",
    ];
    for (signal, code) in [
        (libc::SIGINT, 130),
        (libc::SIGTERM, 143),
        (libc::SIGHUP, 129),
    ] {
        let child = begun(&place, &generate, ".big.fbt.");
        child.signal(signal);
        let ended = child.output();
        assert_eq!(ended.status.code(), Some(code), "{ended:?}");
        let said = String::from_utf8(ended.stderr).expect("text");
        assert!(
            said.contains("interrupted") && said.contains("big.fbt was not written"),
            "{said}"
        );
        assert_eq!(more_than(&place, &before), [""; 0]);
        assert_eq!(std::fs::read_to_string(&out).expect("there"), "before");
    }
    // A killed command cannot clean up: the next one does.
    let mut child = begun(&place, &generate, ".big.fbt.");
    child.kill();
    assert_eq!(more_than(&place, &before).len(), 1);
    place.ok(&[
        "trace",
        "generate",
        text(&out),
        "--requests",
        "10",
        "--force",
    ]);
    assert_eq!(more_than(&place, &before), [""; 0]);
}

/// Runs the program with a file system of 64 KiB at `folder`, in a name space of its own.
fn with_little_room(folder: &Path, arguments: &[&str]) -> Option<std::process::Output> {
    let script = "mount -t tmpfs -o size=64k none \"$0\" || exit 99; \"$@\"; code=$?; ls -A \
        \"$0\"; exit $code";
    let mut command = Command::new("unshare");
    command.args(["--map-root-user", "--mount", "sh", "-c", script]);
    command.arg(folder).arg(PROGRAM).args(arguments);
    let output = command.output().ok()?;
    (output.status.code() != Some(99) && !output.stderr.starts_with(b"unshare:")).then_some(output)
}

#[test]
fn a_full_disk_is_named_with_the_remedy_and_nothing_is_left() {
    let place = Place::new("full", "wt");
    let (trace, full) = (place.path("a.fbt"), place.path("full"));
    place.ok(&[
        "trace",
        "generate",
        text(&trace),
        "--requests",
        "20000",
        "--sizes",
        "4K:1,8K:1",
    ]);
    std::fs::create_dir(&full).expect("made");
    let out = |name: &str| text(&full.join(name)).to_owned();
    let (csv, oracle, page) = (out("a.csv"), out("a.bin"), out("a.html"));
    let runs: [&[&str]; 4] = [
        &[
            "trace",
            "generate",
            &csv,
            "--requests",
            "20000",
            "--to",
            "msr",
        ],
        &["trace", "convert", text(&trace), &csv, "--to", "alibaba"],
        &[
            "trace",
            "convert",
            text(&trace),
            &oracle,
            "--to",
            "oracle-general",
        ],
        // Many caches make a large page.
        &[
            "simulate",
            text(&trace),
            "--html",
            &page,
            "--compare",
            "--cache",
            "16M",
            "--cache",
            "17M",
            "--cache",
            "18M",
            "--cache",
            "19M",
            "--cache",
            "20M",
        ],
    ];
    for arguments in runs {
        let Some(output) = with_little_room(&full, arguments) else {
            eprintln!("SKIPPED: no small file system can be mounted here");
            return;
        };
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {output:?}");
        let said = String::from_utf8(output.stderr).expect("text");
        assert!(
            said.contains("No space left")
                && said.contains("free some space, or name a file on another"),
            "{arguments:?}: {said}"
        );
        let listed = String::from_utf8(output.stdout).expect("text");
        assert_eq!(
            listed.trim(),
            "",
            "{arguments:?}: nothing is printed, and nothing left"
        );
    }
}

#[test]
fn a_recording_that_never_began_leaves_the_existing_file() {
    let place = Place::new("record-stays", "wt");
    let out = place.path("monday.fbt");
    std::fs::write(&out, "of monday").expect("written");
    let before = names(&place.path("."));
    let daemon = place.serve(&[]);
    let said = place.refused(&["trace", "record", text(&out), "--force", "--volume", "bd"]);
    assert!(said.contains("bd") && said.contains("db"), "{said}");
    assert_eq!(std::fs::read_to_string(&out).expect("there"), "of monday");
    let said = place.refused(&[
        "trace",
        "record",
        "/dev/null",
        "--force",
        "--duration",
        "100ms",
    ]);
    assert!(said.contains("no regular file"), "{said}");
    place.ok(&[
        "trace",
        "record",
        text(&out),
        "--force",
        "--duration",
        "200ms",
    ]);
    assert!(
        std::fs::read(&out)
            .expect("there")
            .starts_with(b"\x8fFBTRC")
    );
    daemon.terminate();
    let more = more_than(&place, &before);
    assert!(!more.iter().any(|name| name.ends_with(".part")), "{more:?}");
}

#[test]
fn whoever_asks_for_json_gets_one_object_whatever_happens() {
    let place = Place::new("json", "wt");
    let trace = damaged(&place);
    let config = text(&place.path("forebay.toml")).to_owned();
    let runs: [(&[&str], i32, &str); 7] = [
        (&["trace", "stats", &trace, "--json"], 1, "line 20001"),
        (&["mrc", &trace, "--json"], 1, "line 20001"),
        (
            &["mrc", &trace, "--json", "--points", "1"],
            2,
            "from 2 to 10000",
        ),
        (&["simulate", &trace, "--json"], 1, "line 20001"),
        (&["simulate", "/nonexistent", "--json"], 1, "/nonexistent"),
        (&["status", "--json"], 1, "control.sock"),
        (
            &["replay", &trace, "--on", &config, "--json"],
            1,
            "line 20001",
        ),
    ];
    for (arguments, code, part) in runs {
        let output = place.run(arguments);
        assert_eq!(
            output.status.code(),
            Some(code),
            "{arguments:?}: {output:?}"
        );
        let all: Value = serde_json::from_slice(&output.stdout).expect("one object");
        let message = all["error"]["message"].as_str().expect("a message");
        assert!(message.contains(part), "{arguments:?}: {message}");
        assert!(all["error"]["kind"].is_string(), "{all}");
        let said = String::from_utf8(output.stderr).expect("text");
        assert!(
            said.contains(part),
            "{arguments:?}: people read it, too: {said}"
        );
    }
}

/// Checks the error that `mrc` states for its sample against the exact curve.
#[test]
fn the_stated_error_of_a_sample_matches_the_exact_curve() {
    let place = Place::new("mrc-error", "wt");
    let trace = place.path("a.fbt");
    let load = "--requests 200000 --working-set 1G --zipf 0.8 --seed 3";
    let mut generate = vec!["trace", "generate", text(&trace)];
    generate.extend(load.split_whitespace());
    place.ok(&generate);
    let mrc = ["mrc", text(&trace), "--exact", "--json", "--sample", "4096"];
    let all: Value = serde_json::from_str(&place.ok(&mrc)).expect("JSON");
    let column = |curve: &str, field: &str| -> Vec<f64> {
        let points = all[curve].as_array().expect("points").iter();
        points
            .map(|point| point[field].as_f64().expect("a number"))
            .collect()
    };
    let (sampled, exact) = (
        column("sampled", "miss_ratio"),
        column("exact", "miss_ratio"),
    );
    let errors: Vec<f64> = sampled
        .iter()
        .zip(&exact)
        .map(|(one, other)| (one - other).abs())
        .collect();
    let mean = errors.iter().sum::<f64>() / errors.len() as f64;
    let said = all["mean_absolute_error"].as_f64().expect("a number");
    assert!(
        (mean - said).abs() < 1e-9 && mean > 0.0 && mean < 0.02,
        "{mean} {said}"
    );
    // Three standard errors, and the resolution of distances.
    let stated = column("sampled", "standard_error");
    let far = errors
        .iter()
        .zip(&stated)
        .filter(|(error, stated)| **error > 3.0 * **stated + 0.005);
    assert!(far.count() * 10 <= errors.len(), "{errors:?} {stated:?}");
    // An absent or exaggerated error would pass the check above.
    assert!(
        stated.iter().all(|stated| (0.0001..0.1).contains(stated)),
        "{stated:?}"
    );
}

/// File names are bytes; those in JSON are text.
#[test]
fn names_that_are_no_text_are_shown_as_far_as_they_are() {
    let place = Place::new("outputs-name", "wb");
    let path = place.path("");
    let path = path.join(std::ffi::OsStr::from_bytes(b"\xff.csv"));
    std::fs::write(&path, "7,R,0,4096,100\n7,R,0,4096,200\n").expect("written");
    for reads in ["simulate", "mrc"] {
        let mut command = place.command(&[reads, "--json", "--format", "alibaba"]);
        if reads == "simulate" {
            command.args(["--cache", "1M"]);
        }
        let output = command.arg(&path).output().expect("it runs");
        assert!(output.status.success(), "{reads}: {output:?}");
        let all: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let name = all["files"][0].as_str().expect("a name");
        assert!(name.ends_with("\u{fffd}.csv"), "{name}");
    }
}

/// Two references to one block: the second one hits in any cache.
#[test]
fn a_miss_ratio_curve_of_few_blocks_is_exact() {
    let place = Place::new("outputs-mrc", "wb");
    let trace = place.path("few.csv");
    let requests: String = (0..3000)
        .map(|number| format!("7,R,{},4096,{number}\n", number % 1500 * 4096))
        .collect();
    std::fs::write(&trace, requests).expect("written");
    let curve = |more: &[&str]| -> serde_json::Value {
        let mut line = vec!["mrc", "--json", "--format", "alibaba", text(&trace)];
        line.extend(more);
        serde_json::from_str(&place.ok(&line)).expect("JSON")
    };
    let all = curve(&[]);
    assert_eq!(all["unique_blocks"], 1500);
    let points = all["sampled"].as_array().expect("points");
    for point in points {
        // Each block repeats after all the others.
        let whole = point["blocks"].as_u64() >= Some(1500);
        let misses = if whole { 0.5 } else { 1.0 };
        assert_eq!(point["miss_ratio"], misses, "{point}");
        assert_eq!(point["standard_error"], 0.0, "{point}");
    }
    assert_eq!(all["mean_absolute_error"], 0.0);
    // More blocks than the sample has are sampled as usual.
    let sampled = curve(&["--sample", "1024"]);
    assert!(sampled["exact"].is_null(), "{sampled}");
}
