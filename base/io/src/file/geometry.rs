//! Properties of a file or block device: size, block sizes and features.

use std::ffi::CStr;
use std::fs::Metadata;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};

use forebay_block::{Buf, Context, Error, ErrorKind, Identity, Result};

/// `BLKSSZGET`'s companions in linux/fs.h: `_IOR(0x12, 114, size_t)`.
const BLKGETSIZE64: libc::Ioctl = 0x8008_1272;
/// `_IO(0x12, 94)` of linux/fs.h.
const BLKROGET: libc::Ioctl = 0x125e;
/// Direct I/O with smaller memory alignment than this gains nothing: buffers are cut at sectors.
const SECTOR_BYTES: u32 = 512;
const PAGE_BYTES: u32 = 4096;

/// The geometry of an open file or block device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Size in bytes, rounded down to a whole number of logical blocks.
    pub size_bytes: u64,
    /// Smallest unit of I/O, bytes.
    pub logical_block_bytes: u32,
    /// Unit that the medium writes without reading first, bytes.
    pub physical_block_bytes: u32,
    /// Whether it is a block device and not a regular file.
    pub block_device: bool,
    /// Whether it had a name when it was opened: some file systems count none.
    pub(super) named: bool,
    /// Whether discarded ranges give their space back.
    pub discard: bool,
    /// Whether the medium is known to rotate.
    pub rotational: bool,
    /// Tells the medium from others, see
    /// [`DeviceInfo::identity`](forebay_block::DeviceInfo::identity).
    pub identity: Identity,
}

/// Reads the geometry but for the identity, and the alignment in memory that I/O on this descriptor
/// needs, bytes.
pub(super) fn probe(
    fd: BorrowedFd<'_>,
    metadata: &Metadata,
    direct: bool,
    read_only: bool,
) -> Result<(Geometry, usize)> {
    if metadata.file_type().is_block_device() {
        block_device(fd.as_raw_fd(), metadata, direct)
    } else {
        Ok(regular_file(fd.as_raw_fd(), metadata, direct, read_only))
    }
}

fn block_device(fd: RawFd, metadata: &Metadata, direct: bool) -> Result<(Geometry, usize)> {
    let mut logical: libc::c_int = 0;
    let mut physical: libc::c_uint = 0;
    let mut size_bytes: u64 = 0;
    let ask = |request: libc::Ioctl, answer: *mut libc::c_void, name: &str| {
        // SAFETY: each request writes one value of the type that its caller points to.
        if unsafe { libc::ioctl(fd, request, answer) } < 0 {
            return Err(io::Error::last_os_error()).context(|| format!("ioctl {name}"));
        }
        Ok(())
    };
    ask(libc::BLKSSZGET, (&raw mut logical).cast(), "BLKSSZGET")?;
    ask(libc::BLKPBSZGET, (&raw mut physical).cast(), "BLKPBSZGET")?;
    ask(BLKGETSIZE64, (&raw mut size_bytes).cast(), "BLKGETSIZE64")?;
    let logical = logical.cast_unsigned().max(SECTOR_BYTES);
    let device = metadata.rdev();
    let geometry = Geometry {
        size_bytes: size_bytes - size_bytes % u64::from(logical),
        logical_block_bytes: logical,
        physical_block_bytes: physical.max(logical),
        block_device: true,
        named: false,
        discard: queue_number(device, "discard_max_bytes").is_some_and(|bytes| bytes > 0),
        rotational: queue_number(device, "rotational") == Some(1),
        identity: Identity::default(),
    };
    let align = if direct {
        direct_alignment(fd).map_or(logical, |(memory, _)| memory)
    } else {
        1
    };
    Ok((geometry, align as usize))
}

/// Refuses a block device that takes no writes: the kernel opens it for writing all the same.
pub(super) fn check_writable(fd: BorrowedFd<'_>) -> Result<()> {
    let mut read_only: libc::c_int = 0;
    // SAFETY: the request writes one value of this type.
    let known = unsafe { libc::ioctl(fd.as_raw_fd(), BLKROGET, &raw mut read_only) };
    if known >= 0 && read_only != 0 {
        return Err(Error::new(
            ErrorKind::ReadOnly,
            "the block device is read-only\n\
             help: make it writable (`blockdev --setrw`; a loop device: attach it without \
             --read-only), or name another",
        ));
    }
    Ok(())
}

/// Properties of a file that can be observed at any time.
pub(super) struct Present {
    /// In whole logical blocks, bytes.
    pub(super) size_bytes: u64,
    /// Whether it can no longer be opened, so that it ends when it is closed.
    pub(super) removed: bool,
}

/// Returns the present state of the file. `None` if the system does not report it.
pub(super) fn present(fd: BorrowedFd<'_>, geometry: &Geometry) -> Option<Present> {
    let fd = fd.as_raw_fd();
    let (size_bytes, removed) = if geometry.block_device {
        let mut size_bytes: u64 = 0;
        // SAFETY: the request writes one value of this type.
        let known = unsafe { libc::ioctl(fd, BLKGETSIZE64, &raw mut size_bytes) };
        (known >= 0).then_some((size_bytes, false))
    } else {
        let is_removed = |known: &Attributes| geometry.named && known.links == 0;
        attributes(fd).map(|known| (known.size_bytes, is_removed(&known)))
    }?;
    let logical = u64::from(geometry.logical_block_bytes);
    Some(Present {
        size_bytes: size_bytes - size_bytes % logical,
        removed,
    })
}

/// Bytes that a file takes of its file system.
pub(super) fn allocated_bytes(fd: BorrowedFd<'_>) -> Option<u64> {
    Some(attributes(fd.as_raw_fd())?.blocks * 512)
}

/// Attributes of a regular file.
struct Attributes {
    size_bytes: u64,
    /// Allocated space, in units of 512 bytes.
    blocks: u64,
    /// Number of its names.
    links: u64,
}

/// Returns the attributes of a file as the system knows them, without a request to a server. A
/// server that does not answer must not block the reactor. A `stat` of the path makes the system
/// ask. Local file systems have no server, and know the present attributes.
fn attributes(fd: RawFd) -> Option<Attributes> {
    // SAFETY: all zeroes is a valid value of this plain structure.
    let mut answer: libc::statx = unsafe { std::mem::zeroed() };
    let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC;
    let path = c"".as_ptr();
    // SAFETY: the descriptor is open, the path ends with zero, and the answer is written in place.
    let result = unsafe { libc::statx(fd, path, flags, libc::STATX_BASIC_STATS, &raw mut answer) };
    (result == 0).then(|| Attributes {
        size_bytes: answer.stx_size,
        blocks: answer.stx_blocks,
        links: u64::from(answer.stx_nlink),
    })
}

fn regular_file(
    fd: RawFd,
    metadata: &Metadata,
    direct: bool,
    read_only: bool,
) -> (Geometry, usize) {
    let (memory, logical) = if direct {
        direct_alignment(fd).unwrap_or_else(|| tried_alignment(fd))
    } else {
        (1, SECTOR_BYTES)
    };
    let logical = logical.max(SECTOR_BYTES);
    let size = metadata.size();
    let preferred = u32::try_from(metadata.blksize()).unwrap_or(PAGE_BYTES);
    let geometry = Geometry {
        size_bytes: size - size % u64::from(logical),
        logical_block_bytes: logical,
        physical_block_bytes: preferred.clamp(SECTOR_BYTES, PAGE_BYTES).max(logical),
        block_device: false,
        named: metadata.nlink() > 0,
        discard: !read_only && punches_holes(fd, size),
        rotational: queue_number(metadata.dev(), "rotational") == Some(1),
        identity: Identity::default(),
    };
    (geometry, memory as usize)
}

/// Returns the kernel's requirements (Linux 6.1) on direct I/O: alignment in memory and of offsets,
/// in bytes.
pub(crate) fn direct_alignment(fd: RawFd) -> Option<(u32, u32)> {
    const EMPTY: &CStr = c"";
    // SAFETY: all zeroes is a valid value of this plain structure.
    let mut answer: libc::statx = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open, the path is empty, and the answer is written in place.
    let result = unsafe {
        libc::statx(
            fd,
            EMPTY.as_ptr(),
            libc::AT_EMPTY_PATH,
            libc::STATX_DIOALIGN,
            &raw mut answer,
        )
    };
    let known = result == 0
        && answer.stx_mask & libc::STATX_DIOALIGN != 0
        && answer.stx_dio_mem_align.is_power_of_two()
        && answer.stx_dio_offset_align.is_power_of_two();
    known.then_some((answer.stx_dio_mem_align, answer.stx_dio_offset_align))
}

/// On older kernels: whether a direct read of one sector works.
fn tried_alignment(fd: RawFd) -> (u32, u32) {
    let buf = Buf::scratch(PAGE_BYTES as usize);
    let sector = SECTOR_BYTES as usize;
    // SAFETY: the buffer is longer than the read.
    let result = unsafe { libc::pread(fd, buf.as_ptr().cast(), sector, 0) };
    if result < 0 {
        (PAGE_BYTES, PAGE_BYTES)
    } else {
        (SECTOR_BYTES, SECTOR_BYTES)
    }
}

/// Punches a hole behind the end, which changes nothing.
fn punches_holes(fd: RawFd, size_bytes: u64) -> bool {
    let Ok(behind) = libc::off_t::try_from(size_bytes.next_multiple_of(PAGE_BYTES.into())) else {
        return false;
    };
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: the descriptor is open.
    unsafe { libc::fallocate(fd, mode, behind, PAGE_BYTES.into()) == 0 }
}

/// A number that the kernel tells about a device's queue; a partition's is its disk's.
fn queue_number(device: u64, name: &str) -> Option<u64> {
    let (major, minor) = (libc::major(device), libc::minor(device));
    ["", "../"].iter().find_map(|up| {
        let path = format!("/sys/dev/block/{major}:{minor}/{up}queue/{name}");
        std::fs::read_to_string(path).ok()?.trim().parse().ok()
    })
}
