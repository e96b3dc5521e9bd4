//! The steps of a long command. Each step is timed, and has a line in the table at the end.

use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use crate::claims::Table;

/// End of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Passed,
    Failed,
    /// The step could not run here, for this reason.
    Skipped(String),
}

impl Verdict {
    /// Returns `Passed` if `success`, otherwise `Failed`.
    pub(crate) fn of(success: bool) -> Self {
        if success { Self::Passed } else { Self::Failed }
    }

    /// Returns the word for a table.
    pub(crate) fn word(&self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed => "FAILED",
            Self::Skipped(_) => "SKIPPED",
        }
    }
}

impl From<ExitCode> for Verdict {
    fn from(code: ExitCode) -> Self {
        Self::of(code == ExitCode::SUCCESS)
    }
}

/// A step that has ended.
struct Step {
    name: &'static str,
    proves: &'static str,
    took: Duration,
    verdict: Verdict,
}

/// The steps that have run.
pub(crate) struct Steps {
    started: Instant,
    steps: Vec<Step>,
    /// Command lines that replay failed tests.
    replays: Vec<String>,
}

impl Steps {
    /// Starts the clock.
    pub(crate) fn new() -> Self {
        Self {
            started: Instant::now(),
            steps: Vec::new(),
            replays: Vec::new(),
        }
    }

    /// Returns the time since the start.
    pub(crate) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Runs a step. An error is printed, and fails the step. Returns whether the step did not fail.
    pub(crate) fn run(
        &mut self,
        name: &'static str,
        proves: &'static str,
        step: impl FnOnce() -> Result<Verdict, String>,
    ) -> bool {
        println!("\n== {name}: {proves}");
        let started = Instant::now();
        let verdict = step().unwrap_or_else(|error| {
            eprintln!("{name}: {error}");
            Verdict::Failed
        });
        if let Verdict::Skipped(reason) = &verdict {
            println!("SKIPPED {name}: {reason}");
        }
        let failed = verdict == Verdict::Failed;
        self.steps.push(Step {
            name,
            proves,
            took: started.elapsed(),
            verdict,
        });
        !failed
    }

    /// Returns the time and the verdict of the latest step.
    pub(crate) fn latest(&self) -> Option<(Duration, &Verdict)> {
        let step = self.steps.last()?;
        Some((step.took, &step.verdict))
    }

    /// Adds command lines that replay failed tests, to be printed at the end.
    pub(crate) fn add_replays(&mut self, replays: Vec<String>) {
        self.replays.extend(replays);
    }

    /// Prints the table, then the replays. Returns whether no step failed.
    pub(crate) fn conclude(&self) -> bool {
        let table = Table::new(&["step", "what it proves", "seconds", "result"]);
        let mut table = table.with_text_columns(2);
        for step in &self.steps {
            table.row(vec![
                step.name.into(),
                step.proves.into(),
                format!("{:.0}", step.took.as_secs_f64()),
                step.verdict.word().into(),
            ]);
        }
        let failed = |step: &&Step| step.verdict == Verdict::Failed;
        let failures = self.steps.iter().filter(failed).count();
        table.row(vec![
            "total".into(),
            String::new(),
            format!("{:.0}", self.elapsed().as_secs_f64()),
            Verdict::of(failures == 0).word().into(),
        ]);
        println!();
        table.print();
        for step in &self.steps {
            if let Verdict::Skipped(reason) = &step.verdict {
                println!("SKIPPED {}: {reason}", step.name);
            }
        }
        for replay in &self.replays {
            println!("replay: {replay}");
        }
        failures == 0
    }
}

/// Runs a command and prints its command line.
///
/// # Errors
/// Returns an error if it cannot be started.
pub(crate) fn run_command(command: &mut Command) -> Result<Verdict, String> {
    println!("{}", command_line(command));
    let status = command.status();
    let status =
        status.map_err(|error| format!("cannot run {}: {error}", command_line(command)))?;
    Ok(Verdict::of(status.success()))
}

/// Returns the program's file name and the arguments of a command.
fn command_line(command: &Command) -> String {
    let program = std::path::Path::new(command.get_program());
    let program = program.file_name().unwrap_or(program.as_os_str());
    let words = [program].into_iter().chain(command.get_args());
    let words: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_fails_its_step_and_the_others_run() {
        let mut steps = Steps::new();
        assert!(!steps.run("a", "nothing", || Err("no compiler".into())));
        assert!(!steps.run("b", "nothing", || Ok(Verdict::Failed)));
        assert!(steps.run("c", "nothing", || Ok(Verdict::Passed)));
        assert!(!steps.conclude());
    }

    #[test]
    fn a_skipped_step_does_not_fail_the_run() {
        let mut steps = Steps::new();
        assert!(steps.run("a", "nothing", || Ok(Verdict::Skipped("no device".into()))));
        assert_eq!(
            steps.latest().map(|(_, verdict)| verdict.word()),
            Some("SKIPPED")
        );
        assert!(steps.conclude());
    }

    #[test]
    fn a_command_that_fails_fails_its_step() {
        assert_eq!(run_command(&mut Command::new("true")), Ok(Verdict::Passed));
        assert_eq!(run_command(&mut Command::new("false")), Ok(Verdict::Failed));
        assert!(run_command(&mut Command::new("/nonexistent/x")).is_err());
    }

    #[test]
    fn a_command_line_has_no_folder() {
        let mut command = Command::new("/opt/bin/cargo");
        assert_eq!(
            command_line(command.args(["build", "-p"])),
            "cargo build -p"
        );
    }
}
