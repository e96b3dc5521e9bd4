//! The `forebay` program.

use std::process::ExitCode;

fn main() -> ExitCode {
    forebay::cli::main()
}
