//! `forebay grow`: take a backing device that has grown into use.

use std::path::Path;

use forebay_block::Result;

use crate::control::protocol::Request;

/// Take the present size of a volume's backing device into use, while it is served. A device that
/// has become smaller is refused: data could lie beyond its new end.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// The volume
    pub(super) volume: String,
    /// Print the answer as JSON
    #[arg(long)]
    pub(super) json: bool,
}

pub(super) fn run(arguments: Arguments, control: &Path) -> Result<()> {
    let request = Request::Grow {
        volume: arguments.volume,
    };
    super::remote::run(control, &request, arguments.json)
}
