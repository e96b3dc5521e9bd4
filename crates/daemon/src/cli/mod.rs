//! The command line: one file a command.

mod bench;
mod check;
mod detach;
mod flush;
mod format;
mod grow;
mod mode;
mod remote;
mod serve;
mod status;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use forebay_block::Result;

/// A userspace block cache: fast storage in front of slow block storage.
#[derive(Debug, Parser)]
#[command(name = "forebay", version, about, propagate_version = true)]
pub struct Arguments {
    /// The control socket of the daemon [default: /run/forebay/control.sock, or under
    /// $XDG_RUNTIME_DIR for users other than root]
    #[arg(long, global = true, value_name = "PATH")]
    control: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Make an empty cache on a device or file
    Format(format::Arguments),
    /// Serve the volumes of a configuration, in the foreground
    Serve(serve::Arguments),
    /// Show what the daemon does
    Status(status::Arguments),
    /// Write dirty data back to the backing devices
    Flush(flush::Arguments),
    /// Change how a volume uses the cache, while it is served
    Mode(mode::Arguments),
    /// Write a volume back and let the cache forget it
    Detach(detach::Arguments),
    /// Take a backing device that has grown into use
    Grow(grow::Arguments),
    /// Check a configuration, or a cache that is not in use
    Check(check::Arguments),
    /// Measure the cache's own speed, in memory
    Bench(bench::Arguments),
}

/// Runs the command line of this process.
#[must_use]
pub fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(arguments) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("forebay: {}", error.report());
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: Arguments) -> Result<ExitCode> {
    let control = arguments
        .control
        .unwrap_or_else(crate::config::server::default_control);
    let done = match arguments.command {
        Command::Format(arguments) => format::run(&arguments),
        Command::Serve(arguments) => serve::run(&arguments),
        Command::Status(arguments) => status::run(&arguments, &control),
        Command::Flush(arguments) => flush::run(arguments, &control),
        Command::Mode(arguments) => mode::run(arguments, &control),
        Command::Detach(arguments) => detach::run(arguments, &control),
        Command::Grow(arguments) => grow::run(arguments, &control),
        Command::Check(arguments) => return check::run(&arguments),
        Command::Bench(arguments) => bench::run(&arguments),
    };
    done.map(|()| ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests;
