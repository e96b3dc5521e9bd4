//! `cargo bench --bench memory`: DRAM that the engine takes for a cached block, all told: what the allocator
//! has given out when every block is cached and dirty, less what it had before the cache was opened. The
//! devices keep no data, and the memory of log and process journal is there before. With one block size, and with
//! several, filled by small and by large requests.

use std::rc::Rc;

use forebay_benches::Hollow;
use forebay_block::{BlockDevice, BlockDeviceExt as _, Buf, Result};
use forebay_cache::{Cache, CacheOptions, Devices, FormatOptions, Mode, VolumeOptions};
use forebay_io::{Engine, Reactor, rt};

/// The smallest cache block, bytes.
const BLOCK_BYTES: u64 = 32 << 10;
/// Smallest blocks of the cache that is measured, and of the one before, after which the pools of buffers are as large as
/// they get.
const BLOCKS: u64 = 1 << 20;
const WARM: u64 = 1 << 16;

fn main() -> Result<()> {
    Reactor::new(Engine::Threads)?.run(async {
        let one = &[BLOCK_BYTES][..];
        let several = &[BLOCK_BYTES, 2 * BLOCK_BYTES, 4 * BLOCK_BYTES, 8 * BLOCK_BYTES];
        fill(one, WARM, BLOCK_BYTES).await?;
        for (sizes, name) in [(one, "32K"), (several, "32K..256K")] {
            for request_bytes in [BLOCK_BYTES, 8 * BLOCK_BYTES] {
                let (bytes, blocks, told) = fill(sizes, BLOCKS, request_bytes).await?;
                println!(
                    "{name}, filled by {} KiB requests: {:.1} bytes of DRAM a cached block, {:.1} for each 32 KiB of data ({blocks} blocks, by the allocator; the engine's own account: {:.1} a block)",
                    request_bytes >> 10,
                    bytes as f64 / blocks as f64,
                    bytes as f64 / BLOCKS as f64,
                    told as f64 / blocks as f64,
                );
            }
        }
        Ok(())
    })
}

/// Fills a cache with blocks of these sizes by requests of this length. Returns how much was allocated for it, how many blocks are cached, and what the engine
/// says that it takes.
async fn fill(sizes: &[u64], blocks: u64, request_bytes: u64) -> Result<(u64, u64, u64)> {
    let block_bytes = BLOCK_BYTES;
    let devices = Devices {
        data: Hollow::new(
            "cache",
            blocks * (block_bytes + 256) + (1 << 20),
            blocks * 256 + (1 << 19),
        ),
        metadata: None,
    };
    // Formatting writes the whole log, so that its memory is there.
    forebay_cache::format(&devices, &FormatOptions::sizes(sizes, [7; 16])).await?;
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
    let buf = Buf::zeroed(request_bytes as usize);
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
