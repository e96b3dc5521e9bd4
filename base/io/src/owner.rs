//! Owners of new files, other than this process's user.

use std::cell::Cell;
use std::io;

/// `SECBIT_NO_SETUID_FIXUP` of linux/securebits.h.
const NO_SETUID_FIXUP: libc::c_ulong = 1 << 2;
/// A user or group that does not exist: setting it only returns the present one.
const NONE: u32 = u32::MAX;

thread_local! {
    /// Whether this thread keeps its capabilities as another user, and has its own umask, 0.
    static PREPARED: Cell<bool> = const { Cell::new(false) };
}

/// This thread's user and group for new files, reset on drop.
struct Owner {
    user: u32,
    group: u32,
}

/// Runs `make`, such that files which this thread creates meanwhile belong to `user` and `group`
/// and have exactly the requested mode. The source's rules for set-group-ID directories apply. The
/// thread keeps the permissions of this process. From the first call on, its umask is 0, and the
/// current directory of the process does not follow changes of other threads for it.
///
/// # Errors
/// `PermissionDenied` without `CAP_SETUID` and `CAP_SETGID`, or for a user or group that does not
/// exist in this user namespace. Errors of `make`.
pub fn as_owner<T>(user: u32, group: u32, make: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    prepare()?;
    let _reset = Owner {
        user: set_user(user),
        group: set_group(group),
    };
    // Failures are not reported in another way.
    if set_user(NONE) != user || set_group(NONE) != group {
        return Err(io::Error::from_raw_os_error(libc::EPERM));
    }
    make()
}

impl Drop for Owner {
    fn drop(&mut self) {
        set_user(self.user);
        set_group(self.group);
    }
}

fn prepare() -> io::Result<()> {
    if PREPARED.get() {
        return Ok(());
    }
    let done = |outcome: libc::c_int| match outcome {
        0.. => Ok(outcome),
        _ => Err(io::Error::last_os_error()),
    };
    // SAFETY: a plain system call with integer arguments.
    done(unsafe { libc::unshare(libc::CLONE_FS) })?;
    // SAFETY: a plain system call with integer arguments.
    unsafe { libc::umask(0) };
    // SAFETY: a plain system call with integer arguments.
    let bits = done(unsafe { libc::prctl(libc::PR_GET_SECUREBITS, 0, 0, 0, 0) })?;
    let bits = libc::c_ulong::from(bits.unsigned_abs()) | NO_SETUID_FIXUP;
    // SAFETY: a plain system call with integer arguments.
    done(unsafe { libc::prctl(libc::PR_SET_SECUREBITS, bits, 0, 0, 0) })?;
    PREPARED.set(true);
    Ok(())
}

/// Sets this thread's user for new files. Returns the earlier one.
fn set_user(user: u32) -> u32 {
    // SAFETY: a plain system call with an integer argument.
    unsafe { libc::setfsuid(user) }.cast_unsigned()
}

/// Sets this thread's group for new files. Returns the earlier one.
fn set_group(group: u32) -> u32 {
    // SAFETY: a plain system call with an integer argument.
    unsafe { libc::setfsgid(group) }.cast_unsigned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, OpenOptions};
    use std::os::unix::fs::{MetadataExt, OpenOptionsExt};

    #[test]
    fn a_file_has_its_owner_and_mode_from_the_start() {
        let dir = std::env::temp_dir().join(format!("forebay-io-owner-{}", std::process::id()));
        fs::create_dir_all(&dir).expect("made");
        let make = |name: &str| {
            let mut options = OpenOptions::new();
            let options = options.write(true).create_new(true).mode(0o666);
            options.open(dir.join(name))
        };
        let own = make("own").expect("made").metadata().expect("there");
        match as_owner(1234, 5678, || make("other")) {
            Ok(other) => {
                let other = other.metadata().expect("there");
                assert_eq!((other.uid(), other.gid()), (1234, 5678));
                assert_eq!(other.mode() & 0o777, 0o666);
            }
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::EPERM), "not root"),
        }
        let next = make("next").expect("made").metadata().expect("there");
        assert_eq!((next.uid(), next.gid()), (own.uid(), own.gid()));
        fs::remove_dir_all(&dir).expect("removed");
    }
}
