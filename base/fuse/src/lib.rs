//! FUSE file systems on their mountpoints: mounting, the threads of a session, unmounting.
//!
//! Two file systems use this crate: the export of a volume as one file, and the mount of the
//! distributed page cache. The crate is independent of their requests.

mod mountpoint;
mod session;

use std::path::Path;

use forebay_block::{Context, Error, ErrorKind, Result};
use forebay_io::system;

pub use mountpoint::{Access, owner, unmount};
pub use session::{Mount, mount};

/// Checks whether a file system could be mounted on `mountpoint`, without changing anything.
/// `remedy` is the advice for a user who is not root.
///
/// # Errors
/// - `Permission` without root.
/// - `NotFound` without `/dev/fuse`.
/// - `Busy` if a Forebay file system is mounted there.
/// - `InvalidInput` if the mountpoint is not an empty directory.
pub fn check_mount(mountpoint: &Path, remedy: &str) -> Result<()> {
    let device = std::fs::metadata("/dev/fuse");
    device.context(|| "/dev/fuse\nhelp: load the kernel module (`modprobe fuse`)")?;
    if !system::may_mount() {
        return Err(Error::new(
            ErrorKind::Permission,
            format!("mounting needs root\nhelp: {remedy}"),
        ));
    }
    mountpoint::check(mountpoint)
}
