//! A directory with a configuration, and the program run in it.

pub(crate) mod nbd;

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use nbd::Nbd;

/// Longest wait for anything that the program does.
const PATIENCE: Duration = Duration::from_secs(60);

/// A directory of its own, removed at the end.
pub(crate) struct Place(PathBuf);

impl Place {
    /// A place with a cache of 64 MiB, a backing file of 64 MiB and a configuration.
    pub(crate) fn new(name: &str, mode: &str) -> Self {
        let path = std::env::temp_dir().join(format!("fb-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a temporary directory");
        let place = Self(path);
        let backing = std::fs::File::create(place.path("db.img")).expect("made");
        backing.set_len(64 << 20).expect("sparse");
        place.configure(mode, "");
        let cache = place.path("cache");
        let made = place.run(&["format", "--create", "64M", "--cache", text(&cache)]);
        assert!(made.status.success(), "{made:?}");
        place
    }

    /// Writes the configuration; `more` is added to it. Dirty data stays dirty until a test has it written back, however
    /// slow the machine is.
    pub(crate) fn configure(&self, mode: &str, more: &str) {
        let config = format!(
            r#"
[[device]]
name = "ssd"
kind = "file"
path = "cache"

[[device]]
name = "disk"
kind = "file"
path = "db.img"

[cache]
data = "ssd"
journal = "journal"
cleaning = "nop"

[[volume]]
name = "db"
backing = "disk"
mode = "{mode}"

[[export]]
volume = "db"
nbd = "unix:nbd.sock"

[server]
control = "control.sock"
metrics = "127.0.0.1:0"
state = "state"
{more}
"#
        );
        std::fs::write(self.path("forebay.toml"), config).expect("written");
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// A command that asks the daemon of this place.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
        command.arg("--control").arg(self.path("control.sock"));
        command.args(arguments);
        command
    }

    /// Runs a command to its end. One that does not end, as `serve` where it should have refused, is killed.
    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        Self::end_of(self.command(arguments))
    }

    /// As [`Place::run`], after a line of shell.
    pub(crate) fn run_after(&self, line: &str, arguments: &[&str]) -> Output {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("{line}; exec \"$0\" \"$@\"")]);
        command.arg(env!("CARGO_BIN_EXE_forebay")).args(arguments);
        Self::end_of(command)
    }

    fn end_of(mut command: Command) -> Output {
        let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the program can be run");
        let begin = Instant::now();
        while child.try_wait().expect("a child").is_none() {
            if begin.elapsed() > PATIENCE {
                let _ = child.kill();
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        child.wait_with_output().expect("it ended")
    }

    /// Runs a command that must go well; what it printed.
    pub(crate) fn ok(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).expect("text")
    }

    /// Runs a command that must fail; what it said.
    pub(crate) fn refused(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {output:?}");
        String::from_utf8(output.stderr).expect("text")
    }

    /// Starts the daemon and waits until it says where it listens.
    pub(crate) fn serve(&self, more: &[&str]) -> Daemon {
        self.serve_after("true", more)
    }

    /// As [`Place::serve`], after a line of shell.
    pub(crate) fn serve_after(&self, line: &str, more: &[&str]) -> Daemon {
        let mut child = Command::new("sh")
            .args(["-c", &format!("{line}; exec \"$0\" \"$@\"")])
            .arg(env!("CARGO_BIN_EXE_forebay"))
            .arg("serve")
            .arg(self.path("forebay.toml"))
            .args(more)
            .stdout(Stdio::piped())
            .stderr(Stdio::from(
                std::fs::File::create(self.path("log")).expect("made"),
            ))
            .spawn()
            .expect("the program can be run");
        let mut lines = BufReader::new(child.stdout.take().expect("piped"));
        let mut listening = String::new();
        while !listening.contains("http://") {
            let read = lines.read_line(&mut listening).expect("text");
            if read == 0 {
                let _ = child.wait();
                panic!("it did not start: {}", self.log());
            }
        }
        Daemon { child, listening }
    }

    /// Waits until the daemon has logged something with this in it.
    pub(crate) fn wait_for_log(&self, text: &str) {
        let begin = Instant::now();
        while !self.log().contains(text) {
            assert!(begin.elapsed() < PATIENCE, "{text} in {}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// What the daemon logged.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    pub(crate) fn connect(&self) -> Nbd {
        Nbd::connect(&self.path("nbd.sock"), "db").expect("the NBD server answers")
    }

    /// The status, as JSON.
    pub(crate) fn status(&self) -> serde_json::Value {
        serde_json::from_str(&self.ok(&["status", "--json"])).expect("JSON")
    }

    /// Waits until the status is as wished for.
    pub(crate) fn wait_until(&self, wish: impl Fn(&serde_json::Value) -> bool) {
        let begin = Instant::now();
        while !wish(&self.status()) {
            assert!(begin.elapsed() < PATIENCE, "{}", self.status());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // A test that failed leaves slots, which a later file with the same inode number would meet.
        for slots in slots_noted_in(&self.path("state")) {
            let _ = std::fs::remove_file(slots);
        }
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Returns the files of slots that a state directory notes as in use.
pub(crate) fn slots_noted_in(state: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(state) else {
        return Vec::new();
    };
    let slots = |name: &str| name.starts_with("forebay-") && name.ends_with(".transit");
    let names = entries.flatten().map(|entry| entry.file_name());
    names
        .filter(|name| name.to_str().is_some_and(slots))
        .map(|name| Path::new("/dev/shm").join(name))
        .collect()
}

/// Waits until a process has a handler for a signal, which would end it otherwise.
pub(crate) fn wait_until_caught(process: &Child, signal: libc::c_int) {
    let status = format!("/proc/{}/status", process.id());
    let catches = || {
        let status = std::fs::read_to_string(&status).expect("it runs");
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        let caught = caught.expect("proc(5) has it").trim();
        let caught = u64::from_str_radix(caught, 16).expect("a mask");
        caught & 1 << (signal - 1) != 0
    };
    let begin = Instant::now();
    while !catches() {
        assert!(begin.elapsed() < PATIENCE, "signal {signal} has no handler");
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub(crate) fn text(path: &Path) -> &str {
    path.to_str().expect("a plain path")
}

/// A running daemon; killed when it is dropped.
pub(crate) struct Daemon {
    pub(crate) child: Child,
    pub(crate) listening: String,
}

impl Daemon {
    pub(crate) fn signal(&self, signal: libc::c_int) {
        let pid = libc::pid_t::try_from(self.child.id()).expect("a process number");
        // SAFETY: no memory is involved; the child has not been waited for, so the number is its.
        assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
    }

    /// Waits for the end.
    pub(crate) fn wait(mut self) -> ExitStatus {
        let begin = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("a child") {
                return status;
            }
            assert!(begin.elapsed() < PATIENCE, "it does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub(crate) fn terminate(self) {
        self.signal(libc::SIGTERM);
        let status = self.wait();
        assert_eq!(status.code(), Some(0), "{status:?}");
    }

    pub(crate) fn kill(mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it ended");
    }

    /// The body of an HTTP answer, which must be a good one.
    pub(crate) fn get(&self, path: &str) -> String {
        let answer = self.asked(path, "localhost");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        let (_, body) = answer.split_once("\r\n\r\n").expect("a body");
        body.to_owned()
    }

    /// The whole HTTP answer to a client that reached it under the name `host`.
    pub(crate) fn asked(&self, path: &str, host: &str) -> String {
        use std::io::Write as _;
        let begin = self.listening.find("http://").expect("it says so") + 7;
        let address: String = self.listening[begin..]
            .chars()
            .take_while(|c| *c != '/')
            .collect();
        let mut stream = std::net::TcpStream::connect(address).expect("it listens");
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
        )
        .expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("text");
        answer
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
