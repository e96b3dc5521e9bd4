//! Limits: too many marks, devices that fail, sizes that do not fit.

use forebay_io::sim::{FaultPlan, OpClass};

use super::*;

/// Overwriting clean blocks in place marks their regions; the marks must not fill the log.
#[test]
fn marks_are_cleared_before_they_fill_the_log() {
    let mut world = World::new(3);
    world.add_disk(&config("cache", 4 << 20, 512));
    world.add_disk(&DiskConfig::new("backing", 3 << 20));
    run(&world, async |disks| {
        let devices = Devices {
            data: Rc::new(disks[0].clone()),
            metadata: None,
        };
        let options = FormatOptions {
            region_shift: 0,
            ..FormatOptions::new(4096, [5; 16])
        };
        format(&devices, &options).await.expect("formats");
        let (cache, _) = open(&disks, Durability::Flush).await;
        let volume = attach(&cache, &disks, Mode::WriteBack).await;
        let blocks = (3 << 20) / 4096;
        let block = Buf::zeroed(4096);
        for number in 0..blocks {
            let read = volume.read(number * 4096, block.clone()).await;
            read.expect("reads, and promotes");
        }
        volume.flush().await.expect("flushes");
        for number in 0..blocks {
            let written = volume.write(number * 4096, block.clone()).await;
            written.expect("writes, marked");
            let stats = cache.stats();
            assert!(
                stats.marked_regions <= stats.log_records / 12,
                "{} marks of {} records",
                stats.marked_regions,
                stats.log_records
            );
        }
        assert!(cache.stats().marks >= blocks, "each region was marked");
        cache.close().await.expect("closes");
    });
}

/// A failed flush may have lost what was overwritten in place, too, and the next process says so.
#[test]
fn a_failed_flush_names_overwritten_blocks() {
    let world = world(5, 2 << 20, 512);
    run(&world, async |disks| {
        make(&disks, 4096).await;
        let journal = Buf::zeroed(1 << 16);
        let options = || CacheOptions {
            journal: Some(journal.clone()),
            dirty_limit_percent: 100,
            ..CacheOptions::new([9; 16])
        };
        let devices = || Devices {
            data: Rc::new(disks[0].clone()),
            metadata: None,
        };
        let (cache, _) = Cache::open(devices(), options()).await.expect("opens");
        let volume = attach(&cache, &disks, Mode::WriteBack).await;
        volume.write(8192, Buf::zeroed(4096)).await.expect("writes");
        volume.flush().await.expect("flushes");
        // Dirty already: in place, with nothing to record.
        let block = Buf::copied(&[7; 4096]);
        volume.write(8192, block).await.expect("overwrites");
        disks[0].set_faults(FaultPlan {
            fail_nth: Some((OpClass::Flush, 1)),
            ..FaultPlan::default()
        });
        volume.flush().await.expect_err("the flush fails");
        let refused = volume.write(0, Buf::zeroed(4096)).await;
        refused.expect_err("no more writes are taken");
        disks[0].set_faults(FaultPlan::default());
        // The process ends without a clean shutdown, and the next one looks.
        drop((volume, cache));
        let (_, report) = Cache::open(devices(), options()).await.expect("opens");
        assert!(
            report.lost.contains(&LostRange {
                volume: "v".to_owned(),
                offset: 8192,
                len: 4096
            }),
            "{report:?}"
        );
    });
}

/// With `sync`, no write that a failed flush lost was acknowledged, and the next process says so.
/// Overwrites in place are reported with another message, and fresh writes are not reported.
#[test]
fn with_sync_a_failed_flush_loses_nothing_that_was_acknowledged() {
    let world = world(5, 2 << 20, 512);
    run(&world, async |disks| {
        make(&disks, 4096).await;
        let journal = Buf::zeroed(1 << 16);
        let options = || CacheOptions {
            durability: Durability::Sync,
            journal: Some(journal.clone()),
            dirty_limit_percent: 100,
            ..CacheOptions::new([9; 16])
        };
        let devices = || Devices {
            data: Rc::new(disks[0].clone()),
            metadata: None,
        };
        let (cache, _) = Cache::open(devices(), options()).await.expect("opens");
        let volume = attach(&cache, &disks, Mode::WriteBack).await;
        for offset in [8192, 32768] {
            volume
                .write(offset, Buf::zeroed(4096))
                .await
                .expect("durable");
        }
        disks[0].set_faults(FaultPlan {
            fail_nth: Some((OpClass::Flush, 1)),
            ..FaultPlan::default()
        });
        let counted = Rc::new(std::cell::Cell::new(false));
        let (concurrent, set_counted) = (Rc::clone(&volume), Rc::clone(&counted));
        rt::spawn(async move {
            let fresh = concurrent.write(0, Buf::copied(&[6; 4096])).await;
            fresh.expect_err("not durable");
            set_counted.set(true);
        });
        let over = Buf::copied(&[7; 4096]);
        volume.write(8192, over).await.expect_err("not durable");
        rt::sleep(std::time::Duration::from_millis(100)).await;
        assert!(counted.get());
        disks[0].set_faults(FaultPlan::default());
        drop((volume, cache));
        let (_, report) = Cache::open(devices(), options()).await.expect("opens");
        let overwritten = LostRange {
            volume: "v".to_owned(),
            offset: 8192,
            len: 4096,
        };
        assert_eq!(report.lost, [overwritten]);
        assert!(report.lost_in_flight);
        assert!(
            report.loss().contains("not acknowledged"),
            "{}",
            report.loss()
        );
    });
}

/// Clean data can be read from the backing device, whichever part of a request it is.
#[test]
fn a_clean_granule_that_cannot_be_read_comes_from_the_backing_device() {
    let world = world(6, 2 << 20, 512);
    run(&world, async |disks| {
        make(&disks, 32 << 10).await;
        let (cache, _) = open(&disks, Durability::Flush).await;
        let volume = attach(&cache, &disks, Mode::WriteThrough).await;
        let block = Buf::copied(&[9; 4096]);
        volume.write(0, block.clone()).await.expect("writes");
        let slot = (0..disks[0].info().size_bytes)
            .step_by(4096)
            .find(|&at| disks[0].peek(at, 4096) == [9; 4096])
            .expect("it is cached");
        disks[0].set_faults(FaultPlan {
            bad_range: Some(slot..slot + 4096),
            ..FaultPlan::default()
        });
        // The first granule is cached, the second is not: the block is filled.
        let both = Buf::zeroed(8192);
        volume.read(0, both.clone()).await.expect("reads");
        assert!(both.to_vec()[..4096] == [9; 4096]);
        assert!(both.to_vec()[4096..] == [0; 4096]);
        assert_eq!(cache.stats().cache_read_errors, 1);
        cache.set_mode("v", Mode::WriteOnly).expect("attached");
        let more = Buf::zeroed(12288);
        volume.read(0, more.clone()).await.expect("reads");
        assert!(more.to_vec()[..4096] == [9; 4096]);
        assert_eq!(cache.stats().cache_read_errors, 2);
    });
}

/// A cache device that takes nothing is no reason to refuse a write that the backing device takes.
#[test]
fn a_missed_write_that_the_cache_cannot_take_goes_round_it() {
    let world = world(10, 2 << 20, 512);
    run(&world, async |disks| {
        make(&disks, 4096).await;
        let (cache, _) = open(&disks, Durability::Flush).await;
        let volume = attach(&cache, &disks, Mode::WriteBack).await;
        // Of a zone that may be dirty already: the next write of the device is the data's.
        let other = Buf::copied(&[3; 4096]);
        volume.write(8192, other).await.expect("writes");
        disks[0].set_faults(FaultPlan {
            fail_nth: Some((OpClass::Write, 1)),
            ..FaultPlan::default()
        });
        let block = Buf::copied(&[4; 4096]);
        volume.write(0, block).await.expect("bypasses the cache");
        assert_eq!(disks[0].counters().failed, 1);
        assert_eq!(disks[1].peek(0, 4096), [4; 4096]);
        let stats = cache.stats();
        assert_eq!((stats.cached_blocks, stats.dirty_blocks), (1, 1));
        let back = Buf::zeroed(4096);
        volume.read(0, back.clone()).await.expect("reads");
        assert!(back.to_vec() == [4; 4096]);
    });
}

#[test]
fn a_volume_that_could_be_torn_is_refused() {
    let mut world = World::new(7);
    world.add_disk(&DiskConfig::new("cache", 2 << 20));
    world.add_disk(&config("backing", 1 << 20, 4096));
    run(&world, async |disks| {
        make(&disks, 4096).await;
        let (cache, _) = open(&disks, Durability::Flush).await;
        let backing = Rc::new(disks[1].clone());
        let attached = cache
            .attach("v", backing, VolumeOptions::new(Mode::WriteBack))
            .await;
        let Err(error) = attached else {
            panic!("attached, though a block could be torn");
        };
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.report().contains("could tear"), "{}", error.report());
    });
}

/// A dirty granule that the new end would cut holds data beyond it.
#[test]
fn a_device_does_not_shrink_into_a_dirty_granule() {
    let mut world = World::new(8);
    world.add_disk(&config("cache", 2 << 20, 512));
    world.add_disk(&config("backing", 1 << 20, 512));
    world.add_disk(&config("smaller", (1 << 20) - 2048, 512));
    run(&world, async |disks| {
        make(&disks, 4096).await;
        let (cache, _) = open(&disks, Durability::Flush).await;
        let volume = attach(&cache, &disks, Mode::WriteBack).await;
        let last = (1 << 20) - 4096;
        let written = volume.write(last, Buf::copied(&[3; 4096])).await;
        written.expect("writes");
        cache.close().await.expect("closes");
        let (cache, _) = open(&disks, Durability::Flush).await;
        let smaller = Rc::new(disks[2].clone());
        let attached = cache
            .attach("v", smaller, VolumeOptions::new(Mode::WriteBack))
            .await;
        let Err(error) = attached else {
            panic!("attached, though dirty data lies beyond the end");
        };
        assert!(error.report().contains("shrank"), "{}", error.report());
    });
}

/// Two volumes that are attached at one time are two volumes.
#[test]
fn volumes_attached_at_one_time_get_numbers_of_their_own() {
    let mut world = World::new(9);
    world.add_disk(&config("cache", 2 << 20, 512));
    world.add_disk(&config("one", 1 << 20, 512));
    world.add_disk(&config("other", 1 << 20, 512));
    run(&world, async |disks| {
        make(&disks, 4096).await;
        let (cache, _) = open(&disks, Durability::Flush).await;
        let volumes = Rc::new(std::cell::RefCell::new(Vec::new()));
        for (name, disk) in [("one", 1), ("other", 2)] {
            let (cache, volumes) = (cache.clone(), Rc::clone(&volumes));
            let backing = Rc::new(disks[disk].clone());
            rt::spawn(async move {
                let options = VolumeOptions::new(Mode::WriteBack);
                let volume = cache.attach(name, backing, options).await;
                volumes.borrow_mut().push((disk, volume.expect("attaches")));
            });
        }
        while volumes.borrow().len() < 2 {
            rt::sleep(std::time::Duration::from_millis(1)).await;
        }
        let volumes = volumes.take();
        for (number, volume) in &volumes {
            let block = Buf::copied(&[*number as u8; 4096]);
            volume.write(0, block).await.expect("writes");
        }
        for (number, volume) in &volumes {
            let block = Buf::zeroed(4096);
            volume.read(0, block.clone()).await.expect("reads");
            assert!(block.to_vec() == [*number as u8; 4096]);
        }
        cache.close().await.expect("closes");
    });
}

/// A bypass is one operation of the backing device as long as no block lies in between. Blocks that
/// it might have filled do not split it.
#[test]
fn a_bypass_is_split_only_at_cached_blocks() {
    let world = world(13, 4 << 20, 512);
    run(&world, async |disks| {
        make_sizes(&disks, &[32 << 10, 64 << 10, 128 << 10, 256 << 10]).await;
        let (cache, _) = open(&disks, Durability::Flush).await;
        let volume = attach(&cache, &disks, Mode::WriteAround).await;
        // 32K, 64K, 64K and 32K would be the blocks.
        let long = Buf::copied(&[7; 192 << 10]);
        volume.write(32 << 10, long.clone()).await.expect("writes");
        assert_eq!(cache.stats().volumes[0].bypassed_writes, 1);
        // A block in the middle parts what lies on its sides.
        let middle = Buf::zeroed(32 << 10);
        (volume.read(96 << 10, middle).await).expect("reads, and promotes");
        volume.write(32 << 10, long).await.expect("writes");
        let stats = &cache.stats().volumes[0];
        assert_eq!((stats.bypassed_writes, stats.write_hits), (3, 1));
        cache.close().await.expect("closes");
    });
}
