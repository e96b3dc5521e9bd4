//! Reads and writes that leave no copy of a file in the kernel's page cache.
//!
//! `RWF_DONTCACHE` removes the pages of a request from the page cache at its end, or at the end of
//! their write-back. It needs Linux 6.14 and a file system that supports it. It needs no alignment,
//! unlike `O_DIRECT`. Elsewhere `posix_fadvise` removes the pages after a read and after a sync.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};

/// `RWF_DONTCACHE` of linux/fs.h.
const RWF_DONTCACHE: libc::c_int = 0x80;

/// Reads and writes of the files of one file system.
#[derive(Debug, Default)]
pub struct Uncached {
    /// Whether the kernel or the file system has refused `RWF_DONTCACHE`.
    unsupported: AtomicBool,
}

impl Uncached {
    /// Reads at an offset. Returns the number of bytes, which is 0 at the end of the file.
    ///
    /// # Errors
    /// Errors of pread(2).
    pub fn read_at(&self, file: &File, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        if self.is_supported() {
            let part = libc::iovec {
                iov_base: buf.as_mut_ptr().cast(),
                iov_len: buf.len(),
            };
            let start = libc::off_t::try_from(offset).map_err(io::Error::other)?;
            // SAFETY: the descriptor is open, and the kernel writes to `buf` alone.
            let done = unsafe { libc::preadv2(file.as_raw_fd(), &part, 1, start, RWF_DONTCACHE) };
            if let Some(done) = self.supported(done) {
                return done;
            }
        }
        let done = file.read_at(buf, offset)?;
        remove_copies(file, offset, done as u64);
        Ok(done)
    }

    /// Writes at an offset. Returns the number of bytes.
    ///
    /// # Errors
    /// Errors of pwrite(2).
    pub fn write_at(&self, file: &File, buf: &[u8], offset: u64) -> io::Result<usize> {
        if self.is_supported() {
            let part = libc::iovec {
                iov_base: buf.as_ptr().cast_mut().cast(),
                iov_len: buf.len(),
            };
            let start = libc::off_t::try_from(offset).map_err(io::Error::other)?;
            // SAFETY: the descriptor is open, and the kernel only reads `buf`.
            let done = unsafe { libc::pwritev2(file.as_raw_fd(), &part, 1, start, RWF_DONTCACHE) };
            if let Some(done) = self.supported(done) {
                return done;
            }
        }
        file.write_at(buf, offset)
    }

    /// Makes the data of the file durable, and removes the copies that writes have left.
    ///
    /// # Errors
    /// Errors of fdatasync(2).
    pub fn sync_data(&self, file: &File) -> io::Result<()> {
        file.sync_data()?;
        if !self.is_supported() {
            remove_copies(file, 0, 0);
        }
        Ok(())
    }

    fn is_supported(&self) -> bool {
        !self.unsupported.load(Ordering::Relaxed)
    }

    /// Returns the result of a system call, or `None` if it did not support the flag.
    fn supported(&self, done: isize) -> Option<io::Result<usize>> {
        if let Ok(done) = usize::try_from(done) {
            return Some(Ok(done));
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EOPNOTSUPP | libc::ENOSYS) => {
                self.unsupported.store(true, Ordering::Relaxed);
                None
            }
            _ => Some(Err(error)),
        }
    }
}

/// Removes clean pages of a range, or all behind `offset` if `len` is 0. This is advice: the kernel
/// may not follow it.
fn remove_copies(file: &File, offset: u64, len: u64) {
    let range = (libc::off_t::try_from(offset), libc::off_t::try_from(len));
    if let (Ok(offset), Ok(len)) = range {
        // SAFETY: the descriptor is open.
        unsafe { libc::posix_fadvise(file.as_raw_fd(), offset, len, libc::POSIX_FADV_DONTNEED) };
    }
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::io::Write as _;

    use super::*;
    use crate::testing::Scratch;

    const PAGE: usize = 4096;
    const BYTES: usize = 64 * PAGE;

    /// Returns how many pages of the file the kernel holds.
    fn resident(file: &File) -> usize {
        let (map, flags) = (libc::PROT_READ, libc::MAP_SHARED);
        // SAFETY: a new mapping of an open file.
        let start =
            unsafe { libc::mmap(std::ptr::null_mut(), BYTES, map, flags, file.as_raw_fd(), 0) };
        assert_ne!(start, libc::MAP_FAILED);
        let mut pages = [0_u8; BYTES / PAGE];
        // SAFETY: the mapping has as many pages as the array.
        let done = unsafe { libc::mincore(start, BYTES, pages.as_mut_ptr()) };
        // SAFETY: nothing refers to the mapping.
        unsafe { libc::munmap(start, BYTES) };
        assert_eq!(done, 0, "{}", io::Error::last_os_error());
        pages.iter().filter(|page| **page & 1 == 1).count()
    }

    fn file(scratch: &Scratch, name: &str) -> File {
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true);
        options.open(scratch.path(name)).expect("a new file")
    }

    #[test]
    fn no_page_stays_after_a_write_and_a_read() {
        let scratch = Scratch::new();
        let plain = file(&scratch, "plain");
        (&plain).write_all(&[7; BYTES]).expect("it is written");
        plain.sync_data().expect("it is synced");
        remove_copies(&plain, 0, 0);
        if resident(&plain) > 0 {
            eprintln!(
                "SKIPPED: the file system of {:?} keeps its pages in memory",
                scratch.path("plain")
            );
            return;
        }
        let mut read = vec![0; BYTES];
        assert_eq!(plain.read_at(&mut read, 0).expect("it is read"), BYTES);
        assert!(resident(&plain) > 0, "an ordinary read leaves pages");

        for unsupported in [false, true] {
            let uncached = Uncached::default();
            uncached.unsupported.store(unsupported, Ordering::Relaxed);
            let file = file(&scratch, &format!("{unsupported}"));
            let mut done = 0;
            while done < BYTES {
                let written = uncached.write_at(&file, &vec![7; BYTES - done], done as u64);
                done += written.expect("it is written");
            }
            uncached.sync_data(&file).expect("it is synced");
            assert_eq!(resident(&file), 0, "after a write, {unsupported}");
            // Neither the start nor the length is that of a page.
            let (mut read, mut done) = (vec![0; BYTES], 100);
            while done < BYTES {
                let count = uncached.read_at(&file, &mut read[done..], done as u64);
                done += count.expect("it is read");
            }
            assert!(read[100..].iter().all(|byte| *byte == 7));
            // A page that is read in part may stay.
            assert!(resident(&file) <= 1, "after a read, {unsupported}");
            let end = uncached.read_at(&file, &mut read, BYTES as u64);
            assert_eq!(end.expect("it is the end"), 0);
        }
    }
}
