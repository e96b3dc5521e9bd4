//! Shared memory in a file. Its content outlives this process.

use std::ffi::CStr;
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use forebay_block::{Buf, Context, Error, ErrorKind, Mapping, Result};

use crate::blocks::allocate_range;
use crate::file::{kind_in_words, wait_for_release};
use crate::holder::Holder;
use crate::{Stop, snapshot, tree};

/// Bytes that are allocated, and mapped, between two looks at a [`Stop`]: tens of milliseconds.
const STEP_BYTES: usize = 128 << 20;

struct Shared {
    address: *mut libc::c_void,
    len: usize,
    /// Held for its lock.
    file: File,
}

// SAFETY: the memory is plain bytes in a mapping that belongs to this value. Threads coordinate
// their accesses, as for every `Buf`.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

// SAFETY: the range is mapped from `open_shared` to `drop`, readable and writable. The file was
// allocated to its end, so no access runs out of space.
unsafe impl Mapping for Shared {
    fn as_ptr(&self) -> *mut u8 {
        self.address.cast()
    }

    fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: this is the mapping that `open_shared` made, and it is no longer used.
        unsafe { libc::munmap(self.address, self.len) };
    }
}

/// Maps the file at `path` (on tmpfs, such as `/dev/shm`) with `size_bytes` bytes. Returns also
/// whether it existed with that size. If so, the contents are preserved, else they are zeroes.
///
/// The file is held exclusively while any view of the memory lives, and only its owner may open it.
///
/// # Errors
/// `Busy` if another process holds it. `Permission` if it belongs to another user or others may
/// write to it. `InvalidInput` for a size of zero. `NoSpace`, or the system's error.
pub fn open_shared(path: &Path, size_bytes: usize) -> Result<(Buf, bool)> {
    open_shared_until(path, size_bytes, &Stop::default())
}

/// As [`open_shared`], which may take long where `size_bytes` are many: `stop` ends it. A file that
/// this made is removed then, as after every failure.
///
/// # Errors
/// As [`open_shared`], and `ShuttingDown` if it was stopped.
pub fn open_shared_until(path: &Path, size_bytes: usize, stop: &Stop) -> Result<(Buf, bool)> {
    open(path, size_bytes, size_bytes, stop).context(|| format!("shared memory {}", path.display()))
}

/// Returns a private copy of the memory in the file at `path`, as [`open_shared`] would find it.
/// `None` if there is no file, or an empty one. The file is not changed, and nothing is allocated
/// in it. The file is held while the copy lives.
///
/// # Errors
/// As [`open_shared`].
pub fn look_shared(path: &Path) -> Result<Option<Buf>> {
    let look = || -> Result<Option<Buf>> {
        let file = match open_private(path, OpenOptions::new().read(true)) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            opened => opened?,
        };
        hold(&file)?;
        let len = usize::try_from(file.metadata()?.size()).unwrap_or(usize::MAX);
        if len == 0 {
            return Ok(None);
        }
        let mapping = Shared {
            address: snapshot::map(&file, len).context(|| "mapping it")?.cast(),
            len,
            file,
        };
        Ok(Some(Buf::mapped(Box::new(mapping))))
    };
    look().context(|| format!("shared memory {}", path.display()))
}

/// Opens the file at `path` and holds it alone, as [`open_shared`] does, without mapping it; none
/// if there is no file. Nothing of it is changed.
///
/// # Errors
/// As [`open_shared`].
pub fn hold_shared(path: &Path) -> Result<Option<File>> {
    let open = || -> Result<Option<File>> {
        let file = match open_private(path, OpenOptions::new().read(true).write(true)) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            opened => opened?,
        };
        hold(&file)?;
        Ok(Some(file))
    };
    open().context(|| format!("shared memory {}", path.display()))
}

/// Refuses anything at `path` but a file that [`open_shared`] takes; there may be nothing, too.
///
/// # Errors
/// `InvalidInput` for anything that is no regular file or cannot be mapped, `Permission` for a file
/// of another user or one that others may open.
pub fn check_shared(path: &Path) -> Result<()> {
    let found = match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        found => found?,
    };
    if found.is_file() {
        private(&found)?;
        return check_mappable(path);
    }
    let kind = found.file_type();
    let what = match kind.is_char_device() || kind.is_block_device() {
        true => "a device node",
        false => kind_in_words(&found),
    };
    Err(Error::new(
        ErrorKind::InvalidInput,
        format!("it is {what} and not a regular file\nhelp: move it away, or choose another path"),
    ))
}

/// Refuses a file whose file system maps no memory, such as that of `/proc`. The file may be empty.
fn check_mappable(path: &Path) -> Result<()> {
    let mut options = OpenOptions::new();
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOFOLLOW;
    // Opening it for use reports any reason why it cannot be opened.
    let Ok(file) = options.read(true).custom_flags(flags).open(path) else {
        return Ok(());
    };
    // One byte stands for the page that it is in.
    let len = 1;
    // SAFETY: the kernel chooses the address, so no memory in use is replaced. Nothing reads the
    // mapping, which may lie behind the end of the file.
    let address = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            len,
            libc::PROT_READ,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        )
    };
    if address == libc::MAP_FAILED {
        let error = io::Error::last_os_error();
        return Err(Error::new(
            ErrorKind::InvalidInput,
            format!(
                "it cannot be mapped as memory\n\
                 help: choose a path on tmpfs; the system says: {error}"
            ),
        ));
    }
    // SAFETY: this is the mapping made above, and nothing uses it.
    unsafe { libc::munmap(address, len) };
    Ok(())
}

/// As [`open_shared`]. The file ends at the next power of two ([`padded_bytes`]), since a virtual
/// machine may get it as the memory of a PCI device. The bytes after `size_bytes` take no memory. A
/// killed process holds its memory for a moment longer: this waits for its release, for
/// [`RELEASE_TIME`](crate::file::RELEASE_TIME) or longer.
///
/// # Errors
/// As [`open_shared`].
pub fn open_padded(path: &Path, size_bytes: usize) -> Result<(Buf, bool)> {
    let file_bytes = padded_bytes(size_bytes);
    wait_for_release(path, None, || {
        open(path, size_bytes, file_bytes, &Stop::default())
    })
    .context(|| format!("shared memory {}", path.display()))
}

/// Returns the length of the file of [`open_padded`], in bytes.
#[must_use]
pub const fn padded_bytes(size_bytes: usize) -> usize {
    size_bytes.next_power_of_two()
}

/// Maps the first `size_bytes` of the file at `path` that another process made with [`open_shared`]
/// or [`open_padded`], and holds it together with that process. Inside a virtual machine, the file
/// is the memory of the PCI device that exposes the maker's file.
///
/// # Errors
/// `NotFound` if no process made it. `Permission` if it belongs to another user or others may write
/// to it. `InvalidInput` if it is shorter. Otherwise the system's error.
pub fn join_shared(path: &Path, size_bytes: usize) -> Result<Buf> {
    let join = || {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_CLOEXEC | libc::O_NOFOLLOW)
            .open(path)?;
        let found = file.metadata()?;
        private(&found)?;
        let there = found.size();
        if there == 0 || size_bytes == 0 {
            let context = "it is empty: a process is creating it, or Forebay did not create it";
            return Err(Error::new(ErrorKind::NotFound, context));
        }
        if there < size_bytes as u64 {
            // Mapped memory past its end cannot be touched.
            let context = format!("it has {there} bytes where {size_bytes} are expected");
            return Err(Error::new(ErrorKind::InvalidInput, context));
        }
        map(file, size_bytes, &Stop::default())
    };
    join().context(|| format!("shared memory {}", path.display()))
}

/// Creates memory of `size_bytes` zeroes without a name. It lives as long as a process has its
/// file, which may be passed to another process. It cannot be made smaller, so mapping it is safe.
///
/// # Errors
/// The system's error.
pub fn nameless(name: &CStr, size_bytes: u64) -> Result<File> {
    // SAFETY: the name is a string that lives through the call.
    let made =
        unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
    if made < 0 {
        return Err(io::Error::last_os_error()).context(|| "shared memory without a name");
    }
    // SAFETY: the descriptor is new and has no other owner.
    let file = unsafe { File::from_raw_fd(made) };
    file.set_len(size_bytes)?;
    // SAFETY: the descriptor is open.
    if unsafe { libc::fcntl(made, libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) } < 0 {
        return Err(io::Error::last_os_error()).context(|| "sealing shared memory");
    }
    Ok(file)
}

/// Returns the size of memory that was made with [`nameless`], in bytes.
///
/// # Errors
/// `InvalidInput` if it can be made smaller, or the system's error.
pub fn nameless_bytes(file: &File) -> Result<u64> {
    // SAFETY: the descriptor is open.
    let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
    if seals < 0 || seals & libc::F_SEAL_SHRINK == 0 {
        let context = "it is not shared memory of a sealed size";
        return Err(Error::new(ErrorKind::InvalidInput, context));
    }
    Ok(file.metadata()?.size())
}

fn open(path: &Path, size_bytes: usize, file_bytes: usize, stop: &Stop) -> Result<(Buf, bool)> {
    if size_bytes == 0 {
        return Err(Error::new(ErrorKind::InvalidInput, "a size of zero bytes"));
    }
    let mut options = OpenOptions::new();
    options
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600);
    let file = open_private(path, &mut options)?;
    hold(&file)?;
    // Checked once more under the lock.
    let found = file.metadata()?;
    if found.nlink() == 0 {
        return Err(Error::new(
            ErrorKind::Busy,
            "its creator had no space and removed it while it was being opened\nhelp: retry",
        ));
    }
    let existed = found.size() == file_bytes as u64;
    let sized = || {
        if existed {
            return allocate(&file, size_bytes, stop);
        }
        // Its size is set last: a process that is killed before leaves a file that does not count
        // as used.
        file.set_len(0)?;
        allocate(&file, size_bytes, stop)?;
        Ok(file.set_len(file_bytes as u64)?)
    };
    let opened = sized()
        .map_err(|error| match error.kind() {
            ErrorKind::ShuttingDown => error,
            _ => error.context(format!(
                "allocating {size_bytes} bytes\n\
                 help: free some memory or choose another file system"
            )),
        })
        .and_then(|()| map(file, size_bytes, stop));
    if opened.is_err() && !existed {
        // It is empty, and must not be taken for a used one that keeps its size.
        let _ = std::fs::remove_file(path);
    }
    Ok((opened?, existed))
}

/// Returns the ranges, in bytes, of the file at `path` that were not written since they came to be.
/// In memory that was fully written, those are ranges that were truncated and extended since. Empty
/// if the file system cannot report holes.
///
/// # Errors
/// The system's error.
pub fn holes(path: &Path) -> Result<Vec<std::ops::Range<u64>>> {
    let file = File::open(path).context(|| path.display().to_string())?;
    let end = file.metadata()?.size();
    Ok(crate::file::holes::holes(file.as_fd(), 0..end).unwrap_or_default())
}

/// Opens a file, if only this user may open it.
fn open_private(path: &Path, options: &mut OpenOptions) -> Result<File> {
    // Some kinds of files cannot be opened.
    check_shared(path)?;
    let file = options
        .custom_flags(libc::O_CLOEXEC | libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(path)?;
    private(&file.metadata()?)?;
    Ok(file)
}

/// Holds a file alone.
fn hold(file: &File) -> Result<()> {
    // SAFETY: the descriptor is open.
    if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    Err(match error.raw_os_error() {
        Some(libc::EWOULDBLOCK) => {
            let holder = file.metadata().ok().as_ref().and_then(Holder::of);
            let holder = holder.map_or("another process".to_owned(), Holder::describe);
            Error::new(
                ErrorKind::Busy,
                format!("it is locked by {holder}\nhelp: stop that process first"),
            )
        }
        _ => error.into(),
    })
}

/// Refuses a file that another user may open.
fn private(found: &Metadata) -> Result<()> {
    // SAFETY: a plain system call.
    let user = unsafe { libc::geteuid() };
    let (owner, mode) = (found.uid(), found.mode() & 0o7777);
    let what = match () {
        () if !found.is_file() => "it is not a regular file\nhelp: choose another path".to_owned(),
        () if owner != user => format!(
            "it belongs to user {owner} and not to {user}\n\
             help: start as that user, `chown` it, or choose another path"
        ),
        () if mode & 0o077 != 0 => {
            format!(
                "other users may open it (its mode is {mode:04o})\n\
                 help: `chmod 600` it, or choose another path"
            )
        }
        () => return Ok(()),
    };
    Err(Error::new(ErrorKind::Permission, what))
}

/// Maps a file piece by piece: a process whose memory is locked takes long for a large one.
fn map(file: File, size_bytes: usize, stop: &Stop) -> Result<Buf> {
    // SAFETY: a new mapping without access, at an address of the kernel's choice.
    let address = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            size_bytes,
            libc::PROT_NONE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    if address == libc::MAP_FAILED {
        return Err(io::Error::last_os_error()).context(|| "mapping it");
    }
    let mapping = Shared {
        address,
        len: size_bytes,
        file,
    };
    for at in (0..size_bytes).step_by(STEP_BYTES) {
        stop.check()?;
        let len = STEP_BYTES.min(size_bytes - at);
        let offset = libc::off_t::try_from(at).map_err(io::Error::other)?;
        // SAFETY: replaces a part of the mapping from above, which no other code has seen, by the
        // file's, which is as long.
        let piece = unsafe {
            libc::mmap(
                address.byte_add(at),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_FIXED,
                mapping.file.as_raw_fd(),
                offset,
            )
        };
        if piece == libc::MAP_FAILED {
            return Err(io::Error::last_os_error()).context(|| "mapping it");
        }
    }
    Ok(Buf::mapped(Box::new(mapping)))
}

/// Gives every page its memory now, so that a full file system is an error here and not a signal
/// later. The size of the file stays.
///
/// # Errors
/// `NoSpace` if the file system has no space for all bytes, `ShuttingDown` if it was stopped, or
/// the system's error.
pub(crate) fn allocate(file: &File, size_bytes: usize, stop: &Stop) -> Result<()> {
    for at in (0..size_bytes).step_by(STEP_BYTES) {
        stop.check()?;
        let len = STEP_BYTES.min(size_bytes - at);
        if !allocate_range(file, at as u64..(at + len) as u64)? {
            break;
        }
        if at == 0 {
            check_room(file, size_bytes as u64)?;
        }
    }
    Ok(())
}

/// Refuses a file if its file system has no space for the bytes that are not allocated yet. Without
/// this check, the allocation would fill the file system before it fails, and other programs that
/// write to it would fail, too.
fn check_room(file: &File, size_bytes: u64) -> Result<()> {
    let needed = size_bytes.saturating_sub(file.metadata()?.blocks() * 512);
    let room = tree::room(file)?;
    let free = room.free.saturating_mul(room.block_bytes.into());
    // A file system without a limit reports no blocks.
    match room.blocks > 0 && free < needed {
        true => Err(io::Error::from_raw_os_error(libc::ENOSPC).into()),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests;
