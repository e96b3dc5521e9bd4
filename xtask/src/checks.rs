//! The checks that the gate and the nightly run share.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::bench::{self, Bench};
use crate::interop;
use crate::junit::{self, Case};
use crate::metadata::cargo;
use crate::nextest::{Nextest, Selection};
use crate::steps::{Verdict, run_command};

/// The result of a check that could run.
pub(crate) type Outcome = Result<Verdict, String>;

/// The package whose tests start the program that `FOREBAY_BIN` names.
pub(crate) const PROGRAM_USER: &str = "forebay-tests";

/// The tests that ran, and command lines that replay those that failed.
#[derive(Debug)]
pub(crate) struct Tested {
    pub(crate) verdict: Verdict,
    pub(crate) cases: Vec<Case>,
    pub(crate) replays: Vec<String>,
}

/// Returns a cargo command in the workspace at `root`.
pub(crate) fn cargo_command(root: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(cargo());
    command
        .current_dir(root)
        .args(arguments)
        .stdin(Stdio::null());
    command
}

/// Returns whether a program runs and succeeds. Its output is discarded.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    let command = command.stdin(Stdio::null()).stdout(Stdio::null());
    let status = command.stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

/// Runs tests, prints the slowest, skips and stale findings, and collects the replays.
///
/// # Errors
/// Returns an error if the runner cannot start or leaves no report.
pub(crate) fn tests(nextest: &Nextest, selection: &Selection<'_>) -> Result<Tested, String> {
    let results = nextest.run(selection)?;
    junit::print_slowest(&results.cases, 10);
    junit::print_notices(&results.cases);
    let mut replays = Vec::new();
    for case in &results.cases {
        if let Some(kind) = &case.failure {
            println!("FAILED ({kind}): {}", case.test);
            let needed = |(name, _): &&(&str, String)| {
                *name != "FOREBAY_BIN" || case.test.package() == PROGRAM_USER
            };
            let variables: Vec<_> = selection.variables.iter().filter(needed).cloned().collect();
            replays.push(case.replay(&variables));
        }
    }
    Ok(Tested {
        verdict: Verdict::of(results.success && replays.is_empty()),
        cases: results.cases,
        replays,
    })
}

/// Compiles the fuzz targets, which are not members of the workspace.
pub(crate) fn fuzz(root: &Path) -> Outcome {
    if !succeeds(Command::new("c++").arg("--version")) {
        let reason = "libFuzzer needs a C++ compiler (apt-get install g++)";
        return Ok(Verdict::Skipped(reason.into()));
    }
    let manifest = ["check", "--manifest-path", "fuzz/Cargo.toml", "--locked"];
    run_command(cargo_command(root, &manifest).args(["--target-dir", "target"]))
}

/// Checks licences, advisories and sources of the dependencies.
pub(crate) fn deny(root: &Path) -> Outcome {
    if !succeeds(&mut cargo_command(root, &["deny", "--version"])) {
        let reason = "cargo-deny is missing (cargo install cargo-deny)";
        return Ok(Verdict::Skipped(reason.into()));
    }
    let check = |which: &[&str]| {
        let mut command = cargo_command(root, &["deny", "--all-features", "check"]);
        run_command(command.args(which))
    };
    let checked = check(&["bans", "licenses", "sources"])?;
    if checked != Verdict::Passed {
        return Ok(checked);
    }
    if !succeeds(&mut cargo_command(root, &["deny", "fetch", "db"])) {
        let reason = "the database of advisories cannot be fetched; all other checks passed";
        return Ok(Verdict::Skipped(reason.into()));
    }
    check(&["advisories"])
}

/// Counts the instructions of a cache hit.
pub(crate) fn engine(root: &Path) -> Outcome {
    if !succeeds(Command::new("valgrind").arg("--version")) {
        let reason = "valgrind is missing (apt-get install valgrind)";
        return Ok(Verdict::Skipped(reason.into()));
    }
    Ok(bench::run(root, &Bench::Engine { json: None }).into())
}

/// Drives the exports with the clients of a guest's kernel; `quick` chooses the short forms.
pub(crate) fn guests(root: &Path, quick: bool, program: &Path) -> Outcome {
    if !interop::has_packages(root) {
        let reason = "packages of the guest are missing (run tests/guest/setup.sh)";
        return Ok(Verdict::Skipped(reason.into()));
    }
    Ok(Verdict::of(interop::drive(root, quick, program)))
}

/// Checks the shell scripts.
pub(crate) fn shellcheck(root: &Path) -> Outcome {
    if !succeeds(Command::new("shellcheck").arg("--version")) {
        let reason = "shellcheck is missing (apt-get install shellcheck)";
        return Ok(Verdict::Skipped(reason.into()));
    }
    let mut command = Command::new("shellcheck");
    command.current_dir(root).arg("--external-sources");
    command.args([".ci/run", "tests/guest/init"]);
    for folder in ["scripts", "scripts/demo", "tests/guest"] {
        command.args(scripts(root, folder)?);
    }
    run_command(&mut command)
}

/// Returns the shell scripts of a folder, relative to `root`.
fn scripts(root: &Path, folder: &str) -> Result<Vec<PathBuf>, String> {
    let error = |error| format!("cannot read {folder}: {error}");
    let mut found = Vec::new();
    for entry in std::fs::read_dir(root.join(folder)).map_err(error)? {
        let path = Path::new(folder).join(entry.map_err(error)?.file_name());
        if path.extension().is_some_and(|extension| extension == "sh") {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}
