//! Exclusive use of a source by one pool: locks that each process of a pool holds while it may read
//! or write the source.
//!
//! Each directory process and each node has a shared lock on the source itself (the open directory,
//! image or device). The number of the locked byte names the pool and the process. A process takes
//! its lock first, and then looks for locks of other pools. So of two that start at once, at least
//! one sees the other. The kernel releases the locks of a process that ends. A killed process
//! leaves none, and a node that outlives its directory keeps the source for its pool. Similar locks
//! on the directories above the source say that a source is below.
//!
//! [`record`] has the part of the state that outlives all processes of a pool.

mod holder;
pub(crate) mod record;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use forebay_block::{Context, Error, ErrorKind, Result};
use forebay_io::file::RELEASE_TIME;
use forebay_io::tree::{ByteRange, Lock, conflicting_lock, try_lock_byte};

use crate::pool::Pool;

/// Pause between two attempts to take a lock that may be released soon.
const RETRY_PAUSE: Duration = Duration::from_millis(10);

/// Bits of a process identifier: no kernel has larger ones (proc(5), `pid_max`).
const PROCESS_BITS: u32 = 22;
/// Bits that distinguish pools.
const POOL_BITS: u32 = 39;

/// All lockable bytes.
const ALL: ByteRange = ByteRange {
    first: 0,
    last: i64::MAX - 1,
};

/// Meaning of a lock at its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Zone {
    /// The place is a source.
    Source,
    /// A source is below the place.
    Above,
}

impl Zone {
    /// Returns the first byte of the zone.
    const fn first(self) -> i64 {
        match self {
            Self::Source => 1 << 61,
            Self::Above => 1 << 62,
        }
    }

    /// Returns the byte of a process of a pool.
    fn byte(self, pool: u64, process: u32) -> i64 {
        let process = u64::from(process) & ((1 << PROCESS_BITS) - 1);
        let inside = (pool << PROCESS_BITS) | process;
        self.first() + i64::try_from(inside).expect("61 bits")
    }
}

/// A pool, distinguished from all others that exist at this time.
#[derive(Debug)]
pub(crate) struct Identity {
    /// Directory of the pool. While it is open, its inode number is not reused.
    directory: File,
    device: u64,
    inode: u64,
}

impl Identity {
    /// Returns the identity of an existing pool.
    pub(crate) fn of(pool: &Path) -> Result<Self> {
        let open = || {
            let directory = File::open(pool)?;
            let metadata = directory.metadata()?;
            Ok((directory, metadata.dev(), metadata.ino()))
        };
        let opened: std::io::Result<_> = open();
        let (directory, device, inode) =
            opened.context(|| format!("the pool {}", pool.display()))?;
        Ok(Self {
            directory,
            device,
            inode,
        })
    }

    fn number(&self) -> u64 {
        number(self.device, self.inode)
    }
}

/// Returns the number of a pool in locks, derived from its directory.
fn number(device: u64, inode: u64) -> u64 {
    let mixed = (inode ^ device.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed >> (u64::BITS - POOL_BITS)
}

/// The pool's claim on a source, released on drop.
#[derive(Debug)]
pub(crate) struct Claim {
    /// The source and the directories above it, with their locks.
    _locked: Vec<File>,
    /// Keeps the pool's number in use.
    _pool: File,
}

/// A lock of another pool.
#[derive(Debug)]
struct Found {
    zone: Zone,
    /// Locked place.
    place: PathBuf,
    lock: ByteRange,
}

impl Claim {
    /// Claims a source for an existing pool, by its path without symbolic links. A killed process
    /// keeps its locks for a moment, so this waits for up to [`RELEASE_TIME`].
    ///
    /// # Errors
    /// `Busy` if processes of another pool have the source, a directory that contains it, or a part
    /// of it. Also errors of the system.
    pub(crate) fn take(source: &Path, pool: &Pool) -> Result<Self> {
        let begin = Instant::now();
        loop {
            let found = match Self::try_take(source, pool)? {
                Ok(claim) => return Ok(claim),
                Err(found) => found,
            };
            if begin.elapsed() >= RELEASE_TIME {
                let context = holder::describe(source, &found);
                return Err(Error::new(ErrorKind::Busy, context));
            }
            std::thread::sleep(RETRY_PAUSE);
        }
    }

    fn try_take(source: &Path, pool: &Pool) -> Result<std::result::Result<Self, Found>> {
        let identity = Identity::of(pool.path())?;
        let file = open(source).context(|| format!("source {}", source.display()))?;
        let device = file.metadata()?.dev();
        let mut places = vec![(source.to_owned(), file)];
        // Files below a mountpoint are not part of the outer source. Directories that this user
        // cannot read have no claims of its processes.
        for above in source.ancestors().skip(1) {
            let Ok(file) = open(above) else { continue };
            if file.metadata()?.dev() != device {
                break;
            }
            places.push((above.to_owned(), file));
        }
        let (number, process) = (identity.number(), std::process::id());
        for (index, (place, file)) in places.iter().enumerate() {
            let zone = if index == 0 {
                Zone::Source
            } else {
                Zone::Above
            };
            let locked = try_lock_byte(file, zone.byte(number, process), Lock::Shared);
            if !locked.context(|| format!("locking {}", place.display()))? {
                // No lock of Forebay is exclusive.
                let (place, lock) = (place.clone(), ALL);
                return Ok(Err(Found { zone, place, lock }));
            }
        }
        for (index, (place, file)) in places.iter().enumerate() {
            // The place is a source, or a source is below it. Both conflict with a source that
            // contains everything.
            let zones = [Zone::Source, Zone::Above];
            let zones = if index == 0 { &zones[..] } else { &zones[..1] };
            for zone in zones {
                let lock = foreign(file, *zone, number);
                if let Some(lock) = lock.context(|| format!("source {}", source.display()))? {
                    let (zone, place) = (*zone, place.clone());
                    return Ok(Err(Found { zone, place, lock }));
                }
            }
        }
        Ok(Ok(Self {
            _locked: places.into_iter().map(|(_, file)| file).collect(),
            _pool: identity.directory,
        }))
    }
}

/// Opens a directory, a file or a device for locking.
fn open(path: &Path) -> std::io::Result<File> {
    let mut options = File::options();
    // It is neither read nor written.
    let options = options.read(true).custom_flags(libc::O_NONBLOCK);
    options.open(path)
}

/// Returns a lock of a pool other than this.
fn foreign(file: &File, zone: Zone, pool: u64) -> std::io::Result<Option<ByteRange>> {
    let (first, last) = (zone.byte(0, 0), zone.byte((1 << POOL_BITS) - 1, u32::MAX));
    let (ours, behind) = (zone.byte(pool, 0), zone.byte(pool, u32::MAX) + 1);
    for (first, last) in [(first, ours - 1), (behind, last)] {
        if first <= last
            && let Some((lock, _)) =
                conflicting_lock(file, ByteRange { first, last }, Lock::Exclusive)?
        {
            return Ok(Some(lock));
        }
    }
    Ok(None)
}
