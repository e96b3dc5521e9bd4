//! A directory tree that several nodes share, mounted on one of them ([`forebay_cluster`]).
//!
//! The kernel caches nothing: each use of a name or an attribute is a request, and reads and writes
//! are direct (`FOPEN_DIRECT_IO`). So each page has its one copy in the cluster's memory, and all
//! nodes see each change at once. The cost is one round trip to this process for each operation. A
//! private mapping of a file (`MAP_PRIVATE`, as for programs and libraries) is a copy that the
//! kernel makes at its creation. A shared mapping is refused (`ENODEV`), since its stores would be
//! invisible to other nodes.
//!
//! The kernel reads, writes and maps the source's own file directly (passthrough) if it is in a
//! mapped directory or is one of SQLite's logs. So shared mappings behave as on one machine.

mod attributes;
mod data;
mod directories;
mod errors;
mod filesystem;
mod handles;
mod locking;
mod negotiation;
mod nodes;
mod opening;
mod paced;
mod readers;
mod workers;
mod xattr;

use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

use forebay_block::{Context, Error, ErrorKind, Result};
use forebay_cluster::Names;
use forebay_fuse::{Access, Mount};
use forebay_io::fuse::Connection;

use filesystem::SharedFilesystem;
use handles::Handles;
use locking::Locking;
use paced::Paced;
use readers::Readers;
use workers::Workers;

/// Number of threads that read the kernel's requests. A thread may wait for the directory, another
/// node or the source.
const THREADS: usize = 16;
/// Number of these that may execute requests for data at a time.
const EXECUTING_MAX: usize = 12;

/// A mounted tree. Dropping it unmounts, and closes all files that programs still have open.
#[derive(Debug)]
pub struct SharedMount {
    mount: Option<Mount>,
    handles: Arc<Handles>,
    locking: Arc<Locking>,
    workers: Arc<Workers>,
    readers: Arc<Readers>,
    /// Thread that retries waiting requests for locks.
    lock_retrier: Option<JoinHandle<()>>,
}

/// Users of the machine who may use a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Users {
    /// The user who mounts it, and owns what is created there.
    Mounter,
    /// All. The kernel checks owners and modes, and each user owns what he creates.
    All,
}

/// Mounts the files of a node on the directory `mountpoint`, which is created if it does not exist.
///
/// # Errors
/// - `Permission` without root.
/// - `NotFound` without `/dev/fuse`.
/// - `Busy` if a file system is mounted there.
/// - `InvalidInput` if the mountpoint is not an empty directory, is in the tree, or contains it.
/// - `Unsupported` if a directory is mapped and the source's files cannot be mapped on a mount.
pub fn mount(names: Names, mountpoint: &Path, users: Users) -> Result<SharedMount> {
    let source = names.source().to_owned();
    check_apart(&source, mountpoint)?;
    let handles = Arc::new(Handles::new(names));
    let (locking, lock_retrier) = Locking::start(Arc::clone(&handles))?;
    let workers = Arc::new(Workers::new(EXECUTING_MAX));
    let mut shared = SharedMount {
        mount: None,
        handles: Arc::clone(&handles),
        locking: Arc::clone(&locking),
        workers: Arc::clone(&workers),
        readers: Arc::default(),
        lock_retrier: Some(lock_retrier),
    };
    let filesystem = SharedFilesystem::new(Arc::clone(&handles), locking, workers, users);
    let filesystem = Paced::new(
        filesystem,
        Arc::clone(&shared.readers),
        Arc::clone(&handles),
    );
    let fs_name = format!("forebay:{}", source.display());
    let on_mounted = |device: BorrowedFd<'_>| {
        let connection = Connection::new(device)?;
        handles.names()?.mounted_by(connection)
    };
    let access = Access {
        read_only: false,
        all_users: users == Users::All,
    };
    let mount = forebay_fuse::mount(
        filesystem, mountpoint, &fs_name, access, THREADS, on_mounted,
    );
    shared.mount = Some(mount.context(|| context(&source, mountpoint))?);
    tracing::info!(mountpoint = %mountpoint.display(), "mounted");
    Ok(shared)
}

/// Checks whether the files of `source` could be mounted on `mountpoint`, without joining the
/// cluster or changing anything.
///
/// # Errors
/// As for [`mount`].
pub fn check_mount(source: &Path, mountpoint: &Path) -> Result<()> {
    check_apart(source, mountpoint)?;
    let remedy = "run as root, or use the files by the library";
    forebay_fuse::check_mount(mountpoint, remedy).context(|| context(source, mountpoint))
}

/// Returns the context of an error of a mount.
fn context(source: &Path, mountpoint: &Path) -> String {
    format!("mount of {} on {}", source.display(), mountpoint.display())
}

/// Checks that the mountpoint is outside the tree: a tree on itself would deadlock.
fn check_apart(source: &Path, mountpoint: &Path) -> Result<()> {
    let context = || context(source, mountpoint);
    let absolute = std::path::absolute(mountpoint).context(context)?;
    let resolved = absolute.canonicalize().unwrap_or(absolute);
    if resolved.starts_with(source) || source.starts_with(&resolved) {
        let message = format!(
            "{}: one of the two contains the other\nhelp: choose a mountpoint elsewhere",
            context()
        );
        return Err(Error::new(ErrorKind::InvalidInput, message));
    }
    Ok(())
}

impl SharedMount {
    /// Returns whether the files are mounted. Another program may have unmounted them.
    #[must_use]
    pub fn is_mounted(&self) -> bool {
        self.mount.as_ref().is_some_and(Mount::is_mounted)
    }

    /// Unmounts. Returns false if the mount is in use: then it loses its mountpoint, and its users
    /// get errors (`ENOTCONN`) from now on.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn unmount(mut self) -> Result<bool> {
        self.readers.end();
        let unmounted = self.mount.take().map_or(Ok(true), Mount::unmount);
        self.close();
        unmounted
    }

    /// Ends the service of locks and files, after the unmount.
    fn close(&mut self) {
        self.locking.end();
        self.workers.end();
        if let Some(lock_retrier) = self.lock_retrier.take() {
            // A panic of the thread was reported already.
            let _ = lock_retrier.join();
        }
        self.handles.close();
    }
}

impl Drop for SharedMount {
    fn drop(&mut self) {
        self.readers.end();
        self.mount = None;
        self.close();
    }
}
