//! The stack that the benchmarks measure: a volume on a cache on memory devices, so that neither
//! media nor protocols count.

use std::rc::Rc;

use forebay_block::{
    BlockDevice, BlockDeviceExt as _, Buf, Completion, DeviceInfo, Request, Result,
};
use forebay_cache::{Cache, CacheOptions, Devices, FormatOptions, Mode, VolumeOptions};
use forebay_device::mem::MemDevice;
use forebay_volume::Volume;

/// Bytes of the volume, all of which are cached, dirty.
pub const VOLUME_BYTES: u64 = 64 << 20;
/// Bytes of one request.
pub const REQUEST_BYTES: u64 = 4096;

/// A volume whose every block is cached, on the calling reactor.
#[derive(Debug)]
pub struct Stack {
    /// The open cache.
    pub cache: Cache,
    /// The volume on it.
    pub volume: Volume,
}

impl Stack {
    /// Makes it: write-back, `flush` durability with a process journal in memory, blocks of 32 KiB, without checksums.
    ///
    /// # Errors
    /// The engine's own.
    pub async fn new() -> Result<Self> {
        Self::with(false).await
    }

    /// The same, with checksums or without.
    ///
    /// # Errors
    /// The engine's own.
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

/// A device that keeps its beginning only; what is read behind it is whatever is in the buffer. For what is
/// measured beside data.
pub struct Hollow {
    info: DeviceInfo,
    kept: Rc<dyn BlockDevice>,
    kept_bytes: u64,
}

impl Hollow {
    /// A device of this size that keeps so much.
    #[must_use]
    #[expect(
        clippy::new_ret_no_self,
        reason = "devices are handed around as trait objects"
    )]
    pub fn new(name: &str, size_bytes: u64, kept_bytes: u64) -> Rc<dyn BlockDevice> {
        Rc::new(Self {
            info: DeviceInfo::new(name, size_bytes),
            kept_bytes,
            kept: MemDevice::new(name, kept_bytes),
        })
    }

    /// A device over another one, whose beginning alone it keeps.
    #[must_use]
    pub fn over(kept: Rc<dyn BlockDevice>, kept_bytes: u64) -> Rc<dyn BlockDevice> {
        Rc::new(Self {
            info: kept.info(),
            kept,
            kept_bytes,
        })
    }
}

impl BlockDevice for Hollow {
    fn info(&self) -> DeviceInfo {
        self.info.clone()
    }

    fn submit(&self, request: Request, done: Completion) {
        let kept = request.offset + request.len <= self.kept_bytes;
        if kept || request.op == forebay_block::Op::Flush {
            self.kept.submit(request, done);
        } else {
            done.complete(self.info.check(&request));
        }
    }
}

/// Offsets of requests, at random over the first bytes of the volume, the same in each run.
#[derive(Clone, Debug)]
pub struct Offsets {
    state: u64,
    requests: u64,
}

impl Offsets {
    /// Over so many bytes.
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
/// A request's own.
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

/// Processor time that this thread has used so far, in nanoseconds.
///
/// # Panics
/// If the system has no such clock.
#[must_use]
pub fn processor_time_ns() -> i64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the call writes to the struct that it is given, which outlives it.
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    assert_eq!(failed, 0, "a thread has a clock");
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

/// Bytes that the program has allocated and not given back.
#[must_use]
pub fn allocated_bytes() -> u64 {
    // SAFETY: takes nothing and returns a struct of numbers.
    let info = unsafe { libc::mallinfo2() };
    (info.uordblks + info.hblkhd) as u64
}
