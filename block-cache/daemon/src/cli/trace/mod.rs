//! What reads block I/O traces, one file a command: `forebay trace`, `simulate`, `mrc`, `replay`.

mod convert;
mod generate;
mod input;
mod interrupt;
pub(super) mod mrc;
mod record;
pub(super) mod replay;
mod report;
pub(super) mod simulate;
mod sizes;
mod stats;

use clap::Subcommand;
use forebay_block::Result;

use crate::control::client::Control;

/// Record, look at, convert and make block I/O traces
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
