//! `cargo xtask interop`: real kernels against the exports, in a guest (tests/guest).

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use clap::Args;

/// The tests of exports in a guest, what they are asked for, and whether `--quick` has them, in their short form.
const TESTS: [(&str, &[&str], bool); 7] = [
    ("nvme-tcp.sh", &[], true),
    // A kernel that authenticates itself.
    ("nvme-tcp.sh", &["--backports", "--quick"], false),
    ("vhost-user.sh", &[], true),
    ("transit.sh", &[], false),
    ("ublk.sh", &[], false),
    ("nbd.sh", &[], false),
    // Builds the program that runs inside by itself.
    ("ivshmem.sh", &[], false),
];

/// What can be chosen.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// The short forms, in about three minutes; nothing, with a line that says so, where a package is missing
    #[arg(long)]
    quick: bool,
}

/// Runs the tests. Fails when one does.
pub(crate) fn run(root: &Path, options: &Options) -> ExitCode {
    let guest = root.join("tests/guest");
    if options.quick {
        let missing = Command::new(guest.join("setup.sh")).arg("--check").status();
        if !missing.is_ok_and(|status| status.success()) {
            println!(
                "SKIPPED cargo xtask interop: the guest's packages are missing (tests/guest/setup.sh)"
            );
            return ExitCode::SUCCESS;
        }
    }
    let program = match program(root) {
        Ok(program) => program,
        Err(error) => {
            eprintln!("interop: {error}");
            return ExitCode::FAILURE;
        }
    };
    let mut outcome = ExitCode::SUCCESS;
    for (name, arguments, short) in TESTS {
        if options.quick && !short {
            continue;
        }
        println!("\n{name} {}", arguments.join(" "));
        let mut command = Command::new(guest.join(name));
        command.args(arguments);
        command.args(options.quick.then_some("--quick"));
        let status = command.env("FOREBAY_BIN", &program).status();
        if !status.is_ok_and(|status| status.success()) {
            eprintln!("interop: {name} failed");
            outcome = ExitCode::FAILURE;
        }
    }
    outcome
}

/// Builds the program as the tests build it: what a guest is timed at means nothing.
fn program(root: &Path) -> Result<PathBuf, String> {
    let mut build = Command::new(env!("CARGO"));
    build.args([
        "build",
        "--locked",
        "--profile=test",
        "--package=forebay",
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
