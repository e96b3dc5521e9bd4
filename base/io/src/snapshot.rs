//! A private copy of a file in memory. Stores reach the copy alone, and nothing of the file is
//! allocated.
//!
//! A page fault on a hole of a tmpfs file allocates the page, even for a load. Holes are therefore
//! anonymous memory here, and only data is mapped from the file.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileExt as _;

const PAGE_BYTES: u64 = 4096;

/// Data extents that are mapped. The kernel limits the number of mappings; further extents are read
/// into memory.
const MAPPED_EXTENTS: usize = 8192;

/// Maps the first `len` bytes of a file copy-on-write and returns the address. `len` is not zero
/// and not beyond the end of the file. The caller unmaps `len` bytes.
pub(crate) fn map(file: &File, len: usize) -> io::Result<*mut u8> {
    map_extents(file, len, MAPPED_EXTENTS)
}

/// As [`map`]. At most `most` extents are mapped.
fn map_extents(file: &File, len: usize, most: usize) -> io::Result<*mut u8> {
    // SAFETY: a new mapping at an address of the kernel's choice.
    let address = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    if address == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let address: *mut u8 = address.cast();
    let filled = fill(file, address, len as u64, most);
    if filled.is_err() {
        // SAFETY: the mapping from above, which no other code has seen.
        unsafe { libc::munmap(address.cast(), len) };
    }
    filled.map(|()| address)
}

/// Replaces the zeroes at `address` with the data of the file. The first `most` extents are mapped.
fn fill(file: &File, address: *mut u8, len: u64, most: usize) -> io::Result<()> {
    let (mut at, mut extents) = (0, 0);
    while at < len {
        let Some(data) = seek(file, at, libc::SEEK_DATA)?.filter(|data| *data < len) else {
            return Ok(());
        };
        let hole = seek(file, data, libc::SEEK_HOLE)?.unwrap_or(len);
        let start = data - data % PAGE_BYTES;
        // Two extents may meet in one page.
        let start = start.max(at);
        let end = hole.next_multiple_of(PAGE_BYTES).min(len);
        if start < end {
            place(file, address, start..end, extents < most)?;
        }
        extents += 1;
        at = end.max(hole);
    }
    Ok(())
}

/// Maps a range that begins at a page, or reads it.
fn place(
    file: &File,
    address: *mut u8,
    range: std::ops::Range<u64>,
    mapped: bool,
) -> io::Result<()> {
    let (start, len) = (range.start as usize, (range.end - range.start) as usize);
    // SAFETY: within the mapping that `map` made.
    let target = unsafe { address.add(start) };
    if !mapped {
        // SAFETY: this part of the mapping is writable, and no other code has it yet.
        let bytes = unsafe { std::slice::from_raw_parts_mut(target, len) };
        return file.read_exact_at(bytes, range.start);
    }
    let offset = libc::off_t::try_from(range.start).map_err(io::Error::other)?;
    // SAFETY: replaces a part of the mapping that `map` made; target and offset are multiples of a
    // page.
    let placed = unsafe {
        libc::mmap(
            target.cast(),
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_FIXED | libc::MAP_NORESERVE,
            file.as_raw_fd(),
            offset,
        )
    };
    match placed == libc::MAP_FAILED {
        true => Err(io::Error::last_os_error()),
        false => Ok(()),
    }
}

/// The next data, or the next hole; none if there is no data any more. A file system that knows no
/// holes has data everywhere.
fn seek(file: &File, at: u64, whence: libc::c_int) -> io::Result<Option<u64>> {
    let offset = libc::off_t::try_from(at).map_err(io::Error::other)?;
    // SAFETY: a system call on an open descriptor; no other code uses its position.
    let found = unsafe { libc::lseek(file.as_raw_fd(), offset, whence) };
    if found >= 0 {
        return Ok(Some(found.unsigned_abs()));
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::ENXIO) => Ok(None),
        Some(libc::EINVAL) if whence == libc::SEEK_DATA => Ok(Some(at)),
        Some(libc::EINVAL) => Ok(None),
        _ => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;
    use std::path::Path;

    use super::*;
    use crate::testing::Scratch;

    fn looked_at(file: &File, len: usize, most: usize) -> Vec<u8> {
        let address = map_extents(file, len, most).expect("mapped");
        // SAFETY: `len` bytes are mapped, and unmapped below alone.
        let bytes = unsafe { std::slice::from_raw_parts_mut(address, len) };
        let found = bytes.to_vec();
        // Stores stay here.
        bytes.fill(0xee);
        // SAFETY: the mapping of above.
        unsafe { libc::munmap(address.cast(), len) };
        found
    }

    /// Checks a sparse file with data at some places, of which `most` extents are mapped.
    fn check(path: &Path, len: u64, data: &[u64], most: usize) {
        let file = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(path);
        let file = file.expect("made");
        file.set_len(len).expect("sparse");
        for at in data {
            file.write_all_at(&[7; 3], *at).expect("written");
        }
        let before = file.metadata().expect("there").blocks();
        let found = looked_at(&file, len as usize, most);
        assert_eq!(file.metadata().expect("there").blocks(), before, "{path:?}");
        let set: Vec<_> = (0..len).filter(|at| found[*at as usize] != 0).collect();
        let mut expected: Vec<_> = data.iter().flat_map(|at| [*at, at + 1, at + 2]).collect();
        expected.sort_unstable();
        assert_eq!(set, expected, "{path:?}");
        let still = looked_at(&file, len as usize, most);
        assert_eq!(still, found, "a store reached the file");
    }

    #[test]
    fn a_look_allocates_nothing_and_changes_nothing() {
        let scratch = Scratch::new();
        let places: [(u64, &[u64]); 5] = [
            (1 << 20, &[]),
            (1 << 20, &[0]),
            (1 << 20, &[4094, 40_000, (1 << 20) - 3]),
            (4096, &[9]),
            (3 * 4096, &[4096, 8192]),
        ];
        for (number, (len, data)) in places.into_iter().enumerate() {
            check(
                &scratch.path(&format!("file-{number}")),
                len,
                data,
                MAPPED_EXTENTS,
            );
            let in_memory = format!("/dev/shm/forebay-snapshot-{}-{number}", std::process::id());
            let in_memory = Path::new(&in_memory);
            if !Path::new("/dev/shm").is_dir() {
                eprintln!("SKIPPED: there is no /dev/shm");
                continue;
            }
            check(in_memory, len, data, MAPPED_EXTENTS);
            std::fs::remove_file(in_memory).expect("ours");
        }
    }

    #[test]
    fn a_file_of_many_extents_is_read_where_it_is_not_mapped() {
        let scratch = Scratch::new();
        // A small limit serves as well. To reach MAPPED_EXTENTS takes thousands of scattered pages,
        // for each of which a file system reserves more blocks than the page until it is written.
        // A disk that other programs fill at the same time then has no space.
        let extents = 9;
        let data: Vec<_> = (0..extents).map(|number| number * 2 * PAGE_BYTES).collect();
        for most in [0, 1, 4, extents as usize] {
            let path = scratch.path(&format!("many-{most}"));
            check(&path, extents * 2 * PAGE_BYTES, &data, most);
        }
    }
}
