//! The stack that the benchmarks measure: a volume on a cache on memory devices, so that neither
//! media nor protocols count.

use std::rc::Rc;

use forebay_block::{BlockDevice, BlockDeviceExt as _, Buf, Result};
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
    /// Makes it: write-back, `flush` durability with a process journal in memory, blocks of 32 KiB.
    ///
    /// # Errors
    /// The engine's own.
    pub async fn new() -> Result<Self> {
        let devices = Devices {
            data: MemDevice::new("cache", 2 * VOLUME_BYTES),
            metadata: None,
        };
        let format = FormatOptions::new(32 << 10, [7; 16]);
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

/// Offsets of requests, at random over the volume, the same in each run.
#[derive(Clone, Debug)]
pub struct Offsets(u64);

impl Default for Offsets {
    fn default() -> Self {
        Self(0x9e37_79b9_7f4a_7c15)
    }
}

impl Iterator for Offsets {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        // Xorshift64 (Marsaglia 2003).
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        Some(self.0 % (VOLUME_BYTES / REQUEST_BYTES) * REQUEST_BYTES)
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
