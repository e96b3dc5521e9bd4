//! Recovery after a process that was killed, or whose cache device failed a flush.

mod unreported;

use std::cell::{Cell, RefCell};
use std::time::Duration;

use forebay_block::{Error, Identity};
use forebay_io::sim::{FaultPlan, OpClass, Stop, Trouble};
use forebay_metadata::superblock::{COPY_STRIDE_BYTES, Superblock, VolumeEntry};

use super::*;

const BLOCK: u64 = 4096;
const BLOCKS: u64 = 8;
const TRACKING: [DirtyTracking; 3] = [
    DirtyTracking::Exact,
    DirtyTracking::Abt,
    DirtyTracking::None,
];
/// No commit comes by itself.
const NEVER: Duration = Duration::from_secs(1 << 20);

/// A cache device without FUA, so that each ordering is a flush, and a backing device.
fn world(seed: u64) -> World {
    let mut world = World::new(seed);
    world.add_disk(&DiskConfig {
        fua: false,
        ..DiskConfig::new("cache", 4 << 20)
    });
    world.add_disk(&config("backing", VOLUME_BYTES, 512));
    world
}

fn devices(disks: &[SimDisk]) -> Devices {
    Devices {
        data: Rc::new(disks[0].clone()),
        metadata: None,
    }
}

async fn make_tracked(disks: &[SimDisk], dirty_tracking: DirtyTracking) {
    let options = FormatOptions {
        dirty_tracking,
        ..FormatOptions::new(4096, [5; 16])
    };
    format(&devices(disks), &options).await.expect("formats");
}

async fn try_open(
    disks: &[SimDisk],
    journal: &Buf,
) -> forebay_block::Result<(Cache, RecoveryReport)> {
    Cache::open(devices(disks), options(journal)).await
}

fn options(journal: &Buf) -> CacheOptions {
    CacheOptions {
        journal: Some(journal.clone()),
        commit_interval: NEVER,
        ..CacheOptions::new([9; 16])
    }
}

/// Opens the cache as the next process of the same boot, with the journal as it is now.
async fn die_and_open(disks: &[SimDisk], journal: &Buf) -> (Cache, RecoveryReport) {
    disks[0].set_faults(FaultPlan::default());
    let left = Buf::copied(&journal.to_vec());
    try_open(disks, &left).await.expect("opens")
}

async fn write_all(volume: &Rc<dyn BlockDevice>, byte: u8) {
    for block in 0..BLOCKS {
        write(volume, block, byte).await;
    }
}

async fn write(volume: &Rc<dyn BlockDevice>, block: u64, byte: u8) {
    let buf = Buf::copied(&[byte; BLOCK as usize]);
    volume.write(block * BLOCK, buf).await.expect("writes");
}

async fn read(volume: &Rc<dyn BlockDevice>, block: u64) -> Vec<u8> {
    let found = Buf::zeroed(BLOCK as usize);
    let read = volume.read(block * BLOCK, found.clone()).await;
    read.expect("reads");
    found.to_vec()
}

/// Blocks that hold something else than what was acknowledged last, and are not named as lost.
async fn older(
    cache: &Cache,
    report: &RecoveryReport,
    disks: &[SimDisk],
    blocks: std::ops::Range<u64>,
    byte: u8,
) -> Vec<u64> {
    let volume = attach(cache, disks, Mode::WriteBack).await;
    let mut older = Vec::new();
    for block in blocks {
        let named = report
            .lost
            .iter()
            .any(|lost| (lost.offset..lost.offset + lost.len).contains(&(block * BLOCK)));
        if read(&volume, block).await != [byte; BLOCK as usize] && !named {
            older.push(block);
        }
    }
    older
}

fn fail_next_flush(disk: &SimDisk) {
    disk.set_faults(FaultPlan {
        fail_nth: Some((OpClass::Flush, 1)),
        lose_at_failed_flush: true,
        ..FaultPlan::default()
    });
}

/// Loses dirty data of the volume with a failed flush. Returns the journal that the process leaves.
async fn lose(disks: &[SimDisk]) -> Buf {
    make_tracked(disks, DirtyTracking::Exact).await;
    let journal = Buf::zeroed(1 << 16);
    let (cache, _) = try_open(disks, &journal).await.expect("opens");
    let volume = attach(&cache, disks, Mode::WriteBack).await;
    write(&volume, 0, 6).await;
    fail_next_flush(&disks[0]);
    assert!(volume.flush().await.is_err());
    disks[0].set_faults(FaultPlan::default());
    Buf::copied(&journal.to_vec())
}

/// Between its first write and its end, an opening replaces the journal that names the losses. It
/// may fail after that.
#[test]
fn an_opening_reports_losses_before_it_forgets_them() {
    for class in [OpClass::Write, OpClass::Flush] {
        // An opening continues without a copy of the superblock that it cannot write.
        let failed = (1..=16).filter(|&nth| {
            run(&world(1), async move |disks| {
                opening_fails(&disks, class, nth).await
            })
        });
        let failed = failed.count();
        assert!(failed > 0, "{class:?}: {failed} openings failed");
    }
}

/// Loses data, and lets the `nth` write or flush of the next opening fail. Returns whether that
/// opening failed. Checks that it or the one after it reports the loss.
async fn opening_fails(disks: &[SimDisk], class: OpClass, nth: u64) -> bool {
    let left = lose(disks).await;
    disks[0].set_faults(FaultPlan {
        fail_nth: Some((class, nth)),
        ..FaultPlan::default()
    });
    let reports = Rc::new(Cell::new(0));
    let reported = Rc::clone(&reports);
    let report_sink = Some(ReportSink::new(move |report| {
        reported.set(reported.get() + u32::from(!report.lost.is_empty()));
        std::future::ready(Ok(()))
    }));
    let options = CacheOptions {
        report_sink,
        ..options(&left)
    };
    let has_failed = Cache::open(devices(disks), options.clone()).await.is_err();
    if has_failed {
        disks[0].set_faults(FaultPlan::default());
        Cache::open(devices(disks), options).await.expect("opens");
    }
    assert!(
        reports.get() > 0,
        "{class:?} {nth}: the loss is not reported"
    );
    has_failed
}

/// The losses could not be made known. The opening fails, and the next one finds them.
#[test]
fn an_opening_whose_losses_nobody_takes_forgets_none() {
    run(&world(1), async move |disks| {
        let left = lose(&disks).await;
        let report_sink = Some(ReportSink::new(|_| {
            std::future::ready(Err(ErrorKind::NoSpace.into()))
        }));
        let options = CacheOptions {
            report_sink,
            ..options(&left)
        };
        for _ in 0..2 {
            let refused = Cache::open(devices(&disks), options.clone()).await;
            assert_eq!(refused.expect_err("no room").kind(), ErrorKind::NoSpace);
        }
        let (_, report) = try_open(&disks, &left).await.expect("opens");
        assert_eq!(report.lost.len(), 1);
    });
}

/// A killed process left the newest superblock in the device's cache. A repair or a change of the
/// UUID rewrites the other copy, and power is lost meanwhile. One copy is sound afterwards.
#[test]
fn no_superblock_is_rewritten_beside_one_that_is_not_durable() {
    let mut cut = 0;
    // Before the first I/O ends, a power loss harms both copies whatever follows.
    for (seed, nth) in (0..40).flat_map(|seed| (2..7).map(move |nth| (seed, nth))) {
        for repairs in [true, false] {
            let world = world(seed);
            run(&world, async move |disks| {
                make_tracked(&disks, DirtyTracking::Exact).await;
            });
            world.crash_process(seed);
            // The process dies before its flush.
            world.set_stop(Some(Stop::BeforeIo(2)));
            let disk = world.disks()[0].clone();
            let _ = world.run(1, async move { write_larger_superblock(&disk).await });
            world.set_stop(None);
            world.crash_process(seed);
            if repairs {
                world.disks()[0].rot(OLDER, 512, 1);
            }
            let disk = world.disks()[0].clone();
            world.set_stop(Some(Stop::BeforeIo(nth)));
            let rewritten = world.run(2, async move {
                match repairs {
                    true => Superblock::repair(&disk, || {}).await.map(|_| ()),
                    false => Superblock::change_uuid(&disk, None, [6; 16], "").await,
                }
            });
            cut += u32::from(matches!(rewritten, Outcome::Crashed));
            world.set_stop(None);
            world.crash_power(Keep::Random(seed));
            run(&world, async move |disks| {
                let found = Superblock::read(&disks[0]).await;
                assert!(found.is_ok(), "seed {seed}, {nth}, repairs: {repairs}");
            });
        }
    }
    assert!(cut > 0, "nothing was cut off");
}

/// Place of the older copy of the superblock, bytes.
const OLDER: u64 = COPY_STRIDE_BYTES;

/// Writes a superblock of several sectors. Power loss may keep any of them.
async fn write_larger_superblock(disk: &SimDisk) {
    let mut next = Superblock::read(disk).await.expect("formatted");
    next.sequence += 1;
    let volume = |id: u16| VolumeEntry {
        id,
        name: format!("volume {id}"),
        epoch: 1,
        size_bytes: VOLUME_BYTES,
        identity: Identity::default(),
        flush_failed: false,
        may_show_lost: false,
        has_unreported_loss: false,
        differs_at: None,
    };
    next.volumes = (0..40).map(volume).collect();
    assert_ne!(next.sequence % 2 * COPY_STRIDE_BYTES, OLDER);
    next.write(disk, next.role).await.expect("writes");
}

/// Writes bypassed the cache, and the end of their mark is not durable yet. A write in place must
/// wait for it.
#[test]
fn a_write_in_place_waits_for_the_end_of_an_announcement() {
    for dirty_tracking in TRACKING {
        run(&world(1), async move |disks| {
            make_tracked(&disks, dirty_tracking).await;
            let journal = Buf::zeroed(1 << 16);
            let (cache, _) = try_open(&disks, &journal).await.expect("opens");
            let volume = attach(&cache, &disks, Mode::WriteThrough).await;
            write(&volume, 0, 1).await;
            volume.flush().await.expect("flushes");
            write(&volume, 0, 2).await;
            cache.set_mode("v", Mode::WriteBack).expect("attached");
            rt::sleep(Duration::from_secs(7)).await;
            write(&volume, 0, 3).await;
            let (cache, report) = die_and_open(&disks, &journal).await;
            let older = older(&cache, &report, &disks, 0..1, 3).await;
            assert!(older.is_empty(), "{dirty_tracking}");
        });
    }
}

/// Data that was overwritten in place under a mark was written back before the flush failed.
/// Nothing is lost, and the earlier data must not be taken for dirty.
#[test]
fn written_back_blocks_do_not_become_older_after_a_failed_flush() {
    for dirty_tracking in TRACKING {
        for seed in 0..10 {
            run(&world(seed), async move |disks| {
                make_tracked(&disks, dirty_tracking).await;
                let journal = Buf::zeroed(1 << 16);
                let (cache, _) = try_open(&disks, &journal).await.expect("opens");
                let volume = attach(&cache, &disks, Mode::WriteBack).await;
                write_all(&volume, 6).await;
                cache.write_back(None).await.expect("writes back");
                write_all(&volume, 7).await;
                while cache.stats().dirty_blocks > 0 {
                    rt::sleep(Duration::from_millis(100)).await;
                }
                fail_next_flush(&disks[0]);
                assert!(volume.flush().await.is_err(), "{dirty_tracking}");
                let (cache, report) = die_and_open(&disks, &journal).await;
                assert!(report.lost.is_empty(), "{:?}", report.lost);
                let older = older(&cache, &report, &disks, 0..BLOCKS, 7).await;
                assert_eq!(older, [0_u64; 0], "{dirty_tracking}, seed {seed}");
            });
        }
    }
}

/// The cache fails, of the log say, while the bit-tree is being written; then the flush for the
/// tree fails, too.
#[test]
fn a_tree_that_fails_after_the_cache_tells_of_the_flush() {
    let mut named = 0;
    for seed in 0..40 {
        named += run(&world(seed), async move |disks| {
            make_tracked(&disks, DirtyTracking::Abt).await;
            let journal = Buf::zeroed(1 << 16);
            let (cache, _) = try_open(&disks, &journal).await.expect("opens");
            let volume = attach(&cache, &disks, Mode::WriteBack).await;
            write(&volume, 100, 6).await;
            cache.write_back(None).await.expect("writes back");
            write_all(&volume, 7).await;
            fail_next_flush(&disks[0]);
            let concurrent = Rc::clone(&volume);
            rt::spawn(async move {
                let buf = Buf::copied(&[8; BLOCK as usize]);
                let _ = concurrent.write(100 * BLOCK, buf).await;
            });
            rt::sleep(Duration::from_micros(seed)).await;
            let broken = Error::new(ErrorKind::Io, "a write of the log failed");
            cache.engine.committer.fail(broken);
            rt::sleep(Duration::from_millis(100)).await;
            let (cache, report) = die_and_open(&disks, &journal).await;
            let older = older(&cache, &report, &disks, 0..BLOCKS, 7).await;
            assert_eq!(older, [0_u64; 0], "seed {seed}");
            report.lost.len()
        });
    }
    assert!(
        named > 0,
        "no flush of the tree failed: the test tries nothing"
    );
}

/// Killed with data that no flush covered; the first flush of the next process fails and loses it.
#[test]
fn a_flush_that_fails_at_the_start_is_not_made_good_by_the_next_start() {
    for dirty_tracking in TRACKING {
        for nth in 1..4 {
            run(&world(nth), async move |disks| {
                make_tracked(&disks, dirty_tracking).await;
                let journal = Buf::zeroed(1 << 16);
                let (cache, _) = try_open(&disks, &journal).await.expect("opens");
                let volume = attach(&cache, &disks, Mode::WriteBack).await;
                write_all(&volume, 6).await;
                let left = Buf::copied(&journal.to_vec());
                disks[0].set_faults(FaultPlan {
                    fail_nth: Some((OpClass::Flush, nth)),
                    lose_at_failed_flush: true,
                    ..FaultPlan::default()
                });
                let opened = try_open(&disks, &left).await;
                assert!(nth > 1 || opened.is_err(), "{dirty_tracking}");
                let (cache, report) = die_and_open(&disks, &left).await;
                let older = older(&cache, &report, &disks, 0..BLOCKS, 6).await;
                assert_eq!(older, [0_u64; 0], "{dirty_tracking}, flush {nth}");
            });
        }
    }
}

/// A clean copy is dropped for zeroes, and the record of that fails with the cache. The next holder
/// of the block's lock finds no copy, but the next process would find one.
#[test]
fn acknowledged_zeroes_survive_the_failure_of_the_cache_and_a_restart() {
    for dirty_tracking in TRACKING {
        for second in [Mode::WriteBack, Mode::PassThrough] {
            run(&world(3), async move |disks| {
                make_tracked(&disks, dirty_tracking).await;
                let journal = Buf::zeroed(1 << 16);
                let (cache, _) = try_open(&disks, &journal).await.expect("opens");
                let volume = attach(&cache, &disks, Mode::WriteBack).await;
                write(&volume, 0, 6).await;
                cache.write_back(None).await.expect("writes back");
                cache.set_mode("v", second).expect("attached");
                rt::sleep(Duration::from_secs(7)).await;
                fail_next_flush(&disks[0]);
                let outcomes = Rc::new(RefCell::new(Vec::new()));
                for _ in 0..2 {
                    let (concurrent, outcomes) = (Rc::clone(&volume), Rc::clone(&outcomes));
                    rt::spawn(async move {
                        let zeroed = concurrent.write_zeroes(0, BLOCK).await;
                        outcomes.borrow_mut().push(zeroed.is_ok());
                    });
                }
                rt::sleep(Duration::from_secs(1)).await;
                assert_eq!(outcomes.borrow().len(), 2, "{dirty_tracking}");
                let failure = cache.stats().failure;
                assert!(failure.is_some(), "no flush failed: the test tries nothing");
                if !outcomes.borrow().contains(&true) {
                    return;
                }
                let (cache, report) = die_and_open(&disks, &journal).await;
                let older = older(&cache, &report, &disks, 0..1, 0).await;
                assert!(older.is_empty(), "{dirty_tracking}, {second:?}");
            });
        }
    }
}

/// A write in place over a block that was just cleaned fails. The cache fails too, before a record
/// can say so, and the record on media calls the block dirty. A later read's answer must hold after
/// the next start as well.
#[test]
fn data_read_after_a_failed_write_in_place_survives_power_loss() {
    let mut tried = 0;
    for seed in 0..40 {
        let world = world(seed);
        let found = run(&world, async move |disks| {
            make_tracked(&disks, DirtyTracking::Exact).await;
            let journal = Buf::zeroed(1 << 16);
            let (cache, _) = try_open(&disks, &journal).await.expect("opens");
            let volume = attach(&cache, &disks, Mode::WriteBack).await;
            write(&volume, 1, 5).await;
            cache.write_back(None).await.expect("writes back");
            rt::sleep(Duration::from_secs(7)).await;
            write(&volume, 0, 6).await;
            volume.flush().await.expect("flushes");
            // Its region is announced for writes in place, until it is quiet there.
            write(&volume, 1, 7).await;
            while cache.stats().dirty_blocks > 0 {
                rt::sleep(Duration::from_millis(100)).await;
            }
            disks[0].set_faults(FaultPlan {
                from_nth: Some((1, Trouble::Vanishes)),
                ..FaultPlan::default()
            });
            let buf = Buf::copied(&[8; BLOCK as usize]);
            volume.write(0, buf).await.expect_err("its device is gone");
            let found = Buf::zeroed(BLOCK as usize);
            let read = volume.read(0, found.clone()).await;
            read.is_ok().then(|| found.to_vec()[0])
        });
        for disk in world.disks() {
            disk.set_faults(FaultPlan::default());
        }
        world.crash_power(Keep::All);
        tried += u32::from(found.is_none());
        run(&world, async move |disks| {
            let next_boot = CacheOptions::new([10; 16]);
            let opened = Cache::open(devices(&disks), next_boot).await;
            let volume = attach(&opened.expect("opens").0, &disks, Mode::WriteBack).await;
            let now = read(&volume, 0).await[0];
            assert!(
                found.is_none_or(|found| found == now),
                "seed {seed}: {found:?}, then {now}"
            );
        });
    }
    assert!(tried > 0, "nothing was in doubt: the test tries nothing");
}
