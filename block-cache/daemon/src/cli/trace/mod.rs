//! Commands of block I/O traces that drive a cache: `forebay trace record` and `forebay replay`.
//!
//! The others are in `forebay-planner-cli`.

mod record;
pub(super) mod replay;

use clap::Subcommand;
use forebay_block::Result;
use forebay_planner_cli::{convert, generate, stats};

use crate::control::client::Control;

/// Record, inspect, convert and generate block I/O traces
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Record(record::Arguments),
    Stats(stats::Arguments),
    Convert(convert::Arguments),
    Generate(generate::Arguments),
}

pub(super) fn run(arguments: &Arguments, control: impl FnOnce() -> Control) -> Result<()> {
    match &arguments.command {
        Command::Record(arguments) => record::run(arguments, &control()),
        Command::Stats(arguments) => stats::run(arguments),
        Command::Convert(arguments) => convert::run(arguments),
        Command::Generate(arguments) => generate::run(arguments),
    }
}

#[cfg(test)]
mod tests;
