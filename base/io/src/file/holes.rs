//! Holes of a file: ranges that were never written, or were truncated and extended since.

use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};

/// `ZFS_SUPER_MAGIC`: written zeroes may become a hole there.
const ZFS: libc::c_long = 0x2fc1_2fc1;

/// `FUSE_SUPER_MAGIC`: the kernel passes a seek to the server without the writes in its page cache.
const FUSE: libc::c_long = 0x6573_5546;

/// Returns whether the file system may say that a range of a file is a hole. ZFS calls written
/// zeroes a hole. The server of a FUSE file system may not have a write that was acknowledged.
pub(super) fn are_reliable(fd: BorrowedFd<'_>) -> bool {
    // SAFETY: all zeroes is a valid value of this plain structure.
    let mut answer: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open, and the answer is written in place.
    let known = unsafe { libc::fstatfs(fd.as_raw_fd(), &raw mut answer) };
    known == 0 && ![ZFS, FUSE].contains(&answer.f_type)
}

/// Returns the first byte from `at` on that is data (`SEEK_DATA`) or in a hole (`SEEK_HOLE`).
///
/// # Errors
/// The error number of the system.
pub(super) fn seek(fd: BorrowedFd<'_>, at: u64, whence: libc::c_int) -> Result<u64, i32> {
    let at = libc::off_t::try_from(at).map_err(|_| libc::EOVERFLOW)?;
    // SAFETY: the descriptor is open; no memory is involved. No other code uses its offset.
    let found = unsafe { libc::lseek(fd.as_raw_fd(), at, whence) };
    u64::try_from(found).map_err(|_| {
        let error = std::io::Error::last_os_error();
        error.raw_os_error().unwrap_or(libc::EIO)
    })
}

/// Returns the holes of a file within `range`, bytes. None where its file system does not tell, or
/// calls written zeroes a hole.
pub(crate) fn holes(fd: BorrowedFd<'_>, range: Range<u64>) -> Option<Vec<Range<u64>>> {
    if !are_reliable(fd) {
        return None;
    }
    let mut holes = Vec::new();
    let mut at = range.start;
    while at < range.end {
        // The end of a file counts as a hole.
        let start = seek(fd, at, libc::SEEK_HOLE).ok()?.min(range.end);
        if start >= range.end {
            break;
        }
        // Behind the last data there is none.
        let end = seek(fd, start, libc::SEEK_DATA).map_or(range.end, |end| end.min(range.end));
        holes.push(start..end);
        at = end;
    }
    Some(holes)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;
    use std::os::unix::fs::FileExt as _;

    use super::*;
    use crate::testing::Scratch;

    #[test]
    fn a_range_cut_off_a_file_and_restored_is_a_hole() {
        let scratch = Scratch::new();
        let path = scratch.path("file");
        let file = std::fs::File::create_new(&path).expect("made");
        let mut options = std::fs::File::options();
        let file = {
            drop(file);
            options.read(true).write(true).open(&path).expect("there")
        };
        const MIB: u64 = 1 << 20;
        file.write_all_at(&vec![1; 3 << 20], 0).expect("written");
        file.sync_all().expect("synced");
        let all = 0..3 * MIB;
        let Some(none) = holes(file.as_fd(), all.clone()) else {
            eprintln!("SKIPPED: this file system does not tell where a file has holes");
            return;
        };
        assert_eq!(none, []);
        file.set_len(2 * MIB).expect("cut");
        let last: Vec<_> = std::iter::once(2 * MIB..3 * MIB).collect();
        assert_eq!(holes(file.as_fd(), all.clone()), Some(last.clone()));
        file.set_len(3 * MIB).expect("lengthened");
        let found = holes(file.as_fd(), all.clone());
        assert_eq!(found, Some(last));
        file.write_all_at(&vec![0; 4096], 5 * MIB / 2)
            .expect("zeroes are data");
        file.sync_all().expect("synced");
        let found = holes(file.as_fd(), all).expect("as before");
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found.iter().all(|hole| !hole.contains(&(5 * MIB / 2))));
    }
}
