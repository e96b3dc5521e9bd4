//! Files in memory: on tmpfs, or on byte-addressable media.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// File systems whose files are memory: tmpfs (also `devtmpfs`), ramfs and hugetlbfs.
const IN_MEMORY: [libc::c_long; 3] = [0x0102_1994, 0x8584_58f6, 0x9584_58f6];

/// Returns whether a file at `path` is, or would be made, in memory or on byte-addressable media
/// (DAX). Returns true where the system does not tell.
#[must_use]
pub fn is_in_memory(path: &Path) -> bool {
    let Some(there) = path.ancestors().find(|above| above.exists()) else {
        return true;
    };
    let Ok(name) = CString::new(there.as_os_str().as_bytes()) else {
        return true;
    };
    // SAFETY: all zeroes is a valid value of this plain structure.
    let mut system: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the name is a string that lives through the call, and the answer is written in place.
    let known = unsafe { libc::statfs(name.as_ptr(), &raw mut system) } == 0;
    !known || IN_MEMORY.contains(&system.f_type) || is_dax(&name)
}

/// Returns whether a file has direct access to its medium. A new file inherits it from its
/// directory; with the mount option `dax=always` it shows only once the file exists.
fn is_dax(name: &CString) -> bool {
    let dax = libc::STATX_ATTR_DAX as u64;
    // SAFETY: all zeroes is a valid value of this plain structure.
    let mut found: libc::statx = unsafe { std::mem::zeroed() };
    // SAFETY: the name is a string that lives through the call, and the answer is written in place.
    let known = unsafe { libc::statx(libc::AT_FDCWD, name.as_ptr(), 0, 0, &raw mut found) } == 0;
    known && found.stx_attributes & dax != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_memory_is_in_memory_and_a_disk_is_not() {
        assert!(is_in_memory(Path::new("/dev/shm")));
        assert!(is_in_memory(Path::new("/dev/shm/none/of/these")));
        assert!(!is_in_memory(Path::new("/proc/self/status")));
    }
}
