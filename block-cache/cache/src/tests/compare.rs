//! After a crash, presumed-dirty data is compared with the backing device.

mod notes;
mod servers;

use std::cell::Cell;

use forebay_io::sim::{FaultPlan, OpClass};

use super::*;
use crate::failpoints::{Fault, plant};
use servers::{Forgetful, Showing, WriteThrough};

const BLOCK: u64 = 32 << 10;
const GRANULE: u64 = 4096;
const BLOCKS: u64 = 8;

async fn make_untracked(disks: &[SimDisk]) {
    let options = FormatOptions {
        dirty_tracking: DirtyTracking::None,
        ..FormatOptions::new(BLOCK as u32, [5; 16])
    };
    (format(&devices(disks), &options).await).expect("formats");
}

fn devices(disks: &[SimDisk]) -> Devices {
    Devices {
        data: Rc::new(disks[0].clone()),
        metadata: None,
    }
}

async fn write(volume: &Rc<dyn BlockDevice>, at: u64, byte: u8) {
    let buf = Buf::copied(&[byte; GRANULE as usize]);
    volume.write(at, buf).await.expect("writes");
}

/// Everything is cached and clean; then one granule, not the first, of one block is overwritten in
/// place, and the power is lost.
fn crashed(at: u64) -> World {
    let world = killed(at);
    world.crash_power(Keep::None);
    world
}

/// Returns the world after `kill -9` of the process alone.
fn killed(at: u64) -> World {
    let world = world(31, 4 << 20, 512);
    run(&world, async move |disks| {
        make_untracked(&disks).await;
        let (cache, _) = open(&disks, Durability::Flush).await;
        let volume = attach(&cache, &disks, Mode::WriteBack).await;
        for granule in 0..BLOCKS * BLOCK / GRANULE {
            write(&volume, granule * GRANULE, 1).await;
        }
        cache.write_back(None).await.expect("writes back");
        cache.set_cleaning(Cleaning::Nop);
        write(&volume, at, 2).await;
        volume.flush().await.expect("flushes");
    });
    world
}

/// Opens the cache over `backing` of the second disk, waits until nothing is dirty, and returns the
/// statistics.
fn recovered(
    world: &World,
    backing: impl FnOnce(SimDisk) -> Rc<dyn BlockDevice> + 'static,
    fault: Option<Fault>,
) -> CacheStats {
    recovered_in(10, world, backing, fault)
}

/// As [`recovered`], in boot `boot` of the machine. [`crashed`] lived in boot 9.
fn recovered_in(
    boot: u8,
    world: &World,
    backing: impl FnOnce(SimDisk) -> Rc<dyn BlockDevice> + 'static,
    fault: Option<Fault>,
) -> CacheStats {
    run(world, async move |disks| {
        plant(fault);
        let options = CacheOptions {
            accept_journal_loss: true,
            ..CacheOptions::new([boot; 16])
        };
        let (cache, report) = (Cache::open(devices(&disks), options).await).expect("opens");
        assert_eq!(report.doubtful_blocks, BLOCKS);
        let options = VolumeOptions::new(Mode::WriteBack);
        let attached = cache.attach("v", backing(disks[1].clone()), options).await;
        attached.expect("attaches");
        while cache.stats().dirty_blocks > 0 {
            rt::sleep(std::time::Duration::from_millis(100)).await;
        }
        plant(None);
        cache.stats()
    })
}

fn itself(disk: SimDisk) -> Rc<dyn BlockDevice> {
    Rc::new(disk)
}

#[test]
fn only_granules_that_differ_are_written_back() {
    const AT: u64 = 3 * BLOCK + 5 * GRANULE;
    for (fault, expected) in [(None, 2), (Some(Fault::CompareFirstGranule), 1)] {
        let world = crashed(AT);
        let before = world.disks()[1].counters().write_bytes;
        let stats = recovered(&world, itself, fault);
        let written = world.disks()[1].counters().write_bytes - before;
        let found = world.disks()[1].peek(AT, 1)[0];
        assert_eq!(found, expected, "{fault:?}");
        let wrote = if expected == 2 { GRANULE } else { 0 };
        assert_eq!((stats.write_back_bytes, written), (wrote, wrote));
        let recovery = stats.recovery;
        assert_eq!(
            (recovery.compared_bytes, recovery.same_bytes),
            (BLOCKS * BLOCK, BLOCKS * BLOCK - wrote)
        );
    }
}

#[test]
fn blocks_unreadable_on_the_backing_device_are_written_back() {
    let at = 2 * BLOCK;
    let world = crashed(at + GRANULE);
    world.disks()[1].set_faults(FaultPlan {
        bad_range: Some(at..at + 512),
        ..FaultPlan::default()
    });
    let stats = recovered(&world, itself, None);
    // Blocks that lie together are read together.
    assert!(
        stats.write_back_bytes >= BLOCK,
        "{}",
        stats.write_back_bytes
    );
    assert_eq!(stats.write_back_errors, 0);
    world.disks()[1].set_faults(FaultPlan::default());
    let found = world.disks()[1].peek(at, BLOCK as usize);
    let mut expected = [1; BLOCK as usize];
    expected[GRANULE as usize..2 * GRANULE as usize].fill(2);
    assert!(found == expected, "it is as the cache had it");
}

#[test]
fn the_backing_device_is_flushed_before_a_comparison() {
    const AT: u64 = 5 * BLOCK + GRANULE;
    for (fault, expected) in [(None, 2), (Some(Fault::CompareUnflushed), 1)] {
        let world = crashed(AT);
        let flushed = Rc::new(Cell::new(false));
        let device = {
            let flushed = Rc::clone(&flushed);
            move |disk| {
                Rc::new(Forgetful {
                    disk,
                    shown: Cell::new(Some((AT, 2))),
                    flushed,
                }) as Rc<dyn BlockDevice>
            }
        };
        recovered(&world, device, fault);
        assert!(flushed.get());
        assert_eq!(world.disks()[1].peek(AT, 1)[0], expected, "{fault:?}");
    }
}

#[test]
fn data_lost_by_a_failed_flush_is_rewritten_though_it_compares_equal() {
    const AT: u64 = 4 * BLOCK + GRANULE;
    for (fault, expected) in [(None, 2), (Some(Fault::CompareBehindFailure), 1)] {
        let world = crashed(AT);
        // The first flush precedes the comparison. The second covers the write-back.
        world.disks()[1].set_faults(FaultPlan {
            fail_nth: Some((OpClass::Flush, 2)),
            ..FaultPlan::default()
        });
        let stats = recovered(&world, itself, fault);
        assert!(stats.write_back_errors > 0);
        assert_eq!(world.disks()[1].peek(AT, 1)[0], 2, "it can be read");
        world.crash_power(Keep::None);
        assert_eq!(world.disks()[1].peek(AT, 1)[0], expected, "{fault:?}");
    }
}

#[test]
fn data_shown_after_a_failed_write_back_is_rewritten() {
    const AT: u64 = 6 * BLOCK + GRANULE;
    for (fault, expected) in [(None, 2), (Some(Fault::CompareBehindFailure), 1)] {
        let world = crashed(AT);
        let device = |disk| {
            Rc::new(WriteThrough {
                disk,
                at: AT,
                shown: Cell::new(None),
            }) as Rc<dyn BlockDevice>
        };
        recovered(&world, device, fault);
        assert_eq!(world.disks()[1].peek(AT, 1)[0], expected, "{fault:?}");
    }
}

/// One granule of a block is dirty by its record, and was written back with a flush that failed.
/// The cache ends cleanly and is opened, which leaves nothing in doubt. Then power is lost.
#[test]
fn granules_dirty_by_their_record_are_not_compared() {
    const AT: u64 = 6 * BLOCK + GRANULE;
    for (fault, expected) in [(None, 2), (Some(Fault::CompareRecorded), 1)] {
        let world = world(31, 4 << 20, 512);
        run(&world, async move |disks| {
            make_untracked(&disks).await;
            let (cache, _) = open(&disks, Durability::Flush).await;
            let volume = attach(&cache, &disks, Mode::WriteBack).await;
            for granule in 0..BLOCKS * BLOCK / GRANULE {
                write(&volume, granule * GRANULE, 1).await;
            }
            cache.write_back(None).await.expect("writes back");
            cache.set_cleaning(Cleaning::Nop);
            write(&volume, AT, 2).await;
            // A clean end makes the record exact.
            cache.close().await.expect("closes");
        });
        run(&world, async move |disks| {
            let options = CacheOptions {
                cleaning: Cleaning::Nop,
                ..CacheOptions::new([9; 16])
            };
            let (cache, report) = (Cache::open(devices(&disks), options).await).expect("opens");
            assert_eq!((report.clean_shutdown, report.dirty_blocks), (true, 1));
            attach(&cache, &disks, Mode::WriteBack).await;
        });
        world.crash_power(Keep::None);
        let shows = |disk| {
            Rc::new(Showing {
                disk,
                shown: (AT, 2),
            }) as Rc<dyn BlockDevice>
        };
        let stats = recovered(&world, shows, fault);
        assert_eq!(world.disks()[1].peek(AT, 1)[0], expected, "{fault:?}");
        let recorded = if fault.is_none() { GRANULE } else { 0 };
        assert_eq!(stats.write_back_bytes, recorded);
        assert_eq!(stats.recovery.compared_bytes, BLOCKS * BLOCK - recorded);
    }
}

/// Data that a client changed since recovery is not compared: reads of discarded data may return
/// different results each time.
#[test]
fn data_written_since_recovery_is_not_compared() {
    const AT: u64 = 2 * BLOCK + GRANULE;
    for (fault, expected) in [(None, 3), (Some(Fault::CompareChanged), 1)] {
        let world = crashed(AT);
        run(&world, async move |disks| {
            plant(fault);
            let options = CacheOptions {
                cleaning: Cleaning::Nop,
                ..CacheOptions::new([10; 16])
            };
            let (cache, _) = (Cache::open(devices(&disks), options).await).expect("opens");
            // It shows what the client is about to write.
            let device = Showing {
                disk: disks[1].clone(),
                shown: (AT, 3),
            };
            let options = VolumeOptions::new(Mode::WriteBack);
            let volume = cache.attach("v", Rc::new(device), options).await;
            let volume = volume.expect("attaches");
            write(&volume, AT, 3).await;
            cache.write_back(None).await.expect("writes back");
            assert_eq!(cache.stats().dirty_blocks, 0);
            plant(None);
        });
        assert_eq!(world.disks()[1].peek(AT, 1)[0], expected, "{fault:?}");
    }
}

/// Blocks and granules of several sizes, and a volume that ends within a block. The final content
/// is right, and little of it was written.
#[test]
fn blocks_of_any_size_are_compared_to_their_end() {
    for sizes in [&[4 << 10, 8 << 10, 64 << 10][..], &[16 << 10, 512 << 10]] {
        let world = world(32, 8 << 20, 512);
        let mut model = vec![1; VOLUME_BYTES as usize];
        let ends = [0, 5 * GRANULE, 70 * GRANULE, VOLUME_BYTES - 512];
        for at in ends {
            model[at as usize..at as usize + 512].fill(2);
        }
        run(&world, async move |disks| {
            let options = FormatOptions {
                dirty_tracking: DirtyTracking::None,
                ..FormatOptions::sizes(sizes, [5; 16])
            };
            (format(&devices(&disks), &options).await).expect("formats");
            let (cache, _) = open(&disks, Durability::Flush).await;
            let volume = attach(&cache, &disks, Mode::WriteBack).await;
            let mut at = 0;
            for len in [4096, 8192, 65536, 16384].into_iter().cycle() {
                let len = len.min(VOLUME_BYTES - at);
                let buf = Buf::copied(&vec![1; len as usize]);
                volume.write(at, buf).await.expect("writes");
                at += len;
                if at == VOLUME_BYTES {
                    break;
                }
            }
            cache.write_back(None).await.expect("writes back");
            cache.set_cleaning(Cleaning::Nop);
            for at in ends {
                (volume.write(at, Buf::copied(&[2; 512])).await).expect("writes");
            }
            volume.flush().await.expect("flushes");
        });
        world.crash_power(Keep::None);
        let stats = run(&world, async move |disks| {
            let options = CacheOptions::new([10; 16]);
            let (cache, _) = (Cache::open(devices(&disks), options).await).expect("opens");
            attach(&cache, &disks, Mode::WriteBack).await;
            cache.write_back(None).await.expect("writes back");
            cache.stats()
        });
        let found = world.disks()[1].peek(0, VOLUME_BYTES as usize);
        assert!(found == model, "{sizes:?}");
        let written = stats.write_back_bytes;
        assert!((2048..=4 * 8192).contains(&written), "{sizes:?}: {written}");
        assert!(stats.recovery.same_bytes > VOLUME_BYTES - 5 * 8192);
    }
}
