//! `forebay secret`: secrets with which NVMe hosts authenticate.

use clap::{Args, Subcommand, ValueEnum};
use forebay_auth::{Hash, Secret};
use forebay_block::Result;

use forebay_terminal::out;

/// Manage secrets with which NVMe hosts and this machine authenticate
#[derive(Debug, Args)]
pub(super) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Generate(Generate),
}

/// Print a new secret
///
/// Write it after the host's name into the file that an export names with `secrets`, and give it to
/// the host: `nvme connect --dhchap-secret`. A second secret on that line authenticates this
/// machine to the host: `--dhchap-ctrl-secret`.
#[derive(Debug, Args)]
struct Generate {
    /// Hash function that binds the secret to a name before use; also sets the length of the secret
    #[arg(long, value_name = "HASH", default_value = "sha256")]
    hash: HashName,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum HashName {
    /// 32 bytes, used as they are
    None,
    Sha256,
    Sha384,
    Sha512,
}

pub(super) fn run(arguments: &Arguments) -> Result<()> {
    let Command::Generate(generate) = &arguments.command;
    let secret = Secret::generate(match generate.hash {
        HashName::None => None,
        HashName::Sha256 => Some(Hash::Sha256),
        HashName::Sha384 => Some(Hash::Sha384),
        HashName::Sha512 => Some(Hash::Sha512),
    });
    let text = secret.text();
    out::print(&text)?;
    out::print("\n")
}
