//! The cost of metadata in lines: bytes written to the devices.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use forebay_block::{BlockDevice, BlockDeviceExt as _, Buf, Persistence};
use forebay_cache::{
    Cache, CacheOptions, Cleaning, Devices, Durability, FormatOptions, Mode, VolumeOptions,
};
use forebay_device::pmem::PmemDevice;
use forebay_io::sim::{DiskConfig, Outcome, SimDisk, SimPmem, World};

/// Blocks of the cache.
const BLOCKS: u64 = 1024;
const BLOCK: u64 = 4096;
/// Bytes that an Optane module writes internally for each line that it gets alone.
const MEDIUM_UNIT: u64 = 256;

/// A cache of [`BLOCKS`] on devices that count their bytes.
struct Bench {
    cache: Cache,
    volume: Rc<dyn BlockDevice>,
    disk: SimDisk,
    memory: Arc<SimPmem>,
}

/// Counts of bytes to the data device and to the metadata device, bytes that its medium writes if
/// it combines nothing, and evictions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Counts {
    data: u64,
    metadata: u64,
    inside: u64,
    evictions: u64,
}

impl Bench {
    fn counts(&self) -> Counts {
        let lines = self.memory.counts();
        Counts {
            data: self.disk.counters().write_bytes,
            metadata: lines.streamed_bytes,
            inside: lines.streamed_units * MEDIUM_UNIT,
            evictions: self.cache.stats().evictions,
        }
    }

    fn since(&self, before: Counts) -> Counts {
        let now = self.counts();
        Counts {
            data: now.data - before.data,
            metadata: now.metadata - before.metadata,
            inside: now.inside - before.inside,
            evictions: now.evictions - before.evictions,
        }
    }

    /// Writes these blocks, each acknowledged when it is durable.
    async fn write(&self, blocks: std::ops::Range<u64>) {
        for block in blocks {
            let data = Buf::copied(&[block as u8; BLOCK as usize]);
            (self.volume.write(block * BLOCK, data).await).expect("written");
        }
    }
}

fn bench<F: Future<Output = ()>>(mode: Mode, test: impl FnOnce(Bench) -> F + 'static) {
    let mut world = World::new(5);
    let metadata_bytes = (256 << 10) + BLOCKS * 256;
    let disk = world.add_disk(&DiskConfig::new("cache", (128 << 10) + BLOCKS * BLOCK));
    let backing = world.add_disk(&DiskConfig::new("backing", 32 * BLOCKS * BLOCK));
    let memory = world.add_memory(metadata_bytes);
    let outcome = world.run(1, async move {
        let devices = || Devices {
            data: Rc::new(disk.clone()),
            metadata: Some(Rc::new(PmemDevice::new(
                Arc::clone(&memory),
                "metadata",
                Persistence::Media,
            ))),
        };
        let options = FormatOptions::new(BLOCK as u32, [7; 16]);
        (forebay_cache::format(&devices(), &options).await).expect("formatted");
        let options = CacheOptions {
            durability: Durability::Sync,
            cleaning: Cleaning::Nop,
            dirty_limit_percent: 100,
            ..CacheOptions::new([9; 16])
        };
        let (cache, _) = Cache::open(devices(), options).await.expect("opens");
        assert_eq!(cache.stats().blocks, BLOCKS);
        let attached = cache.attach("v", Rc::new(backing), VolumeOptions::new(mode));
        let volume = attached.await.expect("attaches");
        test(Bench {
            cache,
            volume,
            disk,
            memory,
        })
        .await;
    });
    assert_eq!(outcome, Outcome::Finished(()));
}

#[test]
fn a_cold_write_costs_its_data_and_one_line() {
    bench(Mode::WriteBack, async move |bench| {
        // The first write in its dirty zone sets a bit of the superblock: in each copy, its line
        // and that of the checksum.
        let before = bench.counts();
        bench.write(0..1).await;
        let cost = bench.since(before);
        assert_eq!((cost.data, cost.metadata), (4096, 64 + 4 * 64));
        let before = bench.counts();
        bench.write(1..BLOCKS / 2).await;
        let (cost, writes) = (bench.since(before), BLOCKS / 2 - 1);
        let expected = Counts {
            data: writes * 4096,
            metadata: writes * 64,
            inside: writes * MEDIUM_UNIT,
            evictions: 0,
        };
        assert_eq!(cost, expected);
        // A write in place to a dirty block needs no record.
        let before = bench.counts();
        bench.write(0..100).await;
        let cost = bench.since(before);
        assert_eq!((cost.data, cost.metadata), (100 * 4096, 0));
    });
}

/// Returns bytes of metadata for a cold write with the eviction that makes room for it, and bytes
/// inside the medium.
fn evicting(mode: Mode, rounds: u64) -> [u64; 2] {
    let figures = Rc::new(Cell::new([0; 2]));
    let result = Rc::clone(&figures);
    bench(mode, async move |bench| {
        bench.write(0..BLOCKS).await;
        bench.cache.write_back(None).await.expect("written back");
        let before = bench.counts();
        for eighth in 8..8 * (rounds + 1) {
            let first = eighth * BLOCKS / 8;
            bench.write(first..first + BLOCKS / 8).await;
            bench.cache.write_back(None).await.expect("written back");
        }
        let (cost, writes) = (bench.since(before), rounds * BLOCKS);
        assert_eq!(cost.data, writes * 4096, "all went through the cache");
        assert!(cost.evictions >= writes - BLOCKS / 4, "{cost:?}");
        eprintln!("{mode:?}, {rounds} times the cache: {cost:?}");
        result.set([cost.metadata, cost.inside].map(|bytes| bytes.div_ceil(writes)));
    });
    figures.get()
}

#[test]
fn an_eviction_costs_less_than_a_line() {
    // A dirty block turns clean before its eviction, which is a record, too.
    for (mode, records) in [(Mode::WriteBack, 2), (Mode::WriteThrough, 1)] {
        for rounds in [2, 24] {
            let [bytes, inside] = evicting(mode, rounds);
            eprintln!(
                "{mode:?}: {bytes} bytes of metadata a write with its eviction, inside {inside}"
            );
            let eviction = bytes.saturating_sub(records * 64);
            assert!(eviction <= 20, "{mode:?}: {bytes}");
        }
    }
}
