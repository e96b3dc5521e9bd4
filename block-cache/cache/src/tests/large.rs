//! Volumes of many terabytes. Too large ones are refused, and the cost of a discard depends on the
//! cached data.

use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

use forebay_block::{Completion, DeviceInfo, Op, Request};

use super::*;

const TIB: u64 = 1 << 40;
const PIB: u64 = 1 << 50;

/// A backing device of any size. Bytes that were never written read as zeroes, and changes other
/// than writes are counted.
struct Vast {
    device: SimDisk,
    size_bytes: Cell<u64>,
    changes: RefCell<Vec<(u64, u64)>>,
}

impl Vast {
    fn new(device: &SimDisk, size_bytes: u64) -> Rc<Self> {
        Rc::new(Self {
            device: device.clone(),
            size_bytes: Cell::new(size_bytes),
            changes: RefCell::default(),
        })
    }

    /// Whether discards and zeroes covered these bytes, each once and in order.
    fn changed_exactly(&self, offset: u64, len: u64) -> bool {
        let mut at = offset;
        for (start, len) in self.changes.take() {
            if start != at {
                return false;
            }
            at += len;
        }
        at == offset + len
    }
}

impl BlockDevice for Vast {
    fn info(&self) -> DeviceInfo {
        DeviceInfo {
            size_bytes: self.size_bytes.get(),
            ..self.device.info()
        }
    }

    fn submit(&self, request: Request, done: Completion) {
        if matches!(request.op, Op::Discard | Op::WriteZeroes { .. }) {
            self.changes
                .borrow_mut()
                .push((request.offset, request.len));
            return done.complete(Ok(()));
        }
        self.device.submit(request, done);
    }
}

fn vast_world(cache_bytes: u64) -> World {
    let mut world = World::new(21);
    world.add_disk(&config("cache", cache_bytes, 512));
    world.add_disk(&DiskConfig::new("backing", 64 * PIB));
    world
}

async fn attach_vast(cache: &Cache, vast: &Rc<Vast>) -> forebay_block::Result<Rc<dyn BlockDevice>> {
    let device = Rc::clone(vast) as Rc<dyn BlockDevice>;
    let options = VolumeOptions::new(Mode::WriteBack);
    cache.attach("v", device, options).await
}

#[test]
fn volumes_beyond_the_last_block_number_are_refused() {
    let cases: [(&[u64], u64); 4] = [
        (&[4 << 10], 32 * PIB),
        (&[32 << 10], 256 * PIB),
        (&[4 << 10, 64 << 10], 32 * PIB),
        (&[64 << 10, 256 << 10], 512 * PIB),
    ];
    for (sizes, most) in cases {
        run(&vast_world(24 << 20), async move |disks| {
            make_sizes(&disks, sizes).await;
            let (cache, _) = open(&disks, Durability::Flush).await;
            for size in [most + 512, 2 * most, u64::MAX / 512 * 512] {
                let refused = attach_vast(&cache, &Vast::new(&disks[1], size)).await;
                let report = refused.map(drop).expect_err("too large").report();
                let named = format!("at most {} PiB ({most} bytes)", most / PIB);
                assert!(report.contains(&named), "{report}");
            }
            // The largest is served to its end, and does not grow.
            let vast = Vast::new(&disks[1], most);
            let volume = attach_vast(&cache, &vast).await.expect("the largest");
            let last = (most - 4096).min(64 * PIB - 4096);
            for (at, byte) in [(0, 1), (last, 2)] {
                let data = Buf::copied(&[byte; 4096]);
                volume.write(at, data).await.expect("writes");
            }
            for (at, byte) in [(0, 1), (last, 2), (4096, 0), (last - 4096, 0)] {
                let data = Buf::zeroed(4096);
                volume.read(at, data.clone()).await.expect("reads");
                assert_eq!(data.to_vec(), [byte; 4096], "at {at}");
            }
            vast.size_bytes.set(most + 4096);
            let refused = cache.grow("v").await.expect_err("too large").report();
            assert!(refused.contains("at most"), "{refused}");
            assert_eq!(volume.info().size_bytes, most);
            vast.size_bytes.set(most);
            cache.close().await.expect("closes");
            let devices = Devices {
                data: Rc::new(disks[0].clone()),
                metadata: None,
            };
            let found = inspect(&devices, None, &[9; 16]).await.expect("inspects");
            found.check_size("v", most).expect("fits");
            found.check_size("w", most + 1).expect_err("too large");
        });
    }
}

/// At any block size, of terabytes of which little is cached.
#[test]
fn the_cost_of_a_discard_depends_on_cached_blocks_and_not_on_its_length() {
    for sizes in [&[4 << 10][..], &[32 << 10], &[4 << 10, 16 << 10, 64 << 10]] {
        for zeroes in [false, true] {
            run(&vast_world(24 << 20), async move |disks| {
                make_sizes(&disks, sizes).await;
                let (cache, _) = open(&disks, Durability::Flush).await;
                let vast = Vast::new(&disks[1], 8 * TIB);
                let volume = attach_vast(&cache, &vast).await.expect("attaches");
                let change = async |offset, len| {
                    vast.changes.take();
                    let changed = match zeroes {
                        true => volume.write_zeroes(offset, len).await,
                        false => volume.discard(offset, len).await,
                    };
                    changed.expect("changes");
                    assert!(vast.changed_exactly(offset, len));
                };
                // Nothing is cached, then a few blocks, far apart and at the edges.
                let begin = Instant::now();
                change(512, 4 * TIB).await;
                let places = [0, 4096, TIB - 4096, TIB, 3 * TIB + (5 << 30), 4 * TIB];
                for at in places {
                    let data = Buf::copied(&[7; 4096]);
                    volume.write(at, data).await.expect("writes");
                }
                change(4096, 4 * TIB - 4096).await;
                // Seconds, if it looked at each of a thousand million regions.
                assert!(begin.elapsed() < Duration::from_secs(20), "{sizes:?}");
                for at in places {
                    let data = Buf::zeroed(4096);
                    volume.read(at, data.clone()).await.expect("reads");
                    let is_written = at == 0 || at == 4 * TIB;
                    assert_eq!(data.to_vec(), [7 * u8::from(is_written); 4096], "at {at}");
                }
                cache.close().await.expect("closes");
            });
        }
    }
}

/// Other requests are served during the discard of a range. Their writes there count as either
/// older or newer.
#[test]
fn others_are_served_beside_a_long_discard() {
    for seed in 0..8 {
        let world = vast_world(24 << 20);
        run(&world, async move |disks| {
            make(&disks, 4096).await;
            let (cache, _) = open(&disks, Durability::Flush).await;
            let vast = Vast::new(&disks[1], 8 * TIB);
            let volume = attach_vast(&cache, &vast).await.expect("attaches");
            let rng = Rng::new(seed);
            // More regions with something cached than one stretch has, all over the range.
            let places: Vec<u64> = (0..500).map(|_| rng.below(TIB / 4096) * 4096).collect();
            for at in &places {
                let data = Buf::copied(&[7; 4096]);
                volume.write(*at, data).await.expect("writes");
            }
            let over = Rc::new(Cell::new(false));
            let (discarding, ended) = (Rc::clone(&volume), Rc::clone(&over));
            rt::spawn(async move {
                discarding.discard(0, TIB).await.expect("discards");
                ended.set(true);
            });
            let mut served = 0;
            while !over.get() {
                let at = places[rng.index(places.len())];
                let beyond = TIB + at;
                let data = Buf::copied(&[9; 4096]);
                volume.write(at, data.clone()).await.expect("writes");
                volume.write(beyond, data).await.expect("writes");
                let found = Buf::zeroed(4096);
                volume.read(at, found.clone()).await.expect("reads");
                let found = found.to_vec();
                assert!(found == [9; 4096] || found == [0; 4096], "{:?}", found[0]);
                volume.read(beyond, Buf::zeroed(4096)).await.expect("reads");
                served += u64::from(!over.get());
            }
            assert!(served > 2, "{served} were served meanwhile");
            for at in &places {
                let found = Buf::zeroed(4096);
                volume.read(*at, found.clone()).await.expect("reads");
                assert_ne!(found.to_vec()[0], 7, "at {at}");
            }
            cache.close().await.expect("closes");
        });
    }
}

/// A backing device that is much larger than its volume's dirty data costs the cleaner no look at
/// each region.
#[test]
fn sparse_dirty_data_of_a_vast_volume_is_written_back_soon() {
    run(&vast_world(24 << 20), async move |disks| {
        make(&disks, 4096).await;
        let (cache, _) = open(&disks, Durability::Flush).await;
        let vast = Vast::new(&disks[1], 32 * PIB);
        let volume = attach_vast(&cache, &vast).await.expect("attaches");
        for number in 0..200 {
            let data = Buf::copied(&[7; 4096]);
            volume
                .write(number * 100 * TIB, data)
                .await
                .expect("writes");
        }
        let begin = Instant::now();
        cache.write_back(None).await.expect("writes back");
        assert_eq!(cache.stats().dirty_blocks, 0);
        assert!(begin.elapsed() < Duration::from_secs(20));
        cache.close().await.expect("closes");
    });
}

/// A full cache takes as much memory as predicted, or a little less.
#[test]
fn the_memory_of_a_full_cache_is_foretold() {
    for (sizes, checksums) in [
        (&[4 << 10][..], false),
        (&[4 << 10], true),
        (&[32 << 10], false),
        (&[32 << 10, 64 << 10, 256 << 10], true),
        (&[1 << 20], false),
    ] {
        run(&vast_world(160 << 20), async move |disks| {
            let devices = Devices {
                data: Rc::new(disks[0].clone()),
                metadata: None,
            };
            let options = FormatOptions {
                checksums,
                ..FormatOptions::sizes(sizes, [5; 16])
            };
            format(&devices, &options).await.expect("formats");
            let (cache, _) = open(&disks, Durability::Flush).await;
            let vast = Vast::new(&disks[1], TIB);
            let volume = attach_vast(&cache, &vast).await.expect("attaches");
            let blocks = cache.stats().blocks;
            let step = sizes[0];
            // The smallest blocks, each apart, take most.
            let region = sizes[sizes.len() - 1].max(step * 2);
            for number in 0..blocks {
                let read = volume.read(number * region, Buf::zeroed(4096)).await;
                read.expect("reads");
            }
            let superblock = cache.engine.superblock.current().clone();
            let (predicted, taken) = (memory_needed(&superblock), cache.stats().memory_bytes);
            assert!(taken <= predicted, "{sizes:?}: {taken} of {predicted}");
            let slack = 5 << 20;
            assert!(
                predicted <= 2 * taken + slack,
                "{sizes:?}: {taken} of {predicted}"
            );
            cache.close().await.expect("closes");
        });
    }
}
