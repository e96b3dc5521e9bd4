#![doc = include_str!("README.md")]

mod file;
mod filesystem;
mod gate;
mod mountpoint;
mod ranges;

use std::path::{Path, PathBuf};

use forebay_block::{Context, Error, ErrorKind, Result};
use forebay_io::system;
use forebay_volume::VolumeHandle;
use fuser::{BackgroundSession, Config, Session, SessionACL};

use filesystem::VolumeFilesystem;

/// Threads that read the kernel's requests. They only hand them on; the second is for when the first
/// copies a large write.
const THREADS: usize = 2;

/// A volume's file, mounted. Dropping it unmounts; do so before the volume's reactor ends.
#[derive(Debug)]
pub struct FuseMount {
    mountpoint: PathBuf,
    file: PathBuf,
    session: Option<BackgroundSession>,
    mounted: bool,
}

/// Mounts `volume` as a file in the directory `mountpoint`, which is made if there is none. Requests
/// run on the volume's engine reactor; this may be called on any thread.
///
/// # Errors
/// `Permission` without root, `NotFound` without `/dev/fuse`, `Busy` if a volume is mounted there,
/// `InvalidInput` if the mountpoint is not an empty directory or the volume's name cannot be a file's.
pub fn mount(volume: VolumeHandle, mountpoint: &Path) -> Result<FuseMount> {
    let name = volume.name().to_owned();
    let place = || format!("FUSE export of volume {name} on {}", mountpoint.display());
    if matches!(&*name, "" | "." | "..") || name.len() > 255 || name.contains(['/', '\0']) {
        return Err(Error::new(
            ErrorKind::InvalidInput,
            format!("{}: the name cannot be a file's; choose another", place()),
        ));
    }
    let mountpoint_path = mountpoint::prepare(mountpoint).context(place)?;
    let device = mountpoint::mount(
        &mountpoint_path,
        &format!("forebay:{name}"),
        volume.read_only(),
    )
    .context(place)?;
    // From here on, dropping this unmounts.
    let mut mount = FuseMount {
        file: mountpoint_path.join(&name),
        mountpoint: mountpoint_path,
        session: None,
        mounted: true,
    };
    let mut config = Config::default();
    config.n_threads = Some(THREADS);
    config.clone_fd = true;
    let filesystem = VolumeFilesystem::new(volume, mountpoint::owner());
    let session = Session::from_fd(filesystem, device, SessionACL::Owner, config)
        .and_then(Session::spawn)
        .context(place)?;
    mount.session = Some(session);
    tracing::info!(volume = name, file = %mount.file.display(), "mounted");
    Ok(mount)
}

/// Whether a volume could be mounted on `mountpoint`, as far as can be seen without changing anything.
///
/// # Errors
/// As [`mount`]'s.
pub fn may_mount(mountpoint: &Path) -> Result<()> {
    let device = std::fs::metadata("/dev/fuse");
    device.context(|| "/dev/fuse (is the fuse module loaded?)")?;
    if !system::may_mount() {
        return Err(Error::new(
            ErrorKind::Permission,
            "mounting needs root: run as root, or export the volume over NBD instead",
        ));
    }
    mountpoint::look(mountpoint)
}

impl FuseMount {
    /// The volume's file.
    #[must_use]
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Unmounts. Whether it is gone altogether: a file in use is served until its last user closes
    /// it or the process ends.
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
                    file = %self.file.display(),
                    error = %error,
                    "a FUSE thread ended with an error"
                );
            }
        }
        Ok(gone)
    }
}

impl Drop for FuseMount {
    fn drop(&mut self) {
        if self.mounted
            && let Err(error) = self.end()
        {
            tracing::warn!(error = %error.report(), "a volume's file stays mounted");
        }
    }
}

#[cfg(test)]
mod tests;
