//! The mount of a node.

use std::path::Path;

use forebay_block::{Error, ErrorKind, Result};
use forebay_cluster::{Node, NodeId};

use forebay_mount::{SharedMount, Users};
use forebay_terminal::out;

/// Mounts the files of a node, and prints that.
///
/// # Errors
/// As for [`forebay_mount::mount`].
pub(crate) fn mount(
    node: &Node,
    id: NodeId,
    place: &Path,
    allow_other: bool,
) -> Result<SharedMount> {
    let users = match allow_other {
        true => Users::All,
        false => Users::Mounter,
    };
    let mount = forebay_mount::mount(node.names()?, place, users)?;
    out::print(&format!("{}: mounted on {}\n", id, place.display()))?;
    Ok(mount)
}

/// Returns the error of a node whose mount another program has unmounted.
pub(crate) fn unmounted(id: NodeId, place: &Path, mount: &SharedMount) -> Option<Error> {
    let error = || {
        let what = format!(
            "{id}: {} was unmounted by another program\nhelp: start the node once more",
            place.display()
        );
        Error::new(ErrorKind::NotFound, what)
    };
    (!mount.is_mounted()).then(error)
}
