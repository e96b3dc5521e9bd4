//! Counters of the requests to a device. They are the source of "bytes written to each device" in
//! the status, the metrics and every statement about write amplification.
//!
//! A request is counted when it is submitted, so that nothing stands between the inner device and
//! the caller's completion. A request that fails is counted too: it was work for the device.

use std::cell::Cell;
use std::rc::Rc;

use forebay_block::{BlockDevice, Completion, DeviceInfo, Op, Request};

/// Requests to a device since it was opened. Bytes are those of the requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Number of reads.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Number of writes, with and without FUA.
    pub writes: u64,
    /// Bytes written, with and without FUA.
    pub write_bytes: u64,
    /// Number of writes and write-zeroes with FUA.
    pub fua_writes: u64,
    /// Number of flushes.
    pub flushes: u64,
    /// Number of discards.
    pub discards: u64,
    /// Bytes discarded.
    pub discard_bytes: u64,
    /// Number of write-zeroes.
    pub write_zeroes: u64,
    /// Bytes written as zeroes.
    pub write_zeroes_bytes: u64,
}

/// Running counters of one device, shared with its [`Counted`].
#[derive(Debug, Default)]
pub struct Counters {
    counts: Cell<Counts>,
}

impl Counters {
    /// Returns the current counts.
    #[must_use]
    pub const fn get(&self) -> Counts {
        self.counts.get()
    }

    fn add(&self, request: &Request) {
        let mut counts = self.counts.get();
        let len = request.len;
        match request.op {
            Op::Read => {
                counts.reads += 1;
                counts.read_bytes += len;
            }
            Op::Write { fua } => {
                counts.writes += 1;
                counts.write_bytes += len;
                counts.fua_writes += u64::from(fua);
            }
            Op::Flush => counts.flushes += 1,
            Op::Discard => {
                counts.discards += 1;
                counts.discard_bytes += len;
            }
            Op::WriteZeroes { fua, .. } => {
                counts.write_zeroes += 1;
                counts.write_zeroes_bytes += len;
                counts.fua_writes += u64::from(fua);
            }
        }
        self.counts.set(counts);
    }
}

/// A device that counts the requests to its inner device.
pub struct Counted {
    inner: Rc<dyn BlockDevice>,
    counters: Rc<Counters>,
}

impl Counted {
    /// Wraps `inner` and counts its requests.
    #[must_use]
    pub fn wrap(inner: Rc<dyn BlockDevice>) -> (Rc<dyn BlockDevice>, Rc<Counters>) {
        let counters = Rc::new(Counters::default());
        let device = Rc::new(Self {
            inner,
            counters: Rc::clone(&counters),
        });
        (device, counters)
    }
}

impl BlockDevice for Counted {
    fn info(&self) -> DeviceInfo {
        self.inner.info()
    }

    #[inline]
    fn submit(&self, request: Request, done: Completion) {
        self.counters.add(&request);
        self.inner.submit(request, done);
    }

    fn inner(&self) -> Option<&dyn BlockDevice> {
        Some(&*self.inner)
    }
}

impl std::fmt::Debug for Counted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Counted")
            .field("counts", &self.counters.get())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::MemDevice;
    use forebay_block::{BlockDeviceExt, Buf};
    use forebay_io::rt::block_on_simulated;

    #[test]
    fn every_operation_is_counted_once_with_its_bytes() {
        block_on_simulated(1, async {
            let (device, counters) = Counted::wrap(MemDevice::new("m", 1 << 20));
            let run = async |request| device.start(request).await.expect("no error");
            run(Request::read(0, Buf::scratch(512))).await;
            run(Request::write(0, Buf::zeroed(1024), false)).await;
            run(Request::write(0, Buf::zeroed(4096), true)).await;
            run(Request::flush()).await;
            run(Request::flush()).await;
            run(Request::flush()).await;
            run(Request::discard(0, 8192)).await;
            run(Request::write_zeroes(0, 2048, true, false)).await;
            let expected = Counts {
                reads: 1,
                read_bytes: 512,
                writes: 2,
                write_bytes: 5120,
                fua_writes: 2,
                flushes: 3,
                discards: 1,
                discard_bytes: 8192,
                write_zeroes: 1,
                write_zeroes_bytes: 2048,
            };
            assert_eq!(counters.get(), expected);
            assert_eq!(device.info().size_bytes, 1 << 20);
        });
    }
}
