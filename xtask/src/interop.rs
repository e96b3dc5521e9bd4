//! `cargo xtask interop`: real kernels against the exports, in a guest (tests/guest).

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use clap::Args;

/// The tests of exports in a guest: script, arguments, and whether `--quick` runs its short form.
const TESTS: [(&str, &[&str], bool); 7] = [
    ("nvme-tcp.sh", &[], true),
    // This kernel authenticates itself.
    ("nvme-tcp.sh", &["--backports", "--quick"], false),
    ("vhost-user.sh", &[], true),
    ("transit.sh", &[], false),
    ("ublk.sh", &[], false),
    ("nbd.sh", &[], false),
    // It builds its own program.
    ("ivshmem.sh", &[], false),
];

/// Options of `cargo xtask interop`.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// The short forms, in about three minutes. SKIPPED where a package is missing
    #[arg(long)]
    quick: bool,
}

/// Runs the tests. Fails if one fails.
pub(crate) fn run(root: &Path, options: &Options) -> ExitCode {
    if options.quick && !has_packages(root) {
        println!(
            "SKIPPED cargo xtask interop: the guest's packages are missing (tests/guest/setup.sh)"
        );
        return ExitCode::SUCCESS;
    }
    match program(root).map(|program| drive(root, options.quick, &program)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("interop: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Returns whether this machine has the packages of the guest.
pub(crate) fn has_packages(root: &Path) -> bool {
    let setup = root.join("tests/guest/setup.sh");
    let status = Command::new(setup).arg("--check").status();
    status.is_ok_and(|status| status.success())
}

/// Runs the tests with `program`. Returns whether all passed.
pub(crate) fn drive(root: &Path, quick: bool, program: &Path) -> bool {
    let guest = root.join("tests/guest");
    let mut passed = true;
    for (name, arguments, short) in TESTS {
        if quick && !short {
            continue;
        }
        println!("\n{name} {}", arguments.join(" "));
        let mut command = Command::new(guest.join(name));
        command.args(arguments);
        command.args(quick.then_some("--quick"));
        let status = command.env("FOREBAY_BIN", program).status();
        if !status.is_ok_and(|status| status.success()) {
            eprintln!("interop: {name} failed");
            passed = false;
        }
    }
    passed
}

/// Builds the program with the profile of the tests, which has assertions. Returns its path.
///
/// # Errors
/// Returns an error if the build fails.
pub(crate) fn program(root: &Path) -> Result<PathBuf, String> {
    let mut build = Command::new(env!("CARGO"));
    build.args([
        "build",
        "--locked",
        "--profile=test",
        // With the features of the whole workspace, as the tests have them: nothing is built twice.
        "--workspace",
        "--bin=forebay",
        "--message-format=json-render-diagnostics",
    ]);
    let built = build
        .current_dir(root)
        .stderr(std::process::Stdio::inherit());
    let built = built
        .output()
        .map_err(|error| format!("{build:?}: {error}"))?;
    let said = String::from_utf8_lossy(&built.stdout);
    let messages = said
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok());
    let path = messages
        .filter_map(|message: serde_json::Value| Some(message["executable"].as_str()?.into()))
        .next_back();
    path.filter(|_| built.status.success())
        .ok_or_else(|| format!("{build:?} failed"))
}
