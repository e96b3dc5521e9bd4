//! One pool a source: what each process of a pool holds of the source, as long as it may read or write there.
//!
//! Every directory and every node of a pool has a lock on the source itself (the open directory, image or device): a
//! shared one, on a byte whose number says which pool it belongs to and which process has it. Who comes first takes its
//! lock and then looks for those of other pools, so that of two who come at once at least one sees the other. The
//! kernel takes the locks of a process away with it: nothing is left of one that was killed, and a node that outlives
//! its directory keeps the source for its pool. On the directories above the source another such lock says that there
//! is a source below.
//!
//! What a pool keeps after all its processes is in [`record`].

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

/// Between two looks for a lock that may be about to go.
const AGAIN: Duration = Duration::from_millis(10);

/// Bits of a process's number: no kernel has larger ones (proc(5), `pid_max`).
const PROCESS_BITS: u32 = 22;
/// Bits that tell pools apart.
const POOL_BITS: u32 = 39;

/// All that can be locked.
const ALL: ByteRange = ByteRange {
    first: 0,
    last: i64::MAX - 1,
};

/// What a lock says of the place that it is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Zone {
    /// It is a source.
    Source,
    /// A source is below.
    Above,
}

impl Zone {
    /// The first of its bytes.
    const fn first(self) -> i64 {
        match self {
            Self::Source => 1 << 61,
            Self::Above => 1 << 62,
        }
    }

    /// The byte of a process of a pool.
    fn byte(self, pool: u64, process: u32) -> i64 {
        let process = u64::from(process) & ((1 << PROCESS_BITS) - 1);
        let inside = (pool << PROCESS_BITS) | process;
        self.first() + i64::try_from(inside).expect("61 bits")
    }
}

/// A pool, told from all others that there are at this time.
#[derive(Debug)]
pub(crate) struct Identity {
    /// The pool's directory: while it is open its number is no other one's.
    directory: File,
    device: u64,
    inode: u64,
}

impl Identity {
    /// That of a pool that is there.
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

/// What locks call the pool whose directory this is.
fn number(device: u64, inode: u64) -> u64 {
    let mixed = (inode ^ device.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed >> (u64::BITS - POOL_BITS)
}

/// The source is this pool's as long as this lives.
#[derive(Debug)]
pub(crate) struct Claim {
    /// The source, and the directories above it: for their locks.
    _locked: Vec<File>,
    /// For its number.
    _pool: File,
}

/// A lock of another pool.
#[derive(Debug)]
struct Found {
    zone: Zone,
    /// What it is on.
    place: PathBuf,
    lock: ByteRange,
}

impl Claim {
    /// Claims a source, by its path without symbolic links, for a pool that is there. A process that was killed keeps
    /// what it had for a moment longer: that is waited for, for [`RELEASE_TIME`].
    ///
    /// # Errors
    /// `Busy` if processes of another pool have the source, one that it is in, or one that is in it; or what the system
    /// says.
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
            std::thread::sleep(AGAIN);
        }
    }

    fn try_take(source: &Path, pool: &Pool) -> Result<std::result::Result<Self, Found>> {
        let identity = Identity::of(pool.path())?;
        let file = open(source).context(|| format!("source {}", source.display()))?;
        let device = file.metadata()?.dev();
        let mut places = vec![(source.to_owned(), file)];
        // Files below a mountpoint are not the outer source's, and what this user may not read is nobody's whom we meet.
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
                // None of ours is exclusive.
                let (place, lock) = (place.clone(), ALL);
                return Ok(Err(Found { zone, place, lock }));
            }
        }
        for (index, (place, file)) in places.iter().enumerate() {
            // It is served; something in it is, which concerns who serves it all.
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

/// Opens a directory, a file or a device to lock it.
fn open(path: &Path) -> std::io::Result<File> {
    let mut options = File::options();
    // It is neither read nor written to.
    let options = options.read(true).custom_flags(libc::O_NONBLOCK);
    options.open(path)
}

/// A lock of another pool than this.
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
