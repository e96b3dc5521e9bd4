//! What reads block I/O traces, one file a command: `forebay trace`, `simulate`, `mrc`.

mod convert;
mod generate;
mod input;
pub(super) mod mrc;
mod report;
pub(super) mod simulate;
mod stats;

use clap::Subcommand;
use forebay_block::Result;

/// Look at, convert and make block I/O traces
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Stats(stats::Arguments),
    Convert(convert::Arguments),
    Generate(generate::Arguments),
}

pub(super) fn run(arguments: &Arguments) -> Result<()> {
    match &arguments.command {
        Command::Stats(arguments) => stats::run(arguments),
        Command::Convert(arguments) => convert::run(arguments),
        Command::Generate(arguments) => generate::run(arguments),
    }
}

#[cfg(test)]
mod tests;
