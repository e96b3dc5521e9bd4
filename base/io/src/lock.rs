//! Locks by which programs exclude each other from an image.
//!
//! A program that holds a file or block device exclusively has two kinds of lock on it:
//!
//! - `flock`, which other Forebays and `losetup`-like tools check.
//! - Open file description locks on single bytes, as QEMU's `file` and `host_device` drivers hold
//!   them (`block/file-posix.c`). A read lock on byte `100 + n` says that its holder uses
//!   permission *n*. One on byte `200 + n` says that the holder does not share permission *n*.
//!   Programs that lock whole files conflict with these bytes, too.
//!
//! If a file system has no such locks, `flock` must suffice.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, RawFd};

use forebay_block::{Context, Error, ErrorKind, Result};

use crate::holder::Holder;

/// First byte of the permissions that a program uses.
const USED: i64 = 100;
/// First byte of the permissions that a program does not share.
const UNSHARED: i64 = 200;
/// Permissions of QEMU: 0 consistent reads, 1 writes, 2 writes that change nothing, 3 other sizes.
const READ: i64 = 0;
const WRITE: i64 = 1;
const PERMISSIONS: i64 = 4;

/// Takes all locks of a file that this process holds alone, to read it or to write to it, too.
///
/// # Errors
/// `Busy` if another program holds the file, or the system's error.
pub(crate) fn lock(file: &File, read_only: bool) -> Result<()> {
    lock_whole(file)?;
    let used = match read_only {
        true => READ..READ + 1,
        false => READ..PERMISSIONS,
    };
    let locked = lock_bytes(file.as_raw_fd(), used);
    if locked.is_err() {
        unlock(file.as_raw_fd());
    }
    locked
}

/// Gives up all locks of a file: its descriptor may be in use for a moment more.
pub(crate) fn unlock(fd: RawFd) {
    // Locks that could not be released end with the descriptor.
    let _ = set(fd, libc::F_UNLCK, USED..UNSHARED + PERMISSIONS);
    // SAFETY: the descriptor is open.
    unsafe { libc::flock(fd, libc::LOCK_UN) };
}

fn lock_whole(file: &File) -> Result<()> {
    loop {
        // SAFETY: the descriptor is open.
        if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EINTR) => (),
            Some(libc::EWOULDBLOCK) => {
                let holder = file.metadata().ok().as_ref().and_then(Holder::of);
                let holder = holder.map_or("another forebay?".to_owned(), Holder::describe);
                return Err(Error::new(
                    ErrorKind::Busy,
                    format!("another program holds a lock on it ({holder})\nhelp: stop it first"),
                ));
            }
            _ => return Err(error).context(|| "locking it"),
        }
    }
}

/// Takes the locks of the permissions that are `used`, shares none but reading, and looks for
/// others who mind.
fn lock_bytes(fd: RawFd, used: Range<i64>) -> Result<()> {
    let unshared = WRITE..PERMISSIONS;
    let at = |base: i64, permissions: &Range<i64>| base + permissions.start..base + permissions.end;
    // First the locks, then the look: of two programs that come at once, at least one sees the
    // other.
    for bytes in [at(USED, &used), at(UNSHARED, &unshared)] {
        match set(fd, libc::F_RDLCK, bytes) {
            Ok(()) => {}
            Err(error) => match error.raw_os_error() {
                Some(libc::EAGAIN | libc::EACCES) => return Err(held("its bytes")),
                Some(libc::EINVAL | libc::ENOLCK | libc::ENOSYS | libc::EOPNOTSUPP) => {
                    tracing::debug!("locks of byte ranges are not supported: {error}");
                    return Ok(());
                }
                _ => return Err(error).context(|| "locking byte ranges"),
            },
        }
    }
    for byte in at(UNSHARED, &used).chain(at(USED, &unshared)) {
        if is_locked(fd, byte).context(|| "reading its locks")? {
            return Err(held(&format!("byte {byte}")));
        }
    }
    Ok(())
}

fn held(what: &str) -> Error {
    let what = format!(
        "another program has it open (QEMU or qemu-nbd? It has locked {what})\n\
         help: stop that program first"
    );
    Error::new(ErrorKind::Busy, what)
}

const fn described(kind: libc::c_int, bytes: &Range<i64>) -> libc::flock {
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: bytes.start,
        l_len: bytes.end - bytes.start,
        l_pid: 0,
    }
}

fn set(fd: RawFd, kind: libc::c_int, bytes: Range<i64>) -> io::Result<()> {
    let lock = described(kind, &bytes);
    // SAFETY: the descriptor is open, and the structure is read in place.
    match unsafe { libc::fcntl(fd, libc::F_OFD_SETLK, &raw const lock) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns whether anybody else holds a lock on this byte.
fn is_locked(fd: RawFd, byte: i64) -> io::Result<bool> {
    let mut lock = described(libc::F_WRLCK, &(byte..byte + 1));
    // SAFETY: the descriptor is open, and the structure is written in place.
    match unsafe { libc::fcntl(fd, libc::F_OFD_GETLK, &raw mut lock) } {
        0 => Ok(libc::c_int::from(lock.l_type) != libc::F_UNLCK),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;

    use super::*;
    use crate::testing::Scratch;

    fn open(scratch: &Scratch) -> File {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        options.open(scratch.path("image")).expect("a file")
    }

    /// As QEMU does it: `used` and `unshared` permissions as bits.
    fn as_qemu(file: &File, used: i64, unshared: i64) -> bool {
        let fd = file.as_raw_fd();
        let bits = |of: i64| (0..5).filter(move |bit| of >> bit & 1 != 0);
        let bytes = |base: i64, of: i64| bits(of).map(move |bit| base + bit);
        for byte in bytes(100, used).chain(bytes(200, unshared)) {
            set(fd, libc::F_RDLCK, byte..byte + 1).expect("a read lock");
        }
        bytes(200, used)
            .chain(bytes(100, unshared))
            .all(|byte| !is_locked(fd, byte).expect("looked at"))
    }

    #[test]
    fn qemu_locks_and_our_locks_exclude_each_other() {
        // Used permissions and unshared permissions of several holders: QEMU for a guest's disk,
        // qemu-nbd, qemu-img reading, and a holder that shares everything. Then whether a writer of
        // ours and a reader are allowed.
        for (used, unshared, writer, reader) in [
            (0b1011, 0b1010, false, false),
            (0b1111, 0b1111, false, false),
            (0b0001, 0b1010, false, true),
            (0b0010, 0b0000, false, false),
            (0b1000, 0b0000, false, false),
            (0b0001, 0b0000, true, true),
        ] {
            let scratch = Scratch::new();
            let (theirs, ours) = (open(&scratch), open(&scratch));
            assert!(as_qemu(&theirs, used, unshared), "nobody else is there");
            for (read_only, may) in [(false, writer), (true, reader)] {
                let locked = lock(&ours, read_only);
                let case = format!("used {used:b}, unshared {unshared:b}, read-only {read_only}");
                assert_eq!(locked.is_ok(), may, "{case}: {locked:?}");
                if let Err(error) = locked {
                    assert_eq!(error.kind(), ErrorKind::Busy);
                    assert!(error.report().contains("qemu-nbd"), "{}", error.report());
                    // Nothing is left behind.
                    let third = open(&scratch);
                    lock_whole(&third).expect("no lock stayed");
                }
                unlock(ours.as_raw_fd());
            }
            drop(theirs);
            lock(&ours, false).expect("they have gone");
            let theirs = open(&scratch);
            assert_eq!(as_qemu(&theirs, used, unshared), writer, "they see us");
        }
    }

    #[test]
    fn a_lock_of_the_whole_file_is_seen_and_sees() {
        let scratch = Scratch::new();
        let (theirs, ours) = (open(&scratch), open(&scratch));
        set(theirs.as_raw_fd(), libc::F_WRLCK, 0..i64::MAX).expect("free");
        let busy = lock(&ours, false).expect_err("they have all bytes");
        assert_eq!(busy.kind(), ErrorKind::Busy);
        set(theirs.as_raw_fd(), libc::F_UNLCK, 0..i64::MAX).expect("given up");
        lock(&ours, false).expect("free");
        let late = set(theirs.as_raw_fd(), libc::F_WRLCK, 0..i64::MAX).expect_err("ours");
        assert_eq!(late.raw_os_error(), Some(libc::EAGAIN));
        let other = lock(&theirs, true).expect_err("two of us");
        let holder = format!("process {}", std::process::id());
        assert!(other.report().contains(&holder), "{}", other.report());
    }
}
