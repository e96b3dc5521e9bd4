//! The state directory: records about each volume, apart from its cache.
//!
//! A cache alone cannot know that its volume was written without it. So each volume has a file
//! `NAME.epoch` here, with the epoch of its last attach and the identity of the cache. The cache
//! has the epoch too, and each attach compares the two.
//!
//! Serving a volume without its cache first raises the epoch. It then logs the ranges that are
//! written (`NAME.ranges`), durably and before each write is passed on. The next attach passes
//! these ranges to the cache. Clean copies of them are stale; dirty ones are abandoned, by name.
//!
//! A volume may continue without a cache that failed in service, and overwrite no dirty data. It
//! needs no such log: the epoch is raised together with a list of the dirty ranges (`NAME.dirty`).
//! At the next attach the cache drops all other data.
//!
//! `NAME.disk` states whether clients that outlive the daemon may continue with a volume. Such
//! clients are users of its block device, and virtual machines.
//!
//! For a volume in object storage, `NAME.epoch` also has its writers: the log of the volume shows
//! whether another daemon has written it since.
//!
//! Module [`decide`] has the decisions at an attach, and their reasons.

pub mod decide;
mod digits;
mod dirty;
mod disk;
mod epoch;
mod errors;
mod files;
mod logged;
pub mod opening;
mod range_list;
mod ranges;
mod refusals;
mod removal;
mod writers;

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_block::{Context as _, Error, ErrorKind, Identity, Result};

pub(crate) use digits::hex;
pub(crate) use epoch::of_cache;
pub use epoch::{CacheId, Record};
pub(crate) use errors::{append_help, report_with_help, unnoted, with_help};
pub(crate) use files::{MOVE_AWAY, holder_in, irregular_files, is_irregular, not_a_directory};
use files::{remove, sync_directory};
pub use logged::LoggedDevice;
pub use opening::Opening;
pub use ranges::{LogChange, RANGE_BYTES, RangeLog, read_ranges};
pub use refusals::Refusals;
use removal::Removal;
pub use writers::Writers;

/// The state directory, locked by this process.
#[derive(Debug)]
pub struct StateDirectory {
    path: PathBuf,
    lock: File,
    removal: Removal,
    refusals: Arc<Refusals>,
}

impl StateDirectory {
    /// Opens and locks the directory at `path`. Creates it if it does not exist.
    ///
    /// # Errors
    /// `Busy` if another daemon holds the lock; otherwise the error of the operating system.
    pub fn open(path: &Path) -> Result<Self> {
        let what = || {
            format!(
                "state directory {}\n\
                 help: set `state` in [server] to a directory that you may write to",
                path.display()
            )
        };
        if let Some(kind) = not_a_directory(path) {
            let kind = format!("it is not a directory: it is {kind}");
            return Err(Error::new(ErrorKind::InvalidInput, kind)).context(what);
        }
        std::fs::create_dir_all(path).context(what)?;
        // None of them may be waited for, and none may refuse an attach that has begun.
        if let Some((name, kind)) = irregular_files(path).first() {
            let what = is_irregular(name, kind);
            return Err(Error::new(
                ErrorKind::InvalidInput,
                format!(
                    "state directory {} {what}\n    help: {MOVE_AWAY}",
                    path.display()
                ),
            ));
        }
        let mut options = OpenOptions::new();
        let options = options.write(true).create(true).truncate(false);
        let lock = files::in_context(files::open(&path.join("lock"), options), what)?;
        // SAFETY: the descriptor is open; no memory is involved.
        if unsafe { libc::flock(lock.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } != 0 {
            return Err(Error::new(
                ErrorKind::Busy,
                format!(
                    "another daemon holds the state directory {}{}\n    \
                     help: stop it, or set `state` in [server] to another one",
                    path.display(),
                    holder_in(path)
                ),
            ));
        }
        Ok(Self {
            path: path.to_path_buf(),
            lock,
            removal: Removal::default(),
            refusals: Arc::default(),
        })
    }

    /// Checks whether the directory at `path` could be locked.
    ///
    /// # Errors
    /// `Busy` if a daemon holds the lock; otherwise the error of the operating system.
    pub fn look(path: &Path) -> Result<()> {
        let lock = match files::open(&path.join("lock"), OpenOptions::new().read(true)) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            opened => opened?,
        };
        // A shared lock, released at once, so that concurrent checks do not fail each other.
        // SAFETY: the descriptor is open; no memory is involved.
        if unsafe { libc::flock(lock.as_raw_fd(), libc::LOCK_SH | libc::LOCK_NB) } != 0 {
            return Err(std::io::Error::last_os_error().into());
        }
        Ok(())
    }

    /// Returns the path of the directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the record of a volume; `None` if it was never served with this directory.
    ///
    /// # Errors
    /// `Corrupt` if the file is damaged; otherwise the error of the operating system.
    pub fn load(&self, volume: &str) -> Result<Option<Record>> {
        epoch::load(&self.path, volume)
    }

    /// Returns the records of volumes other than `volume` that share bytes of this backing device.
    /// The device is given by its identity and size in bytes. Returns none if the identity is
    /// unknown.
    ///
    /// # Errors
    /// The error of the operating system.
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

    /// Stores `record` durably and replaces the former one.
    ///
    /// # Errors
    /// The error of the operating system. The former record is intact then.
    pub fn store(&self, volume: &str, record: &Record) -> Result<()> {
        epoch::store(&self.path, volume, record)
    }

    /// Returns the record of the last opening of a cache. The directory may belong to another
    /// process, or not exist.
    ///
    /// # Errors
    /// The error of the operating system.
    pub fn opening_in(state: &Path, uuid: &[u8; 16]) -> Result<Option<Opening>> {
        opening::load(state, uuid)
    }

    /// Returns whether the record of the openings of a cache is missing, although a volume of the
    /// directory was attached to the cache. The directory may belong to another process, or not
    /// exist.
    ///
    /// # Errors
    /// The error of the operating system.
    pub fn lacks_opening_in(state: &Path, uuid: &[u8; 16]) -> Result<bool> {
        match state.is_dir() && !opening::exists(state, uuid) {
            true => epoch::any_attached(state, CacheId::Uuid(*uuid)),
            false => Ok(false),
        }
    }

    /// Stores the record of the last opening of a cache, durably.
    ///
    /// # Errors
    /// The error of the operating system.
    pub fn store_opening(&self, uuid: &[u8; 16], opening: &Opening) -> Result<()> {
        opening::store(&self.path, uuid, opening)
    }

    /// Returns the byte ranges of a volume that were written without the cache, in units of
    /// [`RANGE_BYTES`]. Returns `None` if the log is absent or damaged.
    ///
    /// # Errors
    /// As [`read_ranges`].
    pub fn ranges(&self, volume: &str) -> Result<Option<Vec<std::ops::Range<u64>>>> {
        read_ranges(&self.ranges_path(volume))
    }

    /// Removes the log of ranges, durably.
    ///
    /// # Errors
    /// The error of the operating system.
    pub fn remove_ranges(&self, volume: &str) -> Result<()> {
        remove(&self.ranges_path(volume))?;
        sync_directory(&self.path)
    }

    /// Returns the byte ranges of a volume that were dirty when its cache failed, in ascending
    /// order. Returns `None` if the list is absent or damaged.
    ///
    /// # Errors
    /// The error of the operating system.
    pub fn dirty(&self, volume: &str) -> Result<Option<Vec<std::ops::Range<u64>>>> {
        dirty::load(&self.dirty_path(volume), volume)
    }

    /// Stores the list of dirty byte ranges, in ascending order, and then `record`, both durably.
    /// An existing log of ranges is obsolete then and is removed first.
    ///
    /// # Errors
    /// The error of the operating system. The former record is intact then.
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

    /// Removes the log of ranges and the list of dirty ranges, durably.
    ///
    /// # Errors
    /// The error of the operating system.
    pub fn remove_history(&self, volume: &str) -> Result<()> {
        self.remove_ranges(volume)?;
        remove(&self.dirty_path(volume))?;
        sync_directory(&self.path)
    }

    /// As [`StateDirectory::load`], for a directory that may belong to another process or not
    /// exist.
    ///
    /// # Errors
    /// As [`StateDirectory::load`].
    pub(crate) fn load_in(state: &Path, volume: &str) -> Result<Option<Record>> {
        epoch::load(state, volume)
    }

    /// As [`StateDirectory::others`], for such a directory.
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

    /// As [`StateDirectory::dirty`], for such a directory.
    ///
    /// # Errors
    /// As [`StateDirectory::dirty`].
    pub(crate) fn dirty_in(
        state: &Path,
        volume: &str,
    ) -> Result<Option<Vec<std::ops::Range<u64>>>> {
        dirty::load(&state.join(format!("{volume}.dirty")), volume)
    }

    /// As [`StateDirectory::ranges`], for such a directory.
    ///
    /// # Errors
    /// As [`StateDirectory::ranges`].
    pub(crate) fn ranges_in(
        state: &Path,
        volume: &str,
    ) -> Result<Option<Vec<std::ops::Range<u64>>>> {
        read_ranges(&state.join(format!("{volume}.ranges")))
    }

    /// Checks whether `NAME.disk` of a volume can be read in such a directory.
    ///
    /// # Errors
    /// The error of the operating system.
    pub(crate) fn look_disk_in(state: &Path, volume: &str) -> Result<()> {
        disk::load(state, volume).map(|_| ())
    }

    /// Returns the boot in which a transit cache was in use and was not closed; `None` if there is
    /// none. The state directory may belong to another process, or not exist.
    ///
    /// # Errors
    /// The error of the operating system.
    pub fn transit_boot_in(state: &Path, device: &str) -> Result<Option<[u8; 16]>> {
        let bytes = files::read(&transit_path(state, device))?;
        Ok(bytes.and_then(|bytes| bytes.try_into().ok()))
    }

    /// Records durably the boot in which a transit cache is in use; `None` after it was closed.
    ///
    /// # Errors
    /// The error of the operating system.
    pub fn note_transit(&self, device: &str, boot_id: Option<&[u8; 16]>) -> Result<()> {
        let path = transit_path(&self.path, device);
        match boot_id {
            Some(boot_id) => {
                files::write(&path, boot_id).context(|| path.display().to_string())?;
            }
            None => remove(&path)?,
        }
        sync_directory(&self.path)
    }

    /// Returns the generation that slots over a medium need to be valid in this boot. Returns zero
    /// without a record. The directory may belong to another process, or not exist.
    ///
    /// # Errors
    /// The error of the operating system.
    pub fn slots_generation_in(state: &Path, slots: &str, boot_id: &[u8; 16]) -> Result<u64> {
        number_in(&state.join(format!("{slots}.generation")), boot_id)
    }

    /// Returns the size of the device under slots in this boot, bytes. Returns zero without a
    /// record.
    ///
    /// # Errors
    /// The error of the operating system.
    pub fn slots_size_in(state: &Path, slots: &str, boot_id: &[u8; 16]) -> Result<u64> {
        number_in(&state.join(format!("{slots}.size")), boot_id)
    }

    /// Records durably the generation that slots over a medium need to be valid from now on.
    ///
    /// # Errors
    /// The error of the operating system.
    pub fn note_slots_generation(
        &self,
        slots: &str,
        boot_id: &[u8; 16],
        generation: u64,
    ) -> Result<()> {
        let path = self.path.join(format!("{slots}.generation"));
        self.note_number(&path, boot_id, generation)
    }

    /// Records durably the size of the device under slots, bytes.
    ///
    /// # Errors
    /// The error of the operating system.
    pub fn note_slots_size(&self, slots: &str, boot_id: &[u8; 16], size_bytes: u64) -> Result<()> {
        self.note_number(
            &self.path.join(format!("{slots}.size")),
            boot_id,
            size_bytes,
        )
    }

    /// Returns the most bytes that slots of this boot may hold. Returns zero without a record.
    ///
    /// # Errors
    /// The error of the operating system.
    pub fn slots_capacity_in(state: &Path, slots: &str, boot_id: &[u8; 16]) -> Result<u64> {
        number_in(&state.join(format!("{slots}.capacity")), boot_id)
    }

    /// Records durably the most bytes that slots may hold.
    ///
    /// # Errors
    /// The error of the operating system.
    pub fn note_slots_capacity(&self, slots: &str, boot_id: &[u8; 16], bytes: u64) -> Result<()> {
        self.note_number(&self.path.join(format!("{slots}.capacity")), boot_id, bytes)
    }

    /// Stores a number that is valid for one boot, durably.
    fn note_number(&self, path: &Path, boot_id: &[u8; 16], number: u64) -> Result<()> {
        let content = format!("{} {number}\n", hex(boot_id));
        files::replace(path, &path.with_added_extension("new"), content.as_bytes())
    }

    /// Returns the reason why a volume may lack writes that it acknowledged to users of its block
    /// device. Returns `None` if it has all of them.
    ///
    /// # Errors
    /// The error of the operating system.
    pub fn disk_gap(&self, volume: &str) -> Result<Option<String>> {
        let disk = disk::load(&self.path, volume)?.unwrap_or_else(disk::Disk::unknown);
        Ok((!disk.gap.is_empty()).then_some(disk.gap))
    }

    /// Returns the generation by which a virtual machine knows that a volume has all acknowledged
    /// writes.
    ///
    /// # Errors
    /// The error of the operating system.
    pub fn disk_generation(&self, volume: &str) -> Result<String> {
        if let Some(disk) = disk::load(&self.path, volume)? {
            return Ok(disk.generation);
        }
        let disk = disk::Disk::unknown();
        disk::store(&self.path, volume, &disk)?;
        Ok(disk.generation)
    }

    /// Records durably that a volume may lack acknowledged writes. For users of its block device,
    /// `device` is the reason, valid until [`StateDirectory::clear_disk_gap`]. For virtual machines
    /// the loss is permanent.
    ///
    /// # Errors
    /// The error of the operating system.
    pub fn note_disk_gap(&self, volume: &str, device: Option<&str>, machines: bool) -> Result<()> {
        let Some(mut disk) = disk::load(&self.path, volume)? else {
            return Ok(());
        };
        // The first reason stays.
        if let Some(gap) = device.filter(|_| disk.gap.is_empty()) {
            disk.gap = gap.into();
        }
        if machines {
            disk.renew();
        }
        disk::store(&self.path, volume, &disk)
    }

    /// Records durably that the block device of a volume lacks no acknowledged writes.
    ///
    /// # Errors
    /// The error of the operating system.
    pub fn clear_disk_gap(&self, volume: &str) -> Result<()> {
        let mut disk = disk::load(&self.path, volume)?.unwrap_or_else(disk::Disk::unknown);
        disk.gap.clear();
        disk::store(&self.path, volume, &disk)
    }

    /// Returns the path of a volume's log of ranges.
    #[must_use]
    pub fn ranges_path(&self, volume: &str) -> PathBuf {
        self.path.join(format!("{volume}.ranges"))
    }

    fn dirty_path(&self, volume: &str) -> PathBuf {
        self.path.join(format!("{volume}.dirty"))
    }
}

/// Returns the number in a file if it is of this boot; otherwise zero.
fn number_in(path: &Path, boot_id: &[u8; 16]) -> Result<u64> {
    let bytes = files::read(path)?.unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let known = text.trim_end().split_once(' ');
    let own = known.filter(|(boot, _)| *boot == hex(boot_id));
    Ok(own.map_or(0, |(_, number)| number.parse().unwrap_or(0)))
}

fn transit_path(state: &Path, device: &str) -> PathBuf {
    state.join(format!("{device}.transit"))
}

#[cfg(test)]
mod tests;
