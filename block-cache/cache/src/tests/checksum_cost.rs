//! Bytes written for checksums, counted on simulated devices.

use std::time::Duration;

use super::*;

/// Cells of 4 KiB that are written, each once in a pass.
const CELLS: u64 = 1024;
/// Writes between two flushes.
const BURST: usize = 32;

/// Returns the bytes written to the cache device for each byte of a client, with records and all
/// later writes. The first number is for first writes to 4 KiB each, at random, and the second for
/// a round that overwrites them in place.
fn cost(checksums: bool, block_bytes: u32, unit_bytes: u32) -> [f64; 2] {
    let mut world = World::new(5);
    let size = CELLS * 4096;
    world.add_disk(&DiskConfig {
        physical_block_bytes: unit_bytes,
        ..DiskConfig::new("cache", 2 * size + (4 << 20))
    });
    world.add_disk(&DiskConfig::new("backing", size));
    run(&world, async move |disks| {
        let devices = Devices {
            data: Rc::new(disks[0].clone()),
            metadata: None,
        };
        let options = FormatOptions {
            checksums,
            ..FormatOptions::new(block_bytes, [5; 16])
        };
        format(&devices, &options).await.expect("formats");
        let options = CacheOptions {
            journal: Some(Buf::zeroed(1 << 20)),
            cleaning: Cleaning::Nop,
            dirty_limit_percent: 100,
            ..CacheOptions::new([9; 16])
        };
        let (cache, _) = Cache::open(devices, options).await.expect("opens");
        let volume = attach(&cache, &disks, Mode::WriteBack).await;
        let rng = Rng::new(6);
        let mut costs = [0.0; 2];
        for cost in &mut costs {
            let mut cells: Vec<u64> = (0..CELLS).collect();
            for last in (1..cells.len()).rev() {
                cells.swap(last, rng.index(last + 1));
            }
            let before = disks[0].counters().write_bytes;
            for burst in cells.chunks(BURST) {
                for cell in burst {
                    let buf = Buf::copied(&[7; 4096]);
                    volume.write(cell * 4096, buf).await.expect("writes");
                }
                volume.flush().await.expect("flushes");
            }
            // Marks are cleared, and records that wait for room are written.
            rt::sleep(Duration::from_secs(20)).await;
            let written = disks[0].counters().write_bytes - before;
            *cost = written as f64 / size as f64;
        }
        assert_eq!(cache.stats().volumes[0].bypassed_writes, 0);
        costs
    })
}

#[test]
fn checksums_cost_so_many_bytes() {
    // Block size, unit of the metadata, and the most that is added to a first write and to one in
    // place.
    for (block, unit, most) in [
        (4 << 10, 512, [0.05, 0.05]),
        (4 << 10, 4096, [0.05, 0.05]),
        (32 << 10, 512, [0.05, 0.05]),
        (32 << 10, 4096, [0.05, 0.05]),
    ] {
        let (with, without) = (cost(true, block, unit), cost(false, block, unit));
        eprintln!("blocks of {block}, units of {unit}: with {with:.3?}, without {without:.3?}");
        for nth in 0..2 {
            let added = with[nth] - without[nth];
            assert!(added <= most[nth], "{block} {unit}: {with:?}, {without:?}");
        }
    }
}
