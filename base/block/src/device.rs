//! The trait of everything that stores bytes.

use std::ops::Range;
use std::sync::Arc;

use crate::allocation::all_data;
use crate::{
    Buf, Completion, ErrorKind, ExtentsFuture, Identity, IoFuture, Result, completion_pair,
};

/// Events that a device's contents survive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Persistence {
    /// None: the contents are lost with this process (DRAM).
    Process,
    /// The death of this process, but not of the machine (a shared-memory file).
    Machine,
    /// Power loss, after a flush.
    Media,
}

/// Properties of a device. They propagate up a stack truthfully: a layer may promise less than the
/// device under it, never more.
#[derive(Clone, Debug)]
pub struct DeviceInfo {
    /// Name for users: a path, an address, a name from the configuration.
    pub name: String,
    /// Size in bytes; a multiple of `logical_block_bytes`.
    pub size_bytes: u64,
    /// Smallest unit of addressing, bytes. Offsets and lengths are multiples of it.
    pub logical_block_bytes: u32,
    /// Unit that the medium writes without reading first, bytes; at least the logical block.
    pub physical_block_bytes: u32,
    /// Unit of atomicity, bytes. Each aligned piece of a write of this size is wholly old or wholly
    /// new after a power loss or the end of the process. It is the logical block on most devices,
    /// and less on raw byte-addressable media, which tear blocks.
    pub atomic_write_bytes: u32,
    /// Whether acknowledged writes may be in a volatile cache, so that only a flush or FUA makes
    /// them durable.
    pub volatile_cache: bool,
    /// Whether acknowledged changes are in the memory of this process until a flush. The end of the
    /// process loses them.
    pub buffers_in_process: bool,
    /// Whether the device supports FUA for a single write. If not, callers flush after the write.
    pub fua: bool,
    /// Whether the medium is reached by loads and stores.
    pub byte_addressable: bool,
    /// Events that the contents survive.
    pub persistence: Persistence,
    /// Whether discard has an effect.
    pub discard: bool,
    /// Description of the emulation, if performance is not that of the medium (`"1 ms, 100 MB/s"`).
    pub emulated: Option<String>,
    /// Identity of the medium.
    pub identity: Identity,
}

impl DeviceInfo {
    /// Creates the properties of a device of `size_bytes` with 512-byte blocks, a volatile cache
    /// and defaults for the rest.
    #[must_use]
    pub fn new(name: impl Into<String>, size_bytes: u64) -> Self {
        Self {
            name: name.into(),
            size_bytes,
            logical_block_bytes: 512,
            physical_block_bytes: 512,
            atomic_write_bytes: 512,
            volatile_cache: true,
            buffers_in_process: false,
            fua: true,
            byte_addressable: false,
            persistence: Persistence::Media,
            discard: true,
            emulated: None,
            identity: Identity::default(),
        }
    }

    /// Checks that a request is aligned and within the device.
    ///
    /// # Errors
    /// `InvalidInput` for a misaligned request, a length of zero or a buffer of another length;
    /// `OutOfRange` past the end.
    #[inline]
    pub fn check(&self, request: &Request) -> Result<()> {
        request.check(self.size_bytes, self.logical_block_bytes)
    }
}

/// Kind of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Reads into the buffer.
    Read,
    /// Writes from the buffer. With `fua`, the completion means that the data is on media.
    Write {
        /// Force unit access.
        fua: bool,
    },
    /// Makes durable all writes that were acknowledged before its submission.
    Flush,
    /// The range's contents are no longer needed. A later read returns old data or zeroes, as the
    /// device chooses for each logical block.
    Discard,
    /// The range reads as zeroes from now on.
    WriteZeroes {
        /// Force unit access.
        fua: bool,
        /// Whether the device may free the space (NBD without `NO_HOLE`).
        unmap: bool,
    },
}

/// One operation on a device.
#[derive(Clone, Debug)]
pub struct Request {
    /// Kind of the operation.
    pub op: Op,
    /// First byte.
    pub offset: u64,
    /// Length, bytes; zero for a flush.
    pub len: u64,
    /// The data of a read or write, of exactly `len` bytes.
    pub buf: Option<Buf>,
}

impl Request {
    /// Checks that the request is aligned and within a device of this size and these blocks, bytes.
    ///
    /// # Errors
    /// `InvalidInput` for a misaligned request, a length of zero or a buffer of another length;
    /// `OutOfRange` past the end.
    #[inline]
    pub fn check(&self, size_bytes: u64, logical_block_bytes: u32) -> Result<()> {
        if matches!(self.op, Op::Flush) {
            return Ok(());
        }
        let block = u64::from(logical_block_bytes);
        if (self.offset | self.len) & (block - 1) != 0 || self.len == 0 {
            return Err(ErrorKind::InvalidInput.into());
        }
        if self.offset > size_bytes || self.len > size_bytes - self.offset {
            return Err(ErrorKind::OutOfRange.into());
        }
        let buf_len = self.buf.as_ref().map(|buf| buf.len() as u64);
        if matches!(self.op, Op::Read | Op::Write { .. }) && buf_len != Some(self.len) {
            return Err(ErrorKind::InvalidInput.into());
        }
        Ok(())
    }

    /// A read of `buf.len()` bytes.
    #[must_use]
    pub const fn read(offset: u64, buf: Buf) -> Self {
        Self {
            op: Op::Read,
            offset,
            len: buf.len() as u64,
            buf: Some(buf),
        }
    }

    /// A write of `buf.len()` bytes.
    #[must_use]
    pub const fn write(offset: u64, buf: Buf, fua: bool) -> Self {
        Self {
            op: Op::Write { fua },
            offset,
            len: buf.len() as u64,
            buf: Some(buf),
        }
    }

    /// A flush.
    #[must_use]
    pub const fn flush() -> Self {
        Self {
            op: Op::Flush,
            offset: 0,
            len: 0,
            buf: None,
        }
    }

    /// A discard.
    #[must_use]
    pub const fn discard(offset: u64, len: u64) -> Self {
        Self {
            op: Op::Discard,
            offset,
            len,
            buf: None,
        }
    }

    /// A write of zeroes.
    #[must_use]
    pub const fn write_zeroes(offset: u64, len: u64, fua: bool, unmap: bool) -> Self {
        Self {
            op: Op::WriteZeroes { fua, unmap },
            offset,
            len,
            buf: None,
        }
    }
}

/// A device that stores bytes in blocks.
///
/// Contract:
/// - `submit` never blocks and never fails by itself: bad requests complete with an error.
/// - The completion may be used before `submit` returns (a memory device) or at any later time, on
///   the same thread. Requests may complete in any order; overlapping requests in flight at once
///   have no defined order between them.
/// - Completion of a write is not durability, unless it has FUA or the device has no volatile
///   cache.
/// - Each aligned piece of [`DeviceInfo::atomic_write_bytes`] is written wholly or not at all.
///   Layers that keep data need a logical block of it; only raw byte-addressable media have less.
/// - The device holds the request's buffer until it completes.
pub trait BlockDevice {
    /// Returns the properties of the device. They are constant while it is open, except the size,
    /// which may grow.
    fn info(&self) -> DeviceInfo;

    /// Starts `request`; its outcome completes `done`.
    fn submit(&self, request: Request, done: Completion);

    /// Returns the device below a layer that changes neither content nor offsets. It answers
    /// [`extents`](Self::extents), [`holes`](Self::holes),
    /// [`allocated_bytes`](Self::allocated_bytes) and [`keep_size`](Self::keep_size) for the layer.
    /// Returns `None` for all other devices.
    fn inner(&self) -> Option<&dyn BlockDevice> {
        None
    }

    /// Returns the allocation of `range`, bytes, from its start. The range lies on the device, is
    /// not empty and consists of whole blocks. So do the extents. They cover at least one block,
    /// may end before the range, and are at most [`MAX_EXTENTS`](crate::MAX_EXTENTS).
    ///
    /// An extent that reads as zeroes did so at some moment between the call and the answer. A
    /// write that was acknowledged before the call has had its effect by then. A write during the
    /// call may change the range before the answer arrives. Everything in doubt is data. By default
    /// everything is data.
    ///
    /// Dropping the future ends the query.
    ///
    /// # Errors
    /// Errors of the device.
    fn extents(&self, range: Range<u64>) -> ExtentsFuture<'_> {
        match self.inner() {
            Some(inner) => inner.extents(range),
            None => all_data(range),
        }
    }

    /// Returns the parts of `range` that were never written since they were allocated, bytes. In a
    /// fully written file these parts were truncated and extended since. Returns `None` if that is
    /// unknown.
    fn holes(&self, range: Range<u64>) -> Option<Vec<Range<u64>>> {
        self.inner()?.holes(range)
    }

    /// Returns the allocated bytes of a file, which a truncation reduces. Returns `None` if that is
    /// unknown.
    fn allocated_bytes(&self) -> Option<u64> {
        self.inner()?.allocated_bytes()
    }

    /// Gives a file that is shorter than `least_bytes` the size back with which it was opened. From
    /// now on writes below `least_bytes` do so as well. The restored part is a hole. Returns
    /// whether the file was shorter since the last call. Returns false for other devices.
    ///
    /// # Errors
    /// The error of the operating system. The file keeps its size then.
    fn keep_size(&self, least_bytes: u64) -> Result<bool> {
        match self.inner() {
            Some(inner) => inner.keep_size(least_bytes),
            None => Ok(false),
        }
    }
}

impl<D: BlockDevice + ?Sized> BlockDevice for Arc<D> {
    fn info(&self) -> DeviceInfo {
        (**self).info()
    }

    fn submit(&self, request: Request, done: Completion) {
        (**self).submit(request, done);
    }

    fn extents(&self, range: Range<u64>) -> ExtentsFuture<'_> {
        (**self).extents(range)
    }

    fn holes(&self, range: Range<u64>) -> Option<Vec<Range<u64>>> {
        (**self).holes(range)
    }

    fn allocated_bytes(&self) -> Option<u64> {
        (**self).allocated_bytes()
    }

    fn keep_size(&self, least_bytes: u64) -> Result<bool> {
        (**self).keep_size(least_bytes)
    }
}

/// Async functions, one for each operation. Dropping the returned future detaches the operation.
pub trait BlockDeviceExt: BlockDevice {
    /// Starts any request.
    fn start(&self, request: Request) -> IoFuture {
        let (done, future) = completion_pair();
        self.submit(request, done);
        future
    }

    /// Reads `buf.len()` bytes at `offset` into `buf`.
    fn read(&self, offset: u64, buf: Buf) -> IoFuture {
        self.start(Request::read(offset, buf))
    }

    /// Writes `buf` at `offset`.
    fn write(&self, offset: u64, buf: Buf) -> IoFuture {
        self.start(Request::write(offset, buf, false))
    }

    /// Writes `buf` at `offset`; on completion it is on media.
    fn write_fua(&self, offset: u64, buf: Buf) -> IoFuture {
        self.start(Request::write(offset, buf, true))
    }

    /// Makes all acknowledged writes durable.
    fn flush(&self) -> IoFuture {
        self.start(Request::flush())
    }

    /// Frees a range's space.
    fn discard(&self, offset: u64, len: u64) -> IoFuture {
        self.start(Request::discard(offset, len))
    }

    /// Makes a range read as zeroes.
    fn write_zeroes(&self, offset: u64, len: u64) -> IoFuture {
        self.start(Request::write_zeroes(offset, len, false, true))
    }
}

impl<D: BlockDevice + ?Sized> BlockDeviceExt for D {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_checked_without_overflow() {
        let info = DeviceInfo::new("t", 1 << 20);
        let kind = |request: Request| info.check(&request).map_err(|error| error.kind());
        assert_eq!(kind(Request::discard(0, 1 << 20)), Ok(()));
        assert_eq!(
            kind(Request::discard(512, 1 << 20)),
            Err(ErrorKind::OutOfRange)
        );
        assert_eq!(
            kind(Request::discard(u64::MAX - 511, 512)),
            Err(ErrorKind::OutOfRange)
        );
        assert_eq!(kind(Request::discard(1, 512)), Err(ErrorKind::InvalidInput));
        assert_eq!(kind(Request::discard(0, 0)), Err(ErrorKind::InvalidInput));
        assert_eq!(kind(Request::read(0, Buf::zeroed(512))), Ok(()));
        assert_eq!(kind(Request::flush()), Ok(()));
    }
}
