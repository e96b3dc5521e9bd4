//! A block device as a file of bytes, on the engine reactor.

use std::cell::Cell;
use std::rc::Rc;

use forebay_block::{Allocation, BlockDevice, BlockDeviceExt, Buf, ErrorKind, Request, Result};
use forebay_io::rt;

use super::ranges::{Hold, Ranges};

/// Maximum number of answers of the device for one seek. No program may write meanwhile.
const SEEK_ANSWERS: u32 = 64;

/// Aim of a seek.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seek {
    Data,
    Hole,
}

/// The bytes of a device, read and written at any offset.
pub(super) struct ByteFile {
    device: Rc<dyn BlockDevice>,
    /// Logical block, bytes.
    block: u64,
    /// Last known size, bytes; a device may grow.
    size_bytes: Cell<u64>,
    /// Ranges that are being written.
    writing: Ranges,
}

impl ByteFile {
    pub(super) fn new(device: Rc<dyn BlockDevice>) -> Self {
        let info = device.info();
        Self {
            device,
            block: u64::from(info.logical_block_bytes),
            size_bytes: Cell::new(info.size_bytes),
            writing: Ranges::default(),
        }
    }

    /// Returns how much of a range lies on the device, bytes.
    fn within(&self, offset: u64, len: u64) -> u64 {
        if len > self.size_bytes.get().saturating_sub(offset) {
            self.size_bytes.set(self.device.info().size_bytes);
        }
        len.min(self.size_bytes.get().saturating_sub(offset))
    }

    /// Reads `len` bytes at `offset`, fewer at the end. Returns `None` past the end.
    pub(super) async fn read(&self, offset: u64, len: u64) -> Result<Option<Buf>> {
        let len = self.within(offset, len);
        if len == 0 {
            return Ok(None);
        }
        let start = offset - offset % self.block;
        let end = (offset + len).next_multiple_of(self.block);
        let buf = Buf::scratch((end - start) as usize); // A request's length fits.
        self.device.read(start, buf.clone()).await?;
        let skip = (offset - start) as usize;
        Ok(Some(buf.slice(skip..skip + len as usize)))
    }

    /// Writes at `offset`. Returns how many bytes lay within the file, or `NoSpace` if none did.
    pub(super) async fn write(&self, offset: u64, data: Buf, fua: bool) -> Result<u64> {
        let len = self.within(offset, data.len() as u64);
        if len == 0 {
            return Err(ErrorKind::NoSpace.into());
        }
        let data = data.slice(0..len as usize);
        let start = offset - offset % self.block;
        let end = (offset + len).next_multiple_of(self.block);
        if start == offset && end == offset + len {
            let _held = self.writing.hold(start..end, Hold::Shared).await;
            self.device.start(Request::write(offset, data, fua)).await?;
            return Ok(len);
        }
        let _held = self.writing.hold(start..end, Hold::Alone).await;
        let whole = Buf::scratch((end - start) as usize);
        let block = self.block as usize;
        let (first, last) = (
            whole.slice(0..block),
            whole.slice(whole.len() - block..whole.len()),
        );
        let one_block = whole.len() == block;
        if offset > start || one_block {
            self.device.read(start, first).await?;
        }
        if offset + len < end && !one_block {
            self.device.read(end - self.block, last).await?;
        }
        let skip = (offset - start) as usize;
        whole.slice(skip..skip + data.len()).copy_from_buf(&data);
        self.device.start(Request::write(start, whole, fua)).await?;
        Ok(len)
    }

    /// Makes `len` bytes at `offset` read as zeroes. Ignores bytes past the end.
    pub(super) async fn write_zeroes(&self, offset: u64, len: u64, unmap: bool) -> Result<()> {
        let end = offset + self.within(offset, len);
        let inner_start = offset.next_multiple_of(self.block).min(end);
        let inner_end = (end - end % self.block).max(inner_start);
        for (from, to) in [(offset, inner_start), (inner_end, end)] {
            if from < to {
                self.write(from, Buf::zeroed((to - from) as usize), false)
                    .await?;
            }
        }
        if inner_start < inner_end {
            let _held = self
                .writing
                .hold(inner_start..inner_end, Hold::Shared)
                .await;
            let len = inner_end - inner_start;
            let request = Request::write_zeroes(inner_start, len, false, unmap);
            self.device.start(request).await?;
        }
        Ok(())
    }

    /// Returns the first byte from `offset` on that is data, or in a hole. The end of the file is a
    /// hole. Returns `None` past the end, and if no data follows. After many answers without a
    /// result, data begins here, and the next hole is the end: that is always right.
    pub(super) async fn seek(&self, offset: u64, aim: Seek) -> Result<Option<u64>> {
        let size_bytes = self.device.info().size_bytes;
        if offset >= size_bytes {
            return Ok(None);
        }
        let mut at = offset - offset % self.block;
        for _ in 0..SEEK_ANSWERS {
            let found = self.device.extents(at..size_bytes).await?;
            let wanted = found
                .iter()
                .find(|extent| (extent.allocation == Allocation::Data) == (aim == Seek::Data));
            if let Some(extent) = wanted {
                return Ok(Some(extent.bytes.start.max(offset)));
            }
            at = found.end().unwrap_or(size_bytes);
            if at >= size_bytes {
                return Ok((aim == Seek::Hole).then_some(size_bytes));
            }
            rt::next_turn().await;
        }
        Ok(Some(match aim {
            Seek::Data => at,
            Seek::Hole => size_bytes,
        }))
    }

    /// Makes everything acknowledged so far durable.
    pub(super) async fn flush(&self) -> Result<()> {
        self.device.flush().await
    }
}

#[cfg(test)]
mod tests;
