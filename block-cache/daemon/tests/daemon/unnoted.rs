//! A stop that cannot write to its state directory. It says so by name and ends with an error, all
//! else of the stop is completed, and the next start is right.

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use super::support::{Daemon, Place, Process, slots_noted_in, text};
use super::{block, check_blocks, write_blocks};

/// A mount namespace in which the state directory of a place is a small file system.
pub(crate) struct Namespace<'a> {
    place: &'a Place,
    /// Process that keeps the namespace.
    holder: Process,
    state: PathBuf,
}

impl<'a> Namespace<'a> {
    /// Returns none, visibly, where mounts of one's own are not allowed.
    pub(crate) fn new(place: &'a Place) -> Option<Self> {
        let state = place.path("state");
        std::fs::create_dir_all(&state).expect("made");
        let script = "mount -t tmpfs -o size=256k none \"$0\" && echo ready && exec sleep 600";
        let mut command = Command::new("unshare");
        command.args(["--map-root-user", "--mount", "sh", "-c", script]);
        command.arg(&state).stdout(Stdio::piped());
        let mut holder = Process::spawn(&mut command);
        let mut line = String::new();
        let stdout = holder.take_stdout().expect("piped");
        let read = BufReader::new(stdout).read_line(&mut line);
        if read.is_err() || line != "ready\n" {
            println!("SKIPPED: no mounts of one's own here");
            return None;
        }
        Some(Self {
            place,
            holder,
            state,
        })
    }

    fn enter(&self) -> [String; 5] {
        let pid = self.holder.id().to_string();
        let enter = ["nsenter", "--user", "--mount", "--target"];
        let [a, b, c, d] = enter.map(str::to_owned);
        [a, b, c, d, pid]
    }

    pub(crate) fn serve(&self) -> Daemon {
        self.serve_with(&[])
    }

    pub(crate) fn serve_with(&self, arguments: &[&str]) -> Daemon {
        let enter = self.enter();
        let enter: Vec<&str> = enter.iter().map(String::as_str).collect();
        let serve = self.place.start().wrapped(&enter);
        serve.arguments(arguments).start()
    }

    /// Runs a line of shell with the path of the state directory.
    fn run(&self, line: &str) -> String {
        let enter = self.enter();
        let mut command = Command::new(&enter[0]);
        command.args(&enter[1..]).args(["sh", "-c", line]);
        let output = command.arg(&self.state).output().expect("it runs");
        assert!(output.status.success(), "{line}: {output:?}");
        String::from_utf8(output.stdout).expect("text")
    }

    pub(crate) fn fill(&self) {
        self.run("cat /dev/zero > \"$0/fill\" 2>/dev/null; true");
    }

    pub(crate) fn free(&self) {
        self.run("rm \"$0/fill\"");
    }

    /// Makes the directory read-only for later writes. Open files are not affected.
    fn write_protect(&self) {
        self.run("mount --bind \"$0\" \"$0\" && mount -o remount,ro,bind \"$0\"");
    }

    fn allow_writes(&self) {
        self.run("umount \"$0\"");
    }
}

/// Stops the daemon, which must fail and name these, each with a remedy.
fn fails_and_names(place: &Place, daemon: Daemon, names: &[&str]) {
    daemon.signal(libc::SIGTERM);
    let status = daemon.wait();
    let log = place.log();
    assert_eq!(status.code(), Some(1), "{log}");
    for name in names {
        assert!(log.contains(name), "{name} in {log}");
    }
    assert!(log.matches("    help: ").count() >= names.len(), "{log}");
    assert!(!log.contains("clean shutdown"), "{log}");
}

/// Checks that the cache was closed and its journal removed.
fn is_closed(place: &Place) {
    let checked = place.ok(&["check", "--cache", text(&place.path("cache"))]);
    assert!(checked.contains("shut down cleanly"), "{checked}");
    assert!(!place.path("journal").exists());
}

#[test]
fn a_stop_with_a_full_state_directory_fails_and_the_next_start_is_right() {
    let place = Place::new("unnoted-full", "wb");
    let Some(inside) = Namespace::new(&place) else {
        return;
    };
    let daemon = inside.serve();
    write_blocks(&mut place.connect(), 0..8);
    inside.fill();
    let opening = "the stop of the cache is not noted";
    fails_and_names(&place, daemon, &[opening]);
    assert!(place.log().contains("No space left"), "{}", place.log());
    is_closed(&place);
    inside.free();
    let daemon = inside.serve();
    check_blocks(&mut place.connect(), 0..8);
    // The record says that the volume is dirty, and it is not any more.
    place.ok(&["flush"]);
    inside.fill();
    fails_and_names(&place, daemon, &[opening, "volume \"db\""]);
    is_closed(&place);
    inside.free();
    let daemon = inside.serve();
    check_blocks(&mut place.connect(), 0..8);
    daemon.terminate();
    assert!(place.log().contains("clean shutdown"), "{}", place.log());
}

#[test]
fn a_stop_with_a_write_protected_state_directory_fails_and_the_next_start_is_right() {
    let place = Place::new("unnoted-protected", "wb");
    let Some(inside) = Namespace::new(&place) else {
        return;
    };
    let daemon = inside.serve();
    write_blocks(&mut place.connect(), 0..8);
    inside.write_protect();
    let names = [
        "the stop of the cache is not noted",
        "Read-only file system",
    ];
    daemon.signal(libc::SIGINT);
    let status = daemon.wait();
    let log = place.log();
    assert_eq!(status.code(), Some(1), "{log}");
    for name in names {
        assert!(log.contains(name), "{name} in {log}");
    }
    is_closed(&place);
    inside.allow_writes();
    let daemon = inside.serve();
    check_blocks(&mut place.connect(), 0..8);
    daemon.terminate();
}

/// A transit cache over the backing device. Its slots are removed if the state directory no longer
/// says that they are in use, and stay otherwise.
#[test]
fn a_stop_that_cannot_note_the_end_of_slots_fails_and_the_next_start_is_right() {
    let place = Place::new("unnoted-slots", "wt");
    place.configure("wt", "");
    let fast = "[[device]]\nname = \"fast\"\nkind = \"transit\"\non = \"disk\"\n\
        capacity = \"1M\"\n\n[cache]";
    place.edit_config(&[
        ("[cache]", fast),
        ("backing = \"disk\"", "backing = \"fast\""),
    ]);
    let Some(inside) = Namespace::new(&place) else {
        return;
    };
    let device = || std::fs::read(place.path("db.img")).expect("there")[..4096].to_vec();
    for (round, protected) in [false, true, false].into_iter().enumerate() {
        let daemon = inside.serve();
        let number = round as u64 * 100;
        let mut nbd = place.connect();
        let written = nbd.write(0, &block(number)).expect("an answer");
        assert_eq!(written, 0);
        let slots = inside.run("cd \"$0\"; ls | grep '^forebay-.*transit$' | head -1");
        let slots = PathBuf::from("/dev/shm").join(slots.trim_end());
        assert!(slots.is_file(), "{}", slots.display());
        let stem = slots
            .file_stem()
            .and_then(|stem| stem.to_str())
            .expect("text");
        // Removal makes room, so a full directory does not do here.
        let in_the_way = format!("\"$0/{stem}.generation.new\"");
        match protected {
            true => inside.write_protect(),
            false => _ = inside.run(&format!("mkdir {in_the_way}")),
        }
        fails_and_names(&place, daemon, &["the slots of transit cache \"fast\""]);
        assert_eq!(device(), block(number), "round {round}: it has everything");
        assert_eq!(slots.exists(), protected, "round {round}: {}", place.log());
        match protected {
            true => inside.allow_writes(),
            false => _ = inside.run(&format!("rmdir {in_the_way}")),
        }
    }
    let daemon = inside.serve();
    assert_eq!(
        place.connect().read(0, 4096).expect("an answer"),
        Ok(block(200))
    );
    daemon.terminate();
    let log = place.log();
    assert!(
        !log.contains("LOST") && log.contains("clean shutdown"),
        "{log}"
    );
    assert!(slots_noted_in(&place.path("state")).is_empty());
}
