//! A backing device that does not answer, or that loses acknowledged writes, next to a sound one.

use std::time::Duration;

use forebay_io::sim::{FaultPlan, OpClass, Trouble};

use super::*;

const SECOND: u64 = 1_000_000;
const BLOCK: u64 = 4096;
/// So far apart that they are not written back in one piece.
const APART: u64 = 64 * BLOCK;
/// For ever, as far as a test goes.
const LONG: Trouble = Trouble::Stalls(3000 * SECOND);

fn page(byte: u8) -> Buf {
    Buf::copied(&[byte; BLOCK as usize])
}

/// A cache with two volumes, `v` and `w`.
fn two_volumes(seed: u64) -> World {
    let mut world = World::new(seed);
    world.add_disk(&DiskConfig::new("cache", 4 << 20));
    world.add_disk(&DiskConfig::new("backing", 16 << 20));
    world.add_disk(&DiskConfig::new("another", 1 << 20));
    world
}

async fn attach_both(disks: &[SimDisk], mode: Mode) -> (Cache, [Rc<dyn BlockDevice>; 2]) {
    make(disks, BLOCK as u32).await;
    let (cache, _) = open(disks, Durability::Flush).await;
    let volume = attach(&cache, disks, mode).await;
    let other = Rc::new(disks[2].clone());
    let options = VolumeOptions::new(mode);
    let other = cache.attach("w", other, options).await.expect("attaches");
    (cache, [volume, other])
}

fn from_now(disk: &SimDisk, trouble: Trouble) {
    disk.set_faults(FaultPlan {
        from_nth: Some((1, trouble)),
        ..FaultPlan::default()
    });
}

/// Runs `future` until it ends or so many seconds have passed; whether it ended.
async fn ends_within(seconds: u64, future: impl Future<Output = ()> + 'static) -> bool {
    let ended = forebay_io::sync::Promise::new();
    let set = ended.clone();
    rt::spawn(async move {
        future.await;
        set.set(());
    });
    for _ in 0..seconds * 10 {
        if ended.is_set() {
            return true;
        }
        rt::sleep(Duration::from_millis(100)).await;
    }
    ended.is_set()
}

/// Marks of both volumes fall quiet at once; that of the first cannot go, since its backing device
/// stalls.
#[test]
fn a_stalled_backing_device_keeps_no_region_of_another_volume() {
    for seed in 0..10 {
        run(&two_volumes(seed), async move |disks| {
            let (_cache, [volume, other]) = attach_both(&disks, Mode::WriteThrough).await;
            for device in [&volume, &other] {
                for byte in [1, 2] {
                    // The second time a clean copy is there: the region is marked.
                    device.write(0, page(byte)).await.expect("writes");
                    device.flush().await.expect("flushes");
                }
                device.write(0, page(3)).await.expect("writes");
            }
            from_now(&disks[1], LONG);
            // The marks have fallen quiet, and the timer has been at them.
            rt::sleep(Duration::from_secs(7)).await;
            let second = ends_within(20, async move {
                other.write(0, page(4)).await.expect("writes");
                other.flush().await.expect("flushes");
            });
            assert!(second.await, "seed {seed}: the other volume waits");
            drop(volume);
        });
    }
}

/// Clean data of the other volume is remembered though no client flushes it.
#[test]
fn a_stalled_backing_device_keeps_nobody_from_being_flushed_behind() {
    run(&two_volumes(1), async |disks| {
        let (_cache, [volume, other]) = attach_both(&disks, Mode::WriteThrough).await;
        volume.write(0, page(1)).await.expect("writes");
        other.write(0, page(1)).await.expect("writes");
        from_now(&disks[1], LONG);
        let before = disks[2].counters().flushes;
        rt::sleep(Duration::from_secs(20)).await;
        assert!(disks[2].counters().flushes > before, "nobody flushed it");
    });
}

/// Opens the cache as the next process, with sound backing devices.
async fn reopened(disks: &[SimDisk], mode: Mode) -> (Cache, Rc<dyn BlockDevice>) {
    for disk in disks {
        disk.set_faults(FaultPlan::default());
    }
    let devices = Devices {
        data: Rc::new(disks[0].clone()),
        metadata: None,
    };
    // The first process is as good as dead; its journal died with the machine.
    let opened = Cache::open(devices, CacheOptions::new([8; 16])).await;
    let (cache, _) = opened.expect("opens");
    let volume = attach(&cache, disks, mode).await;
    (cache, volume)
}

#[test]
fn a_cache_closes_in_time_beside_a_stalled_backing_device() {
    run(&two_volumes(2), async |disks| {
        let (cache, [volume, other]) = attach_both(&disks, Mode::WriteBack).await;
        other.write(0, page(7)).await.expect("writes");
        volume.write(0, page(7)).await.expect("writes");
        from_now(&disks[1], LONG);
        let missing = Rc::clone(&volume);
        rt::spawn(async move { _ = missing.read(8 * BLOCK, page(0)).await });
        rt::sleep(Duration::from_secs(1)).await;
        let begin = rt::now();
        let error = cache.close().await.expect_err("not clean");
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        let message = error.report();
        assert!(message.contains("volume v: 1 requests"), "{message}");
        let took = rt::now() - begin;
        assert!(took < Duration::from_secs(150), "{took:?}");
        let refused = other.write(0, page(8)).await.expect_err("closed");
        assert_eq!(refused.kind(), ErrorKind::ShuttingDown);
        // Acknowledged data is durable all the same.
        let (_cache, volume) = reopened(&disks, Mode::WriteBack).await;
        let found = page(0);
        volume.read(0, found.clone()).await.expect("reads");
        assert_eq!(found.to_vec(), page(7).to_vec());
    });
}

#[test]
fn a_volume_whose_backing_device_stalls_is_not_detached_and_goes_on() {
    run(&two_volumes(3), async |disks| {
        let (cache, [volume, _other]) = attach_both(&disks, Mode::WriteBack).await;
        volume.write(0, page(7)).await.expect("writes");
        from_now(&disks[1], Trouble::Stalls(200 * SECOND));
        let begin = rt::now();
        let error = cache
            .detach("v")
            .await
            .expect_err("it cannot be written back");
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert!(rt::now() - begin < Duration::from_secs(150));
        // It is served as before.
        volume.write(0, page(8)).await.expect("a hit");
        rt::sleep(Duration::from_secs(300)).await;
        cache.detach("v").await.expect("the device is well");
        assert_eq!(disks[1].peek(0, 1), [8]);
    });
}

/// Dirty data is abandoned while the backing device fails, or stalls; then the device recovers.
/// Returns how much of the data shows later.
fn abandoned(seed: u64, trouble: Trouble) -> u32 {
    run(&two_volumes(seed), async move |disks| {
        let (cache, [volume, other]) = attach_both(&disks, Mode::WriteBack).await;
        other.write(0, page(5)).await.expect("writes");
        volume.flush().await.expect("nothing of clients is owed");
        from_now(&disks[1], trouble);
        for block in [0, 1, 5] {
            volume.write(block * BLOCK, page(7)).await.expect("writes");
        }
        volume.flush().await.expect("flushes the cache");
        rt::sleep(Duration::from_millis(seed * 100)).await;
        let begin = rt::now();
        let lost = cache.abandon("v").await.expect("abandons");
        assert!(rt::now() - begin < Duration::from_secs(60));
        assert_eq!(lost, [0..2 * BLOCK, 5 * BLOCK..6 * BLOCK]);
        let refused = volume.read(0, page(0)).await.expect_err("gone");
        assert_eq!(refused.kind(), ErrorKind::ShuttingDown);
        other.write(0, page(6)).await.expect("the other is served");
        // The device ends what it had, and is well from here on.
        disks[1].set_faults(FaultPlan::default());
        rt::sleep(Duration::from_secs(10)).await;
        let wipe: Rc<dyn BlockDevice> = Rc::new(disks[1].clone());
        wipe.write(0, Buf::zeroed(8 * BLOCK as usize))
            .await
            .expect("writes");
        rt::sleep(Duration::from_secs(10)).await;
        let (cache, volume) = reopened(&disks, Mode::WriteBack).await;
        let mut shown = 0;
        for block in 0..8 {
            let found = page(9);
            volume
                .read(block * BLOCK, found.clone())
                .await
                .expect("reads");
            shown += u32::from(found.to_vec() != page(0).to_vec());
        }
        cache.write_back(None).await.expect("writes back");
        shown + u32::from(disks[1].peek(0, 8 * BLOCK as usize) != vec![0; 8 * BLOCK as usize])
    })
}

#[test]
fn abandoned_dirty_data_is_neither_served_nor_written_back() {
    for seed in 0..10 {
        for trouble in [Trouble::Vanishes, LONG] {
            assert_eq!(abandoned(seed, trouble), 0, "seed {seed}, {trouble:?}");
        }
    }
    failpoints::plant(Some(failpoints::Fault::AbandonInMemory));
    let found = (0..10).any(|seed| abandoned(seed, Trouble::Vanishes) > 0);
    failpoints::plant(None);
    assert!(found, "the planted fault is found");
}

/// A flush of the backing device, requested by other tasks, fails and loses concurrent write-backs.
/// How much is missing there when all has been called clean.
fn missing(seed: u64, nth: u64) -> usize {
    run(&two_volumes(seed), async move |disks| {
        let (cache, [volume, _other]) = attach_both(&disks, Mode::WriteBack).await;
        volume.flush().await.expect("nothing of clients is owed");
        for block in 0..32 {
            volume.write(block * APART, page(7)).await.expect("writes");
        }
        disks[1].set_faults(FaultPlan {
            fail_nth: Some((OpClass::Flush, nth)),
            lose_at_failed_flush: true,
            ..FaultPlan::default()
        });
        // Another task flushes during write-backs.
        let concurrent = cache.clone();
        rt::spawn(async move {
            let attached = concurrent.engine.volumes.named("v").expect("attached");
            for _ in 0..40 {
                let _ = concurrent.engine.failures.flush_backing(&attached).await;
                rt::sleep(Duration::from_micros(100)).await;
            }
        });
        let _ = cache.write_back(None).await;
        for _ in 0..10 {
            // No client's data hangs on that flush.
            volume.flush().await.expect("the cache has it all");
            rt::sleep(Duration::from_secs(1)).await;
        }
        assert_eq!(cache.stats().volumes[0].loss, None);
        while cache.detach("v").await.is_err() {
            // The flush that fails may have been this one.
            rt::sleep(Duration::from_secs(1)).await;
        }
        (0..32)
            .filter(|block| disks[1].peek(block * APART, 1) != [7])
            .count()
    })
}

#[test]
fn write_backs_lost_by_a_failed_backing_flush_are_rewritten() {
    let all = || (0..5).flat_map(|seed| (1..12).map(move |nth| (seed, nth)));
    for (seed, nth) in all() {
        assert_eq!(missing(seed, nth), 0, "seed {seed}, flush {nth}");
    }
    failpoints::plant(Some(failpoints::Fault::TrustAcrossSessions));
    let found = all().any(|(seed, nth)| missing(seed, nth) > 0);
    failpoints::plant(None);
    assert!(found, "the planted fault is found");
}

/// A flush fails, in service or at an attach, that clients' bypassing writes depend on. It is
/// reported now and at the next start, even if later flushes of the device succeed.
#[test]
fn a_failed_flush_of_the_backing_device_is_not_forgotten() {
    for at_attach in [false, true] {
        run(&two_volumes(4), async move |disks| {
            let (cache, [volume, _other]) = attach_both(&disks, Mode::WriteThrough).await;
            volume.flush().await.expect("flushes");
            volume.write(0, page(7)).await.expect("writes");
            disks[1].set_faults(FaultPlan {
                fail_nth: Some((OpClass::Flush, 1)),
                lose_at_failed_flush: true,
                ..FaultPlan::default()
            });
            if !at_attach {
                volume.flush().await.expect_err("it failed");
                volume.flush().await.expect_err("and is not believed now");
                assert!(cache.stats().volumes[0].loss.is_some());
            } else {
                let devices = Devices {
                    data: Rc::new(disks[0].clone()),
                    metadata: None,
                };
                let options = CacheOptions {
                    durability: Durability::Sync,
                    ..CacheOptions::new([8; 16])
                };
                let (next, _) = Cache::open(devices, options).await.expect("opens");
                let backing = Rc::new(disks[1].clone());
                let attached = next.attach("v", backing, VolumeOptions::new(Mode::WriteThrough));
                assert!(attached.await.is_err(), "its flush failed");
            }
            let (cache, _volume) = reopened(&disks, Mode::WriteThrough).await;
            assert!(cache.stats().volumes[0].loss.is_some(), "{at_attach}");
            // That start may have been refused.
            let (cache, _volume) = reopened(&disks, Mode::WriteThrough).await;
            assert!(cache.stats().volumes[0].loss.is_some(), "{at_attach}");
            // This one is in service, so the failure is reported.
            cache.forget_reported_losses().await.expect("written");
            let (cache, _volume) = reopened(&disks, Mode::WriteThrough).await;
            assert_eq!(cache.stats().volumes[0].loss, None);
        });
    }
}
