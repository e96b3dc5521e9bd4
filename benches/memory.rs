//! `cargo bench --bench memory`: DRAM that the engine takes for a cached block.
//!
//! It compares the allocator's total with every block cached and dirty to the total before the
//! cache was opened. The devices store no data, and the memory of log and process journal is
//! allocated before. It measures one block size, and several, filled by small and by large
//! requests.

use std::process::Command;
use std::rc::Rc;

use forebay_benches::{Hollow, allocated_bytes};
use forebay_block::{BlockDevice, BlockDeviceExt as _, Buf, Result};
use forebay_cache::{BlockSizes, Cache, CacheOptions, Devices, FormatOptions, Mode, VolumeOptions};
use forebay_io::{Engine, Reactor, rt};

/// The smallest cache block, bytes.
const BLOCK_BYTES: u64 = 32 << 10;
/// Smallest blocks of the measured cache, and of the one before it. After the latter, the pools of
/// buffers have their full size.
const BLOCKS: u64 = 1 << 20;
const WARM: u64 = 1 << 16;

/// Cases: block sizes in smallest blocks, and bytes of the requests that fill the cache.
const CASES: [(&[u64], u64); 3] = [
    (&[1], BLOCK_BYTES),
    (&[1, 2, 4, 8], BLOCK_BYTES),
    (&[1, 2, 4, 8], 8 * BLOCK_BYTES),
];

/// Each case runs in its own process, so that memory that an allocator retains does not count for
/// the next.
fn main() -> Result<()> {
    let case = std::env::args().find_map(|argument| argument.parse::<usize>().ok());
    let Some(case) = case else {
        for case in 0..CASES.len() {
            let program = std::env::current_exe().expect("a program has a name");
            let ended = Command::new(program).arg(case.to_string()).status();
            assert!(
                ended.is_ok_and(|status| status.success()),
                "case {case} failed"
            );
        }
        return Ok(());
    };
    let (sizes, request_bytes) = CASES[case];
    let sizes: Vec<u64> = sizes.iter().map(|size| size * BLOCK_BYTES).collect();
    // The reactor's end drops all tasks of its cache. Otherwise the next cache would count their
    // memory as freed.
    Reactor::new(Engine::Threads)?.run(fill(sizes.clone(), WARM, request_bytes))?;
    let (bytes, blocks, engine_bytes) =
        Reactor::new(Engine::Threads)?.run(fill(sizes.clone(), BLOCKS, request_bytes))?;
    println!(
        "{:.1} bytes of DRAM a cached block, {:.1} for each 32 KiB of data: {}, filled by requests \
         of {} KiB ({blocks} blocks, by the allocator; the engine's own account: {:.1} a block)",
        bytes as f64 / blocks as f64,
        bytes as f64 / BLOCKS as f64,
        BlockSizes::new(&sizes).expect("right"),
        request_bytes >> 10,
        engine_bytes as f64 / blocks as f64,
    );
    Ok(())
}

/// Fills a cache. Returns the allocated bytes, the number of cached blocks, and the engine's own
/// account of its memory.
async fn fill(sizes: Vec<u64>, blocks: u64, request_bytes: u64) -> Result<(u64, u64, u64)> {
    let block_bytes = BLOCK_BYTES;
    let devices = Devices {
        data: Hollow::new(
            "cache",
            blocks * (block_bytes + 256) + (1 << 20),
            blocks * 256 + (1 << 19),
        ),
        metadata: None,
    };
    // Formatting writes the whole log, so that its memory is allocated.
    forebay_cache::format(&devices, &FormatOptions::sizes(&sizes, [7; 16])).await?;
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
        // Lets the engine's other tasks run, as a real device does.
        rt::yield_now().await;
    }
    volume.flush().await?;
    let stats = cache.stats();
    let grown = allocated_bytes().saturating_sub(before);
    cache.close().await?;
    Ok((grown, stats.cached_blocks, stats.memory_bytes))
}
