//! A regular file or a raw block device.
//!
//! - FUA maps to `RWF_DSYNC` and flush to `fdatasync`. Both reach the medium, and a completion
//!   without them is not durable. So the device reports a volatile cache even if its manufacturer
//!   says that it has none.
//! - The kernel's block sizes are passed up. For a regular file these are the sizes of direct I/O
//!   on its file system.
//! - A file answers a query for its extents with the holes of its file system. A block device
//!   calls everything data.
//! - A file on a file system in memory (tmpfs, ramfs) reports [`Persistence::Machine`].
//!
//! The device belongs to the reactor that it was opened on.

use std::ops::Range;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::rc::Rc;

use forebay_block::{
    BlockDevice, Completion, DeviceInfo, ExtentsFuture, Persistence, Request, Result,
};
use forebay_io::Stop;
use forebay_io::file::{Faults, File, FileOptions};

/// Options for opening a file or block device.
#[derive(Clone, Debug, Default)]
pub struct FileDeviceOptions {
    /// Name in messages and metrics. Empty selects the path.
    pub name: String,
    /// Refuses writes.
    pub read_only: bool,
    /// Bypasses the page cache.
    pub direct: bool,
    /// Holds the device exclusively: another exclusive open is refused.
    pub exclusive: bool,
    /// Takes the locks of a writer although this reads only, to find each program that a writer
    /// would conflict with. Has an effect with `exclusive` alone.
    pub locks_as_writer: bool,
    /// Creates a sparse regular file of this size, bytes, if the file is missing or empty.
    pub create_bytes: Option<u64>,
    /// Identifies a medium without a name by its path.
    pub known_by_path: bool,
    /// Ends the wait for another process that holds the device.
    pub stop: Option<Stop>,
}

/// A regular file or a raw block device.
#[derive(Debug)]
pub struct FileDevice {
    file: File,
    info: DeviceInfo,
}

impl FileDevice {
    /// Opens `path` on this thread's reactor.
    ///
    /// # Errors
    /// - `Busy` if another process holds it and `exclusive` is set.
    /// - `InvalidInput` if it is neither a file nor a block device, or if this thread runs no
    ///   reactor.
    /// - Errors of the system.
    pub fn open(path: impl AsRef<Path>, options: FileDeviceOptions) -> Result<Rc<dyn BlockDevice>> {
        Self::open_watched(path, options).map(|(device, _)| device)
    }

    /// Like [`FileDevice::open`]. Also returns the faults of the device from now on.
    ///
    /// # Errors
    /// As for [`FileDevice::open`].
    pub fn open_watched(
        path: impl AsRef<Path>,
        options: FileDeviceOptions,
    ) -> Result<(Rc<dyn BlockDevice>, Rc<Faults>)> {
        let path = path.as_ref();
        let file = File::open(
            path,
            &FileOptions {
                read_only: options.read_only,
                direct: options.direct,
                exclusive: options.exclusive,
                locks_as_writer: options.locks_as_writer,
                create_bytes: options.create_bytes,
                known_by_path: options.known_by_path,
                stop: options.stop,
            },
        )?;
        let name = if options.name.is_empty() {
            path.display().to_string()
        } else {
            options.name
        };
        let geometry = file.geometry();
        let info = DeviceInfo {
            logical_block_bytes: geometry.logical_block_bytes,
            physical_block_bytes: geometry.physical_block_bytes,
            atomic_write_bytes: geometry.logical_block_bytes,
            discard: geometry.discard,
            identity: geometry.identity,
            persistence: persistence(path),
            ..DeviceInfo::new(name, geometry.size_bytes)
        };
        let faults = file.faults();
        Ok((Rc::new(Self { file, info }), faults))
    }
}

impl BlockDevice for FileDevice {
    /// Reports the current size: a file or device may have grown.
    fn info(&self) -> DeviceInfo {
        DeviceInfo {
            size_bytes: self.file.size_bytes(),
            ..self.info.clone()
        }
    }

    #[inline]
    fn submit(&self, request: Request, done: Completion) {
        self.file.submit(request, done);
    }

    fn extents(&self, range: Range<u64>) -> ExtentsFuture<'_> {
        Box::pin(async { Ok(self.file.extents(range).await) })
    }

    fn holes(&self, range: Range<u64>) -> Option<Vec<Range<u64>>> {
        self.file.holes(range)
    }

    fn allocated_bytes(&self) -> Option<u64> {
        self.file.allocated_bytes()
    }

    fn keep_size(&self, least_bytes: u64) -> Result<bool> {
        self.file.keep_size(least_bytes)
    }
}

/// Returns the persistence of the path, as far as it can be detected.
fn persistence(path: &Path) -> Persistence {
    const RAM_DISK_MAJOR: u64 = 1;
    let Ok(metadata) = std::fs::metadata(path) else {
        return Persistence::Media;
    };
    // Device numbers as glibc's gnu_dev_major and gnu_dev_minor split them.
    let major = |number: u64| (number >> 8 & 0xfff) | (number >> 32 & !0xfff);
    let minor = |number: u64| (number & 0xff) | (number >> 12 & 0xffff_ff00);
    let in_memory = if metadata.file_type().is_block_device() {
        major(metadata.rdev()) == RAM_DISK_MAJOR
    } else {
        let number = format!("{}:{}", major(metadata.dev()), minor(metadata.dev()));
        std::fs::read_to_string("/proc/self/mountinfo")
            .is_ok_and(|table| file_system_in_memory(&table, &number))
    };
    if in_memory {
        Persistence::Machine
    } else {
        Persistence::Media
    }
}

/// Returns whether the file system of this device number is in memory, according to the mount table
/// of proc(5).
fn file_system_in_memory(table: &str, number: &str) -> bool {
    table.lines().any(|line| {
        let mut words = line.split(' ');
        words.nth(2) == Some(number)
            && words.find(|word| *word == "-").is_some()
            && matches!(words.next(), Some("tmpfs" | "ramfs"))
    })
}

#[cfg(test)]
mod tests;
