//! The engine against a plain array, on simulated devices that do not crash. Crashes are the
//! business of the tests package.

use std::rc::Rc;

use forebay_block::{BlockDevice, BlockDeviceExt, Buf, ErrorKind};
use forebay_io::rt;
use forebay_io::sim::{DiskConfig, Keep, Outcome, Rng, SimDisk, World};

use super::*;

mod admission;
mod blocked;
mod buffered;
mod bypass;
mod checksum_cost;
mod compare;
mod concurrency;
mod cut;
mod cut_metadata;
mod damage;
mod degraded;
mod discard;
mod extents;
mod failed_flush;
mod failures;
mod flushes;
mod forget;
mod identity;
mod integrity;
mod large;
mod limits;
mod log_index;
mod medium;
mod online_open;
mod read_ahead;
mod restart;
mod sample;
mod stalls;
mod tracking;

const VOLUME_BYTES: u64 = (1 << 20) + 1536;

fn config(name: &str, size: u64, logical: u32) -> DiskConfig {
    DiskConfig {
        logical_block_bytes: logical,
        physical_block_bytes: 4096,
        ..DiskConfig::new(name, size)
    }
}

fn world(seed: u64, cache_bytes: u64, logical: u32) -> World {
    let mut world = World::new(seed);
    world.add_disk(&config("cache", cache_bytes, logical));
    world.add_disk(&config("backing", VOLUME_BYTES, 512));
    world
}

fn run<T: 'static>(world: &World, main: impl AsyncFnOnce(Vec<SimDisk>) -> T + 'static) -> T {
    let disks = world.disks().to_vec();
    match world.run(1, async move { main(disks).await }) {
        Outcome::Finished(value) => value,
        _ => panic!("the run did not finish"),
    }
}

async fn open(disks: &[SimDisk], durability: Durability) -> (Cache, RecoveryReport) {
    let devices = Devices {
        data: Rc::new(disks[0].clone()),
        metadata: None,
    };
    let options = CacheOptions {
        durability,
        journal: Some(Buf::zeroed(1 << 16)),
        ..CacheOptions::new([9; 16])
    };
    Cache::open(devices, options).await.expect("opens")
}

async fn make(disks: &[SimDisk], block_size_bytes: u32) {
    make_sizes(disks, &[u64::from(block_size_bytes)]).await;
}

async fn make_sizes(disks: &[SimDisk], block_sizes_bytes: &[u64]) {
    let devices = Devices {
        data: Rc::new(disks[0].clone()),
        metadata: None,
    };
    let options = FormatOptions::sizes(block_sizes_bytes, [5; 16]);
    format(&devices, &options).await.expect("formats");
}

async fn attach(cache: &Cache, disks: &[SimDisk], mode: Mode) -> Rc<dyn BlockDevice> {
    let backing = Rc::new(disks[1].clone());
    cache
        .attach("v", backing, VolumeOptions::new(mode))
        .await
        .expect("attaches")
}

async fn exercise(volume: &Rc<dyn BlockDevice>, model: &mut [u8], rng: &Rng, steps: usize) {
    let block = u64::from(volume.info().logical_block_bytes);
    let blocks = volume.info().size_bytes / block;
    for _ in 0..steps {
        let at = rng.below(blocks);
        let len = (1 + rng.below([1, 8, 16, 200][rng.index(4)])).min(blocks - at);
        let (offset, bytes) = (at * block, usize::try_from(len * block).expect("small"));
        let range = usize::try_from(offset).expect("small")..;
        let range = range.start..range.start + bytes;
        match rng.below(10) {
            0..=3 => {
                let data: Vec<u8> = (0..bytes).map(|_| rng.draw() as u8).collect();
                let buf = Buf::copied(&data);
                if rng.chance(1, 4) {
                    volume.write_fua(offset, buf).await.expect("writes");
                } else {
                    volume.write(offset, buf).await.expect("writes");
                }
                model[range].copy_from_slice(&data);
            }
            4 => {
                volume
                    .write_zeroes(offset, len * block)
                    .await
                    .expect("zeroes");
                model[range].fill(0);
            }
            5 => volume.flush().await.expect("flushes"),
            _ => {
                let buf = Buf::zeroed(bytes);
                volume.read(offset, buf.clone()).await.expect("reads");
                assert!(buf.to_vec() == model[range], "{bytes} bytes at {offset}");
            }
        }
    }
}

#[test]
fn every_mode_and_block_size_reads_written_data_back() {
    for (number, mode) in Mode::ALL.into_iter().enumerate() {
        for (sizes, logical, cache_bytes) in [
            (&[4][..], 512, 600 << 10),
            (&[32], 512, 700 << 10),
            (&[32], 4096, 4 << 20),
            (&[1024], 512, 5 << 20),
            (&[4, 8, 16, 32], 512, 800 << 10),
            (&[4, 64], 4096, 1400 << 10),
            (&[32, 64, 128, 256], 512, 5 << 20),
        ] {
            let sizes: Vec<u64> = sizes.iter().map(|size| size << 10).collect();
            for durability in [Durability::Flush, Durability::Sync] {
                let world = world(number as u64, cache_bytes, logical);
                let sizes = sizes.clone();
                run(&world, async move |disks| {
                    make_sizes(&disks, &sizes).await;
                    let mut model = Vec::new();
                    let rng = Rng::labelled(number as u64, 77);
                    for life in 0..3 {
                        let (cache, report) = open(&disks, durability).await;
                        assert_eq!(report.clean_shutdown, life > 0);
                        let volume = attach(&cache, &disks, mode).await;
                        model.resize(volume.info().size_bytes as usize, 0);
                        exercise(&volume, &mut model, &rng, 150).await;
                        for other in Mode::ALL {
                            cache.set_mode("v", other).expect("attached");
                            exercise(&volume, &mut model, &rng, 30).await;
                        }
                        cache.close().await.expect("closes");
                        let late = volume.flush().await.expect_err("closed");
                        assert_eq!(late.kind(), ErrorKind::ShuttingDown);
                    }
                    let (cache, _) = open(&disks, durability).await;
                    attach(&cache, &disks, mode).await;
                    cache.detach("v").await.expect("detaches");
                    let stats = cache.stats();
                    assert_eq!((stats.cached_blocks, stats.dirty_blocks), (0, 0));
                    assert!(
                        disks[1].peek(0, model.len()) == model,
                        "all is written back"
                    );
                    cache.close().await.expect("closes");
                });
            }
        }
    }
}

#[test]
fn idle_time_cleans_and_unmarks() {
    let world = world(1, 4 << 20, 512);
    run(&world, async |disks| {
        make(&disks, 32 << 10).await;
        let (cache, _) = open(&disks, Durability::Flush).await;
        let volume = attach(&cache, &disks, Mode::WriteBack).await;
        let buf = Buf::copied(&[7; 8192]);
        volume.read(0, Buf::zeroed(65536)).await.expect("reads");
        volume.write(4096, buf.clone()).await.expect("writes");
        volume.write(65536, buf).await.expect("writes");
        let stats = cache.stats();
        assert_eq!((stats.dirty_blocks, stats.marked_regions), (2, 1));
        rt::sleep(std::time::Duration::from_secs(20)).await;
        let stats = cache.stats();
        assert_eq!((stats.dirty_blocks, stats.marked_regions), (0, 0));
        assert_eq!(disks[1].peek(4096, 8192), [7; 8192]);
        let before = disks[0].counters();
        rt::sleep(std::time::Duration::from_secs(60)).await;
        volume.read(0, Buf::zeroed(65536)).await.expect("reads");
        let after = disks[0].counters();
        assert_eq!(
            before.write_bytes, after.write_bytes,
            "an idle cache writes nothing"
        );
        cache.close().await.expect("closes");
    });
}

#[test]
fn clean_data_survives_without_a_flush() {
    let world = world(1, 4 << 20, 512);
    run(&world, async |disks| {
        make(&disks, 32 << 10).await;
        let (cache, _) = open(&disks, Durability::Flush).await;
        let volume = attach(&cache, &disks, Mode::WriteThrough).await;
        volume
            .write(0, Buf::copied(&[7; 65536]))
            .await
            .expect("writes");
        rt::sleep(std::time::Duration::from_secs(10)).await;
        // The power goes here: nothing is closed.
    });
    world.crash_power(Keep::None);
    run(&world, async |disks| {
        let devices = Devices {
            data: Rc::new(disks[0].clone()),
            metadata: None,
        };
        let opened = Cache::open(devices, CacheOptions::new([10; 16])).await;
        let (cache, report) = opened.expect("opens");
        assert_eq!((report.clean_shutdown, report.cached_blocks), (false, 2));
        let volume = attach(&cache, &disks, Mode::WriteThrough).await;
        let before = disks[1].counters().reads;
        volume.read(0, Buf::zeroed(65536)).await.expect("reads");
        assert_eq!(disks[1].counters().reads, before, "the cache has it");
        cache.close().await.expect("closes");
    });
}

/// Checks the bounds of docs/concepts/durability.md, "Clean data after a crash".
#[test]
fn a_fill_is_in_the_log_within_the_documented_time() {
    let interval = CacheOptions::new([9; 16]).commit_interval;
    let commit = std::time::Duration::from_millis(100);
    // The fills come at different times between two ticks of the timer.
    for (seed, flushed, after, kept) in (0..8).flat_map(|seed| {
        let bound = 2 * interval + commit;
        let unflushed = std::time::Duration::from_secs(3) + 4 * interval + commit;
        [
            (seed, true, bound, 1),
            (seed, false, unflushed, 1),
            (seed, true, std::time::Duration::ZERO, 0),
        ]
    }) {
        let world = world(seed, 4 << 20, 512);
        run(&world, async move |disks| {
            make(&disks, 32 << 10).await;
            let (cache, _) = open(&disks, Durability::Flush).await;
            let volume = attach(&cache, &disks, Mode::WriteBack).await;
            // The attach counts as a write to the backing device until that is flushed.
            if flushed {
                volume.flush().await.expect("flushes");
            }
            rt::sleep(std::time::Duration::from_secs(10) + interval * seed as u32 / 8).await;
            volume.read(0, Buf::zeroed(4096)).await.expect("reads");
            rt::sleep(after).await;
        });
        world.crash_power(Keep::None);
        run(&world, async move |disks| {
            let devices = Devices {
                data: Rc::new(disks[0].clone()),
                metadata: None,
            };
            let opened = Cache::open(devices, CacheOptions::new([10; 16])).await;
            let (cache, report) = opened.expect("opens");
            assert_eq!(
                report.cached_blocks, kept,
                "{seed}, {flushed}, after {after:?}"
            );
            cache.close().await.expect("closes");
        });
    }
}

#[test]
fn a_volume_of_another_epoch_is_not_believed() {
    let world = world(1, 4 << 20, 512);
    run(&world, async |disks| {
        make(&disks, 32 << 10).await;
        let (cache, _) = open(&disks, Durability::Flush).await;
        let volume = attach(&cache, &disks, Mode::WriteBack).await;
        let epoch = cache.volume_epoch("v").expect("attached");
        volume
            .write(0, Buf::copied(&[1; 4096]))
            .await
            .expect("writes");
        volume
            .write(65536, Buf::copied(&[2; 4096]))
            .await
            .expect("writes");
        volume
            .read(1 << 19, Buf::zeroed(4096))
            .await
            .expect("reads");
        cache.close().await.expect("closes");
        // The volume is served without the cache here.
        disks[1]
            .write(65536, Buf::copied(&[3; 4096]))
            .await
            .expect("writes");
        disks[1]
            .write(1 << 19, Buf::copied(&[4; 4096]))
            .await
            .expect("writes");
        let mut options = VolumeOptions::new(Mode::WriteBack);
        options.epoch = epoch + 1;
        options.written_elsewhere = Some(vec![65536..65536 + 4096, 1 << 19..(1 << 19) + 4096]);
        // Looked at while it is closed, the cache refuses the same, and is as it was.
        let beside = VolumeOptions {
            written_elsewhere: Some(std::iter::once(1 << 19..1 << 20).collect()),
            ..options.clone()
        };
        let unchanged = VolumeOptions {
            epoch,
            ..options.clone()
        };
        let asked = [
            ("v", options.clone()),
            ("v", beside),
            ("v", unchanged),
            ("another", options.clone()),
        ];
        let devices = Devices {
            data: Rc::new(disks[0].clone()),
            metadata: None,
        };
        let predicted = crate::predict_stale(&devices, &RepairOptions::default(), &asked).await;
        let predicted = predicted.expect("it can be looked at");
        let (cache, report) = open(&disks, Durability::Flush).await;
        assert_eq!(report.cached_blocks, 3);
        let backing = || Rc::new(disks[1].clone());
        let refused = cache.attach("v", backing(), options.clone()).await;
        let error = refused
            .err()
            .expect("dirty data is not thrown away unasked");
        assert_eq!(error.kind(), ErrorKind::Busy);
        let reports = predicted.iter().map(|one| match one {
            Ok(()) => String::new(),
            Err(error) => error.report(),
        });
        let reports: Vec<_> = reports.collect();
        assert_eq!(reports, [error.report(), "".into(), "".into(), "".into()]);
        assert!(
            error.report().contains("there: 1 block, 4096 bytes"),
            "{error}"
        );
        assert!(error.to_string().contains("65536"), "{error}");
        options.discard_stale_dirty = true;
        let volume = cache
            .attach("v", backing(), options)
            .await
            .expect("attaches");
        assert_eq!(cache.volume_epoch("v"), Some(epoch + 2));
        for (at, byte) in [(0, 1), (65536, 3), (1 << 19, 4)] {
            let buf = Buf::zeroed(4096);
            volume.read(at, buf.clone()).await.expect("reads");
            assert_eq!(buf.to_vec(), [byte; 4096], "at {at}");
        }
        cache.close().await.expect("closes");
    });
}

#[test]
fn a_missing_journal_is_noticed_however_long_the_process_lived() {
    let world = world(1, 4 << 20, 512);
    run(&world, async |disks| {
        make(&disks, 32 << 10).await;
        let (cache, _) = open(&disks, Durability::Flush).await;
        let volume = attach(&cache, &disks, Mode::WriteBack).await;
        let mut model = vec![0; usize::try_from(VOLUME_BYTES).expect("small")];
        let rng = Rng::new(1);
        let lap_bytes = cache.stats().log_records * 64;
        while cache.stats().log_bytes < 3 * lap_bytes {
            exercise(&volume, &mut model, &rng, 100).await;
        }
        // The process dies: no close.
    });
    run(&world, async |disks| {
        let devices = Devices {
            data: Rc::new(disks[0].clone()),
            metadata: None,
        };
        let mut options = CacheOptions::new([9; 16]);
        options.journal = Some(Buf::zeroed(1 << 16));
        let refused = Cache::open(devices.clone(), options.clone()).await;
        assert_eq!(refused.err().map(|e| e.kind()), Some(ErrorKind::Lost));
        options.accept_journal_loss = true;
        Cache::open(devices, options)
            .await
            .expect("opens if told to");
    });
}

/// After a flush on request the backing device may be used without the cache: no record calls
/// anything dirty.
#[test]
fn records_call_blocks_clean_after_a_write_back_on_request() {
    let world = world(6, 2 << 20, 512);
    run(&world, async |disks| {
        make(&disks, 4096).await;
        let (cache, _) = open(&disks, Durability::Flush).await;
        let volume = attach(&cache, &disks, Mode::WriteBack).await;
        for block in 0..20 {
            let buf = Buf::copied(&[3; 4096]);
            volume.write(block * 4096, buf).await.expect("writes");
        }
        volume.flush().await.expect("flushes");
        cache.write_back(None).await.expect("written back");
    });
    world.crash_power(Keep::None);
    let dirty = run(&world, async |disks| {
        let devices = Devices {
            data: Rc::new(disks[0].clone()),
            metadata: None,
        };
        let next_boot = CacheOptions::new([10; 16]);
        let opened = Cache::open(devices, next_boot).await;
        opened.expect("opens").1.dirty_blocks
    });
    assert_eq!(dirty, 0);
}
