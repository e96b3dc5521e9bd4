//! `forebay pagecache`: directory, node and status as a user runs them.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Longest wait for anything that the program does.
const PATIENCE: Duration = Duration::from_secs(30);

/// A process that is killed at the end. What it says later finds a reader, or it would fail.
struct Running(Child, BufReader<ChildStdout>);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A source and a pool, removed at the end.
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
    }
}

/// Starts a command and waits for its first line.
fn start(mut command: Command) -> (Running, String) {
    let mut child = command
        .stdout(Stdio::piped())
        .spawn()
        .expect("it can be run");
    let stdout = child.stdout.take().expect("piped");
    let mut running = Running(child, BufReader::new(stdout));
    let mut line = String::new();
    let read = running.1.read_line(&mut line);
    read.expect("it says something");
    (running, line)
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
    assert!(second.contains("another process holds it"), "{second}");

    // A directory that is started anew waits for the node; with another capacity it does not start.
    drop(directory);
    let other = said(&place.directory("8M").output().expect("run"));
    assert!(
        other.contains("give the same capacity and source"),
        "{other}"
    );
    let (_directory, line) = start(place.directory("4M"));
    assert!(line.contains("waits for 1 nodes"), "{line}");

    let pid = one.0.id().to_string();
    let sent = Command::new("kill").args(["-TERM", &pid]).status();
    assert!(sent.expect("it runs").success());
    let begin = Instant::now();
    let ended = loop {
        if let Some(status) = one.0.try_wait().expect("a child") {
            break status;
        }
        assert!(begin.elapsed() < PATIENCE, "it does not end");
        std::thread::sleep(Duration::from_millis(10));
    };
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
fn what_cannot_be_is_said() {
    let place = Place::new("pagecache-wrong");
    let none = said(&place.run(&["status"]));
    assert!(
        none.contains("start one with `forebay pagecache directory`"),
        "{none}"
    );
    let small = said(&place.directory("4K").output().expect("run"));
    assert!(small.contains("--capacity 4 KiB"), "{small}");
    let number = said(&place.run(&["node", "--id", "32", "--memory", "1M"]));
    assert!(number.contains("numbers from 0 to 31"), "{number}");
    let mut nowhere = place.command(&["directory", "--capacity", "1M", "--source", "/nonexistent"]);
    let nowhere = said(&nowhere.output().expect("run"));
    assert!(nowhere.contains("source /nonexistent"), "{nowhere}");
}
