//! Blocks of files: allocation, release, and ranges with data.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;

/// Change of a range of a file (fallocate(2)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Allocates blocks. The content stays.
    Allocate,
    /// Writes zeroes and allocates blocks.
    Zero,
    /// Writes zeroes and releases blocks. The size stays.
    Punch,
}

impl Change {
    /// Returns the change that fallocate(2) makes in this mode, and whether the file's size stays.
    /// `None` stands for modes that move data, or that this system does not know.
    #[must_use]
    pub const fn of_mode(mode: i32) -> Option<(Self, bool)> {
        const STAYS: i32 = libc::FALLOC_FL_KEEP_SIZE;
        const ZERO_AND_STAYS: i32 = libc::FALLOC_FL_ZERO_RANGE | STAYS;
        const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | STAYS;
        match mode {
            0 => Some((Self::Allocate, false)),
            STAYS => Some((Self::Allocate, true)),
            libc::FALLOC_FL_ZERO_RANGE => Some((Self::Zero, false)),
            ZERO_AND_STAYS => Some((Self::Zero, true)),
            PUNCH => Some((Self::Punch, true)),
            _ => None,
        }
    }

    /// Changes a range of a file. It extends the file, unless `keeps_size`.
    ///
    /// # Errors
    /// The system's error: `EOPNOTSUPP` if the file system cannot, or one for a full file system.
    /// A part of the range may be changed then.
    pub fn apply(self, file: &File, range: Range<u64>, keeps_size: bool) -> io::Result<()> {
        let stays = if keeps_size {
            libc::FALLOC_FL_KEEP_SIZE
        } else {
            0
        };
        let mode = stays
            | match self {
                Self::Allocate => 0,
                Self::Zero => libc::FALLOC_FL_ZERO_RANGE,
                Self::Punch => libc::FALLOC_FL_PUNCH_HOLE,
            };
        let offset = libc::off_t::try_from(range.start).map_err(io::Error::other)?;
        let len = libc::off_t::try_from(range.end - range.start).map_err(io::Error::other)?;
        // SAFETY: the descriptor is open.
        match unsafe { libc::fallocate(file.as_raw_fd(), mode, offset, len) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Allocates the blocks of a range of a file, whose size stays. Returns false if the file system
/// cannot.
///
/// # Errors
/// An error of the system, such as a full file system; some of the blocks may be allocated then.
pub fn allocate_range(file: &File, range: Range<u64>) -> io::Result<bool> {
    match Change::Allocate.apply(file, range, true) {
        Ok(()) => Ok(true),
        Err(error) if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOSYS)) => {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

/// Returns the first range with data in a range of a file. All other bytes there are zeroes. It
/// moves the position of the open file.
///
/// # Errors
/// An error of the system.
pub fn next_data(file: &File, range: Range<u64>) -> io::Result<Option<Range<u64>>> {
    let seek = |offset: u64, whence| {
        let offset = libc::off_t::try_from(offset).map_err(io::Error::other)?;
        // SAFETY: the descriptor is open.
        let found = unsafe { libc::lseek(file.as_raw_fd(), offset, whence) };
        match u64::try_from(found) {
            Ok(found) => Ok(Some(found)),
            Err(_) => match io::Error::last_os_error() {
                // There is none up to the end of the file.
                error if error.raw_os_error() == Some(libc::ENXIO) => Ok(None),
                error => Err(error),
            },
        }
    };
    if range.is_empty() {
        return Ok(None);
    }
    let Some(start) = seek(range.start, libc::SEEK_DATA)? else {
        return Ok(None);
    };
    // Without an answer, the file has become shorter meanwhile.
    let end = seek(start, libc::SEEK_HOLE)?.unwrap_or(range.end);
    let data = start..end.min(range.end);
    Ok((!data.is_empty()).then_some(data))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{FileExt, MetadataExt};

    #[test]
    fn data_is_found_between_holes() {
        let path = std::env::temp_dir().join(format!("forebay-io-blocks-{}", std::process::id()));
        let mut both = File::options();
        both.read(true).write(true).create(true).truncate(true);
        let file = both.open(&path).expect("made");
        std::fs::remove_file(&path).expect("removed");
        file.set_len(10 << 20).expect("longer");
        file.write_all_at(&[1; 1 << 20], 4 << 20).expect("written");
        let found = next_data(&file, 0..10 << 20).expect("answers");
        // A file system without holes says that all is data.
        assert!(found.is_some_and(|data| data.start <= 4 << 20 && data.end >= 5 << 20));
        let found = next_data(&file, (4 << 20) + 4096..(4 << 20) + 8192);
        assert_eq!(
            found.expect("answers"),
            Some((4 << 20) + 4096..(4 << 20) + 8192)
        );
        let at_end = next_data(&file, 10 << 20..20 << 20).expect("answers");
        assert_eq!(at_end, None);
        let before = file.metadata().expect("answers").blocks();
        match Change::Punch.apply(&file, 4 << 20..5 << 20, true) {
            Ok(()) => {
                assert!(file.metadata().expect("answers").blocks() < before);
                assert_eq!(next_data(&file, 0..10 << 20).expect("answers"), None);
            }
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::EOPNOTSUPP)),
        }
    }

    #[test]
    fn modes_that_move_data_are_unknown() {
        assert_eq!(Change::of_mode(0), Some((Change::Allocate, false)));
        let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        assert_eq!(Change::of_mode(punch), Some((Change::Punch, true)));
        for mode in [
            libc::FALLOC_FL_COLLAPSE_RANGE,
            libc::FALLOC_FL_INSERT_RANGE,
            libc::FALLOC_FL_PUNCH_HOLE,
        ] {
            assert_eq!(Change::of_mode(mode), None);
        }
    }
}
