//! A file system on its mountpoint, with the threads that serve it.

use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

use forebay_block::Result;
use fuser::{BackgroundSession, Config, Filesystem, Session, SessionACL};

use super::mountpoint::{self, Access, OwnMount};

/// A mounted file system. Dropping it unmounts.
#[derive(Debug)]
pub struct Mount {
    mountpoint: PathBuf,
    own: OwnMount,
    session: Option<BackgroundSession>,
    mounted: bool,
}

/// Mounts a file system, with `source` as its name in the mount table, and serves it with `threads`
/// threads. `mounted` is called with the device of the mount after the negotiation with the kernel,
/// before any request.
///
/// # Errors
/// As for [`check_mount`](crate::check_mount), or errors of the system or of `mounted`.
pub fn mount(
    filesystem: impl Filesystem + 'static,
    place: &Path,
    source: &str,
    access: Access,
    threads: usize,
    mounted: impl FnOnce(BorrowedFd<'_>) -> Result<()>,
) -> Result<Mount> {
    // Removed after the unmount, if this fails.
    let (mountpoint, made) = mountpoint::prepare(place)?;
    let device = mountpoint::mount(&mountpoint, source, access)?;
    // From here on, dropping this unmounts.
    let mut mount = Mount {
        own: OwnMount::new(&mountpoint, device.try_clone()?).inspect_err(|_| {
            // An error of this would hide the first one.
            let _ = mountpoint::unmount(&mountpoint);
        })?,
        mountpoint,
        session: None,
        mounted: true,
    };
    let mut config = Config::default();
    config.n_threads = Some(threads);
    config.clone_fd = true;
    let users = match access.all_users {
        true => SessionACL::All,
        false => SessionACL::Owner,
    };
    let session = Session::from_fd(filesystem, device, users, config)?;
    mounted(mount.own.connection())?;
    mount.session = Some(session.spawn()?);
    made.keep();
    Ok(mount)
}

impl Mount {
    /// Returns the mountpoint, as in the mount table.
    #[must_use]
    pub fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    /// Returns whether the file system is mounted anywhere. Another program may have unmounted it.
    #[must_use]
    pub fn is_mounted(&self) -> bool {
        self.own.is_mounted()
    }

    /// Unmounts. Returns false if the file system is in use: it is then served until its last user
    /// closes it or the process ends. A mount of another program stays, also on the same path.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn unmount(mut self) -> Result<bool> {
        self.end()
    }

    fn end(&mut self) -> Result<bool> {
        self.mounted = false;
        let session = self.session.take();
        let gone = self.own.unmount(&self.mountpoint)?;
        if gone && let Some(session) = session {
            // The kernel has released the threads, whatever their results.
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
