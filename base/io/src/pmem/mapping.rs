//! Memory mapped from a DAX device or a file, reached with loads and stores alone.

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use forebay_block::{Buf, Context, Error, ErrorKind, Identity, Result};

use super::instructions::{self, Writeback};
use super::{LINE_BYTES, Pmem};
use crate::file::{create, identity, kind_in_words, wait_for_release};
use crate::lock::lock;
use crate::shm::allocate;
use crate::{Stop, snapshot};

const PAGE_BYTES: u64 = 4096;

/// Medium that a mapping's stores reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// Persistent memory, through a DAX character device.
    PersistentDevice,
    /// Persistent memory, through a file on a DAX mount (`MAP_SYNC`).
    PersistentFile,
    /// Memory that power loss empties, through a DAX character device (CXL or other).
    VolatileDevice,
    /// The page cache of an ordinary file: power loss preserves any stores, in any order.
    PageCache,
}

impl Backing {
    /// Returns whether flushed and fenced stores survive power loss.
    #[must_use]
    pub const fn is_persistent(self) -> bool {
        matches!(self, Self::PersistentDevice | Self::PersistentFile)
    }
}

/// Byte-addressable media mapped into this process.
///
/// It is held exclusively while it is open. A file under it must not be truncated meanwhile. The
/// lock excludes other Forebays but not `truncate`, and touching truncated memory ends the process
/// (SIGBUS). For the same reason every byte of a file is allocated when it is opened.
#[derive(Debug)]
pub struct PmemMapping {
    address: *mut u8,
    size_bytes: u64,
    backing: Backing,
    writeback: Writeback,
    identity: Identity,
    /// Held for its lock.
    _file: File,
}

// SAFETY: the mapping belongs to this value and stays until it is dropped. Words are accessed by
// atomic operations, and code that copies ranges excludes concurrent access to them (see
// `Pmem::read`).
unsafe impl Send for PmemMapping {}
// SAFETY: as above.
unsafe impl Sync for PmemMapping {}

impl Drop for PmemMapping {
    fn drop(&mut self) {
        // SAFETY: this is the mapping that `map` made, and it is no longer used.
        unsafe { libc::munmap(self.address.cast(), self.size_bytes as usize) };
    }
}

impl PmemMapping {
    /// Maps a DAX character device, or a regular file to its last whole page. With `create_bytes`,
    /// a file that is missing or empty is created with this size.
    ///
    /// # Errors
    /// `Busy` if another program holds it for [`RELEASE_TIME`](crate::file::RELEASE_TIME).
    /// `InvalidInput` if it is neither of the two or smaller than a page. `NoSpace` if its file
    /// system has no room for all of it. Otherwise the system's error.
    pub fn open(path: &Path, create_bytes: Option<u64>) -> Result<Self> {
        map_when_released(path, || open(path, create_bytes, false))
    }

    /// Maps as [`PmemMapping::open`], for inspection. Stores to a file stay in this process, and
    /// none of it is allocated. A device, which is always allocated, is mapped as usual.
    ///
    /// # Errors
    /// As [`PmemMapping::open`].
    pub fn open_to_look(path: &Path) -> Result<Self> {
        map_when_released(path, || open(path, None, true))
    }

    /// Returns the medium that the stores reach.
    #[must_use]
    pub const fn backing(&self) -> Backing {
        self.backing
    }

    /// Returns the instruction that writes lines back.
    #[must_use]
    pub const fn writeback(&self) -> Writeback {
        self.writeback
    }

    /// Tells the medium from others, see
    /// [`DeviceInfo::identity`](forebay_block::DeviceInfo::identity).
    #[must_use]
    pub const fn identity(&self) -> Identity {
        self.identity
    }

    /// The address of a checked range.
    #[inline]
    fn at(&self, offset: u64, len: u64, align: u64) -> *mut u8 {
        assert!(
            offset <= self.size_bytes
                && len <= self.size_bytes - offset
                && offset.is_multiple_of(align),
            "{len} bytes at {offset}, aligned to {align}, in a memory of {} bytes",
            self.size_bytes
        );
        // SAFETY: within the mapping, checked above.
        unsafe { self.address.add(offset as usize) }
    }

    #[inline]
    fn word_u32(&self, offset: u64) -> &AtomicU32 {
        // SAFETY: mapped while `self` lives, aligned, and every access to words is atomic.
        unsafe { AtomicU32::from_ptr(self.at(offset, 4, 4).cast()) }
    }

    #[inline]
    fn word_u64(&self, offset: u64) -> &AtomicU64 {
        // SAFETY: as above.
        unsafe { AtomicU64::from_ptr(self.at(offset, 8, 8).cast()) }
    }
}

impl Pmem for PmemMapping {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn read(&self, offset: u64, target: &Buf) -> Result<()> {
        let source = self.at(offset, target.len() as u64, 1);
        // SAFETY: both ranges are live and of this length, and a buffer is never part of the
        // mapping.
        unsafe { std::ptr::copy_nonoverlapping(source, target.as_ptr(), target.len()) };
        Ok(())
    }

    #[inline]
    fn load_u32(&self, offset: u64) -> u32 {
        u32::from_le(self.word_u32(offset).load(Ordering::Acquire))
    }

    #[inline]
    fn load_u64(&self, offset: u64) -> u64 {
        u64::from_le(self.word_u64(offset).load(Ordering::Acquire))
    }

    #[inline]
    fn store_u32(&self, offset: u64, value: u32) {
        self.word_u32(offset)
            .store(value.to_le(), Ordering::Release);
    }

    #[inline]
    fn store_u64(&self, offset: u64, value: u64) {
        self.word_u64(offset)
            .store(value.to_le(), Ordering::Release);
    }

    fn stream(&self, offset: u64, source: &Buf) {
        let len = source.len() as u64;
        assert!(len.is_multiple_of(LINE_BYTES), "a stream of {len} bytes");
        let target = self.at(offset, len, LINE_BYTES);
        // SAFETY: the target is mapped and aligned to a line like its mapping. The source is live,
        // and a buffer is never part of the mapping.
        unsafe { instructions::stream(target, source.as_ptr(), source.len()) };
    }

    fn flush(&self, offset: u64, len: u64) {
        self.at(offset, len, 1);
        let first = offset - offset % LINE_BYTES;
        for line in (first..offset + len).step_by(LINE_BYTES as usize) {
            // SAFETY: the line begins inside the mapping, and the instruction was detected.
            unsafe { self.writeback.line(self.address.add(line as usize)) };
        }
    }

    fn fence(&self) {
        instructions::fence();
    }
}

fn map_when_released(path: &Path, open: impl Fn() -> Result<PmemMapping>) -> Result<PmemMapping> {
    wait_for_release(path, None, open).context(|| format!("mapping {}", path.display()))
}

fn open(path: &Path, create_bytes: Option<u64>, look: bool) -> Result<PmemMapping> {
    // Opening anything else might block, or start something.
    match std::fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && create_bytes.is_some() => {}
        found => check_mappable(&found?)?,
    }
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(create_bytes.is_some())
        .truncate(false)
        .mode(0o600)
        .custom_flags(libc::O_CLOEXEC | libc::O_NONBLOCK)
        .open(path)?;
    let mut metadata = file.metadata()?;
    check_mappable(&metadata)?;
    let device = metadata.file_type().is_char_device();
    lock(&file, false)?;
    if let Some(size_bytes) = create_bytes
        && metadata.is_file()
        && metadata.size() == 0
    {
        create(&file, path, size_bytes)?;
        metadata = file.metadata()?;
    }
    let size_bytes = match device {
        true => device_size_bytes(&metadata)?,
        false => metadata.size(),
    };
    let size_bytes = size_bytes - size_bytes % PAGE_BYTES;
    let len = usize::try_from(size_bytes).ok().filter(|len| *len > 0);
    let Some(len) = len else {
        return Err(Error::new(
            ErrorKind::InvalidInput,
            format!(
                "it has {} bytes, less than a page of 4096\n\
                 help: give it the intended size (`truncate -s SIZE {}`)",
                metadata.size(),
                path.display()
            ),
        ));
    };
    if !device && !look {
        allocate(&file, len, &Stop::default()).context(|| {
            format!("allocating all of its {size_bytes} bytes\nhelp: free space on its file system")
        })?;
    }
    let writeback = Writeback::detect();
    let (address, synchronous) = match look && !device {
        true => look_at(&file, len)?,
        false => map(&file, len, device)?,
    };
    let persistent = writeback != Writeback::None && synchronous;
    let backing = match (device, persistent) {
        (true, _) if persistent && on_nvdimm_bus(&metadata) => Backing::PersistentDevice,
        (true, _) => Backing::VolatileDevice,
        (false, true) => Backing::PersistentFile,
        (false, false) => Backing::PageCache,
    };
    Ok(PmemMapping {
        address,
        size_bytes,
        backing,
        writeback,
        identity: identity::identity(file.as_fd(), &metadata, path, false),
        _file: file,
    })
}

/// As [`map`], for a file of which nothing is to change.
fn look_at(file: &File, len: usize) -> Result<(*mut u8, bool)> {
    // No code touches this page: it shows which medium stores would reach.
    let (page, synchronous) = map(file, PAGE_BYTES as usize, false)?;
    // SAFETY: this is the mapping of above.
    unsafe { libc::munmap(page.cast(), PAGE_BYTES as usize) };
    let address = snapshot::map(file, len).context(|| "mapping the file")?;
    Ok((address, synchronous))
}

/// Maps the file, and whether its own metadata is durable before a store can reach a page
/// (`MAP_SYNC`); on a device there is none.
fn map(file: &File, len: usize, device: bool) -> Result<(*mut u8, bool)> {
    let attempt = |flags| {
        // SAFETY: a new mapping, at an address of the kernel's choice.
        let address = unsafe {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(
                std::ptr::null_mut(),
                len,
                protection,
                flags,
                file.as_raw_fd(),
                0,
            )
        };
        match address == libc::MAP_FAILED {
            true => Err(io::Error::last_os_error()),
            false => Ok(address.cast()),
        }
    };
    if device {
        let address = attempt(libc::MAP_SHARED).context(|| "mapping the device")?;
        return Ok((address, true));
    }
    match attempt(libc::MAP_SHARED_VALIDATE | libc::MAP_SYNC) {
        Ok(address) => Ok((address, true)),
        Err(error)
            if matches!(
                error.raw_os_error(),
                Some(libc::EOPNOTSUPP | libc::EINVAL | libc::ENODEV)
            ) =>
        {
            let address = attempt(libc::MAP_SHARED).context(|| "mapping the file")?;
            Ok((address, false))
        }
        Err(error) => Err(error).context(|| "mapping the file"),
    }
}

fn sysfs(metadata: &Metadata) -> String {
    let (major, minor) = (libc::major(metadata.rdev()), libc::minor(metadata.rdev()));
    format!("/sys/dev/char/{major}:{minor}")
}

/// Refuses anything but a regular file or a DAX character device.
fn check_mappable(metadata: &Metadata) -> Result<()> {
    if metadata.is_file() || (metadata.file_type().is_char_device() && is_dax(metadata)) {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::InvalidInput,
        format!(
            "it is {}, and neither a regular file nor a DAX character device\n\
             help: name a DAX device (/dev/dax0.0) or a regular file, for persistent memory best \
             one on a file system mounted with -o dax",
            kind_in_words(metadata)
        ),
    ))
}

/// Returns whether a character device is memory that can be mapped: no other one has a size.
#[must_use]
pub fn is_dax(metadata: &Metadata) -> bool {
    device_size_bytes(metadata).is_ok()
}

fn device_size_bytes(metadata: &Metadata) -> Result<u64> {
    let path = format!("{}/size", sysfs(metadata));
    let text = std::fs::read_to_string(&path).ok();
    text.and_then(|text| text.trim().parse().ok())
        .ok_or_else(|| {
            Error::new(
                ErrorKind::InvalidInput,
                format!(
                    "it is a character device without a size in {path}\n\
                     help: name a DAX device (/dev/dax0.0)"
                ),
            )
        })
}

/// Returns whether a DAX device is persistent memory. Devices of the NVDIMM bus are. Ranges that
/// firmware or CXL reserved as memory are not.
fn on_nvdimm_bus(metadata: &Metadata) -> bool {
    std::fs::canonicalize(sysfs(metadata))
        .is_ok_and(|path| path.to_string_lossy().contains("/ndbus"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Scratch;

    #[test]
    fn stored_data_is_in_the_file_and_outlives_the_mapping() {
        let scratch = Scratch::new();
        let path = scratch.path("pmem");
        let memory = PmemMapping::open(&path, Some(3 * PAGE_BYTES)).expect("made");
        assert_eq!(memory.size_bytes(), 3 * PAGE_BYTES);
        eprintln!("{:?}, {}", memory.backing(), memory.writeback());
        let block: Vec<u8> = (0..4096u32).map(|i| (i * 7) as u8).collect();
        memory.stream(4096, &Buf::copied(&block));
        memory.store_u64(8, 0x0102_0304_0506_0708);
        memory.store_u32(20, 0x0a0b_0c0d);
        memory.flush(8, 16);
        memory.fence();
        assert_eq!(memory.load_u32(8), 0x0506_0708);
        assert_eq!(memory.load_u64(16), 0x0a0b_0c0d << 32);
        let back = Buf::zeroed(100);
        memory.read(4096 + 50, &back).expect("no media errors");
        assert_eq!(back.to_vec(), block[50..150]);
        let busy = PmemMapping::open(&path, None).expect_err("it is held");
        assert_eq!(busy.kind(), ErrorKind::Busy);
        drop(memory);
        let bytes = std::fs::read(&path).expect("there");
        assert_eq!(bytes[8..16], [8, 7, 6, 5, 4, 3, 2, 1], "little-endian");
        assert_eq!(bytes[4096..8192], block);
        let reopened = PmemMapping::open(&path, Some(PAGE_BYTES)).expect("as it was");
        assert_eq!(reopened.size_bytes(), 3 * PAGE_BYTES);
    }

    #[test]
    fn a_look_changes_and_allocates_nothing() {
        let scratch = Scratch::new();
        let path = scratch.path("pmem");
        let file = File::create_new(&path).expect("made");
        file.set_len(64 << 20).expect("sparse");
        let memory = PmemMapping::open_to_look(&path).expect("it can be mapped");
        assert_eq!((memory.size_bytes(), memory.load_u64(4096)), (64 << 20, 0));
        memory.store_u64(4096, 7);
        memory.stream(8192, &Buf::copied(&[1; 64]));
        memory.flush(4096, 8);
        memory.fence();
        assert_eq!(memory.load_u64(4096), 7, "this process has it");
        let busy = PmemMapping::open(&path, None).expect_err("it is held");
        assert_eq!(busy.kind(), ErrorKind::Busy);
        drop(memory);
        assert_eq!(file.metadata().expect("there").blocks(), 0, "allocated");
        let memory = PmemMapping::open(&path, None).expect("free");
        assert_eq!(memory.load_u64(4096), 0, "a store reached the file");
        let blocks = file.metadata().expect("there").blocks();
        assert!(
            blocks * 512 >= 64 << 20,
            "{blocks} blocks: all of it is needed"
        );
    }

    #[test]
    fn an_ordinary_file_is_not_called_persistent() {
        let scratch = Scratch::new();
        let memory = PmemMapping::open(&scratch.path("file"), Some(PAGE_BYTES)).expect("made");
        if memory.backing() == Backing::PersistentFile {
            eprintln!("SKIPPED: the temporary directory is on persistent memory");
            return;
        }
        assert_eq!(memory.backing(), Backing::PageCache);
        assert!(!memory.backing().is_persistent());
    }

    #[test]
    fn files_that_cannot_be_mapped_are_refused_by_name() {
        let scratch = Scratch::new();
        let short = scratch.path("short");
        std::fs::write(&short, [0; 100]).expect("a file");
        for (path, kind) in [
            (short, ErrorKind::InvalidInput),
            (scratch.path("none"), ErrorKind::NotFound),
            ("/dev/null".into(), ErrorKind::InvalidInput),
        ] {
            let error = PmemMapping::open(&path, None).expect_err("refused");
            assert_eq!(error.kind(), kind, "{error:?}");
            let name = path.display().to_string();
            assert!(error.report().contains(&name), "{error:?}");
        }
    }

    #[test]
    #[should_panic(expected = "in a memory of 4096 bytes")]
    fn nothing_reaches_past_the_end() {
        let scratch = Scratch::new();
        let memory = PmemMapping::open(&scratch.path("file"), Some(PAGE_BYTES)).expect("made");
        let _ = memory.load_u64(4096 - 4);
    }
}
