//! `forebay remove-ublk`: a block device that nobody serves any more.

use clap::Args;
use forebay_block::Result;
use forebay_frontend::ublk;

use forebay_terminal::out;

/// Remove a block device that waits for a daemon which will not come
///
/// Whoever still uses it gets errors: what the kernel holds of it unwritten is lost. Nothing is
/// changed of the volume that it was. One that a daemon serves is not removed: stop the daemon, or
/// `forebay detach` the volume.
#[derive(Debug, Args)]
pub(super) struct Remove {
    /// The number: 0 is /dev/ublkb0
    number: u32,
}

impl Remove {
    pub(super) fn run(&self) -> Result<()> {
        ublk::remove(self.number)?;
        let path = ublk::path(self.number);
        out::print(&format!("{} is removed\n", path.display()))
    }
}
