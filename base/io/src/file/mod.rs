//! Regular files and raw block devices, opened exclusively and read and written directly.

mod allocation;
mod geometry;
pub(crate) mod holes;
pub(crate) mod identity;
mod in_memory;
mod kind;
mod place;

use std::cell::{Cell, RefCell};
use std::fs::OpenOptions;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use forebay_block::{
    Completion, Context, DeviceInfo, Error, ErrorKind, Extents, Op, Request, Result,
};

use crate::Stop;
use crate::holder::Holder;
use crate::lock::lock;
pub use crate::reactor::Faults;
use crate::reactor::{IoLimits, OpenFile, current};
use crate::rt;
use crate::sync::{Promise, Semaphore};
pub use geometry::Geometry;
pub(crate) use geometry::direct_alignment;
pub use identity::are_clones;
pub use in_memory::is_in_memory;
pub use kind::{irregular_kind, kind_in_words, open_regular, open_to_look};
pub use place::{Medium, Place};

/// Options for opening a file.
#[derive(Clone, Debug, Default)]
pub struct FileOptions {
    /// Refuse writes.
    pub read_only: bool,
    /// Whether to bypass the page cache (`O_DIRECT`). If the file system refuses, a warning is
    /// logged and the page cache is used.
    pub direct: bool,
    /// Hold it alone: a lock for files, and the kernel's exclusive claim for block devices.
    pub exclusive: bool,
    /// Take the locks of a writer although this reads only, to find each program that a writer
    /// would conflict with. Has an effect with `exclusive` alone.
    pub locks_as_writer: bool,
    /// Make a regular file of this size, bytes, sparse, if there is none or an empty one. A file
    /// that has contents keeps its size.
    pub create_bytes: Option<u64>,
    /// Identify a medium that has no name by its path.
    pub known_by_path: bool,
    /// Ends the wait for a holder.
    pub stop: Option<Stop>,
}

/// An open file or block device. It belongs to the reactor that it was opened on.
pub struct File {
    open: Rc<OpenFile>,
    read_only: bool,
    geometry: Geometry,
    /// Properties against which requests are checked, with the largest size that the file is known
    /// to have had.
    info: RefCell<DeviceInfo>,
    /// End of the file at its last check, in bytes.
    end: Cell<u64>,
    /// Least size that writes restore, in bytes; zero for a file that may stay shorter.
    least_bytes: Cell<u64>,
    /// Whether the file was shorter than that since the last [`File::keep_size`].
    was_short: Cell<bool>,
    /// The turn to ask the file system for the allocation. A query that hangs keeps it.
    query: Rc<Semaphore>,
}

impl std::fmt::Debug for File {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("File")
            .field("path", &self.path())
            .finish_non_exhaustive()
    }
}

/// Time that an exclusive open waits for a holder to release the file. A process that was killed
/// holds its files until the kernel has ended its I/O. A write before that is not safe.
pub const RELEASE_TIME: Duration = Duration::from_secs(3);

/// The same if the holder has ended. A busy machine ends its I/O late.
const RELEASE_TIME_OF_DEAD: Duration = Duration::from_secs(30);

/// The holder that an opener waits for.
#[derive(Debug, Default)]
struct Wait {
    /// Holder that was seen to have ended. Another process may get its number later.
    ended: Option<Holder>,
}

impl Wait {
    /// Returns the longest wait for the holder that the kernel names at present. `/proc/locks`
    /// skips lines while other files are locked and released, so `None` changes nothing.
    fn limit(&mut self, holder: Option<Holder>) -> Duration {
        if holder.is_some_and(Holder::is_dead) {
            self.ended = holder;
        }
        match self.ended {
            Some(ended) if holder.is_none_or(|holder| holder == ended) => RELEASE_TIME_OF_DEAD,
            _ => RELEASE_TIME,
        }
    }
}

/// Describes the process that holds a lock on the file at `path`, if the kernel names it.
#[must_use]
pub fn holder_of(path: &Path) -> Option<String> {
    let file = std::fs::metadata(path).ok()?;
    Holder::of(&file).map(Holder::describe)
}

/// Logs that an opener waits for the release of a file, before a wait that may be long.
fn say_wait(path: &Path, holder: Option<Holder>, limit: Duration) {
    let by = match holder {
        Some(holder) if holder.is_dead() => format!("{}, which has ended", holder.describe()),
        Some(holder) => holder.describe(),
        None => "another program".to_owned(),
    };
    tracing::warn!(
        "{} is locked by {by}: waiting up to {} s for its release",
        path.display(),
        limit.as_secs()
    );
}

/// Calls `open` until the file is not `Busy`, for [`RELEASE_TIME`], or longer if the process that
/// holds it has ended. Logs the wait at its beginning. `stop` ends it.
///
/// # Errors
/// Those of `open`, and `ShuttingDown` if it was stopped.
pub(crate) fn wait_for_release<T>(
    path: &Path,
    stop: Option<&Stop>,
    open: impl Fn() -> Result<T>,
) -> Result<T> {
    let begin = Instant::now();
    let mut wait = Wait::default();
    let mut waiting = None;
    let mut said = Duration::ZERO;
    loop {
        match open() {
            Err(error) if error.kind() == ErrorKind::Busy => {
                if let Some(stop) = stop {
                    waiting.get_or_insert_with(|| {
                        stop.wait_for(format!("another process to release {}", path.display()))
                    });
                    stop.check()?;
                }
                let holder = std::fs::metadata(path).ok().as_ref().and_then(Holder::of);
                let limit = wait.limit(holder);
                if begin.elapsed() >= limit {
                    return Err(error);
                }
                if limit > said {
                    said = limit;
                    say_wait(path, holder, limit);
                }
                std::thread::sleep(Duration::from_millis(10));
            }
            other => return other,
        }
    }
}

impl File {
    /// Opens `path`, which names a regular file or a block device.
    ///
    /// # Errors
    /// `Busy` if another program holds it for [`RELEASE_TIME`] and `options.exclusive` is set. A
    /// program that has ended gets 30 s. `ShuttingDown` if `options.stop` ended the wait.
    /// `InvalidInput` if it is neither a file nor a block device, or if no reactor runs on this
    /// thread. `ReadOnly` if it takes no writes and `options.read_only` is not set. Otherwise the
    /// system's error.
    pub fn open(path: impl AsRef<Path>, options: &FileOptions) -> Result<Self> {
        let path = path.as_ref();
        wait_for_release(path, options.stop.as_ref(), || open(path, options))
            .context(|| format!("opening {}", path.display()))
    }

    /// Returns the present size in bytes, in whole logical blocks. Requests up to it are accepted
    /// from now on: files and devices may grow while they are open. If one has shrunk, requests
    /// beyond its end fail until it has grown to its size. A removed file is noted among its
    /// faults.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        if let Some(present) = geometry::present(self.open.fd(), &self.geometry) {
            let size_bytes = present.size_bytes;
            if present.removed {
                let fd = self.open.fd().as_raw_fd();
                self.open.faults().note_removed(self.path(), fd);
            }
            self.end.set(size_bytes);
            let mut info = self.info.borrow_mut();
            info.size_bytes = info.size_bytes.max(size_bytes);
        }
        self.end.get()
    }

    /// Returns the ranges of a regular file within `range`, in bytes, that were not written since
    /// they came to be. `None` if that cannot be determined.
    #[must_use]
    pub fn holes(&self, range: Range<u64>) -> Option<Vec<Range<u64>>> {
        match self.geometry.block_device {
            true => None,
            false => holes::holes(self.open.fd(), range),
        }
    }

    /// Returns the allocation of `range`, whole blocks, from its start. A block device is data.
    pub async fn extents(&self, range: Range<u64>) -> Extents {
        if self.geometry.block_device {
            return Extents::data(range);
        }
        self.query.acquire(1).await;
        let (open, query) = (Rc::clone(&self.open), Rc::clone(&self.query));
        let found = Promise::new();
        let promise = found.clone();
        // A task of its own, since the caller may not wait for the end.
        rt::spawn(async move {
            let extents = allocation::extents(open.fd(), range).await;
            drop(open);
            query.release(1);
            promise.set(extents);
        });
        let block = u64::from(self.geometry.logical_block_bytes);
        found.get().await.in_blocks(block)
    }

    /// Bytes that a regular file takes of its file system.
    #[must_use]
    pub fn allocated_bytes(&self) -> Option<u64> {
        match self.geometry.block_device {
            true => None,
            false => geometry::allocated_bytes(self.open.fd()),
        }
    }

    /// Gives a regular file that is shorter than `least_bytes` the size back with which it was
    /// opened. From now on writes below `least_bytes` do so as well. Returns whether the file was
    /// shorter since the last call.
    ///
    /// # Errors
    /// The system's error. The file keeps its size then.
    pub fn keep_size(&self, least_bytes: u64) -> Result<bool> {
        if self.geometry.block_device || self.read_only {
            return Ok(false);
        }
        self.least_bytes.set(least_bytes);
        if self.size_bytes() < least_bytes {
            self.restore_size()?;
        }
        Ok(self.was_short.replace(false))
    }

    /// Gives the file the size back with which it was opened.
    fn restore_size(&self) -> Result<()> {
        let size = libc::off_t::try_from(self.geometry.size_bytes).unwrap_or(libc::off_t::MAX);
        // SAFETY: the descriptor is open; no memory is involved.
        if unsafe { libc::ftruncate(self.open.fd().as_raw_fd(), size) } != 0 {
            return Err(io::Error::last_os_error().into());
        }
        self.was_short.set(true);
        self.end.set(self.geometry.size_bytes);
        Ok(())
    }

    /// Returns the faults since it was opened.
    #[must_use]
    pub fn faults(&self) -> Rc<Faults> {
        Rc::clone(self.open.faults())
    }

    /// Size when it was opened, blocks and abilities.
    #[must_use]
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The path that it was opened by.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.open.path()
    }

    /// Starts `request`. `done` gets the outcome, later, on this thread.
    ///
    /// Requests that reach past the end, are misaligned or write to a read-only file fail. A read
    /// never invents data: if the file ends before the range (it was truncated), it fails.
    pub fn submit(&self, request: Request, done: Completion) {
        let checked = if self.read_only && !matches!(request.op, Op::Read | Op::Flush) {
            Err(ErrorKind::ReadOnly.into())
        } else {
            self.check(&request)
        };
        match checked {
            // A discard is advice; this medium has no use for it.
            Ok(()) if request.op == Op::Discard && !self.geometry.discard => {
                done.complete(Ok(()));
            }
            Ok(()) => self.open.start(request, done),
            Err(error) => done.complete(Err(error)),
        }
    }

    fn check(&self, request: &Request) -> Result<()> {
        self.info.borrow().check(request)?;
        let end = request.offset + request.len;
        // A write there would make a hole of the data that is gone.
        if end > self.end.get() && end > self.size_bytes() {
            let restores = request.op != Op::Read && end <= self.least_bytes.get();
            if restores && self.restore_size().is_ok() {
                return Ok(());
            }
            let error = self.open.truncation_error(request);
            self.open.faults().note(&error);
            return Err(error);
        }
        Ok(())
    }
}

fn open(path: &Path, options: &FileOptions) -> Result<File> {
    let driver = current()?;
    let existing = match std::fs::metadata(path) {
        Ok(metadata) => Some(metadata),
        Err(error) if error.kind() == io::ErrorKind::NotFound && options.create_bytes.is_some() => {
            None
        }
        Err(error) => return Err(error.into()),
    };
    if let Some(metadata) = &existing {
        kind::check_medium(metadata)?;
    }
    let block_device = existing
        .as_ref()
        .is_some_and(|metadata| metadata.file_type().is_block_device());
    let (file, direct) = open_descriptor(path, options, block_device)?;
    let mut metadata = file.metadata()?;
    kind::check_medium(&metadata)?;
    kind::make_blocking(&file)?;
    if block_device != metadata.file_type().is_block_device() {
        return Err(Error::new(
            ErrorKind::Busy,
            "it was replaced while it was being opened",
        ));
    }
    if block_device && !options.read_only {
        geometry::check_writable(file.as_fd())?;
    }
    if options.exclusive {
        lock(&file, options.read_only && !options.locks_as_writer)?;
    }
    if let Some(size_bytes) = options.create_bytes
        && !block_device
        && metadata.size() == 0
    {
        create(&file, path, size_bytes)?;
        metadata = file.metadata()?;
    }
    let (mut geometry, memory_align) =
        geometry::probe(file.as_fd(), &metadata, direct, options.read_only)?;
    geometry.identity = identity::identity(file.as_fd(), &metadata, path, options.known_by_path);
    if geometry.block_device && geometry.discard {
        driver.prepare_discard()?;
    }
    let mut info = DeviceInfo::new("", geometry.size_bytes);
    info.logical_block_bytes = geometry.logical_block_bytes;
    let limits = IoLimits {
        block_device: geometry.block_device,
        logical_block_bytes: geometry.logical_block_bytes,
        memory_align,
    };
    Ok(File {
        open: OpenFile::adopt(driver, file.into(), path, limits, options.exclusive),
        read_only: options.read_only,
        geometry,
        end: Cell::new(info.size_bytes),
        info: RefCell::new(info),
        least_bytes: Cell::default(),
        was_short: Cell::default(),
        query: Rc::new(Semaphore::new(1)),
    })
}

/// Checks that the block device at `path` could be written to. It is not opened for writing,
/// which others would notice, nor held.
///
/// # Errors
/// `ReadOnly` if it takes no writes, `Permission` if this process may not write to it, or the
/// system's error.
pub fn check_device_writable(path: &Path) -> Result<()> {
    let mut options = OpenOptions::new();
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
    let file = options.read(true).custom_flags(flags).open(path)?;
    geometry::check_writable(file.as_fd())?;
    crate::system::check_writable(path)
}

/// Opens with `O_DIRECT` if asked to and possible. Whether it was.
fn open_descriptor(
    path: &Path,
    options: &FileOptions,
    block_device: bool,
) -> Result<(std::fs::File, bool)> {
    let attempt = |direct: bool| {
        let mut flags = libc::O_CLOEXEC;
        if !block_device {
            // A pipe that took its place meanwhile is not waited for.
            flags |= libc::O_NONBLOCK;
        }
        if direct {
            flags |= libc::O_DIRECT;
        }
        if options.exclusive && block_device {
            flags |= libc::O_EXCL;
        }
        OpenOptions::new()
            .read(true)
            .write(!options.read_only)
            .create(options.create_bytes.is_some() && !options.read_only && !block_device)
            .mode(0o600)
            .custom_flags(flags)
            .open(path)
    };
    let opened = match attempt(options.direct) {
        Err(error) if options.direct && error.raw_os_error() == Some(libc::EINVAL) => {
            tracing::warn!(
                path = %path.display(),
                "the file system refuses O_DIRECT: requests use the page cache"
            );
            attempt(false).map(|file| (file, false))
        }
        other => other.map(|file| (file, options.direct)),
    };
    opened.map_err(|error| match error.raw_os_error() {
        Some(libc::EBUSY) => Error::with_source(
            ErrorKind::Busy,
            "it is in use (mounted, or opened by another program)\n\
             help: unmount it, or stop that program",
            error,
        ),
        _ => error.into(),
    })
}

/// Gives a new file its size, and makes its name durable.
pub(crate) fn create(file: &std::fs::File, path: &Path, size_bytes: u64) -> Result<()> {
    file.set_len(size_bytes)
        .and_then(|()| file.sync_all())
        .context(|| format!("extending it to {size_bytes} bytes"))?;
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    std::fs::File::open(parent)
        .and_then(|directory| directory.sync_all())
        .context(|| format!("syncing the directory {}", parent.display()))
}

#[cfg(test)]
mod tests;
