//! A file system on its mountpoint, with the threads that serve it.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use forebay_block::Result;
use fuser::{BackgroundSession, Config, Filesystem, Session, SessionACL};

use super::mountpoint;

/// Something that is mounted. Dropping it unmounts.
#[derive(Debug)]
pub struct Mount {
    mountpoint: PathBuf,
    session: Option<BackgroundSession>,
    mounted: bool,
}

/// Mounts a file system that the mount table calls `source`, and serves it with so many threads. `mounted` is called
/// with the device of the mount when the kernel and we have agreed on what both can do, before anything is asked.
///
/// # Errors
/// As [`may_mount`](crate::may_mount), or what the system or `mounted` says.
pub fn mount(
    filesystem: impl Filesystem + 'static,
    place: &Path,
    source: &str,
    read_only: bool,
    threads: usize,
    mounted: impl FnOnce(BorrowedFd<'_>) -> Result<()>,
) -> Result<Mount> {
    let mountpoint = mountpoint::prepare(place)?;
    let device = mountpoint::mount(&mountpoint, source, read_only)?;
    // From here on, dropping this unmounts.
    let mut mount = Mount {
        mountpoint,
        session: None,
        mounted: true,
    };
    let ours = device.try_clone()?;
    let mut config = Config::default();
    config.n_threads = Some(threads);
    config.clone_fd = true;
    let session = Session::from_fd(filesystem, device, SessionACL::Owner, config)?;
    mounted(ours.as_fd())?;
    drop(ours);
    mount.session = Some(session.spawn()?);
    Ok(mount)
}

impl Mount {
    /// Returns the mountpoint, as the mount table has it.
    #[must_use]
    pub fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    /// Unmounts. Returns whether it is gone altogether: what is in use is served until its last user closes it or the
    /// process ends.
    ///
    /// # Errors
    /// What the system says.
    pub fn unmount(mut self) -> Result<bool> {
        self.end()
    }

    fn end(&mut self) -> Result<bool> {
        self.mounted = false;
        let session = self.session.take();
        let gone = mountpoint::unmount(&self.mountpoint)?;
        if gone && let Some(session) = session {
            // The kernel has let go of the threads; whatever they ended with, they are done.
            if let Err(error) = session.join() {
                tracing::warn!(
                    mountpoint = %self.mountpoint.display(),
                    error = %error,
                    "a FUSE thread ended with an error"
                );
            }
        }
        Ok(gone)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.mounted
            && let Err(error) = self.end()
        {
            tracing::warn!(error = %error.report(), "{} stays mounted", self.mountpoint.display());
        }
    }
}
