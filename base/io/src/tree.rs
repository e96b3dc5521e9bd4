//! Functions beside the standard library for a tree of files that several processes share: locks, a
//! name for an open file, and free space.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// Longest target of a symbolic link, bytes.
const PATH_BYTES_MAX: usize = 4096;

/// Kind of a lock on a byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lock {
    /// Shared with other holders.
    Shared,
    /// Alone.
    Exclusive,
    /// Not any more.
    None,
}

/// Bytes of a file, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteRange {
    /// The first of them.
    pub first: i64,
    /// The last of them, below `i64::MAX`.
    pub last: i64,
}

impl From<i64> for ByteRange {
    fn from(byte: i64) -> Self {
        Self {
            first: byte,
            last: byte,
        }
    }
}

/// Locks a byte of a file for this open file, in place of its earlier lock there. The lock excludes
/// all other opens of the file, in this process too, until this one is closed (`F_OFD_SETLKW` of
/// fcntl(2)). Waits.
///
/// # Errors
/// The system's error.
pub fn lock_byte(file: &File, byte: i64, lock: Lock) -> io::Result<()> {
    loop {
        match lock_by(file, byte.into(), lock, libc::F_OFD_SETLKW) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other.map(drop),
        }
    }
}

/// As [`lock_byte`], but does not wait. Whether it is locked.
///
/// # Errors
/// The system's error.
pub fn try_lock_byte(file: &File, byte: i64, lock: Lock) -> io::Result<bool> {
    try_lock_range(file, byte.into(), lock)
}

/// As [`try_lock_byte`], of many bytes: all of them or none.
///
/// # Errors
/// The system's error.
pub fn try_lock_range(file: &File, range: ByteRange, lock: Lock) -> io::Result<bool> {
    match lock_by(file, range, lock, libc::F_OFD_SETLK) {
        Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => {
            Ok(false)
        }
        other => other.map(|_| true),
    }
}

/// Returns another program's lock that conflicts with one of this open file.
///
/// # Errors
/// The system's error.
pub fn conflicting_lock(
    file: &File,
    range: ByteRange,
    lock: Lock,
) -> io::Result<Option<(ByteRange, Lock)>> {
    let found = lock_by(file, range, lock, libc::F_OFD_GETLK)?;
    let lock = match libc::c_int::from(found.l_type) {
        libc::F_RDLCK => Lock::Shared,
        libc::F_WRLCK => Lock::Exclusive,
        _ => return Ok(None),
    };
    let last = match found.l_len {
        0 => i64::MAX,
        len => found.l_start + len - 1,
    };
    let first = found.l_start;
    Ok(Some((ByteRange { first, last }, lock)))
}

/// One fcntl(2). Returns the description of the lock after it.
fn lock_by(
    file: &File,
    range: ByteRange,
    lock: Lock,
    command: libc::c_int,
) -> io::Result<libc::flock> {
    let kind = match lock {
        Lock::Shared => libc::F_RDLCK,
        Lock::Exclusive => libc::F_WRLCK,
        Lock::None => libc::F_UNLCK,
    };
    let mut described = libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: range.first,
        l_len: range.last - range.first + 1,
        // Such locks have none.
        l_pid: 0,
    };
    // SAFETY: the description lives through the call, which reads it and may write it.
    match unsafe { libc::fcntl(file.as_raw_fd(), command, &raw mut described) } {
        0 => Ok(described),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Gives a file that is open one more name, `to`, on the same file system.
///
/// # Errors
/// `NotFound` if it has no name any more, `AlreadyExists` if there is a file, or the system's
/// error.
pub fn link_open(file: &File, to: &Path) -> io::Result<()> {
    let from = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
    let to = CString::new(to.as_os_str().as_bytes())?;
    let (here, follow) = (libc::AT_FDCWD, libc::AT_SYMLINK_FOLLOW);
    // SAFETY: two strings that live through the call.
    match unsafe { libc::linkat(here, from.as_ptr(), here, to.as_ptr(), follow) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Treatment of an existing file with the new name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renaming {
    /// It is replaced.
    Replace,
    /// It stays, and the rename fails.
    Refuse,
    /// It gets the old name.
    Exchange,
}

/// Renames a file (renameat2(2)).
///
/// # Errors
/// `AlreadyExists` if a file has the new name and stays. `EINVAL` if the file system of the file
/// can only replace. Otherwise the system's error.
pub fn rename(from: &Path, to: &Path, how: Renaming) -> io::Result<()> {
    let from = CString::new(from.as_os_str().as_bytes())?;
    let to = CString::new(to.as_os_str().as_bytes())?;
    let (here, flags) = match how {
        Renaming::Replace => (libc::AT_FDCWD, 0),
        Renaming::Refuse => (libc::AT_FDCWD, libc::RENAME_NOREPLACE),
        Renaming::Exchange => (libc::AT_FDCWD, libc::RENAME_EXCHANGE),
    };
    // SAFETY: two strings that live through the call.
    match unsafe { libc::renameat2(here, from.as_ptr(), here, to.as_ptr(), flags) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Type of a file that [`make_node`] creates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeKind {
    /// A regular file.
    File,
    /// A FIFO.
    Fifo,
    /// A socket.
    Socket,
}

/// Creates a file of any type with these permissions (mknod(2)). The umask of this thread applies.
///
/// # Errors
/// `AlreadyExists` if there is a file, or the system's error.
pub fn make_node(path: &Path, kind: NodeKind, mode: u32) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let kind = match kind {
        NodeKind::File => libc::S_IFREG,
        NodeKind::Fifo => libc::S_IFIFO,
        NodeKind::Socket => libc::S_IFSOCK,
    };
    // SAFETY: a string that lives through the call.
    match unsafe { libc::mknod(path.as_ptr(), kind | mode, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns the target of a symbolic link that is open with `O_PATH`.
///
/// # Errors
/// The system's error.
pub fn read_link(link: &File) -> io::Result<Vec<u8>> {
    let mut target = vec![0; PATH_BYTES_MAX];
    let (to, len) = (target.as_mut_ptr().cast(), target.len());
    // SAFETY: an empty string that lives for ever, and memory of the length that is said.
    let count = unsafe { libc::readlinkat(link.as_raw_fd(), c"".as_ptr(), to, len) };
    let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
    target.truncate(count);
    Ok(target)
}

/// Sets the times of the last access and modification of the file that `path` leads to; `None`
/// leaves one unchanged.
///
/// # Errors
/// The system's error; `EINVAL` for a time that it cannot express.
pub fn set_times(
    path: &Path,
    accessed: Option<SystemTime>,
    modified: Option<SystemTime>,
) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let times = [instant(accessed)?, instant(modified)?];
    // SAFETY: a string and two times that live through the call.
    match unsafe { libc::utimensat(libc::AT_FDCWD, path.as_ptr(), times.as_ptr(), 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns a time for the system.
fn instant(time: Option<SystemTime>) -> io::Result<libc::timespec> {
    let Some(time) = time else {
        return Ok(libc::timespec {
            tv_sec: 0,
            tv_nsec: libc::UTIME_OMIT,
        });
    };
    let invalid = |_| io::Error::from_raw_os_error(libc::EINVAL);
    let (seconds, part) = match time.duration_since(UNIX_EPOCH) {
        Ok(since) => {
            let seconds = libc::time_t::try_from(since.as_secs()).map_err(invalid)?;
            (seconds, since.subsec_nanos())
        }
        Err(before) => {
            let before = before.duration();
            let whole = libc::time_t::try_from(before.as_secs()).map_err(invalid)?;
            match before.subsec_nanos() {
                0 => (-whole, 0),
                part => (-whole - 1, 1_000_000_000 - part),
            }
        }
    };
    Ok(libc::timespec {
        tv_sec: seconds,
        tv_nsec: part.into(),
    })
}

/// Lets this process have as many files open as it may.
///
/// # Errors
/// The system's error.
pub fn raise_open_files() -> io::Result<()> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the limit lives through the call.
    let mut outcome = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    if outcome == 0 {
        limit.rlim_cur = limit.rlim_max;
        // SAFETY: as above.
        outcome = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
    }
    match outcome {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Space of a file system.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// Size of a block in bytes, the unit of the next three fields.
    pub block_bytes: u32,
    /// Number of all blocks.
    pub blocks: u64,
    /// Number of free blocks.
    pub free: u64,
    /// Number of free blocks that are not reserved for root.
    pub available: u64,
    /// Maximum number of files. Zero if there is no limit.
    pub files: u64,
    /// Number of files that can still be made.
    pub files_free: u64,
    /// Longest name, bytes.
    pub name_bytes: u32,
}

/// Returns the space of the file system of a file.
///
/// # Errors
/// The system's error.
pub fn room(file: &File) -> io::Result<Room> {
    let mut answer = MaybeUninit::<libc::statvfs>::zeroed();
    // SAFETY: the call writes one such value to the given address.
    if unsafe { libc::fstatvfs(file.as_raw_fd(), answer.as_mut_ptr()) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call has filled it.
    let answer = unsafe { answer.assume_init() };
    let small = |number| u32::try_from(number).unwrap_or(u32::MAX);
    Ok(Room {
        block_bytes: small(answer.f_frsize),
        blocks: answer.f_blocks,
        free: answer.f_bfree,
        available: answer.f_bavail,
        files: answer.f_files,
        files_free: answer.f_ffree,
        name_bytes: small(answer.f_namemax),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn a_byte_is_locked_against_other_opens_of_the_file() {
        let dir = std::env::temp_dir().join(format!("forebay-io-tree-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("made");
        let path = dir.join("file");
        // A shared lock is for those who may read, the other kind for those who may write.
        let mut both = File::options();
        both.read(true).write(true).create(true).truncate(false);
        let one = both.open(&path).expect("made");
        let other = both.open(&path).expect("there");
        assert!(try_lock_byte(&one, 7, Lock::Shared).expect("answers"));
        assert!(try_lock_byte(&other, 8, Lock::Exclusive).expect("answers"));
        assert!(!try_lock_byte(&other, 7, Lock::Exclusive).expect("answers"));
        lock_byte(&one, 7, Lock::None).expect("answers");
        assert!(try_lock_byte(&other, 7, Lock::Exclusive).expect("answers"));
        let range = |first, last| ByteRange { first, last };
        let found = conflicting_lock(&one, range(0, 100), Lock::Shared).expect("answers");
        assert_eq!(found, Some((range(7, 8), Lock::Exclusive)));
        let found = conflicting_lock(&one, range(0, 6), Lock::Shared).expect("answers");
        assert_eq!(found, None);
        assert!(!try_lock_range(&one, range(0, 7), Lock::Shared).expect("answers"));
        assert!(try_lock_range(&one, range(0, 6), Lock::Exclusive).expect("answers"));
        assert!(!try_lock_byte(&other, 3, Lock::Shared).expect("answers"));
        drop(other);
        assert!(try_lock_byte(&one, 8, Lock::Exclusive).expect("answers"));
        std::fs::remove_dir_all(&dir).expect("removed");
    }

    #[test]
    fn an_open_file_gets_a_second_name() {
        let dir = std::env::temp_dir().join(format!("forebay-io-link-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("made");
        let file = File::create(dir.join("one")).expect("made");
        link_open(&file, &dir.join("two")).expect("linked");
        let inode = |name| std::fs::metadata(dir.join(name)).expect("there").ino();
        assert_eq!(inode("one"), inode("two"));
        let second = link_open(&file, &dir.join("two")).expect_err("there is one");
        assert_eq!(second.kind(), io::ErrorKind::AlreadyExists);
        assert!(room(&file).expect("answers").blocks > 0);
        std::fs::remove_dir_all(&dir).expect("removed");
    }
}
