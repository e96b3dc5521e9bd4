//! `cargo bench --bench memory`: DRAM that the engine takes for a cached block, all told, as the growth
//! of the process's resident set from before the cache is opened to when every block is cached and
//! dirty. The devices keep no data, and the log's memory is there before.

use std::rc::Rc;

use forebay_benches::Hollow;
use forebay_block::{BlockDevice, BlockDeviceExt as _, Buf, Error, ErrorKind, Result};
use forebay_cache::{Cache, CacheOptions, Devices, FormatOptions, Mode, VolumeOptions};
use forebay_device::mem::MemDevice;
use forebay_io::{Engine, Reactor};

/// Cache block, bytes.
const BLOCK_BYTES: u32 = 32 << 10;
/// Blocks of the cache that is measured, and of the one before that warms pools and code up.
const BLOCKS: u64 = 1 << 20;
const WARM: u64 = 1 << 10;
const PAGE_BYTES: u64 = 4096;

fn main() -> Result<()> {
    Reactor::new(Engine::Threads)?.run(async {
        fill(WARM).await?;
        let (bytes, blocks, told) = fill(BLOCKS).await?;
        println!(
            "{:.1} bytes of DRAM a cached block of {} KiB ({blocks} blocks, resident set; the engine's own account: {:.1})",
            bytes as f64 / blocks as f64,
            BLOCK_BYTES >> 10,
            told as f64 / blocks as f64,
        );
        Ok(())
    })
}

/// Fills a cache. Returns by how much the resident set grew, how many blocks are cached, and what the
/// engine says that it takes.
async fn fill(blocks: u64) -> Result<(u64, u64, u64)> {
    let block_bytes = u64::from(BLOCK_BYTES);
    let devices = Devices {
        data: Hollow::new("cache", (blocks + 8) * block_bytes),
        metadata: Some(MemDevice::new("log", (blocks + 64) * 256 + (1 << 20))),
    };
    // Formatting writes the whole log, so that its memory is there.
    forebay_cache::format(&devices, &FormatOptions::new(BLOCK_BYTES, [7; 16])).await?;
    let journal = Buf::zeroed(4 << 20);
    let before = resident_bytes()?;
    let options = CacheOptions {
        journal: Some(journal),
        dirty_limit_percent: 100,
        ..CacheOptions::new([9; 16])
    };
    let (cache, _) = Cache::open(devices, options).await?;
    let backing = Hollow::new("backing", blocks * block_bytes);
    let options = VolumeOptions::new(Mode::WriteBack);
    let volume: Rc<dyn BlockDevice> = cache.attach("bench", backing, options).await?;
    let buf = Buf::zeroed(1 << 20);
    for offset in (0..blocks * block_bytes).step_by(buf.len()) {
        volume.write(offset, buf.clone()).await?;
    }
    volume.flush().await?;
    let stats = cache.stats();
    let grown = resident_bytes()?.saturating_sub(before);
    cache.close().await?;
    Ok((grown, stats.cached_blocks, stats.memory_bytes))
}

fn resident_bytes() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/self/statm")
        .map_err(|error| Error::with_source(ErrorKind::Io, "/proc/self/statm", error))?;
    let pages = text.split_whitespace().nth(1);
    let pages: Option<u64> = pages.and_then(|pages| pages.parse().ok());
    let pages =
        pages.ok_or_else(|| Error::new(ErrorKind::Io, "/proc/self/statm has no numbers"))?;
    Ok(pages * PAGE_BYTES)
}
