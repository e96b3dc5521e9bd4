//! Command lines of `forebay serve`.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Instant;

use super::process::{after_shell, wrapped};
use super::running::{Daemon, log_tail};
use super::{PATIENCE, POLL, Process, in_group};

/// `forebay serve` in a directory. The daemon logs to the file `log` there.
#[derive(Debug)]
pub struct ServeCommand {
    program: PathBuf,
    directory: PathBuf,
    /// The program, or a shell that becomes the program.
    command: Command,
    arguments: Vec<OsString>,
    /// Standard output, if not the file `stdout` of the directory.
    stdout: Option<Stdio>,
    append_log: bool,
}

impl ServeCommand {
    /// Returns the command that serves `forebay.toml` of `directory`.
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
    pub fn after_shell(mut self, line: &str) -> Self {
        self.command = after_shell(line, &self.program);
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
    pub fn wrapped(mut self, wrapper: &[&str]) -> Self {
        self.command = wrapped(wrapper, &self.program);
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
    /// Panics if it cannot be run, or if its configuration has the default port for metrics, which
    /// may be in use.
    #[must_use]
    pub fn spawn(self) -> Daemon {
        let config = self.directory.join("forebay.toml");
        if let Ok(text) = std::fs::read_to_string(&config) {
            assert!(text.contains("metrics = "), "set `metrics`:\n{text}");
        }
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
            .arg(config)
            .args(self.arguments)
            .current_dir(&self.directory)
            .stdin(Stdio::null())
            .stdout(match self.stdout {
                Some(stdout) => stdout,
                None => File::create(&stdout).expect("a file").into(),
            })
            .stderr(options.open(&log).expect("a log"));
        Daemon::new(Process::spawn(&mut command), stdout, log)
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
    /// Panics as [`ServeCommand::start`].
    #[must_use]
    pub fn start_until(self, ready: impl FnMut(&Daemon) -> bool) -> Daemon {
        let log = self.directory.join("log");
        let started = self.try_start_until(ready);
        started.unwrap_or_else(|status| panic!("did not start, {status}: {}", log_tail(&log)))
    }

    /// As [`ServeCommand::start_until`], for a daemon that may refuse.
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
            if let Some(status) = daemon.try_wait() {
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

    /// As [`ServeCommand::start`], for a daemon that may refuse.
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
        let status = daemon.wait_for_end();
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
