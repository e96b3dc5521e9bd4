//! One start of `forebay serve`, and the daemon that it becomes.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Instant;

use super::process::{after, under};
use super::{PATIENCE, POLL, Process, in_group, unwrapped};

/// Number of lines of the log in the message of a failed start or stop.
const TAIL_LINES: usize = 30;

/// A start of `forebay serve` in a directory. The daemon logs to the file `log` there.
#[derive(Debug)]
pub struct Serve {
    program: PathBuf,
    directory: PathBuf,
    /// The program, or a shell that becomes the program.
    command: Command,
    arguments: Vec<OsString>,
    /// Standard output, if not the file `stdout` of the directory.
    stdout: Option<Stdio>,
    append_log: bool,
}

impl Serve {
    /// Starts `program` with the configuration `forebay.toml` of `directory`.
    #[must_use]
    pub fn new(program: &Path, directory: &Path) -> Self {
        Self {
            program: program.to_owned(),
            directory: directory.to_owned(),
            command: Command::new(program),
            arguments: Vec::new(),
            stdout: None,
            append_log: false,
        }
    }

    /// Adds arguments behind the configuration.
    #[must_use]
    pub fn arguments<A: AsRef<OsStr>>(mut self, arguments: &[A]) -> Self {
        let arguments = arguments.iter().map(|one| one.as_ref().to_owned());
        self.arguments.extend(arguments);
        self
    }

    /// Runs a line of shell in the process of the daemon, before the program.
    #[must_use]
    pub fn after(mut self, line: &str) -> Self {
        self.command = after(line, &self.program);
        self
    }

    /// Runs the daemon in the control group of this directory, from its first instruction.
    #[must_use]
    pub fn in_group(mut self, group: &Path) -> Self {
        self.command = in_group(group, &self.program);
        self
    }

    /// Runs the program by a wrapper that becomes the program, such as `taskset --cpu-list 0`.
    #[must_use]
    pub fn under(mut self, wrapper: &[&str]) -> Self {
        self.command = under(wrapper, &self.program);
        self
    }

    /// Sets standard output. [`Daemon::listening`] is then empty.
    #[must_use]
    pub fn stdout(mut self, stdout: Stdio) -> Self {
        self.stdout = Some(stdout);
        self
    }

    /// Keeps the log of earlier starts.
    #[must_use]
    pub fn append_log(mut self) -> Self {
        self.append_log = true;
        self
    }

    /// Starts the program, and returns before it is ready.
    ///
    /// # Panics
    /// Panics if it cannot be run.
    #[must_use]
    pub fn spawn(self) -> Daemon {
        let stdout = self.directory.join("stdout");
        let log = self.directory.join("log");
        let mut options = File::options();
        options.create(true).write(true);
        if self.append_log {
            options.append(true);
        } else {
            options.truncate(true);
        }
        let mut command = self.command;
        command
            .arg("serve")
            .arg(self.directory.join("forebay.toml"))
            .args(self.arguments)
            .current_dir(&self.directory)
            .stdin(Stdio::null())
            .stdout(match self.stdout {
                Some(stdout) => stdout,
                None => File::create(&stdout).expect("a file").into(),
            })
            .stderr(options.open(&log).expect("a log"));
        Daemon {
            process: Process::spawn(&mut command),
            stdout,
            log,
        }
    }

    /// Starts the program, and waits until the daemon prints its last address: that of its metrics.
    ///
    /// # Panics
    /// Panics with the log if the daemon ends, or is not ready within [`PATIENCE`].
    #[must_use]
    pub fn start(self) -> Daemon {
        self.start_until(prints_all_addresses)
    }

    /// Starts the program, and waits until `ready` returns true.
    ///
    /// # Panics
    /// Panics as [`Serve::start`].
    #[must_use]
    pub fn start_until(self, ready: impl FnMut(&Daemon) -> bool) -> Daemon {
        let log = self.directory.join("log");
        let started = self.try_start_until(ready);
        started.unwrap_or_else(|status| panic!("did not start, {status}: {}", tail(&log)))
    }

    /// As [`Serve::start_until`], for a daemon that may refuse.
    ///
    /// # Errors
    /// Returns the exit status of a daemon that ends.
    ///
    /// # Panics
    /// Panics with the log if it is not ready within [`PATIENCE`].
    pub fn try_start_until(
        self,
        mut ready: impl FnMut(&Daemon) -> bool,
    ) -> Result<Daemon, ExitStatus> {
        let begin = Instant::now();
        let mut daemon = self.spawn();
        while !ready(&daemon) {
            if let Some(status) = daemon.process.try_wait() {
                // It may have become ready since the last check.
                return if ready(&daemon) {
                    Ok(daemon)
                } else {
                    Err(status)
                };
            }
            let waited = begin.elapsed();
            assert!(
                waited < PATIENCE,
                "not ready in time: {}",
                daemon.log_tail()
            );
            std::thread::sleep(POLL);
        }
        Ok(daemon)
    }

    /// As [`Serve::start`], for a daemon that may refuse.
    ///
    /// # Errors
    /// Returns the exit status of a daemon that ends.
    ///
    /// # Panics
    /// Panics with the log if it is not ready within [`PATIENCE`].
    pub fn try_start(self) -> Result<Daemon, ExitStatus> {
        self.try_start_until(prints_all_addresses)
    }

    /// Starts the program, which must refuse to serve. Returns the end of its log.
    ///
    /// # Panics
    /// Panics if it serves, or a signal ends it.
    #[must_use]
    pub fn refused(self) -> String {
        let mut daemon = self.spawn();
        let status = daemon.process.wait();
        let log = daemon.log_tail();
        let code = status.and_then(|status| status.code());
        assert!(code.is_some_and(|code| code != 0), "{status:?}: {log}");
        log
    }
}

/// Returns true once the daemon printed the address of its metrics, the last one.
fn prints_all_addresses(daemon: &Daemon) -> bool {
    daemon.listening().contains("http://")
}

/// Returns the end of a log. Each remedy is one line.
fn tail(log: &Path) -> String {
    let log = unwrapped(&std::fs::read_to_string(log).unwrap_or_default());
    let lines: Vec<_> = log.lines().collect();
    lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
}

/// A running daemon, killed on drop.
#[derive(Debug)]
pub struct Daemon {
    process: Process,
    stdout: PathBuf,
    log: PathBuf,
}

impl Daemon {
    /// Returns the process number.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Sends a signal.
    pub fn signal(&self, signal: libc::c_int) {
        self.process.signal(signal);
    }

    /// Waits until the daemon has a handler for a signal.
    pub fn wait_until_caught(&self, signal: libc::c_int) {
        self.process.wait_until_caught(signal);
    }

    /// Returns the lines on standard output: the addresses of the daemon.
    #[must_use]
    pub fn listening(&self) -> String {
        std::fs::read_to_string(&self.stdout).unwrap_or_default()
    }

    /// Returns the end of the log.
    #[must_use]
    pub fn log_tail(&self) -> String {
        tail(&self.log)
    }

    /// Waits for the end.
    ///
    /// # Panics
    /// Panics with the log if the daemon does not end within [`PATIENCE`].
    pub fn wait(mut self) -> ExitStatus {
        let status = self.process.wait();
        status.unwrap_or_else(|| panic!("it does not end: {}", self.log_tail()))
    }

    /// Sends SIGTERM and waits for the end. Returns the exit status. Returns `None` for a daemon
    /// that does not end within [`PATIENCE`], and kills it.
    #[must_use]
    pub fn stop(mut self) -> Option<ExitStatus> {
        self.signal(libc::SIGTERM);
        self.process.wait()
    }

    /// Sends SIGTERM and waits for the end, which must be a success.
    ///
    /// # Panics
    /// Panics with the log if the exit code is not 0.
    pub fn terminate(mut self) {
        self.signal(libc::SIGTERM);
        let status = self.process.wait();
        let code = status.and_then(|status| status.code());
        assert_eq!(code, Some(0), "{status:?}: {}", self.log_tail());
    }

    /// Sends SIGKILL and waits for the end. The daemon may have ended before.
    pub fn kill(mut self) {
        self.process.kill();
    }

    /// Returns the body of an HTTP answer, which must be a success.
    ///
    /// # Panics
    /// Panics if it is another one.
    #[must_use]
    pub fn get(&self, path: &str) -> String {
        let answer = self.request(path, "localhost");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        let (_, body) = answer.split_once("\r\n\r\n").expect("a body");
        body.to_owned()
    }

    /// Returns the whole HTTP answer to a client that used the name `host`.
    ///
    /// # Panics
    /// Panics if the daemon does not answer.
    #[must_use]
    pub fn request(&self, path: &str, host: &str) -> String {
        let listening = self.listening();
        let (_, after) = listening.split_once("http://").expect("an address");
        let address = after.split('/').next().expect("an address");
        let mut stream = TcpStream::connect(address).expect("it listens");
        let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("text");
        answer
    }
}
