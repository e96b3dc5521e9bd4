//! The project's own commands: `cargo xtask COMMAND`.

mod bench;
mod checks;
mod claims;
mod gate;
mod interop;
mod inventory;
mod junit;
mod metadata;
mod nextest;
mod nightly;
mod pages;
mod reference;
mod soak;
mod steps;
mod study;
mod test_name;
mod tidy;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// The project's own commands.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs every check that a change must pass, in at most 25 minutes
    Gate(gate::Options),
    /// Runs the checks that are too long for the gate, and appends to docs/results/nightly.md
    Nightly(nightly::Options),
    /// Compares tests/inventory.txt with the tests that are built, or rewrites it
    Inventory(inventory::Options),
    /// Compares the generated parts of docs/reference with the types, or rewrites them
    Reference(reference::Options),
    /// Checks rules that no compiler checks: layers, file lengths, links, language and others.
    Tidy,
    /// Measures Forebay beside comparable systems.
    #[command(subcommand)]
    Bench(bench::Bench),
    /// Checks claims of the papers, measured or simulated, with the baselines in the same run.
    #[command(subcommand)]
    Study(study::Study),
    /// Tries to lose data, or to block it, for longer than CI does.
    #[command(subcommand)]
    Soak(soak::Soak),
    /// Drives the exports with the clients of a real kernel, in a guest.
    Interop(interop::Options),
}

fn main() -> ExitCode {
    let root = workspace_root();
    match Arguments::parse().command {
        Command::Gate(options) => gate::run(&root, &options),
        Command::Nightly(options) => nightly::run(&root, &options),
        Command::Inventory(options) => inventory::run(&root, &options),
        Command::Reference(options) => reference::run(&root, &options),
        Command::Tidy => tidy::run(&root),
        Command::Bench(which) => bench::run(&root, &which),
        Command::Study(which) => study::run(&root, &which),
        Command::Soak(which) => soak::run(&root, &which),
        Command::Interop(options) => interop::run(&root, &options),
    }
}

/// Returns the repository's root: the folder above this crate's.
fn workspace_root() -> PathBuf {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    here.parent().map_or(here.clone(), PathBuf::from)
}
