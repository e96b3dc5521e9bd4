//! A device in DRAM.
//!
//! - It completes inline on the caller's thread. It is the cheapest device, for benchmarks and
//!   tests.
//! - Memory is allocated in chunks of 2 MiB at their first write; an unwritten chunk costs 16
//!   bytes. A discard frees whole chunks. Unwritten and discarded ranges read as zeroes. Chunks
//!   without memory are holes.
//! - Nothing persists ([`Persistence::Process`]). There is no volatile cache, since a flush could
//!   not make the data more durable. Flush does nothing.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

use forebay_block::{
    Allocation, BlockDevice, Completion, Context, DeviceInfo, ErrorKind, Extents, ExtentsFuture,
    Op, Persistence, Request, Result,
};

const CHUNK_SHIFT: u32 = 21;
const CHUNK_BYTES: usize = 1 << CHUNK_SHIFT;

type Chunk = Box<[u8]>;

/// DRAM as a block device, with 512-byte blocks.
#[derive(Debug)]
pub struct MemDevice {
    info: DeviceInfo,
    chunks: RefCell<Box<[Option<Chunk>]>>,
}

impl MemDevice {
    /// Creates a device of `size_bytes` zeroes, rounded down to 512.
    #[must_use]
    #[expect(
        clippy::new_ret_no_self,
        reason = "devices are passed as trait objects"
    )]
    pub fn new(name: impl Into<String>, size_bytes: u64) -> Rc<dyn BlockDevice> {
        let mut info = DeviceInfo::new(name, size_bytes & !511);
        info.volatile_cache = false;
        info.persistence = Persistence::Process;
        let chunks = (0..info.size_bytes.div_ceil(CHUNK_BYTES as u64))
            .map(|_| None)
            .collect();
        Rc::new(Self {
            info,
            chunks: RefCell::new(chunks),
        })
    }

    fn run(&self, request: &Request) -> Result<()> {
        self.info.check(request).context(|| {
            format!(
                "memory device {}: {:?} of {} bytes at {}",
                self.info.name, request.op, request.len, request.offset
            )
        })?;
        match request.op {
            Op::Flush => Ok(()),
            Op::Read | Op::Write { .. } => {
                let buf = request.buf.as_ref().ok_or(ErrorKind::InvalidInput)?;
                let mut chunks = self.chunks.borrow_mut();
                for part in parts(request) {
                    let slot = &mut chunks[part.chunk];
                    match (request.op, slot) {
                        (Op::Read, Some(chunk)) => {
                            buf.copy_from(part.done, &chunk[part.start..][..part.len]);
                        }
                        (Op::Read, None) => buf.slice(part.done..part.done + part.len).fill(0),
                        (_, slot) => {
                            let chunk =
                                slot.get_or_insert_with(|| vec![0; CHUNK_BYTES].into_boxed_slice());
                            buf.copy_to(part.done, &mut chunk[part.start..][..part.len]);
                        }
                    }
                }
                Ok(())
            }
            Op::Discard | Op::WriteZeroes { .. } => {
                let mut chunks = self.chunks.borrow_mut();
                for part in parts(request) {
                    let slot = &mut chunks[part.chunk];
                    if part.len == CHUNK_BYTES {
                        *slot = None;
                    } else if let Some(chunk) = slot {
                        chunk[part.start..][..part.len].fill(0);
                    }
                }
                Ok(())
            }
        }
    }
}

/// Part of a request within one chunk.
struct Part {
    chunk: usize,
    /// First byte within the chunk.
    start: usize,
    len: usize,
    /// Bytes of the request before this part.
    done: usize,
}

/// Splits a checked request by chunks.
fn parts(request: &Request) -> impl Iterator<Item = Part> {
    // Both fit: the request is within the device, whose chunks are counted in a usize.
    let (mut at, total) = (request.offset, request.len as usize);
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == total {
            return None;
        }
        let start = at as usize & (CHUNK_BYTES - 1);
        let part = Part {
            chunk: (at >> CHUNK_SHIFT) as usize,
            start,
            len: (CHUNK_BYTES - start).min(total - done),
            done,
        };
        at += part.len as u64;
        done += part.len;
        Some(part)
    })
}

impl BlockDevice for MemDevice {
    fn info(&self) -> DeviceInfo {
        self.info.clone()
    }

    #[inline]
    fn submit(&self, request: Request, done: Completion) {
        done.complete(self.run(&request));
    }

    fn extents(&self, range: Range<u64>) -> ExtentsFuture<'_> {
        let chunks = self.chunks.borrow();
        let mut found = Extents::default();
        let mut at = range.start;
        while at < range.end && !found.is_full() {
            let chunk = at >> CHUNK_SHIFT;
            let end = range.end.min((chunk + 1) << CHUNK_SHIFT);
            let allocation = match chunks[chunk as usize] {
                Some(_) => Allocation::Data,
                None => Allocation::Hole,
            };
            found.push(at..end, allocation);
            at = end;
        }
        Box::pin(std::future::ready(Ok(found)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_block::{BlockDeviceExt, Buf};
    use forebay_io::rt::block_on_simulated;

    fn with_device(
        size_bytes: u64,
        test: impl AsyncFnOnce(Rc<dyn BlockDevice>) -> Result<()> + 'static,
    ) {
        block_on_simulated(1, async move {
            test(MemDevice::new("m", size_bytes))
                .await
                .expect("no error");
        });
    }

    #[test]
    fn writes_are_read_back_across_chunks() {
        with_device(8 << 20, async |device| {
            let data: Vec<u8> = (0..4u32 << 20)
                .map(|i| (i.wrapping_mul(31) >> 7) as u8)
                .collect();
            device.write((1 << 20) + 512, Buf::copied(&data)).await?;
            let back = Buf::scratch(6 << 20);
            device.read(0, back.clone()).await?;
            let back = back.to_vec();
            assert!(back[..(1 << 20) + 512].iter().all(|&byte| byte == 0));
            assert_eq!(&back[(1 << 20) + 512..][..4 << 20], &data[..]);
            assert!(back[(5 << 20) + 512..].iter().all(|&byte| byte == 0));
            Ok(())
        });
    }

    #[test]
    fn a_discarded_or_zeroed_range_reads_as_zeroes_and_its_neighbours_stay() {
        with_device(8 << 20, async |device| {
            let full = Buf::scratch(8 << 20);
            full.fill(7);
            device.write(0, full).await?;
            device.discard(512, 5 << 20).await?;
            device.write_zeroes((6 << 20) + 512, 512).await?;
            let back = Buf::scratch(8 << 20);
            device.read(0, back.clone()).await?;
            for (index, byte) in back.to_vec().into_iter().enumerate() {
                let gone = (512..(5 << 20) + 512).contains(&index)
                    || ((6 << 20) + 512..(6 << 20) + 1024).contains(&index);
                assert_eq!(byte, if gone { 0 } else { 7 }, "byte {index}");
            }
            Ok(())
        });
    }

    #[test]
    fn a_huge_device_costs_nothing() {
        with_device(1 << 40, async |device| {
            let block = Buf::scratch(4096);
            block.fill(9);
            device.write((1 << 40) - 4096, block).await?;
            device.flush().await?;
            let back = Buf::scratch(8192);
            device.read((1 << 40) - 8192, back.clone()).await?;
            let back = back.to_vec();
            assert!(back[..4096].iter().all(|&byte| byte == 0));
            assert!(back[4096..].iter().all(|&byte| byte == 9));
            Ok(())
        });
    }

    #[test]
    fn chunks_without_memory_are_holes() {
        with_device(16 << 20, async |device| {
            let block = Buf::scratch(4096);
            block.fill(9);
            device.write(5 << 20, block).await?;
            let found = device.extents(1 << 20..15 << 20).await?;
            let mut expected = Extents::default();
            expected.push(1 << 20..4 << 20, Allocation::Hole);
            expected.push(4 << 20..6 << 20, Allocation::Data);
            expected.push(6 << 20..15 << 20, Allocation::Hole);
            assert_eq!(found, expected);
            device.discard(4 << 20, 2 << 20).await?;
            let found = device.extents(0..16 << 20).await?;
            assert_eq!(found.iter().count(), 1);
            Ok(())
        });
    }

    #[test]
    fn bad_requests_are_refused_by_name() {
        with_device(1 << 20, async |device| {
            let error = device
                .read(1 << 20, Buf::scratch(512))
                .await
                .expect_err("past the end");
            assert_eq!(error.kind(), ErrorKind::OutOfRange);
            assert!(
                error.report().contains("memory device m"),
                "{}",
                error.report()
            );
            let error = device
                .read(5, Buf::scratch(512))
                .await
                .expect_err("misaligned");
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            assert_eq!(device.info().persistence, Persistence::Process);
            Ok(())
        });
    }
}
