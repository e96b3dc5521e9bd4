//! Mounting and unmounting, also of mounts that a killed process has left.
//!
//! The system calls are made here and not by fuser. At the end of its session, fuser would unmount
//! by path once more, and so could hit a later mount of another program.

use std::ffi::CString;
use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use forebay_block::{Context, Error, ErrorKind, Result};
use forebay_io::NewDirectories;

/// File system type in the mount table.
const FS_TYPE: &str = "fuse.forebay";
/// Longest time that unmounting waits for users of the file system. If one remains, the file system
/// only loses its mountpoint.
const BUSY_MAX: Duration = Duration::from_secs(1);

/// Use of a file system that the kernel permits.
#[derive(Clone, Copy, Debug, Default)]
pub struct Access {
    /// Whether it refuses changes.
    pub read_only: bool,
    /// Whether all users of the machine may use it, within the permissions of each file. Otherwise
    /// only the user who mounts it may.
    pub all_users: bool,
}

/// Prepares `mountpoint`, and returns its path as in the mount table. Creates the directory if it
/// is missing; dropping the second result removes it. Clears dead Forebay mounts on it.
///
/// # Errors
/// `Busy` if it is the mountpoint of a living process or of another dead file system.
/// `InvalidInput` if it is not an empty directory.
pub(super) fn prepare(mountpoint: &Path) -> Result<(PathBuf, NewDirectories)> {
    let context = || format!("mountpoint {}", mountpoint.display());
    let made = match is_missing(mountpoint) {
        true => NewDirectories::create(mountpoint, 0o777).context(context)?,
        false => NewDirectories::default(),
    };
    let path = resolve_parent(mountpoint).context(context)?;
    while is_dead(&path).context(context)? {
        tracing::warn!(
            mountpoint = %path.display(),
            "clearing the mount of a process that was killed"
        );
        detach(&path).context(context)?;
    }
    Ok((check_free(&path).context(context)?, made))
}

/// Checks whether [`prepare`] would succeed, without changing anything. A missing directory is not
/// checked.
///
/// # Errors
/// As for [`prepare`].
pub(super) fn check(mountpoint: &Path) -> Result<()> {
    let context = || format!("mountpoint {}", mountpoint.display());
    if is_missing(mountpoint) {
        return Ok(());
    }
    let path = resolve_parent(mountpoint).context(context)?;
    if is_dead(&path).context(context)? {
        return Ok(());
    }
    check_free(&path).context(context).map(drop)
}

/// Returns whether there is no such path. A dead mount is not missing.
fn is_missing(path: &Path) -> bool {
    let found = std::fs::symlink_metadata(path);
    found.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

/// Returns the path with its parent resolved. The last name is not, since a dead mount does not
/// answer.
fn resolve_parent(mountpoint: &Path) -> Result<PathBuf> {
    let parent = match mountpoint.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => Path::new("/"),
    };
    let parent = parent.canonicalize()?;
    Ok(match mountpoint.file_name() {
        Some(name) => parent.join(name),
        None => mountpoint.canonicalize()?,
    })
}

/// Returns whether a dead Forebay mount is on `path`.
///
/// # Errors
/// `Busy` if the dead mount is another program's.
fn is_dead(path: &Path) -> Result<bool> {
    let Err(error) = std::fs::metadata(path) else {
        return Ok(false);
    };
    if !matches!(
        error.raw_os_error(),
        Some(libc::ENOTCONN | libc::ECONNABORTED)
    ) {
        return Ok(false);
    }
    if mounted_type(path)?.as_deref() == Some(FS_TYPE) {
        return Ok(true);
    }
    Err(Error::with_source(
        ErrorKind::Busy,
        "it has a dead mount of another file system\nhelp: unmount it",
        error,
    ))
}

/// Checks that `path` is an empty directory without a Forebay mount. Returns the path as in the
/// mount table.
fn check_free(path: &Path) -> Result<PathBuf> {
    let path = path.canonicalize()?;
    if !std::fs::metadata(&path)?.is_dir() {
        return Err(Error::new(
            ErrorKind::InvalidInput,
            "it is not a directory\nhelp: name a directory, or one that does not exist yet",
        ));
    }
    if mounted_type(&path)?.as_deref() == Some(FS_TYPE) {
        return Err(Error::new(
            ErrorKind::Busy,
            "a Forebay file system is mounted on it\nhelp: choose another directory",
        ));
    }
    if std::fs::read_dir(&path)?.next().is_some() {
        return Err(Error::new(
            ErrorKind::InvalidInput,
            "it is not empty, and the mount would hide its files\n\
             help: name an empty directory, or one that does not exist yet",
        ));
    }
    Ok(path)
}

/// Mounts a FUSE file system from `source` on `path`. Returns the connection to the kernel.
///
/// # Errors
/// `Permission` without `CAP_SYS_ADMIN`, `NotFound` without `/dev/fuse`, or errors of the system.
pub(super) fn mount(path: &Path, source: &str, access: Access) -> Result<OwnedFd> {
    mount_as(FS_TYPE, path, source, access)
}

fn mount_as(fs_type: &str, path: &Path, source: &str, access: Access) -> Result<OwnedFd> {
    let device = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_CLOEXEC)
        .open("/dev/fuse")
        .context(|| "/dev/fuse\nhelp: load the kernel module (`modprobe fuse`), and run as root")?;
    let (user, group) = owner();
    let mut options = format!(
        "fd={},rootmode=40000,user_id={user},group_id={group},default_permissions",
        device.as_raw_fd(),
    );
    let mut flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOATIME;
    if access.all_users {
        options.push_str(",allow_other");
    }
    if access.read_only {
        flags |= libc::MS_RDONLY;
    }
    let c_string = |text: &[u8]| CString::new(text).map_err(io::Error::from);
    let source = c_string(source.as_bytes())?;
    let target = c_string(path.as_os_str().as_bytes())?;
    let fs_type = c_string(fs_type.as_bytes())?;
    let options = c_string(options.as_bytes())?;
    // SAFETY: four strings that live through the call.
    let outcome = unsafe {
        libc::mount(
            source.as_ptr(),
            target.as_ptr(),
            fs_type.as_ptr(),
            flags,
            options.as_ptr().cast(),
        )
    };
    if outcome != 0 {
        let error = io::Error::last_os_error();
        let remedy = match error.raw_os_error() {
            Some(libc::EPERM) => "\nhelp: run as root, or export the volume over NBD",
            _ => "",
        };
        return Err(error).context(|| format!("mounting on {}{remedy}", path.display()));
    }
    Ok(device.into())
}

/// Returns the effective user and group of this process.
#[must_use]
pub fn owner() -> (u32, u32) {
    // SAFETY: neither has arguments or can fail.
    unsafe { (libc::geteuid(), libc::getegid()) }
}

/// A mount of this process.
#[derive(Debug)]
pub(super) struct OwnMount {
    /// The connection to the kernel, which ends with the file system.
    connection: OwnedFd,
    /// Number of the file system's device, as in the mount table. No other file system has it
    /// before this one has ended.
    device: String,
}

impl OwnMount {
    /// Returns the mount that was just made on `path`.
    ///
    /// # Errors
    /// Errors of the system; `NotFound` if it is there no longer.
    pub(super) fn new(path: &Path, connection: OwnedFd) -> Result<Self> {
        let made = topmost_on(path)?.filter(|mount| mount.kind == FS_TYPE);
        let gone = || Error::new(ErrorKind::NotFound, "it was unmounted at once");
        Ok(Self {
            connection,
            device: made.ok_or_else(gone)?.device,
        })
    }

    /// Returns the connection to the kernel.
    pub(super) fn connection(&self) -> BorrowedFd<'_> {
        self.connection.as_fd()
    }

    /// Returns whether the file system is mounted anywhere.
    pub(super) fn is_mounted(&self) -> bool {
        let mut state = libc::pollfd {
            fd: self.connection.as_raw_fd(),
            events: 0,
            revents: 0,
        };
        // SAFETY: one entry, which lives through the call, and an open descriptor.
        let found = unsafe { libc::poll(&raw mut state, 1, 0) };
        found != 1 || state.revents & libc::POLLERR == 0
    }

    /// Unmounts `path` if this mount is there. Returns false if it is still in use: as [`unmount`],
    /// or because it was moved or covered by another mount.
    ///
    /// # Errors
    /// Errors of the system.
    pub(super) fn unmount(&self, path: &Path) -> Result<bool> {
        if !self.is_mounted() {
            tracing::warn!(
                mountpoint = %path.display(),
                "the file system was unmounted by another program"
            );
            return Ok(true);
        }
        let found = topmost_on(path).context(|| "the mount table")?;
        if found.is_none_or(|mount| mount.device != self.device) {
            tracing::warn!(
                mountpoint = %path.display(),
                "the file system is not on its mountpoint any more, and ends with this process"
            );
            return Ok(false);
        }
        unmount(path)
    }
}

/// Unmounts `path`. Returns false if it is still in use after a second: then it only loses its
/// mountpoint.
///
/// # Errors
/// Errors of the system. A path without a mount is not an error.
pub fn unmount(path: &Path) -> Result<bool> {
    let begin = Instant::now();
    let unmounted = loop {
        match umount(path, 0) {
            // Many users leave soon: a program that lists mounts, or a child before its exec.
            Err(error)
                if error.raw_os_error() == Some(libc::EBUSY) && begin.elapsed() < BUSY_MAX =>
            {
                std::thread::sleep(BUSY_MAX / 20);
            }
            unmounted => break unmounted,
        }
    };
    match unmounted {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(true),
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
            tracing::warn!(
                mountpoint = %path.display(),
                "the file system is in use: it stays mounted until its last user closes it"
            );
            detach(path)?;
            Ok(false)
        }
        other => other
            .map(|()| true)
            .context(|| format!("unmounting {}", path.display())),
    }
}

/// Takes the mount on `path` out of the tree. Its last user ends it.
fn detach(path: &Path) -> Result<()> {
    umount(path, libc::MNT_DETACH).context(|| format!("unmounting {} lazily", path.display()))
}

fn umount(path: &Path, flags: i32) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: a string that lives through the call.
    match unsafe { libc::umount2(path.as_ptr(), flags | libc::UMOUNT_NOFOLLOW) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns the type of the topmost mount on `path`, according to the mount table.
fn mounted_type(path: &Path) -> io::Result<Option<String>> {
    Ok(topmost_on(path)?.map(|mount| mount.kind))
}

/// A line of the mount table.
#[derive(Debug, PartialEq, Eq)]
struct Mounted {
    /// Number of the device, `major:minor`.
    device: String,
    /// Type of the file system.
    kind: String,
}

/// Returns the topmost mount on `path`, according to the mount table.
fn topmost_on(path: &Path) -> io::Result<Option<Mounted>> {
    let table = std::fs::read("/proc/self/mountinfo")?;
    Ok(topmost(&table, path))
}

/// Returns the last mount on `path` in a mount table of proc(5), with the lines
/// `id parent major:minor root MOUNTPOINT options [fields] - TYPE source options`.
fn topmost(table: &[u8], path: &Path) -> Option<Mounted> {
    let text = |word: &[u8]| String::from_utf8_lossy(word).into_owned();
    let mut mounts = table.split(|&byte| byte == b'\n').filter_map(|line| {
        let mut words = line.split(|&byte| byte == b' ');
        let device = text(words.nth(2)?);
        if unescape(words.nth(1)?) != path {
            return None;
        }
        words.find(|word| *word == b"-")?;
        let kind = text(words.next()?);
        Some(Mounted { device, kind })
    });
    mounts.next_back()
}

/// Decodes a path of the mount table, where blanks and backslashes are three octal digits.
fn unescape(word: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(word.len());
    let mut rest = word;
    while let Some((&byte, tail)) = rest.split_first() {
        let octal = (byte == b'\\')
            .then(|| tail.get(..3))
            .flatten()
            .and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        match octal {
            Some(octal) => {
                bytes.push(octal);
                rest = &tail[3..];
            }
            None => {
                bytes.push(byte);
                rest = tail;
            }
        }
    }
    std::ffi::OsString::from_vec(bytes).into()
}

#[cfg(test)]
mod tests;
