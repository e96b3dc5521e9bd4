//! Damaged media and failed flushes cost no more than they must.

mod log_end;

use std::cell::Cell;
use std::time::Duration;

use forebay_block::{Completion, DeviceInfo, Request};
use forebay_io::sim::{FaultPlan, OpClass, Stop};

use super::*;

fn world_with(seed: u64, cache_bytes: u64, backing_latency: (u64, u64), backing: u64) -> World {
    let mut world = World::new(seed);
    world.add_disk(&config("cache", cache_bytes, 512));
    world.add_disk(&DiskConfig {
        latency_us: backing_latency,
        ..config("backing", backing, 512)
    });
    world.add_disk(&config("backing2", backing, 512));
    world
}

async fn open_lazy(disks: &[SimDisk]) -> (Cache, RecoveryReport) {
    open_with(disks, Buf::zeroed(1 << 16)).await
}

async fn open_with(disks: &[SimDisk], journal: Buf) -> (Cache, RecoveryReport) {
    let devices = Devices {
        data: Rc::new(disks[0].clone()),
        metadata: None,
    };
    let options = CacheOptions {
        journal: Some(journal),
        cleaning: Cleaning::Nop,
        dirty_limit_percent: 95,
        accept_journal_loss: true,
        ..CacheOptions::new([9; 16])
    };
    Cache::open(devices, options).await.expect("opens")
}

fn pattern(byte: u8) -> Buf {
    Buf::copied(&[byte; 4096])
}

async fn read_at(volume: &Rc<dyn BlockDevice>, offset: u64) -> Vec<u8> {
    let found = Buf::zeroed(4096);
    volume.read(offset, found.clone()).await.expect("reads");
    found.to_vec()
}

#[test]
fn one_bad_sector_keeps_its_neighbours_dirty() {
    let world = world_with(6, 4 << 20, (100, 1000), 1 << 20);
    run(&world, async |disks| {
        make(&disks, 4096).await;
        let (cache, _) = open_lazy(&disks).await;
        let volume = attach(&cache, &disks, Mode::WriteBack).await;
        for block in 0..16_u8 {
            let buf = pattern(100 + block);
            volume
                .write(u64::from(block) * 4096, buf)
                .await
                .expect("writes");
        }
        volume.flush().await.expect("flushes");
        let slot = (0..disks[0].info().size_bytes)
            .step_by(4096)
            .find(|&at| disks[0].peek(at, 4096) == [103; 4096])
            .expect("it is cached");
        disks[0].set_faults(FaultPlan {
            bad_range: Some(slot..slot + 512),
            ..FaultPlan::default()
        });
        for _ in 0..5 {
            let _ = cache.write_back(None).await;
        }
        assert_eq!(cache.stats().dirty_blocks, 1, "15 of 16 blocks can be read");
    });
}

#[test]
fn the_flush_command_waits_for_a_block_that_a_read_fills() {
    let world = world_with(6, 4 << 20, (50_000, 50_000), 1 << 20);
    run(&world, async |disks| {
        make(&disks, 32 << 10).await;
        let (cache, _) = open_lazy(&disks).await;
        let volume = attach(&cache, &disks, Mode::WriteBack).await;
        volume.write(0, pattern(1)).await.expect("writes");
        volume.flush().await.expect("flushes");
        let reader = Rc::clone(&volume);
        rt::spawn(async move {
            read_at(&reader, 8192).await;
        });
        rt::sleep(Duration::from_millis(10)).await;
        cache.write_back(None).await.expect("written back");
        assert_eq!(
            cache.stats().dirty_blocks,
            0,
            "it says that all is written back"
        );
    });
}

#[test]
fn clean_data_lost_by_a_failed_flush_is_not_read() {
    let mut wrong = 0;
    for seed in 0..20 {
        let mut world = World::new(seed);
        world.add_disk(&DiskConfig::new("cache", 2 << 20));
        world.add_disk(&config("backing", 1 << 20, 512));
        wrong += run(&world, async |disks| {
            make(&disks, 4096).await;
            disks[1].write(8192, pattern(7)).await.expect("writes");
            let (cache, _) = open(&disks, Durability::Flush).await;
            let volume = attach(&cache, &disks, Mode::WriteThrough).await;
            volume.flush().await.expect("flushes");
            assert_eq!(read_at(&volume, 8192).await, pattern(7).to_vec());
            disks[0].set_faults(FaultPlan {
                fail_nth: Some((OpClass::Flush, 1)),
                lose_at_failed_flush: true,
                ..FaultPlan::default()
            });
            let _ = volume.flush().await;
            rt::sleep(Duration::from_secs(5)).await;
            assert!(cache.stats().failure.is_some());
            u32::from(read_at(&volume, 8192).await != pattern(7).to_vec())
        });
    }
    assert_eq!(wrong, 0, "of 20 reads of clean data");
}

#[test]
fn a_damaged_record_does_not_lose_blocks_dirty_by_a_mark() {
    let world = world_with(6, 4 << 20, (20, 200), 1 << 20);
    run(&world, async |disks| {
        make(&disks, 4096).await;
        let (cache, _) = open_lazy(&disks).await;
        let volume = attach(&cache, &disks, Mode::WriteBack).await;
        read_at(&volume, 0).await;
        rt::sleep(Duration::from_secs(20)).await;
        volume.flush().await.expect("flushes");
        // Under a mark, in place, flushed.
        volume.write(0, pattern(1)).await.expect("writes");
        volume.flush().await.expect("flushes");
        // Other records.
        for block in [100_u64, 120, 140] {
            volume
                .write(block * 4096, pattern(2))
                .await
                .expect("writes");
            volume.flush().await.expect("flushes");
        }
        drop((volume, cache));
        let log: Vec<u8> = disks[0].peek(131_072, 1 << 16).to_vec();
        let at = (0..1 << 10)
            .map(|record| record * 64)
            .find(|&at| log[at + 4] == 2 && log[at + 24..at + 32] == 100_u64.to_le_bytes())
            .expect("its record");
        disks[0].rot(131_072 + at as u64 + 10, 1, 1);
        let (cache, report) = open_lazy(&disks).await;
        assert!(report.damaged_records > 0, "{report:?}");
        let volume = attach(&cache, &disks, Mode::WriteBack).await;
        assert_eq!(read_at(&volume, 0).await[..4], [1; 4], "{report:?}");
    });
}

#[test]
fn acknowledged_data_that_a_failed_flush_lost_is_not_read_as_older() {
    let mut older = 0;
    for seed in 0..20 {
        let mut world = World::new(seed);
        world.add_disk(&DiskConfig::new("cache", 2 << 20));
        world.add_disk(&config("backing", 1 << 20, 512));
        older += run(&world, async |disks| {
            make(&disks, 4096).await;
            let (cache, _) = open_lazy(&disks).await;
            let volume = attach(&cache, &disks, Mode::WriteBack).await;
            volume.write(8192, pattern(6)).await.expect("writes");
            volume.flush().await.expect("flushes");
            volume.write(8192, pattern(7)).await.expect("writes");
            disks[0].set_faults(FaultPlan {
                fail_nth: Some((OpClass::Flush, 1)),
                lose_at_failed_flush: true,
                ..FaultPlan::default()
            });
            let _ = volume.flush().await;
            assert!(cache.stats().failure.is_some());
            let found = Buf::zeroed(4096);
            let read = volume.read(8192, found.clone()).await;
            u32::from(read.is_ok() && found.to_vec() != pattern(7).to_vec())
        });
    }
    assert_eq!(older, 0, "of 20 reads of what was acknowledged");
}

#[test]
fn a_lost_kill_brings_nothing_back() {
    let world = world_with(6, 2 << 20, (20, 200), 8 << 20);
    run(&world, async |disks| {
        make(&disks, 4096).await;
        for block in 1..1500_u64 {
            disks[1]
                .write(block * 4096, pattern(9))
                .await
                .expect("writes");
        }
        let options = || CacheOptions {
            journal: Some(Buf::zeroed(1 << 16)),
            accept_journal_loss: true,
            commit_interval: Duration::from_secs(100_000),
            ..CacheOptions::new([9; 16])
        };
        let devices = || Devices {
            data: Rc::new(disks[0].clone()),
            metadata: None,
        };
        let (cache, _) = Cache::open(devices(), options()).await.expect("opens");
        let volume = attach(&cache, &disks, Mode::WriteBack).await;
        volume.write(0, pattern(1)).await.expect("writes");
        volume.flush().await.expect("flushes");
        rt::sleep(Duration::from_secs(5)).await;
        assert_eq!(cache.stats().dirty_blocks, 0);
        let key = |block| forebay_policy::BlockKey::new(1, block);
        let slot = {
            let map = cache.engine.map.borrow();
            map.slot(map.find(key(0)).expect("cached"))
        };
        let mut block = 1;
        loop {
            let (there, used) = {
                let map = cache.engine.map.borrow();
                (map.find(key(0)).is_some(), map.block_at(slot).is_some())
            };
            if !there && used {
                break;
            }
            read_at(&volume, block * 4096).await;
            block += 1;
            assert!(block < 1500);
        }
        // Data of another program is there now; later batches follow.
        for at in 0..3 {
            volume
                .write((1600 + at) * 4096, pattern(2))
                .await
                .expect("writes");
            volume.flush().await.expect("flushes");
        }
        drop((volume, cache));
        let log = disks[0].peek(131_072, 1 << 17);
        let kills: Vec<usize> = (0..(1 << 17) / 64)
            .map(|record| record * 64)
            .filter(|&at| {
                log[at + 4] == 3
                    && (0..usize::from(log[at + 5])).any(|nth| {
                        let from = at + 24 + 4 * nth;
                        log[from..from + 4] == slot.get().to_le_bytes()
                    })
            })
            .collect();
        disks[0].rot(131_072 + kills[0] as u64 + 10, 1, 1);
        let (cache, report) = Cache::open(devices(), options()).await.expect("opens");
        let volume = attach(&cache, &disks, Mode::WriteBack).await;
        let found = read_at(&volume, 0).await[0];
        assert_eq!(
            found,
            1,
            "read {block} blocks; {} kills name the slot; {report:?}",
            kills.len()
        );
    });
}

#[test]
fn slots_deferred_to_a_flush_that_never_comes_are_bounded() {
    let world = world_with(6, 1 << 20, (20, 200), 16 << 20);
    run(&world, async |disks| {
        make(&disks, 4096).await;
        let (cache, _) = open(&disks, Durability::Flush).await;
        let volume = attach(&cache, &disks, Mode::WriteBack).await;
        disks[1].set_faults(FaultPlan {
            fail_nth: Some((OpClass::Flush, 1)),
            ..FaultPlan::default()
        });
        assert!(volume.flush().await.is_err());
        let slots = cache.stats().blocks;
        for block in 0..8 * slots {
            read_at(&volume, block * 4096).await;
            if block % 50 == 0 {
                rt::sleep(Duration::from_secs(2)).await;
            }
        }
        let waiting = cache.engine.committer.deferred_blocks() as u64;
        assert!(waiting > 0, "nothing waits");
        assert!(waiting <= 2 * slots, "{waiting} of {slots} slots");
    });
}

/// After a clean shutdown there is no process journal. If the next start logs something and dies,
/// that must not look like a process with a lost journal.
#[test]
fn a_start_that_dies_leaves_no_journal_to_be_missed() {
    let world = world_with(6, 2 << 20, (20, 200), 1 << 20);
    run(&world, async |disks| {
        make(&disks, 4096).await;
        let (cache, _) = open(&disks, Durability::Flush).await;
        let volume = attach(&cache, &disks, Mode::WriteInvalidate).await;
        // Recorded, and then recorded as empty: the next start kills it.
        read_at(&volume, 0).await;
        rt::sleep(Duration::from_secs(20)).await;
        volume.flush().await.expect("flushes");
        volume.write(0, pattern(1)).await.expect("writes");
        volume.flush().await.expect("flushes");
        cache.close().await.expect("closes");
    });
    let options = |journal: &Buf| CacheOptions {
        journal: Some(journal.clone()),
        ..CacheOptions::new([9; 16])
    };
    let devices = |disks: &[SimDisk]| Devices {
        data: Rc::new(disks[0].clone()),
        metadata: None,
    };
    for nth in 1..20 {
        let (world, journal) = (world.fork(), Buf::zeroed(1 << 16));
        world.set_stop(Some(Stop::AfterIo(nth)));
        let (disks, opening) = (world.disks().to_vec(), options(&journal));
        let ended = world.run(1, async move {
            let opened = Cache::open(devices(&disks), opening).await;
            rt::sleep(Duration::from_secs(1)).await;
            drop(opened);
        });
        if matches!(ended, Outcome::Finished(())) {
            assert!(nth > 3, "the start writes");
            return;
        }
        world.crash_process(nth);
        run(&world, async move |disks| {
            let opened = Cache::open(devices(&disks), options(&journal)).await;
            let (cache, _) = opened.unwrap_or_else(|error| panic!("{nth}: {error}"));
            cache.close().await.expect("closes");
        });
    }
    panic!("the start does not end");
}

/// A disk of which a part is cut off in use.
struct Cut(SimDisk, Cell<u64>);

impl BlockDevice for Cut {
    fn info(&self) -> DeviceInfo {
        DeviceInfo {
            size_bytes: self.1.get(),
            ..self.0.info()
        }
    }

    fn submit(&self, request: Request, done: Completion) {
        self.0.submit(request, done);
    }
}

#[test]
fn a_cache_device_that_shrank_in_use_gets_no_clean_mark() {
    for cut in [false, true] {
        let world = world_with(6, 2 << 20, (20, 200), 1 << 20);
        run(&world, async move |disks| {
            make(&disks, 4096).await;
            let device = Rc::new(Cut(disks[0].clone(), Cell::new(2 << 20)));
            let open = async || {
                let devices = Devices {
                    data: device.clone(),
                    metadata: None,
                };
                Cache::open(devices, CacheOptions::new([9; 16])).await
            };
            let (cache, _) = open().await.expect("opens");
            let volume = attach(&cache, &disks, Mode::WriteBack).await;
            volume.write(0, pattern(1)).await.expect("writes");
            if cut {
                device.1.set(1 << 20);
            }
            let closed = cache.close().await;
            assert_eq!(
                closed.err().map(|error| error.kind()),
                cut.then_some(ErrorKind::Lost)
            );
            drop((volume, cache));
            if cut {
                let error = open().await.expect_err("it is shorter than the cache");
                assert!(
                    error.report().contains("also dirty data, IS LOST"),
                    "{error:?}"
                );
                device.1.set(2 << 20);
            }
            let (_, report) = open().await.expect("opens");
            assert_eq!(report.clean_shutdown, !cut, "{report:?}");
        });
    }
}
