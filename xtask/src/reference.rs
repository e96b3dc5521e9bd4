//! `cargo xtask reference`: the generated parts of `docs/reference`.
//!
//! The tests of the package `forebay` render them, since the types are there.

use std::path::Path;
use std::process::{Command, ExitCode};

use clap::Args;

use crate::steps::{Verdict, run_command};

/// The environment variable that makes the tests write the pages.
const WRITE: &str = "FOREBAY_WRITE_REFERENCE";

/// Options of `cargo xtask reference`.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Rewrite the generated parts of the pages
    #[arg(long)]
    write: bool,
}

/// Compares the pages with the types, or rewrites them.
pub(crate) fn run(root: &Path, options: &Options) -> ExitCode {
    let mut command = Command::new(env!("CARGO"));
    command.current_dir(root).args([
        "test",
        "--package",
        "forebay",
        "--lib",
        "--locked",
        "reference::",
    ]);
    if options.write {
        command.env(WRITE, "1");
    }
    match run_command(&mut command) {
        Ok(Verdict::Passed) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("reference: {error}");
            ExitCode::FAILURE
        }
    }
}
