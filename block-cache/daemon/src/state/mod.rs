//! The state directory: what is remembered about each volume beside its cache.
//!
//! A cache alone cannot know that its volume was written to without it. So each volume has a file
//! `NAME.epoch` here, with the epoch of its last attach and the identity of the cache it was
//! attached to. The cache keeps the epoch too, and the two are compared at each attach. Serving
//! without the cache first raises the epoch and then logs, durably and before the write is passed
//! on, which ranges are written (`NAME.ranges`). At the next attach the cache is given those
//! ranges: clean copies of them are stale, dirty ones are given up by name.
//!
//! A volume that goes on without a cache that failed in service, and writes over nothing that is
//! dirty, needs no such log: the epoch is raised with the list of what is dirty (`NAME.dirty`), and
//! at the next attach nothing else in the cache counts.
//!
//! `NAME.disk` says of a volume whether clients that outlive the daemon may go on with it: users of
//! its block device, virtual machines.
//!
//! What is decided at an attach, and why, is in [`decide`].

mod abandoned;
pub mod decide;
mod dirty;
mod disk;
mod epoch;
mod logged;
pub mod opening;
mod ranges;

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use forebay_block::{Context as _, Error, ErrorKind, Identity, Result};

pub(crate) use epoch::hex;
pub use epoch::{CacheId, Record};
pub use logged::LoggedDevice;
pub use opening::Opening;
pub use ranges::{RANGE_BYTES, RangeLog, read_ranges};

/// The state directory, held by this process alone.
#[derive(Debug)]
pub struct StateDirectory {
    path: PathBuf,
    lock: File,
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
            lock,
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

    /// What is wrong with the directory while it is in use; none if it is where it was.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        let held = self.lock.metadata().ok();
        let there = std::fs::metadata(self.path.join("lock")).ok();
        let number = |found: std::fs::Metadata| (found.dev(), found.ino());
        if held.is_some() && held.map(number) == there.map(number) {
            return None;
        }
        Some(format!(
            "the state directory {} WAS REMOVED OR REPLACED while the daemon uses it: what it \
             remembers of the volumes is \
             gone. Put it back, or stop the daemon and start it with --adopt for each volume",
            self.path.display()
        ))
    }

    /// What is remembered of a volume; none if it was never served with this directory.
    ///
    /// # Errors
    /// `Corrupt` when the file is damaged, or what the operating system says.
    pub fn load(&self, volume: &str) -> Result<Option<Record>> {
        epoch::load(&self.path, volume)
    }

    /// What is remembered of the volumes other than `volume` that were served from bytes of the
    /// backing device with this identity and size in bytes; nothing where nothing is known of it.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn others(
        &self,
        volume: &str,
        backing: Identity,
        backing_bytes: u64,
    ) -> Result<Vec<(String, Record)>> {
        match backing.is_known() {
            false => Ok(Vec::new()),
            true => epoch::others(&self.path, volume, backing, backing_bytes),
        }
    }

    /// Remembers `record` durably in place of what was there.
    ///
    /// # Errors
    /// What the operating system says; the former record is then still whole.
    pub fn store(&self, volume: &str, record: &Record) -> Result<()> {
        epoch::store(&self.path, volume, record)
    }

    /// What is remembered of the last opening of a cache, in a directory that may be another
    /// process's, or not be there.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn opening_in(state: &Path, uuid: &[u8; 16]) -> Result<Option<Opening>> {
        opening::load(state, uuid)
    }

    /// Remembers durably which opening of a cache was the last one.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn store_opening(&self, uuid: &[u8; 16], opening: &Opening) -> Result<()> {
        opening::store(&self.path, uuid, opening)
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
        remove(&self.ranges_path(volume))?;
        sync_directory(&self.path)
    }

    /// All that was dirty of a volume when its cache failed, bytes in ascending order; none if
    /// there is no list, or it is damaged.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn dirty(&self, volume: &str) -> Result<Option<Vec<std::ops::Range<u64>>>> {
        dirty::load(&self.dirty_path(volume), volume)
    }

    /// Remembers `record` durably, and before it what is dirty, bytes in ascending order. A log of
    /// ranges is of another time then, and is removed first.
    ///
    /// # Errors
    /// What the operating system says; the former record is then still whole.
    pub fn store_with_dirty(
        &self,
        volume: &str,
        record: &Record,
        dirty: &[std::ops::Range<u64>],
    ) -> Result<()> {
        self.remove_ranges(volume)?;
        dirty::store(&self.dirty_path(volume), volume, dirty)?;
        self.store(volume, record)
    }

    /// Forgets what was written without the cache, and what was dirty then, durably.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn remove_history(&self, volume: &str) -> Result<()> {
        self.remove_ranges(volume)?;
        remove(&self.dirty_path(volume))?;
        sync_directory(&self.path)
    }

    /// As [`StateDirectory::load`], of a state directory that may be another process's, or not be
    /// there.
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
        (backing, backing_bytes): (Identity, u64),
    ) -> Result<Vec<(String, Record)>> {
        match backing.is_known() && state.exists() {
            false => Ok(Vec::new()),
            true => epoch::others(state, volume, backing, backing_bytes),
        }
    }

    /// As [`StateDirectory::dirty`], of such a directory.
    ///
    /// # Errors
    /// As [`StateDirectory::dirty`].
    pub(crate) fn dirty_in(
        state: &Path,
        volume: &str,
    ) -> Result<Option<Vec<std::ops::Range<u64>>>> {
        dirty::load(&state.join(format!("{volume}.dirty")), volume)
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

    /// The boot of the machine in which a transit cache was in use and was not closed. None if
    /// there is none. The state directory may be another process's, or not exist.
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

    /// The generation that slots over a medium must have to count in this boot of the machine; zero
    /// if nothing is remembered of them, in a directory that may be another process's, or not be
    /// there.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn slots_generation_in(state: &Path, slots: &str, boot_id: &[u8; 16]) -> Result<u64> {
        number_in(&state.join(format!("{slots}.generation")), boot_id)
    }

    /// The size of the device under slots, bytes, as it was in this boot of the machine; zero if
    /// nothing is remembered of it.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn slots_size_in(state: &Path, slots: &str, boot_id: &[u8; 16]) -> Result<u64> {
        number_in(&state.join(format!("{slots}.size")), boot_id)
    }

    /// Remembers durably the generation that slots over a medium must have to count from now on.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn note_slots_generation(
        &self,
        slots: &str,
        boot_id: &[u8; 16],
        generation: u64,
    ) -> Result<()> {
        self.note_number(
            &self.path.join(format!("{slots}.generation")),
            boot_id,
            generation,
        )
    }

    /// Remembers durably the size of the device under slots, bytes.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn note_slots_size(&self, slots: &str, boot_id: &[u8; 16], size_bytes: u64) -> Result<()> {
        self.note_number(
            &self.path.join(format!("{slots}.size")),
            boot_id,
            size_bytes,
        )
    }

    /// Stores a number of this boot, durably.
    fn note_number(&self, path: &Path, boot_id: &[u8; 16], number: u64) -> Result<()> {
        let new = path.with_added_extension("new");
        let written = File::create(&new).and_then(|mut file| {
            writeln!(file, "{} {number}", hex(boot_id))?;
            file.sync_all()
        });
        let stored = written.and_then(|()| std::fs::rename(&new, path));
        stored.context(|| path.display().to_string())?;
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

    /// Why a volume may lack what it acknowledged to the users of its block device; none if it has
    /// all of it.
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

    /// Remembers durably that a volume may lack some of what it acknowledged: to the users of its
    /// block device, for this reason, until [`StateDirectory::note_disk`]; to virtual machines for
    /// ever.
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

    fn dirty_path(&self, volume: &str) -> PathBuf {
        self.path.join(format!("{volume}.dirty"))
    }
}

/// Removes a file that need not be there.
fn remove(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).context(|| path.display().to_string())
        }
        _ => Ok(()),
    }
}

/// Makes the names in a directory durable.
fn sync_directory(path: &Path) -> Result<()> {
    let synced = File::open(path).and_then(|directory| directory.sync_all());
    synced.context(|| format!("state directory {}", path.display()))
}

/// A number of this boot that a file has; zero if it has none.
fn number_in(path: &Path, boot_id: &[u8; 16]) -> Result<u64> {
    let text = match std::fs::read_to_string(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(0),
        read => read.context(|| path.display().to_string())?,
    };
    let known = text.trim_end().split_once(' ');
    let own = known.filter(|(boot, _)| *boot == hex(boot_id));
    Ok(own.map_or(0, |(_, number)| number.parse().unwrap_or(0)))
}

fn transit_path(state: &Path, device: &str) -> PathBuf {
    state.join(format!("{device}.transit"))
}

#[cfg(test)]
mod tests;
