//! A directory tree that several nodes share, mounted on one of them ([`forebay_cluster`]).
//!
//! Nothing is cached in the kernel: names and attributes are asked for each time, and reads and writes are direct
//! (`FOPEN_DIRECT_IO`), so that each page has its one copy in the cluster's memory and what one node does is seen by
//! all at once. The price is one way into this process and back for each operation. A private mapping of a file
//! (`MAP_PRIVATE`: programs and libraries are loaded like that) is a copy that the kernel makes when it is made; a
//! shared one is refused (`ENODEV`), as its stores could not be seen by others.
//!
//! In a mapped directory the kernel reads, writes and maps the source's own file in place of ours (passthrough), so
//! that shared mappings are what they are on one machine.

mod attributes;
mod errors;
mod filesystem;
mod handles;
mod locking;
mod opening;

use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

use forebay_block::{Context, Error, ErrorKind, Result};
use forebay_cluster::Names;
use forebay_fuse::Mount;
use forebay_io::fuse::Connection;

use filesystem::SharedFilesystem;
use handles::Handles;
use locking::Locking;

/// Threads that serve the kernel's requests. Each waits for what it serves: for the directory, another node or the
/// source.
const THREADS: usize = 8;

/// A tree, mounted. Dropping it unmounts, and takes all files from programs that still have them open.
#[derive(Debug)]
pub struct SharedMount {
    mount: Option<Mount>,
    handles: Arc<Handles>,
    locking: Arc<Locking>,
    trying: Option<JoinHandle<()>>,
}

/// Mounts the files of a node on the directory `mountpoint`, which is made if there is none.
///
/// # Errors
/// `Permission` without root, `NotFound` without `/dev/fuse`, `Busy` if something is mounted there, `InvalidInput` if
/// the mountpoint is not an empty directory, or is in the tree or holds it; `Unsupported` if a directory is mapped and
/// the source's files cannot be mapped on a mount.
pub fn mount(names: Names, mountpoint: &Path) -> Result<SharedMount> {
    let source = names.source().to_owned();
    let place = || place(&source, mountpoint);
    check_apart(&source, mountpoint)?;
    let handles = Arc::new(Handles::new(names));
    let (locking, trying) = Locking::start(Arc::clone(&handles))?;
    let mut shared = SharedMount {
        mount: None,
        handles: Arc::clone(&handles),
        locking: Arc::clone(&locking),
        trying: Some(trying),
    };
    let filesystem = SharedFilesystem::new(Arc::clone(&handles), locking);
    let called = format!("forebay:{}", source.display());
    let mounted = |device: BorrowedFd<'_>| {
        let connection = Connection::new(device)?;
        handles.names()?.mounted_by(connection)
    };
    let mount = forebay_fuse::mount(filesystem, mountpoint, &called, false, THREADS, mounted);
    shared.mount = Some(mount.context(place)?);
    tracing::info!(mountpoint = %mountpoint.display(), "mounted");
    Ok(shared)
}

/// Whether the files of `source` could be mounted on `mountpoint`, as far as can be seen without joining the cluster
/// and without changing anything.
///
/// # Errors
/// As [`mount`]'s.
pub fn may_mount(source: &Path, mountpoint: &Path) -> Result<()> {
    check_apart(source, mountpoint)?;
    let remedy = "run as root, or use the files by the library";
    forebay_fuse::may_mount(mountpoint, remedy).context(|| place(source, mountpoint))
}

fn place(source: &Path, mountpoint: &Path) -> String {
    format!("mount of {} on {}", source.display(), mountpoint.display())
}

/// A tree on itself would wait for itself.
fn check_apart(source: &Path, mountpoint: &Path) -> Result<()> {
    let place = || place(source, mountpoint);
    let absolute = std::path::absolute(mountpoint).context(place)?;
    let whole = absolute.canonicalize().unwrap_or(absolute);
    if whole.starts_with(source) || source.starts_with(&whole) {
        let context = format!(
            "{}: one is in the other: choose a mountpoint elsewhere",
            place()
        );
        return Err(Error::new(ErrorKind::InvalidInput, context));
    }
    Ok(())
}

impl SharedMount {
    /// Unmounts. Whether it is gone altogether: of what is in use the name goes now, and its users get errors
    /// (`ENOTCONN`) from now on.
    ///
    /// # Errors
    /// What the system says.
    pub fn unmount(mut self) -> Result<bool> {
        let unmounted = self.mount.take().map_or(Ok(true), Mount::unmount);
        self.close();
        unmounted
    }

    fn close(&mut self) {
        self.locking.end();
        if let Some(trying) = self.trying.take() {
            // What it had to say it has said.
            let _ = trying.join();
        }
        self.handles.close();
    }
}

impl Drop for SharedMount {
    fn drop(&mut self) {
        self.mount = None;
        self.close();
    }
}
