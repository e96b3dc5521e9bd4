//! `cargo bench --bench memory`: DRAM that the engine takes for a cached block, all told: what the allocator
//! has given out when every block is cached and dirty, less what it had before the cache was opened. The
//! devices keep no data, and the memory of log and process journal is there before.

use std::rc::Rc;

use forebay_benches::Hollow;
use forebay_block::{BlockDevice, BlockDeviceExt as _, Buf, Result};
use forebay_cache::{Cache, CacheOptions, Devices, FormatOptions, Mode, VolumeOptions};
use forebay_io::{Engine, Reactor, rt};

/// Cache block, bytes.
const BLOCK_BYTES: u32 = 32 << 10;
/// Blocks of the cache that is measured, and of the one before, after which the pools of buffers are as large as
/// they get.
const BLOCKS: u64 = 1 << 20;
const WARM: u64 = 1 << 16;

fn main() -> Result<()> {
    Reactor::new(Engine::Threads)?.run(async {
        fill(WARM).await?;
        let (bytes, blocks, told) = fill(BLOCKS).await?;
        println!(
            "{:.1} bytes of DRAM a cached block of {} KiB ({blocks} blocks, by the allocator; the engine's own account: {:.1})",
            bytes as f64 / blocks as f64,
            BLOCK_BYTES >> 10,
            told as f64 / blocks as f64,
        );
        Ok(())
    })
}

/// Fills a cache. Returns how much was allocated for it, how many blocks are cached, and what the engine
/// says that it takes.
async fn fill(blocks: u64) -> Result<(u64, u64, u64)> {
    let block_bytes = u64::from(BLOCK_BYTES);
    let devices = Devices {
        data: Hollow::new(
            "cache",
            blocks * (block_bytes + 256) + (1 << 20),
            blocks * 256 + (1 << 19),
        ),
        metadata: None,
    };
    // Formatting writes the whole log, so that its memory is there.
    forebay_cache::format(&devices, &FormatOptions::new(BLOCK_BYTES, [7; 16])).await?;
    let journal = Buf::zeroed(4 << 20);
    let before = allocated_bytes();
    let options = CacheOptions {
        journal: Some(journal),
        dirty_limit_percent: 100,
        ..CacheOptions::new([9; 16])
    };
    let (cache, _) = Cache::open(devices, options).await?;
    let backing = Hollow::new("backing", blocks * block_bytes, 0);
    let options = VolumeOptions::new(Mode::WriteBack);
    let volume: Rc<dyn BlockDevice> = cache.attach("bench", backing, options).await?;
    let buf = Buf::zeroed(1 << 20);
    for offset in (0..blocks * block_bytes).step_by(buf.len()) {
        volume.write(offset, buf.clone()).await?;
        // The engine's other tasks get their turn, as with a device that takes its time.
        rt::yield_now().await;
    }
    volume.flush().await?;
    let stats = cache.stats();
    let grown = allocated_bytes().saturating_sub(before);
    cache.close().await?;
    Ok((grown, stats.cached_blocks, stats.memory_bytes))
}

/// Bytes that the program has allocated and not given back.
fn allocated_bytes() -> u64 {
    // SAFETY: takes nothing and returns a struct of numbers.
    let info = unsafe { libc::mallinfo2() };
    (info.uordblks + info.hblkhd) as u64
}
