//! A flush of the cache device fails and loses written data, while another operation runs.

mod in_doubt;

use std::cell::Cell;
use std::time::Duration;

use forebay_io::sim::{FaultPlan, Keep, OpClass, Trouble};
use forebay_metadata::journal::Journal;
use forebay_metadata::superblock::{COPY_STRIDE_BYTES, Superblock};

use super::medium::{TestFile, formatted};
use super::*;

const BLOCKS: u64 = 16;

fn pattern(byte: u8) -> Buf {
    Buf::copied(&[byte; 4096])
}

fn world(seed: u64) -> World {
    world_of(seed, [2 << 20, 1 << 20])
}

fn world_of(seed: u64, [cache_bytes, backing_bytes]: [u64; 2]) -> World {
    let mut world = World::new(seed);
    world.add_disk(&DiskConfig {
        latency_us: (20, 1000),
        ..DiskConfig::new("cache", cache_bytes)
    });
    world.add_disk(&DiskConfig {
        latency_us: (20, 1000),
        ..config("backing", backing_bytes, 512)
    });
    world
}

async fn open_lazy(disks: &[SimDisk]) -> Cache {
    let devices = Devices {
        data: Rc::new(disks[0].clone()),
        metadata: None,
    };
    let options = CacheOptions {
        journal: Some(Buf::zeroed(1 << 16)),
        cleaning: Cleaning::Nop,
        dirty_limit_percent: 95,
        ..CacheOptions::new([9; 16])
    };
    Cache::open(devices, options).await.expect("opens").0
}

/// Acknowledged and flushed, then overwritten and acknowledged; the next flush fails.
async fn two_versions(disks: &[SimDisk], volume: &Rc<dyn BlockDevice>) {
    for version in [6, 7] {
        for block in 0..BLOCKS {
            let written = volume.write(block * 4096, pattern(version)).await;
            written.expect("writes");
        }
        if version == 6 {
            volume.flush().await.expect("flushes");
        }
    }
    disks[0].set_faults(FaultPlan {
        fail_nth: Some((OpClass::Flush, 1)),
        lose_at_failed_flush: true,
        ..FaultPlan::default()
    });
}

/// Reads that were answered with something older than what was acknowledged last.
async fn older(volume: &Rc<dyn BlockDevice>) -> u32 {
    let mut older = 0;
    for block in 0..BLOCKS {
        let found = Buf::zeroed(4096);
        let read = volume.read(block * 4096, found.clone()).await;
        older += u32::from(read.is_ok() && found.to_vec() != pattern(7).to_vec());
    }
    older
}

#[test]
fn a_write_back_beside_a_failed_flush_brings_back_no_older_data() {
    let (mut wrong, mut failed) = (0, 0);
    for seed in 0..60 {
        let (older, has_failed) = run(&world(seed), async move |disks| {
            make(&disks, 4096).await;
            let cache = open_lazy(&disks).await;
            let volume = attach(&cache, &disks, Mode::WriteBack).await;
            two_versions(&disks, &volume).await;
            let cleaned = Rc::new(Cell::new(None));
            let (cleaner, set) = (cache.clone(), Rc::clone(&cleaned));
            rt::spawn(async move {
                rt::sleep(Duration::from_micros(20 * seed)).await;
                set.set(Some(cleaner.write_back(None).await.is_ok()));
            });
            let _ = volume.flush().await;
            rt::sleep(Duration::from_secs(5)).await;
            let reported_wrong = cleaned.get() == Some(true) && cache.stats().dirty_blocks > 0;
            let has_failed = cache.stats().failure.is_some();
            (older(&volume).await + u32::from(reported_wrong), has_failed)
        });
        wrong += older;
        failed += u32::from(has_failed);
    }
    assert!(failed > 50, "{failed} of 60 flushes failed");
    assert_eq!(wrong, 0, "of {} reads", 60 * BLOCKS);
}

#[test]
fn a_read_that_is_under_way_when_a_flush_fails_is_not_answered_as_good() {
    let mut wrong = 0;
    for seed in 0..60 {
        wrong += run(&world(seed), async move |disks| {
            make(&disks, 4096).await;
            let cache = open_lazy(&disks).await;
            let volume = attach(&cache, &disks, Mode::WriteBack).await;
            two_versions(&disks, &volume).await;
            let count = Rc::new(Cell::new(0));
            for block in 0..BLOCKS - 1 {
                let (volume, count) = (Rc::clone(&volume), Rc::clone(&count));
                let cache = cache.clone();
                rt::spawn(async move {
                    rt::sleep(Duration::from_micros(60 * block)).await;
                    // Every other one touches two blocks, and so does not take the hit path.
                    let len = 4096 * (1 + block % 2);
                    let found = Buf::zeroed(len as usize);
                    let read = volume.read(block * 4096, found.clone()).await;
                    let good = found.to_vec().iter().all(|byte| *byte == 7);
                    // Answers that were given before the engine could know of the failure are
                    // allowed.
                    let known = cache.stats().failure.is_some();
                    count.set(count.get() + u32::from(known && read.is_ok() && !good));
                });
            }
            let _ = volume.flush().await;
            rt::sleep(Duration::from_secs(5)).await;
            assert!(cache.stats().failure.is_some());
            count.get()
        });
    }
    assert_eq!(wrong, 0, "of {} reads", 60 * (BLOCKS - 1));
}

#[test]
fn writes_over_dirty_blocks_are_not_acknowledged_after_the_cache_failed() {
    let mut acknowledged = 0;
    for seed in 0..40 {
        let mut world = World::new(seed);
        world.add_disk(&DiskConfig {
            latency_us: (20, 200),
            ..DiskConfig::new("cache", 2 << 20)
        });
        world.add_disk(&DiskConfig {
            latency_us: (50_000, 60_000),
            ..config("backing", 1 << 20, 512)
        });
        acknowledged += run(&world, async move |disks| {
            make(&disks, 4096).await;
            let cache = open_lazy(&disks).await;
            let volume = attach(&cache, &disks, Mode::WriteBack).await;
            two_versions(&disks, &volume).await;
            cache
                .set_mode("v", Mode::WriteThrough)
                .expect("the mode changes");
            let count = Rc::new(Cell::new(0));
            for zeroes in [false, true] {
                let (volume, count) = (Rc::clone(&volume), Rc::clone(&count));
                rt::spawn(async move {
                    let done = match zeroes {
                        true => volume.write_zeroes(4096, 4096).await,
                        false => volume.write(0, pattern(8)).await,
                    };
                    count.set(count.get() + u32::from(done.is_ok()));
                });
            }
            rt::sleep(Duration::from_millis(20)).await;
            let _ = volume.flush().await;
            assert!(cache.stats().failure.is_some());
            rt::sleep(Duration::from_secs(5)).await;
            count.get()
        });
    }
    assert_eq!(acknowledged, 0, "of 80 writes");
}

/// The cache device vanishes under a write to a clean granule and the flush of another granule of
/// the block. Returns whether a read showed the data from before the write, and whether the write
/// shows after the power, or only the process, was lost.
fn before_and_after(seed: u64, journal: &Buf, power: bool) -> (bool, bool) {
    let world = world(seed);
    let (process, next) = (with_journal(journal), journal.clone());
    let devices = |disks: &[SimDisk]| Devices {
        data: Rc::new(disks[0].clone()),
        metadata: None,
    };
    let before = run(&world, async move |disks| {
        make(&disks, 16384).await;
        let (cache, _) = Cache::open(devices(&disks), process).await.expect("opens");
        let volume = attach(&cache, &disks, Mode::WriteBack).await;
        (volume.write(0, Buf::copied(&[6; 16384])).await).expect("writes");
        cache.write_back(None).await.expect("writes back");
        volume.flush().await.expect("flushes");
        volume.write(0, pattern(7)).await.expect("writes");
        disks[0].set_faults(FaultPlan {
            from_nth: Some((1, Trouble::Vanishes)),
            ..FaultPlan::default()
        });
        let flushing = Rc::clone(&volume);
        rt::spawn(async move { drop(flushing.flush().await) });
        let failed = volume.write(4096, pattern(8)).await;
        failed.expect_err("the device is gone");
        rt::sleep(Duration::from_secs(5)).await;
        let found = Buf::zeroed(4096);
        let read = volume.read(4096, found.clone()).await;
        read.is_ok() && found.to_vec() == [6; 4096]
    });
    match power {
        true => world.crash_power(Keep::All),
        false => world.crash_process(seed),
    }
    world.disks()[0].set_faults(FaultPlan::default());
    let after = run(&world, async move |disks| {
        let process = match power {
            true => CacheOptions::new([10; 16]),
            false => with_journal(&next),
        };
        let (cache, _) = Cache::open(devices(&disks), process).await.expect("opens");
        let volume = attach(&cache, &disks, Mode::WriteBack).await;
        let found = Buf::zeroed(4096);
        volume.read(4096, found.clone()).await.expect("reads");
        found.to_vec().contains(&8)
    });
    (before, after)
}

#[test]
fn a_write_that_fails_with_the_cache_is_not_read_as_undone() {
    for power in [true, false] {
        let (mut arrived, mut wrong) = (0, 0);
        for seed in 0..60 {
            let journal = Buf::zeroed(JOURNAL_BYTES);
            let (before, after) = before_and_after(seed, &journal, power);
            arrived += u32::from(after);
            wrong += u32::from(before && after);
        }
        assert!(arrived > 20, "{arrived} of 60 failed writes arrived");
        assert_eq!(wrong, 0, "of {arrived}, power lost: {power}");
    }
}

const JOURNAL_BYTES: usize = 1 << 16;
const BOOT: [u8; 16] = [9; 16];

fn on_file(file: &TestFile) -> Devices {
    Devices {
        data: file.device(),
        metadata: None,
    }
}

fn with_journal(journal: &Buf) -> CacheOptions {
    CacheOptions {
        journal: Some(journal.clone()),
        cleaning: Cleaning::Nop,
        ..CacheOptions::new(BOOT)
    }
}

/// Kills a process whose acknowledged write is in the device's cache, and that only the process
/// journal names. Returns the file and the journal.
async fn killed_before_a_flush(len: usize) -> (TestFile, Buf) {
    killed_in_mode(len, Mode::WriteBack).await
}

async fn killed_in_mode(len: usize, mode: Mode) -> (TestFile, Buf) {
    let (file, journal) = (formatted(1, len).await, Buf::zeroed(JOURNAL_BYTES));
    let opened = Cache::open(on_file(&file), with_journal(&journal)).await;
    let (cache, _) = opened.expect("opens");
    let backing: Rc<dyn BlockDevice> = TestFile::new(100, len).device();
    let options = VolumeOptions::new(mode);
    let volume = cache.attach("v", backing, options).await.expect("attaches");
    volume.write(0, pattern(7)).await.expect("writes");
    // The process that has this copy continues in the dark.
    (file.copy(1), Buf::copied(&journal.to_vec()))
}

/// Opens the cache. Returns the bytes that it names as lost.
async fn named_as_lost(file: &TestFile, journal: &Buf) -> u64 {
    let opened = Cache::open(on_file(file), with_journal(journal)).await;
    let (cache, report) = opened.expect("opens");
    cache.close().await.expect("closes");
    report.lost.iter().map(|range| range.len).sum()
}

#[test]
fn a_flush_that_fails_before_the_journal_is_read_loses_by_name() {
    const LEN: usize = 2 << 20;
    for is_cut in [true, false] {
        for fails in [true, false] {
            run(&World::new(1), async move |_| {
                let (file, journal) = killed_before_a_flush(LEN).await;
                let whole = file.copy(1);
                file.0.fails_flushes.set(fails);
                match is_cut {
                    true => {
                        file.cut(LEN as u64 / 2);
                        let opened = Cache::open(on_file(&file), with_journal(&journal)).await;
                        opened.expect_err("it is shorter");
                        file.put_back(&whole);
                    }
                    false => {
                        file.0.bytes.borrow_mut()[COPY_STRIDE_BYTES as usize] ^= 1;
                        let options = RepairOptions {
                            journal: Some(journal.clone()),
                            boot_id: BOOT,
                            ..RepairOptions::default()
                        };
                        let repaired = repair(&on_file(&file), &options).await;
                        assert_eq!(repaired.is_err(), fails, "{repaired:?}");
                    }
                }
                file.0.fails_flushes.set(false);
                let lost = named_as_lost(&file, &journal).await;
                assert_eq!(lost, u64::from(fails) * 4096, "cut: {is_cut}");
            });
        }
    }
}

/// A check calls lost only ranges that the next start names.
#[test]
fn a_check_after_a_failed_flush_names_no_loss_that_a_start_does_not() {
    for mode in [Mode::WriteBack, Mode::WriteThrough, Mode::WriteAround] {
        run(&World::new(1), async move |_| {
            let (file, journal) = killed_in_mode(2 << 20, mode).await;
            let uuid = Superblock::read(&file).await.expect("sound").uuid;
            Journal::poison_remains(&journal, &uuid, &BOOT);
            let found = inspect(&on_file(&file), Some(&journal), &BOOT).await;
            let found = found.expect("sound");
            let lost = named_as_lost(&file, &journal).await;
            assert_eq!(lost > 0, mode == Mode::WriteBack);
            assert_eq!(found.problems.is_empty(), lost == 0, "{:?}", found.problems);
            assert_eq!(
                found.notes.len(),
                usize::from(lost == 0),
                "{:?}",
                found.notes
            );
        });
    }
}

/// The journal of the original is not poisoned by a copy whose flush fails.
#[test]
fn a_failed_flush_of_a_copy_leaves_the_journal_of_the_original() {
    run(&World::new(1), async |_| {
        let (original, journal) = killed_before_a_flush(2 << 20).await;
        let copy = original.copy(2);
        copy.0.bytes.borrow_mut()[COPY_STRIDE_BYTES as usize] ^= 1;
        copy.0.fails_flushes.set(true);
        let options = RepairOptions {
            journal: Some(journal.clone()),
            boot_id: BOOT,
            ..RepairOptions::default()
        };
        let repaired = repair(&on_file(&copy), &options).await;
        repaired.expect_err("a flush failed");
        assert_eq!(named_as_lost(&original, &journal).await, 0);
    });
}

/// A repair may be killed after its first write, which drops what shows the loss.
#[test]
fn a_repair_reports_losses_before_it_writes() {
    run(&World::new(1), async |_| {
        let (file, journal) = killed_before_a_flush(2 << 20).await;
        let uuid = Superblock::read(&file).await.expect("sound").uuid;
        Journal::poison_remains(&journal, &uuid, &BOOT);
        let before = file.0.bytes.borrow().clone();
        let reported = Rc::new(Cell::new(0));
        let (sum, seen) = (Rc::clone(&reported), file.clone());
        let report_sink = ReportSink::new(move |report| {
            sum.set(report.lost.iter().map(|range| range.len).sum());
            let is_unchanged = *seen.0.bytes.borrow() == before;
            assert!(is_unchanged, "the repair has written");
            std::future::ready(Err(ErrorKind::NoSpace.into()))
        });
        let options = RepairOptions {
            journal: Some(journal.clone()),
            boot_id: BOOT,
            report_sink: Some(report_sink),
            ..RepairOptions::default()
        };
        let repaired = repair(&on_file(&file), &options).await;
        assert_eq!(repaired.expect_err("no room").kind(), ErrorKind::NoSpace);
        assert_eq!(reported.get(), 4096);
        assert_eq!(named_as_lost(&file, &journal).await, 4096);
    });
}
