//! The test runner, cargo-nextest. Each test runs in its own process.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::junit::{self, Case};
use crate::metadata::cargo;
use crate::test_name::Test;

const PROGRAM: &str = "cargo-nextest";

/// Variables that narrow a suite. The caller's values do not reach the tests.
const NARROWING: [&str; 5] = [
    "FOREBAY_FINDINGS",
    "FOREBAY_REPLAY",
    "FOREBAY_SEED",
    "FOREBAY_SEEDS",
    "FOREBAY_SITE",
];

/// cargo-nextest, and the folder of its results.
#[derive(Debug)]
pub(crate) struct Nextest {
    program: PathBuf,
    root: PathBuf,
    target: PathBuf,
}

/// The tests to run.
#[derive(Debug, Default)]
pub(crate) struct Selection<'a> {
    /// A profile of .config/nextest.toml.
    pub(crate) profile: &'a str,
    /// The packages; empty for the whole workspace.
    pub(crate) packages: &'a [String],
    /// A nextest filter expression; `None` for every test.
    pub(crate) filter: Option<String>,
    /// Environment variables of the tests.
    pub(crate) variables: Vec<(&'static str, String)>,
}

/// The results of a run.
#[derive(Debug)]
pub(crate) struct Results {
    /// The tests that ran.
    pub(crate) cases: Vec<Case>,
    /// Whether the runner reported success.
    pub(crate) success: bool,
}

impl Nextest {
    /// Finds the runner on `PATH` or in the target directory, where scripts/setup.sh installs it.
    ///
    /// # Errors
    /// Returns an error if it is in neither.
    pub(crate) fn find(root: &Path, target: &Path) -> Result<Self, String> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders = std::env::split_paths(&path).chain([target.join("tools/bin")]);
        let mut programs = folders.map(|folder| folder.join(PROGRAM));
        let program = programs.find(|program| program.is_file()).ok_or_else(|| {
            format!(
                "{PROGRAM} is missing, on PATH and in target/tools/bin\nhelp: run scripts/setup.sh"
            )
        })?;
        Ok(Self {
            program,
            root: root.into(),
            target: target.into(),
        })
    }

    /// Returns the target directory.
    pub(crate) fn target(&self) -> &Path {
        &self.target
    }

    fn command(&self, verb: &str, packages: &[String]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(["nextest", verb, "--locked"]);
        command.current_dir(&self.root).env("CARGO", cargo());
        command.stdin(Stdio::null());
        if packages.is_empty() {
            command.arg("--workspace");
        }
        for package in packages {
            command.args(["--package", package]);
        }
        command
    }

    /// Returns the command that builds the tests of `packages`, or of all if there are none.
    pub(crate) fn build(&self, packages: &[String]) -> Command {
        let mut command = self.command("run", packages);
        command.arg("--no-run");
        command
    }

    /// Returns the tests of `packages`, or of all if there are none. Builds them if needed.
    ///
    /// # Errors
    /// Returns an error if the build fails or the runner prints something unreadable.
    pub(crate) fn list(&self, packages: &[String]) -> Result<BTreeSet<Test>, String> {
        let mut command = self.command("list", packages);
        command
            .args(["--message-format", "json"])
            .stderr(Stdio::inherit());
        let output = command.output();
        let output = output.map_err(|error| format!("cannot run {PROGRAM}: {error}"))?;
        if !output.status.success() {
            return Err(format!("{PROGRAM} list failed ({})", output.status));
        }
        listed(&output.stdout)
    }

    /// Runs tests and prints their progress.
    ///
    /// # Errors
    /// Returns an error if the runner cannot start or leaves no report, as after a failed build.
    pub(crate) fn run(&self, selection: &Selection<'_>) -> Result<Results, String> {
        let report = self
            .target
            .join("nextest")
            .join(selection.profile)
            .join("junit.xml");
        // A report of an earlier run would hide that this run left none.
        match fs::remove_file(&report) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(format!("cannot remove {}: {error}", report.display()));
            }
            _ => {}
        }
        let mut command = self.command("run", selection.packages);
        // A changed package may have no tests. The workspace has some.
        let none = if selection.packages.is_empty() {
            "--no-tests=fail"
        } else {
            "--no-tests=pass"
        };
        command.args(["--profile", selection.profile, none]);
        for variable in NARROWING {
            command.env_remove(variable);
        }
        if let Some(filter) = &selection.filter {
            command.args(["--filterset", filter]);
        }
        command.envs(
            selection
                .variables
                .iter()
                .map(|(name, value)| (name, value)),
        );
        let status = command.status();
        let status = status.map_err(|error| format!("cannot run {PROGRAM}: {error}"))?;
        let text = fs::read_to_string(&report)
            .map_err(|error| format!("{PROGRAM} left no report ({status}; {error})"))?;
        Ok(Results {
            cases: junit::parse(&text)?,
            success: status.success(),
        })
    }
}

/// Parses the output of `cargo nextest list --message-format json`.
fn listed(json: &[u8]) -> Result<BTreeSet<Test>, String> {
    let unreadable = || format!("cannot parse the output of {PROGRAM} list");
    let list: Value = serde_json::from_slice(json).map_err(|_| unreadable())?;
    let suites = list["rust-suites"].as_object().ok_or_else(unreadable)?;
    let mut tests = BTreeSet::new();
    for (binary, suite) in suites {
        let cases = suite["testcases"].as_object().ok_or_else(unreadable)?;
        tests.extend(cases.keys().map(|name| Test {
            binary: binary.clone(),
            name: name.clone(),
        }));
    }
    Ok(tests)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_names_each_test_with_its_binary() {
        let json = br#"{"test-count": 3, "rust-suites": {
            "a": {"testcases": {"x::one": {"ignored": false}, "x::two": {"ignored": true}}},
            "b::it": {"testcases": {"one": {}}}}}"#;
        let tests = listed(json).expect("well-formed");
        let names: Vec<_> = tests.iter().map(Test::to_string).collect();
        assert_eq!(names, ["a x::one", "a x::two", "b::it one"]);
    }

    #[test]
    fn unreadable_lists_are_an_error() {
        for json in ["", "{}", r#"{"rust-suites": {"a": {}}}"#] {
            assert!(listed(json.as_bytes()).is_err(), "{json:?}");
        }
    }

    #[test]
    fn a_missing_runner_is_an_error_with_a_remedy() {
        let nowhere = Path::new("/nonexistent");
        // The search stops at the target directory only if PATH has no runner.
        match Nextest::find(nowhere, nowhere) {
            Err(error) => assert!(error.ends_with("help: run scripts/setup.sh"), "{error}"),
            Ok(found) => assert!(found.program.is_file()),
        }
    }
}
