//! Failed or stopped starts leave nothing behind, and `check` refuses the same configurations.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use crate::checked::both_refuse;
use crate::slots::slots_file;
use crate::support::{PROGRAM, Place, Process, text};
use forebay_testkit::daemon::check_refusal;

/// Returns a configuration of these devices, with `more` above the export.
pub(crate) fn configure(place: &Place, devices: &str, more: &str) {
    let config = format!(
        "device = [{devices}]\n{more}\n\
         export = [{{ volume = \"db\", nbd = \"unix:nbd.sock\" }}]\n\
         [server]\ncontrol = \"control.sock\"\nmetrics = \"127.0.0.1:0\"\nstate = \"state\"\n"
    );
    std::fs::write(place.path("forebay.toml"), config).expect("written");
}

pub(crate) const SSD: &str = "{ name = \"ssd\", kind = \"file\", path = \"cache\" }";
pub(crate) const DISK: &str = "{ name = \"disk\", kind = \"file\", path = \"db.img\" }";

pub(crate) fn transit(name: &str, on: &str, capacity: &str) -> String {
    format!(
        "{{ name = \"{name}\", kind = \"transit\", on = \"{on}\", capacity = \"{capacity}\", \
         policy = \"lru\" }}"
    )
}

/// Runs the program with an empty /dev/shm of this size. Returns its output and the names in
/// /dev/shm afterwards; `None` where that is not possible.
fn in_small_memory(place: &Place, size: &str, arguments: &[&str]) -> Option<(Output, String)> {
    let script = format!(
        "mount -t tmpfs -o size={size} tmpfs /dev/shm || exit 99\n\
         timeout 60 \"$@\"; code=$?\n\
         ls -A /dev/shm > \"$LEFT\"\nexit $code"
    );
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-c", &script, "sh", PROGRAM])
        .args(arguments)
        .env("LEFT", place.path("left"))
        .output();
    let output = match output {
        Ok(output) if output.status.code() != Some(99) && place.path("left").exists() => output,
        other => {
            println!("SKIPPED: no mounts of one's own here: {other:?}");
            return None;
        }
    };
    let left = std::fs::read_to_string(place.path("left")).expect("written");
    Some((output, left))
}

/// Writes to slots and kills the daemon.
pub(crate) fn leave_something(place: &Place) {
    let daemon = place.serve(&[]);
    crate::write_blocks(&mut place.connect(), 0..4);
    daemon.kill();
}

/// Returns the names of slots in use in the state directory.
fn notes(place: &Place) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(place.path("state"));
    let paths = entries
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path());
    paths
        .filter(|path| path.extension().is_some_and(|it| it == "transit"))
        .collect()
}

#[test]
fn journal_and_slots_that_fit_one_by_one_and_not_together_are_refused_by_their_sum() {
    let place = Place::new("room-sum", "wb");
    let other = std::fs::File::create(place.path("other.img")).expect("made");
    other.set_len(64 << 20).expect("sparse");
    let config = place.path("forebay.toml");
    let cache = "cache = { data = \"DATA\", journal_size = \"10M\" }";
    let volume = |backing: &str| {
        format!("volume = [{{ name = \"db\", backing = \"{backing}\", mode = \"wb\" }}]")
    };
    let fast = transit("fast", "disk", "10M");
    let front = transit("front", "ssd", "10M");
    let more = "{ name = \"more\", kind = \"file\", path = \"other.img\" }";
    for (devices, more, parts) in [
        (
            format!("{SSD}, {DISK}, {fast}"),
            format!("{}\n{}", cache.replace("DATA", "ssd"), volume("fast")),
            [
                "10 MiB for the process journal",
                "for the slots of \"fast\"",
            ],
        ),
        (
            format!("{SSD}, {DISK}, {front}"),
            format!("{}\n{}", cache.replace("DATA", "front"), volume("disk")),
            [
                "10 MiB for the process journal",
                "for the slots of \"front\"",
            ],
        ),
        (
            format!("{DISK}, {more}, {fast}, {}", transit("slow", "more", "10M")),
            "volume = [{ name = \"db\", backing = \"fast\" }, { name = \"b\", backing = \"slow\" \
             }]"
            .into(),
            ["for the slots of \"slow\"", "for the slots of \"fast\""],
        ),
    ] {
        configure(&place, &devices, &more);
        for command in ["check", "serve"] {
            let Some((output, left)) = in_small_memory(&place, "16M", &[command, text(&config)])
            else {
                return;
            };
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(1), "{command}: {said}");
            let all = [
                "/dev/shm lacks room",
                "16 MiB are free",
                "use a smaller `capacity`",
            ];
            for part in parts.iter().chain(&all) {
                assert!(said.contains(part), "{command}: {part} in {said}");
            }
            assert_eq!(left, "", "{command} left files");
        }
        assert_eq!(notes(&place), [] as [PathBuf; 0]);
        // All of it fits.
        let (output, _) =
            in_small_memory(&place, "32M", &["check", text(&config)]).expect("as above");
        assert!(output.status.success(), "{output:?}");
    }
}

#[test]
fn a_start_that_fails_behind_slots_that_it_made_takes_them_away() {
    let place = Place::new("start-fails", "wb");
    let config = place.path("forebay.toml");
    let small = std::fs::File::create(place.path("other.img")).expect("made");
    small.set_len(64 << 20).expect("sparse");
    let front = transit("front", "ssd", "1M");
    let fast = transit("fast", "disk", "1M");
    let cached =
        "cache = { data = \"front\" BLOCKS }\nvolume = [{ name = \"db\", backing = \"disk\" }]";
    let two =
        "volume = [{ name = \"db\", backing = \"fast\" }, { name = \"b\", backing = \"more\" }]";
    let more = "{ name = \"more\", kind = \"file\", path = \"other.img\" }";
    let volume = |place: &Place| {
        let record = place.path("state").join("b.epoch");
        std::fs::create_dir_all(place.path("state")).expect("made");
        std::fs::write(record, "no record").expect("written");
    };
    // Of the cache, of the cache's journal, and of a volume behind another one.
    for (devices, rest, said) in [
        (
            format!("{SSD}, {DISK}, {front}"),
            cached.replace("BLOCKS", ", block_sizes = [\"64K\"]"),
            "was formatted with blocks",
        ),
        (
            format!("{SSD}, {DISK}, {front}"),
            cached.replace("BLOCKS", ", checksums = true"),
            "was formatted without checksums",
        ),
        (format!("{DISK}, {more}, {fast}"), two.into(), "b.epoch"),
    ] {
        configure(&place, &devices, &rest);
        volume(&place);
        let Some((output, left)) = in_small_memory(&place, "64M", &["serve", text(&config)]) else {
            return;
        };
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{printed}");
        assert!(printed.contains(said), "{said} in {printed}");
        assert_eq!(left, "", "{said}");
        assert_eq!(notes(&place), [] as [PathBuf; 0], "{said}");
    }
}

#[test]
fn a_start_that_allocates_heeds_a_signal() {
    // Many steps, each of which checks for the signal.
    let place = Place::new("start-stops", "wt");
    let room = Command::new("df")
        .args(["--block-size=1M", "--output=avail", "/dev/shm"])
        .output();
    let room = String::from_utf8_lossy(&room.expect("df runs").stdout).into_owned();
    let room = room
        .split_whitespace()
        .last()
        .and_then(|room| room.parse::<u64>().ok());
    if room.is_none_or(|mib| mib < 3000) {
        println!("SKIPPED: /dev/shm has less than 3 GB free");
        return;
    }
    let fast = transit("fast", "disk", "1M");
    let volume = |on: &str| format!("volume = [{{ name = \"db\", backing = \"{on}\" }}]");
    configure(&place, &format!("{DISK}, {fast}"), &volume("fast"));
    leave_something(&place);
    let slots = slots_file(
        &place,
        || configure(&place, &format!("{DISK}, {fast}"), &volume("fast")),
        || configure(&place, DISK, &volume("disk")),
    );
    std::fs::remove_file(&slots).expect("there");
    std::fs::remove_dir_all(place.path("state")).expect("there");
    let fast = transit("fast", "disk", "2G");
    configure(&place, &format!("{DISK}, {fast}"), &volume("fast"));
    let mut stopped = 0;
    for _ in 0..5 {
        let daemon = place.start().spawn();
        daemon.wait_until_caught(libc::SIGTERM);
        let begin = Instant::now();
        while !slots.exists() {
            assert!(begin.elapsed() < Duration::from_secs(60), "{}", place.log());
            std::thread::sleep(Duration::from_micros(200));
        }
        daemon.terminate();
        assert!(!slots.exists(), "{}", place.log());
        assert_eq!(notes(&place), [] as [PathBuf; 0]);
        assert!(!place.path("control.sock").exists());
        if place.log().contains("the start was stopped") {
            stopped += 1;
        }
    }
    assert!(stopped > 0, "no signal came before the start was over");
}

/// Creates a path that is no file of the daemon.
fn put(what: &str, path: &Path) {
    match what {
        "a directory" => std::fs::create_dir(path).expect("made"),
        "a socket" => drop(UnixListener::bind(path).expect("bound")),
        "a named pipe" => {
            let path = CString::new(path.as_os_str().as_bytes()).expect("a plain path");
            // SAFETY: the string of the path outlives the call.
            assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
        }
        "a symbolic link that leads nowhere" => symlink("nowhere", path).expect("linked"),
        "a symbolic link" => symlink("/dev/null", path).expect("linked"),
        "its mode is 0644" => {
            std::fs::write(path, []).expect("made");
            let mode = std::fs::Permissions::from_mode(0o644);
            std::fs::set_permissions(path, mode).expect("changed");
        }
        other => panic!("{other}"),
    }
}

fn take_away(path: &Path) {
    let is_directory = std::fs::symlink_metadata(path).is_ok_and(|found| found.is_dir());
    match is_directory {
        true => std::fs::remove_dir(path).expect("there"),
        false => std::fs::remove_file(path).expect("there"),
    }
}

#[test]
fn a_journal_that_is_no_file_of_the_daemons_is_refused_by_name() {
    let place = Place::new("journal-kinds", "wb");
    let journal = place.path("journal");
    for what in [
        "a directory",
        "a socket",
        "a named pipe",
        "a symbolic link that leads nowhere",
        "a symbolic link",
        "its mode is 0644",
    ] {
        put(what, &journal);
        both_refuse(&place, &["forebay.toml:14: ", "journal", what]);
        take_away(&journal);
    }
    std::fs::write(&journal, "notes, not a journal").expect("written");
    std::fs::set_permissions(&journal, std::fs::Permissions::from_mode(0o600)).expect("changed");
    both_refuse(&place, &["forebay.toml:14: ", "is not a process journal"]);
    std::fs::remove_file(&journal).expect("there");
    let config = place.read_config();
    for (path, what) in [
        ("/dev/null", "it is a device node"),
        ("cache", "is device \"ssd\""),
        ("nowhere/journal", "there is no directory"),
        // Regular files of mode 0600 and of no length.
        ("/proc/self/mem", "it cannot be mapped"),
        ("/proc/self/clear_refs", ""),
    ] {
        let changed = config.replace("journal = \"journal\"", &format!("journal = \"{path}\""));
        std::fs::write(place.path("forebay.toml"), changed).expect("written");
        both_refuse(&place, &["forebay.toml:14: `journal` ", what]);
    }
}

#[test]
fn slots_that_are_no_file_of_the_daemons_are_refused_by_name() {
    let place = Place::new("slots-kinds", "wt");
    let with = || {
        let devices = format!("{DISK}, {}", transit("fast", "disk", "1M"));
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
    std::fs::remove_file(&slots).expect("there");
    std::fs::remove_dir_all(place.path("state")).expect("there");
    with();
    for what in [
        "a directory",
        "a socket",
        "a named pipe",
        "a symbolic link",
        "its mode is 0644",
    ] {
        put(what, &slots);
        let name = text(&slots);
        both_refuse(&place, &["device \"fast\": its slots in ", name, what]);
        let said = place.refused(&["check", text(&place.path("forebay.toml"))]);
        assert!(!said.contains("use a smaller `capacity`"), "{said}");
        take_away(&slots);
    }
    place.serve(&[]).terminate();
}

#[test]
fn one_path_for_two_purposes_is_refused() {
    let place = Place::new("one-path", "wb");
    let config = place.read_config();
    std::fs::create_dir(place.path("run")).expect("made");
    symlink("run", place.path("link")).expect("linked");
    let change = |from: &str, to: &str| {
        assert!(config.contains(from), "{from}");
        std::fs::write(place.path("forebay.toml"), config.replace(from, to)).expect("written");
    };
    for (from, to, said) in [
        (
            "state = \"state\"",
            "state = \"control.sock\"",
            "`control` and `state` are both",
        ),
        (
            "state = \"state\"",
            "state = \"run/../control.sock\"",
            "`control` and `state` are both",
        ),
        (
            "state = \"state\"",
            "state = \"control.sock/state\"",
            "which is no directory",
        ),
        (
            "journal = \"journal\"",
            "journal = \"control.sock\"",
            "`control` and `journal` are both",
        ),
        (
            "journal = \"journal\"",
            "journal = \"state\"",
            "`state` and `journal` are both",
        ),
        (
            "nbd = \"unix:nbd.sock\"",
            "nbd = \"unix:control.sock\"",
            "and so is the export in line 23",
        ),
        (
            "nbd = \"unix:nbd.sock\"",
            "vhost-user-blk = \"journal\"",
            "`journal` and `vhost-user-blk` of volume",
        ),
        (
            "nbd = \"unix:nbd.sock\"",
            "fuse = \"state\"",
            "lies on a volume of this configuration",
        ),
    ] {
        change(from, to);
        both_refuse(&place, &[said]);
        assert!(!place.path("control.sock").exists() && !place.path("state").exists());
    }
    // Through a link to a directory elsewhere.
    change("state = \"state\"", "state = \"link/../control.sock\"");
    both_refuse(&place, &["`control` and `state` are both"]);
    change("state = \"state\"", "state = \"run/state\"");
    place.ok(&["check", text(&place.path("forebay.toml"))]);
}

#[test]
fn of_two_starts_at_once_one_serves_and_the_other_names_the_reason() {
    let place = Place::new("start-race", "wb");
    let config = text(&place.path("forebay.toml")).to_owned();
    for round in 0..8 {
        // It leaves its socket behind.
        place.serve(&[]).kill();
        let start = || Process::spawn_piped(&mut place.command(&["serve", &config]));
        let mut racing = [start(), start()];
        let begin = Instant::now();
        let refused = loop {
            let mut ended = racing.iter_mut().map(|start| start.try_wait().is_some());
            if let Some(first) = ended.position(|ended| ended) {
                break first;
            }
            assert!(begin.elapsed() < Duration::from_secs(60), "both serve");
            std::thread::sleep(Duration::from_millis(1));
        };
        let [one, other] = racing;
        let (refused, mut serving) = match refused {
            0 => (one, other),
            _ => (other, one),
        };
        let output = refused.output();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "round {round}: {said}");
        check_refusal(&said);
        place.wait_until(|status| status["volumes"][0]["name"] == "db");
        assert!(serving.try_wait().is_none(), "round {round}: {said}");
        serving.kill();
    }
}
