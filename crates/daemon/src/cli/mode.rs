//! `forebay mode`: change a volume's cache mode while it is served.

use std::path::Path;

use forebay_block::Result;

use crate::config::Mode;
use crate::control::protocol::Request;

/// Change how a volume uses the cache, while it is served. The configuration file is not changed:
/// the next start uses what stands there.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// The volume
    pub(super) volume: String,
    /// wb (write-back), wt (write-through), wa (write-around), wi (write-invalidate), wo
    /// (write-only) or pt (pass-through)
    pub(super) mode: Mode,
    /// Print the answer as JSON
    #[arg(long)]
    pub(super) json: bool,
}

pub(super) fn run(arguments: Arguments, control: &Path) -> Result<()> {
    let request = Request::Mode {
        volume: arguments.volume,
        mode: arguments.mode,
    };
    super::remote::run(control, &request, arguments.json)
}
