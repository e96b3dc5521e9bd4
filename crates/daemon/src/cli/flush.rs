//! `forebay flush`: write dirty data back.

use std::path::Path;

use forebay_block::Result;

use crate::control::protocol::Request;

/// Write dirty data back to the backing devices, and wait until it is there.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// The volume; all volumes if it is left out
    pub(super) volume: Option<String>,
    /// Print the answer as JSON
    #[arg(long)]
    pub(super) json: bool,
}

pub(super) fn run(arguments: Arguments, control: &Path) -> Result<()> {
    let request = Request::Flush {
        volume: arguments.volume,
    };
    super::remote::run(control, &request, arguments.json)
}
