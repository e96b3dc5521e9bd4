//! `forebay remove-ublk`: removes a block device that no daemon serves any more.

use clap::Args;
use forebay_block::Result;
use forebay_frontend::ublk;

use forebay_terminal::out;

/// Remove a block device whose daemon will not return
///
/// Its users get errors: data that the kernel has not written yet is lost. The volume behind it is
/// not changed. A device that a daemon serves is not removed: stop the daemon, or `forebay detach`
/// the volume.
#[derive(Debug, Args)]
pub(super) struct Remove {
    /// Number of the device: 0 is /dev/ublkb0
    #[arg(allow_negative_numbers = true)]
    number: u32,
}

impl Remove {
    pub(super) fn run(&self) -> Result<()> {
        ublk::remove(self.number)?;
        let path = ublk::path(self.number);
        out::print(&format!("{} is removed\n", path.display()))
    }
}
