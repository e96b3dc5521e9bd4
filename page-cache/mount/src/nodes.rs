//! FIFOs, sockets, and regular files that are created without being opened.

use std::io;

use forebay_cluster::names::{Attributes, Names, NewFile, NodeKind};

/// Creates a file of the type in `mode` (mknod(2)).
///
/// # Errors
/// Errors of the system. `EPERM` for a device: the kernel opens none on the mount (`nodev`).
pub(crate) fn make(names: &Names, file: &NewFile<'_>, mode: u32) -> io::Result<Attributes> {
    let kind = match mode & libc::S_IFMT {
        libc::S_IFREG => NodeKind::File,
        libc::S_IFIFO => NodeKind::Fifo,
        libc::S_IFSOCK => NodeKind::Socket,
        _ => return Err(io::Error::from_raw_os_error(libc::EPERM)),
    };
    names.make_node(file, kind)
}
