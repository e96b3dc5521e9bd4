//! `forebay pagecache`: directory, node and status as a user runs them.

mod kills;

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

use forebay_testkit::daemon::{PATIENCE, Process};

/// A process that is killed when dropped. Its later output is read, since it would fail otherwise.
struct Running(Process, BufReader<ChildStdout>);

/// A source and a pool; removed when dropped.
struct Place {
    source: PathBuf,
    pool: PathBuf,
}

impl Place {
    fn new(name: &str) -> Self {
        let name = format!("forebay-{name}-{}", std::process::id());
        let place = Self {
            source: std::env::temp_dir().join(&name),
            pool: Path::new("/dev/shm").join(&name),
        };
        std::fs::create_dir_all(&place.source).expect("made");
        place
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
        command.arg("pagecache").args(arguments);
        command.arg("--pool").arg(&self.pool);
        command
    }

    fn directory(&self, capacity: &str) -> Command {
        let mut command = self.command(&["directory", "--capacity", capacity]);
        command.arg("--source").arg(&self.source);
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("it can be run")
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.source);
        let _ = std::fs::remove_dir_all(&self.pool);
        for name in ["directory", "again", "node"] {
            let _ = std::fs::remove_file(self.source.with_extension(name));
        }
    }
}

/// Starts a command and waits for its first line.
fn start(mut command: Command) -> (Running, String) {
    let mut process = Process::spawn(command.stdout(Stdio::piped()));
    let stdout = process.take_stdout().expect("piped");
    let mut running = Running(process, BufReader::new(stdout));
    let mut line = String::new();
    let read = running.1.read_line(&mut line);
    read.expect("it says something");
    (running, line)
}

/// Does the same, with its log in a file beside the source.
fn start_logging(place: &Place, mut command: Command, name: &str) -> (Running, PathBuf) {
    let log = place.source.with_extension(name);
    let file = std::fs::File::create(&log).expect("made");
    command.stderr(file);
    (start(command).0, log)
}

/// Returns the log once it is long enough.
fn logged(log: &Path, enough: impl Fn(&str) -> bool) -> String {
    let begin = Instant::now();
    loop {
        let text = std::fs::read_to_string(log).expect("there");
        if enough(&text) {
            assert!(!text.contains('\x1b'), "no colours in a file: {text}");
            return text;
        }
        assert!(begin.elapsed() < PATIENCE, "never: {text}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn said(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_node_joins_is_seen_and_leaves() {
    let place = Place::new("pagecache");
    let (directory, line) = start(place.directory("4M"));
    assert!(line.ends_with(": ready\n"), "{line}");
    let node = ["node", "--id", "1", "--memory", "2M"];
    let (mut one, line) = start(place.command(&node));
    assert_eq!(line, "node 1: joined with 2 MiB\n");

    let status = place.run(&["status"]);
    let text = String::from_utf8(status.stdout).expect("text");
    assert!(text.contains("0 pages in 4 MiB of memory"), "{text}");
    assert!(text.contains("alive"), "{text}");
    let status = place.run(&["status", "--json"]);
    let status: serde_json::Value = serde_json::from_slice(&status.stdout).expect("JSON");
    assert_eq!(status["nodes"][0]["frames"], 512);
    assert_eq!(status["nodes"][0]["pid"], one.0.id());

    let twice = said(&place.run(&node));
    assert!(twice.contains("choose another number"), "{twice}");
    let second = said(&place.directory("4M").output().expect("run"));
    assert!(second.contains("it is locked by"), "{second}");

    // A restarted directory waits for the node. With another capacity it does not start.
    drop(directory);
    let other = said(&place.directory("8M").output().expect("run"));
    assert!(
        other.contains("give the same capacity and source"),
        "{other}"
    );
    let (_directory, line) = start(place.directory("4M"));
    assert!(line.contains("waits for 1 nodes"), "{line}");

    one.0.signal(libc::SIGTERM);
    let ended = one.0.wait().expect("it ends in time");
    assert!(ended.success());
    let status = place.run(&["status", "--json"]);
    let status: serde_json::Value = serde_json::from_slice(&status.stdout).expect("JSON");
    assert_eq!(
        (&status["fenced"], &status["epoch"]),
        (&0.into(), &2.into())
    );
    assert_eq!(status["nodes"].as_array().map(Vec::len), Some(0));
}

#[test]
fn impossible_pagecache_options_are_refused_with_the_cause() {
    let place = Place::new("pagecache-wrong");
    let none = said(&place.run(&["status"]));
    assert!(
        none.contains("start one with `forebay pagecache directory`"),
        "{none}"
    );
    let small = said(&place.directory("4K").output().expect("run"));
    assert!(small.contains("--capacity 4 KiB"), "{small}");
    let number = place.run(&["node", "--id", "32", "--memory", "1M"]);
    assert_eq!(number.status.code(), Some(2), "{number:?}");
    let number = String::from_utf8(number.stderr).expect("text");
    assert!(number.contains("a whole number from 0 to 31"), "{number}");
    let mut nowhere = place.command(&["directory", "--capacity", "1M", "--source", "/nonexistent"]);
    let nowhere = said(&nowhere.output().expect("run"));
    assert!(nowhere.contains("source /nonexistent"), "{nowhere}");
    // In its own source, programs would find it on the mount and could write into it.
    let inside = place.source.join("new/pool");
    for (pool, source) in [(&inside, &place.source), (&place.source, &place.source)] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
        command.args(["pagecache", "directory", "--capacity", "1M", "--pool"]);
        command.arg(pool).arg("--source").arg(source);
        let refused = said(&command.output().expect("run"));
        assert!(
            refused.contains("choose a directory on tmpfs elsewhere"),
            "{refused}"
        );
    }
    assert!(!place.source.join("new").exists(), "nothing was made");
}

#[test]
fn a_second_directory_on_a_source_gets_an_error_that_names_the_first() {
    let place = Place::new("pagecache-second");
    let (mut first, _) = start(place.directory("4M"));
    let other = Place::new("pagecache-second-pool");
    let mut second = other.command(&["directory", "--capacity", "4M"]);
    second.arg("--source").arg(&place.source);
    let refused = said(&second.output().expect("run"));
    let who = format!(
        "process {} of the pool {} has it",
        first.0.id(),
        place.pool.display()
    );
    assert!(refused.contains(&who), "{refused}");
    first.0.kill();
    let (_second, line) = start(second);
    assert!(line.ends_with(": ready\n"), "{line}");
}

/// An operator unmounts by hand, and starts another node on the same mountpoint.
#[test]
fn a_node_that_was_unmounted_by_hand_ends_and_touches_no_other_mount() {
    if !kills::can_mount() {
        return;
    }
    let place = Place::new("pagecache-unmounted");
    let mountpoint = place.source.with_extension("mount");
    let (_directory, _) = start(place.directory("4M"));
    let node = |id: &str| {
        let mut command = place.command(&["node", "--id", id, "--memory", "1M"]);
        command.arg("--mount").arg(&mountpoint);
        command
    };
    let (mut first, log) = start_logging(&place, node("1"), "node");
    let mut line = String::new();
    first.1.read_line(&mut line).expect("it says so");
    assert!(line.contains("mounted on"), "{line}");
    first.0.signal(libc::SIGSTOP);
    let by_hand = Command::new("umount").arg("-l").arg(&mountpoint).status();
    assert!(by_hand.expect("it runs").success());
    let (mut second, _) = start(node("2"));
    let mut line = String::new();
    second.1.read_line(&mut line).expect("it says so");
    assert!(line.contains("mounted on"), "{line}");
    first.0.signal(libc::SIGCONT);
    let ended = first.0.wait().expect("it ends by itself");
    assert_eq!(ended.code(), Some(1));
    logged(&log, |text| {
        text.contains("was unmounted by another program")
    });
    std::fs::write(mountpoint.join("file"), "data").expect("mounted");
    second.0.signal(libc::SIGTERM);
    assert!(second.0.wait().expect("it ends").success());
    assert!(
        place.source.join("file").exists(),
        "written into the source"
    );
    let _ = std::fs::remove_dir(&mountpoint);
}

/// Every fault of the mountpoint is reported before the node joins, so that it gets no page.
#[test]
fn a_node_looks_at_its_mountpoint_before_it_joins() {
    let place = Place::new("pagecache-mountpoint");
    let (_directory, _) = start(place.directory("4M"));
    let beside = Place::new("pagecache-mountpoint-beside");
    let (file, full) = (beside.source.join("file"), beside.source.join("full"));
    std::fs::write(&file, "mine").expect("written");
    std::fs::create_dir(&full).expect("made");
    std::fs::write(full.join("mine"), "mine").expect("written");
    let inside = place.source.join("inside");
    let cases = [
        (&file, "it is not a directory"),
        (&file.join("below"), "ot a directory"),
        (&full, "name an empty directory"),
        (&inside, "choose a mountpoint elsewhere"),
    ];
    for (mountpoint, remedy) in cases {
        let mut command = place.command(&["node", "--id", "1", "--memory", "1M"]);
        command.arg("--mount").arg(mountpoint);
        let output = command.output().expect("run");
        let refused = said(&output);
        let place_of_it = mountpoint.display().to_string();
        assert!(refused.contains(&place_of_it), "{refused}");
        // A user who may not mount gets that message.
        let remedies = [remedy, "mounting needs root: run as root", "/dev/fuse"];
        assert!(
            remedies.iter().any(|remedy| refused.contains(remedy)),
            "{refused}"
        );
        assert_eq!(output.stdout, b"", "nothing joined: {output:?}");
    }
    assert!(!inside.exists(), "nothing was made");
    let status = place.run(&["status", "--json"]);
    let status: serde_json::Value = serde_json::from_slice(&status.stdout).expect("JSON");
    assert_eq!(status["nodes"].as_array().map(Vec::len), Some(0));
    assert_eq!(status["messages_in"], 0, "nobody said anything");
}

#[test]
fn a_node_names_at_once_the_directory_that_it_waits_for() {
    let place = Place::new("pagecache-waits");
    let mut command = place.command(&["node", "--id", "1", "--memory", "1M"]);
    let mut child = command.stderr(Stdio::piped()).spawn().expect("run");
    let mut stderr = BufReader::new(child.stderr.take().expect("piped"));
    let mut line = String::new();
    // The problem, and the remedy.
    stderr.read_line(&mut line).expect("it says something");
    stderr.read_line(&mut line).expect("it says more");
    let ended = child.try_wait().expect("a child");
    child.kill().expect("ours");
    child.wait().expect("ended");
    assert_eq!(ended, None, "it waits: {line}");
    let pool = place.pool.display().to_string();
    for part in [
        &pool[..],
        "forebay pagecache directory",
        "waiting 10s for a directory",
    ] {
        assert!(line.contains(part), "{part}: {line}");
    }
    assert!(!line.contains('\x1b'), "no colours in a pipe: {line}");
}

#[test]
fn a_node_that_may_not_come_back_says_why_and_so_does_the_directory() {
    let place = Place::new("pagecache-back");
    let (mut directory, _) = start(place.directory("4M"));
    let node = place.command(&["node", "--id", "1", "--memory", "1M"]);
    let (mut node, log) = start_logging(&place, node, "node");
    directory.0.kill();
    // The next directory takes it for dead, for example because it does not see its process.
    let nodes = place.pool.join("nodes");
    let text = std::fs::read_to_string(&nodes).expect("there");
    let line = text.lines().nth(3).expect("a node");
    let mut parts: Vec<&str> = line.split(' ').collect();
    assert_eq!(parts[4], "1", "it lives: {line}");
    parts[4] = "0";
    std::fs::write(&nodes, text.replace(line, &parts.join(" "))).expect("written");
    let (_restarted, directory_log) = start_logging(&place, place.directory("4M"), "again");
    let status = node.0.wait().expect("it ends in time");
    let remedy = |text: &str| text.contains("start it again");
    let text = logged(&log, remedy);
    assert!(text.contains("rejoining the directory"), "{text}");
    assert_eq!(status.code(), Some(1), "it ends by itself: {text}");
    let text = logged(&directory_log, remedy);
    let who = format!("process {} may not rejoin", node.0.id());
    assert!(text.contains(&who), "{text}");
}

/// A flush fails with `EIO`; the operator gets the reason.
#[test]
fn a_source_that_refuses_pages_is_in_the_log_of_the_node_that_writes_them() {
    use forebay_cluster::{Node, NodeId, Options, PAGE_BYTES};
    use std::os::unix::fs::MetadataExt as _;
    let place = Place::new("pagecache-refuses");
    let (_directory, _) = start(place.directory("4M"));
    let node = place.command(&["node", "--id", "1", "--memory", "2M"]);
    let (_node, log) = start_logging(&place, node, "node");
    let id = NodeId::new(2).expect("a node");
    let mut options = Options::new(&place.pool, id, 8);
    // Else writers wait for the source.
    options.dirty_pages = 1000;
    let writer = Node::join(options).expect("it joins");
    let file = writer.create("mine").expect("made");
    // Programs that have not opened the file do not find it any more.
    let inode = std::fs::metadata(place.source.join("mine"))
        .expect("there")
        .ino();
    let link = place.source.join(".forebay/files").join(inode.to_string());
    std::fs::remove_file(&link).expect("its second name");
    for page in 0..100 {
        let wrote = file.write_at(page * PAGE_BYTES as u64, &[1; PAGE_BYTES]);
        wrote.expect("written");
    }
    file.fsync().expect_err("some are in the other's memory");
    let text = logged(&log, |text| text.contains("refuses pages"));
    assert_eq!(text.lines().count(), 1, "not one for each page: {text}");
    for part in [&place.source.display().to_string()[..], "refuses pages"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    std::fs::hard_link(place.source.join("mine"), link).expect("again");
    file.fsync().expect("nothing was lost");
}

#[test]
fn thousands_of_pages_that_are_given_up_are_a_line_a_file() {
    use forebay_cluster::{Node, NodeId, Options, PAGE_BYTES};
    use std::os::unix::fs::MetadataExt as _;
    const PAGES: usize = 4000;
    let place = Place::new("pagecache-given-up");
    let mut command = place.directory("64M");
    command.args(["--placement", "pool", "--rescue", "2s"]);
    let (_directory, log) = start_logging(&place, command, "directory");
    // On a slow machine, the expiry would write pages back before the source refuses them.
    let mut command = place.command(&["node", "--id", "1", "--memory", "48M"]);
    command.args(["--expiry", "1h"]);
    let (mut dies, _) = start(command);
    let id = NodeId::new(2).expect("a node");
    let mut options = Options::new(&place.pool, id, 8);
    options.expiry = Duration::from_secs(3600);
    let writer = Node::join(options).expect("it joins");
    let file = writer.create("mine").expect("made");
    for page in 0..PAGES {
        let wrote = file.write_at((page * PAGE_BYTES) as u64, &[1; PAGE_BYTES]);
        wrote.expect("written");
    }
    // Programs that have not opened the file do not find it any more.
    let mine = place.source.join("mine");
    let inode = std::fs::metadata(&mine).expect("there").ino();
    let link = place.source.join(".forebay/files").join(inode.to_string());
    std::fs::remove_file(link).expect("its second name");
    dies.0.kill();
    // Before the death is noticed, the writer itself would write the pages.
    logged(&log, |text| text.contains("refuses pages"));
    let begin = Instant::now();
    let lost = file
        .fsync()
        .expect_err("what was with the dead node is lost");
    let took = begin.elapsed();
    assert!(took < Duration::from_secs(20), "{took:?}");
    let path = mine.display().to_string();
    assert!(lost.report().contains(&path), "{lost:?}");
    file.fsync().expect("it is said once");
    let text = logged(&log, |text| text.contains("has refused for 2s"));
    let lines: Vec<&str> = text.lines().collect();
    // One for all refused requests and one for all abandoned data, and one more of each per second.
    assert!((2..PAGES / 100).contains(&lines.len()), "{text}");
    for line in lines {
        assert!(line.contains(&path) && line.len() < 1000, "{line}");
        // A report of one page, which a slow machine may make at first, names the page itself.
        let is_run = line.contains(" pages of ") && line.contains(" to ");
        assert!(is_run || line.contains(": page "), "{line}");
    }
}

/// Returns the paths below a directory, sorted; none if there is no directory.
fn below(path: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut pending = vec![path.to_owned()];
    while let Some(directory) = pending.pop() {
        let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
        for path in entries.map(|entry| entry.path()) {
            if path.is_dir() {
                pending.push(path.clone());
            }
            found.push(path);
        }
    }
    found.sort();
    found
}

#[test]
fn a_refused_directory_changes_neither_pool_nor_source() {
    let place = Place::new("pagecache-leaves");
    let (_first, _) = start(place.directory("4M"));
    let (free, device) = (Place::new("pagecache-free"), Place::new("pagecache-device"));
    let image = device.source.join("image");
    std::fs::write(&image, vec![0; 1 << 20]).expect("written");
    std::fs::create_dir(free.source.join("there")).expect("made");
    let record = Place::new("pagecache-record");
    std::fs::create_dir(record.source.join(".forebay")).expect("made");
    std::fs::write(record.source.join(".forebay/pool"), "no record").expect("written");
    let huge: &[&str] = &["--capacity", "15T"];
    let wrong: &[&str] = &["--capacity", "4M", "--map", "nowhere"];
    let outside: &[&str] = &["--capacity", "4M", "--map", "/dev/shm"];
    let plain: &[&str] = &["--capacity", "4M"];
    let cases = [
        // Another pool has the source, or contains it, and the pool is to be made with its parents.
        (&place.source, plain, "has it"),
        (&free.source, huge, "No space left"),
        (&free.source, wrong, "mapped directory"),
        (
            &free.source,
            outside,
            "it is not a directory below the source",
        ),
        (&image, wrong, "a device has no directories"),
        (&image, huge, "No space left"),
        (&record.source, plain, "it names no pool"),
    ];
    for (number, (source, options, says)) in cases.into_iter().enumerate() {
        // The pool is missing with directories above it, or it is an empty directory.
        for pool in ["new/deep/pool", "there"] {
            let top = Place::new(&format!("pagecache-pool-{number}"));
            let (parent, pool) = (&top.pool, top.pool.join(pool));
            std::fs::create_dir_all(parent.join("there")).expect("made");
            let before = (below(parent), below(source));
            let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
            command.args(["pagecache", "directory"]).args(options);
            command.arg("--pool").arg(&pool).arg("--source").arg(source);
            let refused = said(&command.output().expect("run"));
            let case = format!("{number}, {}: {refused}", pool.display());
            assert!(refused.contains(says), "{says} in {case}");
            assert_eq!((below(parent), below(source)), before, "{case}");
        }
    }
}

/// The last steps of a start are refused: its sockets cannot be made, or its list of nodes.
#[test]
fn a_directory_that_is_refused_late_changes_neither_pool_nor_source() {
    for name in ["directory.sock", "status.sock", "nodes.new"] {
        let place = Place::new(&format!("pagecache-late-{name}"));
        std::fs::create_dir_all(place.pool.join(name).join("mine")).expect("made");
        let before = (below(&place.pool), below(&place.source));
        let refused = said(&place.directory("4M").output().expect("run"));
        assert!(refused.contains(name.trim_end_matches(".new")), "{refused}");
        let after = (below(&place.pool), below(&place.source));
        assert_eq!(after, before, "{refused}");
        std::fs::remove_dir_all(place.pool.join(name)).expect("ours");
        let (_directory, line) = start(place.directory("4M"));
        assert!(line.ends_with(": ready\n"), "{line}");
    }
}
