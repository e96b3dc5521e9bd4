//! The state directory: what is remembered about each volume beside its cache.
//!
//! A cache alone cannot know that its volume was written to without it. So each volume has a file
//! `NAME.epoch` here, with the epoch of its last attach and the identity of the cache it was attached
//! to. The cache keeps the epoch too, and the two are compared at each attach. Serving without the
//! cache first raises the epoch and then logs, durably and before the write is passed on, which
//! ranges are written (`NAME.ranges`). At the next attach the cache is given those ranges: clean
//! copies of them are stale, dirty ones are given up by name.
//!
//! `NAME.disk` says of a volume whether clients that outlive the daemon may go on with it: users of its block device,
//! virtual machines.
//!
//! What is decided at an attach, and why, is in [`decide`].

mod abandoned;
pub mod decide;
mod disk;
mod epoch;
mod logged;
mod ranges;

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};

use forebay_block::{Context as _, Error, ErrorKind, Identity, Result};

pub(crate) use epoch::hex;
pub use epoch::{CacheId, Record};
pub use logged::LoggedDevice;
pub use ranges::{RANGE_BYTES, RangeLog, read_ranges};

/// The state directory, held by this process alone.
#[derive(Debug)]
pub struct StateDirectory {
    path: PathBuf,
    _lock: File,
}

impl StateDirectory {
    /// Takes the directory at `path`; it is made if it is not there.
    ///
    /// # Errors
    /// `Busy` when another daemon holds it; what the operating system says otherwise.
    pub fn open(path: &Path) -> Result<Self> {
        let what = || {
            format!(
                "state directory {}: set `state` in [server] to a directory that you may write to",
                path.display()
            )
        };
        std::fs::create_dir_all(path).context(what)?;
        let lock = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(path.join("lock"))
            .context(what)?;
        // SAFETY: the descriptor is open; no memory is involved.
        if unsafe { libc::flock(lock.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } != 0 {
            return Err(Error::new(
                ErrorKind::Busy,
                format!(
                    "another daemon holds the state directory {}: stop it, or set `state` in \
                     [server] to a directory of its own",
                    path.display()
                ),
            ));
        }
        Ok(Self {
            path: path.to_path_buf(),
            _lock: lock,
        })
    }

    /// Looks whether the directory at `path` could be taken.
    ///
    /// # Errors
    /// `Busy` when a daemon holds it; what the operating system says otherwise.
    pub fn look(path: &Path) -> Result<()> {
        let lock = match File::open(path.join("lock")) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            opened => opened?,
        };
        // Shared, so that others who only look are not in the way; given back at once.
        // SAFETY: the descriptor is open; no memory is involved.
        if unsafe { libc::flock(lock.as_raw_fd(), libc::LOCK_SH | libc::LOCK_NB) } != 0 {
            return Err(std::io::Error::last_os_error().into());
        }
        Ok(())
    }

    /// Where the directory is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What is remembered of a volume; none if it was never served with this directory.
    ///
    /// # Errors
    /// `Corrupt` when the file is damaged, or what the operating system says.
    pub fn load(&self, volume: &str) -> Result<Option<Record>> {
        epoch::load(&self.path, volume)
    }

    /// What is remembered of the volumes other than `volume` that were served from the backing device
    /// with this identity; nothing where nothing is known of it.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn others(&self, volume: &str, backing: Identity) -> Result<Vec<(String, Record)>> {
        match backing.is_known() {
            false => Ok(Vec::new()),
            true => epoch::others(&self.path, volume, backing),
        }
    }

    /// Remembers `record` durably in place of what was there.
    ///
    /// # Errors
    /// What the operating system says; the former record is then still whole.
    pub fn store(&self, volume: &str, record: &Record) -> Result<()> {
        epoch::store(&self.path, volume, record)
    }

    /// The ranges of a volume that were written without the cache, [`RANGE_BYTES`] each, as ranges
    /// of bytes; none if there is no log, or it is damaged.
    ///
    /// # Errors
    /// As [`read_ranges`].
    pub fn ranges(&self, volume: &str) -> Result<Option<Vec<std::ops::Range<u64>>>> {
        read_ranges(&self.ranges_path(volume))
    }

    /// Forgets the log of ranges, durably.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn remove_ranges(&self, volume: &str) -> Result<()> {
        let path = self.ranges_path(volume);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(error).context(|| path.display().to_string())
            }
            _ => sync_directory(&self.path),
        }
    }

    /// As [`StateDirectory::load`], of a state directory that may be another process's, or not be there.
    ///
    /// # Errors
    /// As [`StateDirectory::load`].
    pub(crate) fn load_in(state: &Path, volume: &str) -> Result<Option<Record>> {
        epoch::load(state, volume)
    }

    /// As [`StateDirectory::others`], of such a directory.
    ///
    /// # Errors
    /// As [`StateDirectory::others`].
    pub(crate) fn others_in(
        state: &Path,
        volume: &str,
        backing: Identity,
    ) -> Result<Vec<(String, Record)>> {
        match backing.is_known() && state.exists() {
            false => Ok(Vec::new()),
            true => epoch::others(state, volume, backing),
        }
    }

    /// As [`StateDirectory::ranges`], of such a directory.
    ///
    /// # Errors
    /// As [`StateDirectory::ranges`].
    pub(crate) fn ranges_in(
        state: &Path,
        volume: &str,
    ) -> Result<Option<Vec<std::ops::Range<u64>>>> {
        read_ranges(&state.join(format!("{volume}.ranges")))
    }

    /// Looks whether what is remembered of a volume's block device can be read in such a directory.
    ///
    /// # Errors
    /// What the operating system says.
    pub(crate) fn look_disk_in(state: &Path, volume: &str) -> Result<()> {
        disk::load(state, volume).map(|_| ())
    }

    /// The boot of the machine in which a transit cache was in use and was not closed; none if there is none.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn transit_boot(&self, device: &str) -> Result<Option<[u8; 16]>> {
        Self::transit_boot_in(&self.path, device)
    }

    /// The same of a state directory that may be another process's, or not be there.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn transit_boot_in(state: &Path, device: &str) -> Result<Option<[u8; 16]>> {
        let path = transit_path(state, device);
        match std::fs::read(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            read => Ok(read.context(|| path.display().to_string())?.try_into().ok()),
        }
    }

    /// Remembers durably in which boot a transit cache is in use; none when it was closed.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn note_transit(&self, device: &str, boot_id: Option<&[u8; 16]>) -> Result<()> {
        let path = transit_path(&self.path, device);
        let done = match boot_id {
            Some(boot_id) => File::create(&path).and_then(|mut file| {
                file.write_all(boot_id)?;
                file.sync_all()
            }),
            None => match std::fs::remove_file(&path) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
                removed => removed,
            },
        };
        done.context(|| path.display().to_string())?;
        sync_directory(&self.path)
    }

    /// Lists durably what dirty data of a volume is about to be given up. Returns where.
    ///
    /// # Errors
    /// What the operating system says; then nothing may be given up.
    pub fn note_abandoned(
        &self,
        volume: &str,
        epoch: u64,
        ranges: &[std::ops::Range<u64>],
    ) -> Result<PathBuf> {
        let path = self.path.join(format!("{volume}.abandoned"));
        abandoned::note(&path, volume, epoch, ranges)?;
        Ok(path)
    }

    /// Why a volume may lack what it acknowledged to the users of its block device; none if it has all of it.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn disk_gap(&self, volume: &str) -> Result<Option<String>> {
        let disk = disk::load(&self.path, volume)?.unwrap_or_else(disk::Disk::unknown);
        Ok((!disk.gap.is_empty()).then_some(disk.gap))
    }

    /// By what a virtual machine knows that a volume has all that it acknowledged.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn disk_generation(&self, volume: &str) -> Result<String> {
        if let Some(disk) = disk::load(&self.path, volume)? {
            return Ok(disk.generation);
        }
        let disk = disk::Disk::unknown();
        disk::store(&self.path, volume, &disk)?;
        Ok(disk.generation)
    }

    /// Remembers durably that a volume may lack some of what it acknowledged: to the users of its block device, for this
    /// reason, until [`StateDirectory::note_disk`]; to virtual machines for ever.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn note_disk_gap(&self, volume: &str, device: Option<&str>, machines: bool) -> Result<()> {
        let Some(mut disk) = disk::load(&self.path, volume)? else {
            return Ok(());
        };
        // What was remembered first stays.
        if let Some(gap) = device.filter(|_| disk.gap.is_empty()) {
            disk.gap = gap.into();
        }
        if machines {
            disk.renew();
        }
        disk::store(&self.path, volume, &disk)
    }

    /// Remembers durably that a volume is a block device that lacks nothing.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn note_disk(&self, volume: &str) -> Result<()> {
        let mut disk = disk::load(&self.path, volume)?.unwrap_or_else(disk::Disk::unknown);
        disk.gap.clear();
        disk::store(&self.path, volume, &disk)
    }

    /// The path of a volume's log of ranges.
    #[must_use]
    pub fn ranges_path(&self, volume: &str) -> PathBuf {
        self.path.join(format!("{volume}.ranges"))
    }
}

/// Makes the names in a directory durable.
fn sync_directory(path: &Path) -> Result<()> {
    let synced = File::open(path).and_then(|directory| directory.sync_all());
    synced.context(|| format!("state directory {}", path.display()))
}

fn transit_path(state: &Path, device: &str) -> PathBuf {
    state.join(format!("{device}.transit"))
}

#[cfg(test)]
mod tests;
