//! The stack that the benchmarks measure: a volume on a cache on memory devices, so that neither
//! media nor protocols count.

use std::rc::Rc;

use forebay_block::{
    BlockDevice, BlockDeviceExt as _, Buf, Completion, DeviceInfo, Request, Result,
};
use forebay_cache::{Cache, CacheOptions, Devices, FormatOptions, Mode, VolumeOptions};
use forebay_device::mem::MemDevice;
use forebay_volume::Volume;

/// Bytes of the volume. All are cached and dirty.
pub const VOLUME_BYTES: u64 = 64 << 20;
/// Bytes of one request.
pub const REQUEST_BYTES: u64 = 4096;

/// A volume with all blocks cached, on the calling reactor.
#[derive(Debug)]
pub struct Stack {
    /// The open cache.
    pub cache: Cache,
    /// The volume on it.
    pub volume: Volume,
}

impl Stack {
    /// Creates a write-back stack with `flush` durability, a process journal in memory, blocks of
    /// 32 KiB, and no checksums.
    ///
    /// # Errors
    /// Returns an error of the engine.
    pub async fn new() -> Result<Self> {
        Self::with(false).await
    }

    /// Creates the same stack, with checksums or without.
    ///
    /// # Errors
    /// Returns an error of the engine.
    pub async fn with(checksums: bool) -> Result<Self> {
        let devices = Devices {
            data: MemDevice::new("cache", 2 * VOLUME_BYTES),
            metadata: None,
        };
        let format = FormatOptions {
            checksums,
            ..FormatOptions::new(32 << 10, [7; 16])
        };
        forebay_cache::format(&devices, &format).await?;
        let options = CacheOptions {
            journal: Some(Buf::zeroed(4 << 20)),
            dirty_limit_percent: 100,
            ..CacheOptions::new([9; 16])
        };
        let (cache, _) = Cache::open(devices, options).await?;
        let backing = MemDevice::new("backing", VOLUME_BYTES);
        let cached = cache
            .attach("bench", backing, VolumeOptions::new(Mode::WriteBack))
            .await?;
        let volume = Volume::new("bench", cached, false);
        let device = volume.handle().open();
        for offset in (0..VOLUME_BYTES).step_by(1 << 20) {
            device.write(offset, Buf::zeroed(1 << 20)).await?;
        }
        Ok(Self { cache, volume })
    }
}

/// A device that stores only its beginning. A read behind that leaves the buffer as it was. For
/// measurements to which data does not matter.
pub struct Hollow {
    info: DeviceInfo,
    inner: Rc<dyn BlockDevice>,
    stored_bytes: u64,
}

impl Hollow {
    /// Creates a device of `size_bytes` that stores the first `stored_bytes`.
    #[must_use]
    #[expect(
        clippy::new_ret_no_self,
        reason = "devices are shared as trait objects"
    )]
    pub fn new(name: &str, size_bytes: u64, stored_bytes: u64) -> Rc<dyn BlockDevice> {
        Rc::new(Self {
            info: DeviceInfo::new(name, size_bytes),
            stored_bytes,
            inner: MemDevice::new(name, stored_bytes),
        })
    }

    /// Creates a device over `device` that uses only the first `stored_bytes` of it.
    #[must_use]
    pub fn over(device: Rc<dyn BlockDevice>, stored_bytes: u64) -> Rc<dyn BlockDevice> {
        Rc::new(Self {
            info: device.info(),
            inner: device,
            stored_bytes,
        })
    }
}

impl BlockDevice for Hollow {
    fn info(&self) -> DeviceInfo {
        self.info.clone()
    }

    fn submit(&self, request: Request, done: Completion) {
        let stored = request.offset + request.len <= self.stored_bytes;
        if stored || request.op == forebay_block::Op::Flush {
            self.inner.submit(request, done);
        } else {
            done.complete(self.info.check(&request));
        }
    }
}

/// Random offsets of requests within the first bytes of the volume, the same in each run.
#[derive(Clone, Debug)]
pub struct Offsets {
    state: u64,
    requests: u64,
}

impl Offsets {
    /// Creates offsets below `bytes`.
    #[must_use]
    pub const fn over(bytes: u64) -> Self {
        Self {
            state: 0x9e37_79b9_7f4a_7c15,
            requests: bytes / REQUEST_BYTES,
        }
    }
}

impl Iterator for Offsets {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        // Xorshift64 (Marsaglia 2003).
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        Some(self.state % self.requests * REQUEST_BYTES)
    }
}

/// Runs `requests` hits, one at a time.
///
/// # Errors
/// Returns the error of the first request that fails.
pub async fn hits(
    device: &Rc<dyn BlockDevice>,
    write: bool,
    requests: u64,
    offsets: &mut Offsets,
) -> Result<()> {
    let buf = Buf::zeroed(usize::try_from(REQUEST_BYTES).expect("small"));
    for offset in offsets.take(usize::try_from(requests).expect("fits memory")) {
        if write {
            device.write(offset, buf.clone()).await?;
        } else {
            device.read(offset, buf.clone()).await?;
        }
    }
    Ok(())
}

/// Returns the processor time that this thread has used, in nanoseconds.
///
/// # Panics
/// Panics if the system has no such clock.
#[must_use]
pub fn processor_time_ns() -> i64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the call writes to the given struct, which outlives it.
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    assert_eq!(failed, 0, "a thread has a clock");
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

/// Returns the bytes that the program has allocated and not freed.
#[must_use]
pub fn allocated_bytes() -> u64 {
    // SAFETY: takes nothing and returns a struct of numbers.
    let info = unsafe { libc::mallinfo2() };
    (info.uordblks + info.hblkhd) as u64
}
