#![doc = include_str!("README.md")]

mod file;
mod filesystem;
mod gate;
mod ranges;

use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

use forebay_block::{Context, Error, ErrorKind, Result};
use forebay_fuse::{Access, Mount};
use forebay_volume::VolumeHandle;

use filesystem::VolumeFilesystem;

/// Number of threads that read the kernel's requests and dispatch them. A second thread helps while
/// the first copies a large write.
const THREADS: usize = 2;
/// Memory that the threads of a mount receive requests into, bytes. Each thread has the longest
/// write of the kernel and a page.
pub const MOUNT_BYTES: u64 = THREADS as u64 * ((16 << 20) + 4096);

/// The mounted file of a volume. Dropping it unmounts. Drop it before the volume's reactor ends.
#[derive(Debug)]
pub struct FuseMount {
    file: PathBuf,
    mount: Mount,
}

/// Mounts `volume` as a file in the directory `mountpoint`, which is created if it is missing.
/// Requests run on the volume's engine reactor. Any thread may call this function.
///
/// # Errors
/// - `Permission` without root.
/// - `NotFound` without `/dev/fuse`.
/// - `Busy` if a volume is mounted on `mountpoint`.
/// - `InvalidInput` if the mountpoint is not an empty directory, or the volume's name is not a
///   valid file name.
pub fn mount(volume: VolumeHandle, mountpoint: &Path) -> Result<FuseMount> {
    let name = volume.name().to_owned();
    let place = || format!("FUSE export of volume {name} on {}", mountpoint.display());
    if matches!(&*name, "" | "." | "..") || name.len() > 255 || name.contains(['/', '\0']) {
        return Err(Error::new(
            ErrorKind::InvalidInput,
            format!(
                "{}: the volume's name cannot be the name of a file\n\
                     help: choose another name",
                place()
            ),
        ));
    }
    let source = format!("forebay:{name}");
    let access = Access {
        read_only: volume.read_only(),
        all_users: false,
    };
    let filesystem = VolumeFilesystem::new(volume, forebay_fuse::owner());
    let mounted = |_: BorrowedFd<'_>| Ok(());
    let mount = forebay_fuse::mount(filesystem, mountpoint, &source, access, THREADS, mounted);
    let mount = mount.context(place)?;
    let file = mount.mountpoint().join(&name);
    tracing::info!(volume = name, file = %file.display(), "mounted");
    Ok(FuseMount { file, mount })
}

/// Checks whether a volume could be mounted on `mountpoint`, without changing anything.
///
/// # Errors
/// As for [`mount`].
pub fn check_mount(mountpoint: &Path) -> Result<()> {
    forebay_fuse::check_mount(
        mountpoint,
        "run as root, or export the volume over NBD instead",
    )
}

impl FuseMount {
    /// Returns the path of the volume's file.
    #[must_use]
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Returns whether the file is mounted. Another program may have unmounted it.
    #[must_use]
    pub fn is_mounted(&self) -> bool {
        self.mount.is_mounted()
    }

    /// Unmounts the file. Returns false if the file is in use: it is then served until its last
    /// user closes it or the process ends.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn unmount(self) -> Result<bool> {
        self.mount.unmount()
    }
}

#[cfg(test)]
mod tests;
