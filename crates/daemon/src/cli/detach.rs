//! `forebay detach`: write a volume back and let the cache forget it.

use std::path::Path;

use forebay_block::Result;

use crate::control::protocol::Request;

/// Stop serving a volume, write all of its data back, and let the cache forget it. After that the
/// backing device alone has the data, and may be used without Forebay.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// The volume
    pub(super) volume: String,
    /// Print the answer as JSON
    #[arg(long)]
    pub(super) json: bool,
}

pub(super) fn run(arguments: Arguments, control: &Path) -> Result<()> {
    let request = Request::Detach {
        volume: arguments.volume,
    };
    super::remote::run(control, &request, arguments.json)
}
