//! Running daemons: their signals, output, end, and HTTP answers.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

use super::{Process, unwrapped};

/// Number of lines of the log in the message of a failed start or stop.
const TAIL_LINES: usize = 30;

/// A running daemon, killed on drop.
#[derive(Debug)]
pub struct Daemon {
    process: Process,
    stdout: PathBuf,
    log: PathBuf,
}

impl Daemon {
    /// Returns the daemon that `process` becomes, with the files of its output.
    pub(super) const fn new(process: Process, stdout: PathBuf, log: PathBuf) -> Self {
        Self {
            process,
            stdout,
            log,
        }
    }

    /// Returns the process ID.
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
        log_tail(&self.log)
    }

    /// Returns the exit status if the daemon has ended.
    pub(super) fn try_wait(&mut self) -> Option<ExitStatus> {
        self.process.try_wait()
    }

    /// Returns the exit status if the daemon ends within [`super::PATIENCE`].
    pub(super) fn wait_for_end(&mut self) -> Option<ExitStatus> {
        self.process.wait()
    }

    /// Waits until the daemon exits, and returns its status.
    ///
    /// # Panics
    /// Panics with the log if the daemon does not exit within [`super::PATIENCE`].
    pub fn wait(mut self) -> ExitStatus {
        let status = self.process.wait();
        status.unwrap_or_else(|| panic!("the daemon does not exit: {}", self.log_tail()))
    }

    /// Sends SIGTERM, waits until the daemon exits, and returns its status. Kills a daemon that
    /// does not exit within [`super::PATIENCE`], and returns `None`.
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
    /// Panics on any status but 200.
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
        stream
            .set_read_timeout(Some(super::PATIENCE))
            .expect("a limit");
        stream.write_all(request.as_bytes()).expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("text");
        answer
    }
}

/// Returns the end of a log.
pub(super) fn log_tail(log: &Path) -> String {
    let log = unwrapped(&std::fs::read_to_string(log).unwrap_or_default());
    let lines: Vec<_> = log.lines().collect();
    lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
}
