//! A directory with a configuration, and the program that runs there.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;

use super::process::after_shell;
use super::{POLL, Process, Scratch, ServeCommand, check_refusal, unwrapped, wait_until};

/// A scratch directory with the files of one daemon: `forebay.toml`, `control.sock` and `log`.
#[derive(Debug)]
pub struct Site {
    program: PathBuf,
    scratch: Scratch,
}

impl Site {
    /// Uses a directory for the program at this path.
    #[must_use]
    pub fn new(program: &Path, scratch: Scratch) -> Self {
        Self {
            program: program.to_owned(),
            scratch,
        }
    }

    /// Returns the directory.
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.scratch.directory()
    }

    /// Returns the path of `name` in the directory.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.scratch.path(name)
    }

    /// Creates a sparse file of `size_bytes` zeroes, which must not exist yet.
    pub fn create_file(&self, name: &str, size_bytes: u64) {
        self.scratch.create_file(name, size_bytes);
    }

    /// Writes the configuration.
    ///
    /// # Panics
    /// Panics if it cannot be written.
    pub fn write_config(&self, text: &str) {
        std::fs::write(self.path("forebay.toml"), text).expect("written");
    }

    /// Returns the configuration.
    ///
    /// # Panics
    /// Panics if there is none.
    #[must_use]
    pub fn read_config(&self) -> String {
        std::fs::read_to_string(self.path("forebay.toml")).expect("there")
    }

    /// Replaces parts of the configuration: of each pair, the first occurrence of the first text by
    /// the second.
    ///
    /// # Panics
    /// Panics if the configuration lacks a text that is to be replaced.
    pub fn edit_config(&self, changes: &[(&str, &str)]) {
        let mut config = self.read_config();
        for (from, to) in changes {
            assert!(config.contains(from), "{from} in {config}");
            config = config.replacen(from, to, 1);
        }
        self.write_config(&config);
    }

    /// Returns the program with these arguments, run in the directory.
    #[must_use]
    pub fn local_command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(arguments).current_dir(self.directory());
        command.stdin(Stdio::null());
        command
    }

    /// Returns the program with these arguments and the control socket of the directory.
    #[must_use]
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.arg("--control").arg(self.path("control.sock"));
        command.args(arguments);
        command
    }

    /// Runs a command to its end. Kills one that does not end, as `serve` without an error. Each
    /// remedy is one line of its output.
    pub fn run(&self, arguments: &[&str]) -> Output {
        with_whole_remedies(self.run_raw(arguments))
    }

    /// As [`Site::run`], with the output as it is.
    fn run_raw(&self, arguments: &[&str]) -> Output {
        Process::spawn_piped(&mut self.command(arguments)).output()
    }

    /// As [`Site::run`], after a line of shell and without the control socket.
    pub fn run_after(&self, line: &str, arguments: &[&str]) -> Output {
        let mut command = after_shell(line, &self.program);
        command.args(arguments);
        with_whole_remedies(Process::spawn_piped(&mut command).output())
    }

    /// Runs a command that must succeed. Returns its output.
    ///
    /// # Panics
    /// Panics if it fails, or does not print text.
    pub fn ok(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).expect("text")
    }

    /// Runs a command that must fail with exit code 1 and an error of the right form. Returns its
    /// error output.
    ///
    /// # Panics
    /// Panics if it does not, or does not print text.
    pub fn refused(&self, arguments: &[&str]) -> String {
        let output = self.run_raw(arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {output:?}");
        let said = String::from_utf8(output.stderr).expect("text");
        check_refusal(&said);
        unwrapped(&said)
    }

    /// Returns the command that starts the daemon.
    #[must_use]
    pub fn serve(&self) -> ServeCommand {
        ServeCommand::new(&self.program, self.directory())
    }

    /// Returns the log of the daemon. Each remedy is one line.
    #[must_use]
    pub fn log(&self) -> String {
        unwrapped(&self.raw_log())
    }

    /// Returns the log of the daemon as it is.
    #[must_use]
    pub fn raw_log(&self) -> String {
        std::fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    /// Waits until the log contains `text`.
    ///
    /// # Panics
    /// Panics with the log if that takes longer than [`super::PATIENCE`].
    pub fn wait_for_log(&self, text: &str) {
        let logged = || self.log().contains(text);
        wait_until(POLL, logged, || format!("{text} in {}", self.log()));
    }

    /// Returns the status of the running daemon.
    ///
    /// # Panics
    /// Panics if the daemon does not answer with JSON.
    pub fn status(&self) -> Value {
        serde_json::from_str(&self.ok(&["status", "--json"])).expect("JSON")
    }

    /// Waits until the status satisfies `condition`.
    ///
    /// # Panics
    /// Panics with the status if that takes longer than [`super::PATIENCE`].
    pub fn wait_until(&self, condition: impl Fn(&Value) -> bool) {
        // Each check runs the program.
        wait_until(
            Duration::from_millis(20),
            || condition(&self.status()),
            || self.status().to_string(),
        );
    }
}

/// Returns an output with each remedy in one line.
fn with_whole_remedies(output: Output) -> Output {
    let whole = |text: &[u8]| unwrapped(&String::from_utf8_lossy(text)).into_bytes();
    Output {
        status: output.status,
        stdout: whole(&output.stdout),
        stderr: whole(&output.stderr),
    }
}
