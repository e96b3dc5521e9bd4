//! Write-back after a crash, for each way of tracking overwrites in place.

use std::time::Duration;

use super::*;

const BLOCK: u64 = 4096;
const BLOCKS: u64 = VOLUME_BYTES / BLOCK;
/// Blocks that are overwritten repeatedly, and are dirty at the crash.
const HOT: std::ops::Range<u64> = 40..48;

async fn make_tracked(disks: &[SimDisk], dirty_tracking: DirtyTracking) {
    let options = FormatOptions {
        dirty_tracking,
        ..FormatOptions::new(4096, [5; 16])
    };
    format(&devices(disks), &options).await.expect("formats");
}

fn devices(disks: &[SimDisk]) -> Devices {
    Devices {
        data: Rc::new(disks[0].clone()),
        metadata: None,
    }
}

async fn write(volume: &Rc<dyn BlockDevice>, block: u64, byte: u8) {
    let buf = Buf::copied(&[byte; BLOCK as usize]);
    volume.write(block * BLOCK, buf).await.expect("writes");
}

/// A life that ends with the hot blocks dirty, flushed, and no record of that but what tracking
/// says. Its stats.
async fn live(disks: &[SimDisk], dirty_tracking: DirtyTracking) -> CacheStats {
    make_tracked(disks, dirty_tracking).await;
    let (cache, _) = open(disks, Durability::Flush).await;
    let volume = attach(&cache, disks, Mode::WriteBack).await;
    for block in 0..BLOCKS {
        write(&volume, block, 1).await;
    }
    cache.write_back(None).await.expect("writes back");
    for round in 0..60 {
        for _ in 0..50 {
            for block in HOT {
                write(&volume, block, 2 + round).await;
            }
        }
        rt::sleep(Duration::from_secs(4)).await;
    }
    assert_eq!(cache.stats().dirty_blocks, 0, "the cleaner had time");
    for block in HOT {
        write(&volume, block, 100).await;
    }
    volume.flush().await.expect("flushes");
    cache.stats()
}

/// Opens the cache after the crash and waits until it is clean. Returns the findings and the
/// writes.
async fn recover(disks: &[SimDisk]) -> (RecoveryReport, CacheStats) {
    // Power was lost: it is another boot of the machine.
    let options = CacheOptions::new([10; 16]);
    let (cache, report) = (Cache::open(devices(disks), options).await).expect("opens");
    let volume = attach(&cache, disks, Mode::WriteBack).await;
    let begun = cache.stats().recovery;
    assert_eq!(begun.found_blocks, report.doubtful_blocks);
    // It serves at once.
    for block in 0..BLOCKS {
        let found = Buf::zeroed(BLOCK as usize);
        (volume.read(block * BLOCK, found.clone()).await).expect("reads");
        let byte = if HOT.contains(&block) { 100 } else { 1 };
        assert_eq!(found.to_vec(), [byte; BLOCK as usize], "block {block}");
    }
    while cache.stats().dirty_blocks > 0 {
        rt::sleep(Duration::from_millis(100)).await;
    }
    let stats = cache.stats();
    assert_eq!(stats.recovery.left_blocks, 0);
    assert_eq!(stats.recovery.left_ms(), Some(0));
    (report, stats)
}

/// How many blocks may be dirty after the crash.
fn may_be_dirty(dirty_tracking: DirtyTracking) -> (u64, CacheStats) {
    let world = world(3, 4 << 20, 512);
    let stats = run(&world, async move |disks| {
        live(&disks, dirty_tracking).await
    });
    world.crash_power(Keep::None);
    let (report, after) = run(&world, async |disks| recover(&disks).await);
    assert!(!report.clean_shutdown);
    assert_eq!(report.lost_tree_units, 0);
    assert_eq!(after.write_backs, report.dirty_blocks);
    assert_eq!(
        (after.recovery.compared_bytes, after.write_back_bytes),
        (
            report.doubtful_blocks * BLOCK,
            (HOT.end - HOT.start) * BLOCK
        ),
        "what may be dirty is compared, and what is, written back"
    );
    for block in HOT {
        let found = world.disks()[1].peek(block * BLOCK, BLOCK as usize);
        assert_eq!(
            found, [100; BLOCK as usize],
            "block {block} was written back"
        );
    }
    (after.write_backs, stats)
}

#[test]
fn recovery_presumes_dirty_only_blocks_that_tracking_cannot_rule_out() {
    let dirty = HOT.end - HOT.start;
    let (exact, with_marks) = may_be_dirty(DirtyTracking::Exact);
    let (tree, with_tree) = may_be_dirty(DirtyTracking::Abt);
    let (none, with_nothing) = may_be_dirty(DirtyTracking::None);
    eprintln!("{dirty} dirty of {BLOCKS} cached: exact {exact}, abt {tree}, none {none}");
    assert_eq!(none, BLOCKS, "without tracking, everything");
    // The hot blocks lie in one region of 64.
    assert_eq!(exact, 64);
    assert!((dirty..=64).contains(&tree), "{tree}");
    let persists = with_tree.tree.expect("it has one").persists;
    assert!(persists > 0 && with_marks.tree.is_none() && with_nothing.tree.is_none());
    let writes = with_tree.volumes[0].write_hits + with_tree.volumes[0].write_misses;
    assert!(
        persists <= writes / 100 + 16,
        "{persists} persists, {writes} writes"
    );
    assert!(with_marks.marks > 0);
    assert_eq!((with_tree.marks, with_nothing.marks), (0, 0));
}

#[test]
fn after_a_clean_end_nothing_is_in_doubt() {
    for dirty_tracking in DirtyTracking::ALL {
        let world = world(4, 4 << 20, 512);
        run(&world, async move |disks| {
            make_tracked(&disks, dirty_tracking).await;
            for life in 0..3_u8 {
                let (cache, report) = open(&disks, Durability::Flush).await;
                assert_eq!(report.clean_shutdown, life > 0);
                assert_eq!(report.doubtful_blocks, 0, "{dirty_tracking}");
                let volume = attach(&cache, &disks, Mode::WriteBack).await;
                for block in 0..64 {
                    write(&volume, block, life + 1).await;
                    if block % 8 == 0 {
                        rt::sleep(Duration::from_millis(700)).await;
                    }
                }
                cache.close().await.expect("closes");
                let found = inspect(&devices(&disks), None, &[9; 16]).await;
                let found = found.expect("there is a cache");
                assert_eq!(found.problems, Vec::<String>::new());
                assert_eq!(found.spare_damage, Vec::<String>::new());
                assert_eq!(found.dirty_tracking, dirty_tracking);
                let dirty = cache.stats().dirty_blocks * BLOCK;
                assert_eq!(found.volumes[0].dirty_bytes, dirty, "{dirty_tracking}");
            }
        });
    }
}

#[test]
fn a_lost_unit_of_the_tree_costs_write_backs_and_nothing_else() {
    let world = world(5, 4 << 20, 512);
    run(&world, async |disks| live(&disks, DirtyTracking::Abt).await);
    world.crash_power(Keep::None);
    // Both copies of the first unit rot.
    let log = 131_072;
    let tree = run(&world, async |disks| {
        let superblock = forebay_metadata::superblock::Superblock::read(&disks[0]).await;
        superblock.expect("sound").tree().expect("chosen")
    });
    assert!(tree.offset > log);
    for copy in 0..2 {
        let at = tree.offset + copy * u64::from(tree.unit_bytes);
        world.disks()[0].rot(at + 100, 8, 1);
    }
    let looked = run(&world, async |disks| {
        inspect(&devices(&disks), None, &[9; 16]).await
    });
    let looked = looked.expect("there is a cache");
    assert_eq!(looked.spare_damage.len(), 1, "{:?}", looked.spare_damage);
    assert_eq!(looked.volumes[0].dirty_bytes, BLOCKS * BLOCK);
    let (report, after) = run(&world, async |disks| recover(&disks).await);
    assert_eq!((report.lost_tree_units, after.write_backs), (1, BLOCKS));
    let looked = run(&world, async |disks| {
        inspect(&devices(&disks), None, &[9; 16]).await
    });
    assert_eq!(looked.expect("sound").spare_damage, Vec::<String>::new());
}

#[test]
fn an_older_version_refuses_a_cache_without_marks() {
    use forebay_metadata::superblock::{INCOMPAT_TRACKING, Superblock};
    for dirty_tracking in DirtyTracking::ALL {
        let world = world(6, 4 << 20, 512);
        let superblock = run(&world, async move |disks| {
            make_tracked(&disks, dirty_tracking).await;
            Superblock::read(&disks[0]).await.expect("sound")
        });
        let has_feature = superblock.incompat & INCOMPAT_TRACKING != 0;
        assert_eq!(has_feature, dirty_tracking != DirtyTracking::Exact);
    }
}

/// Two concurrent writes to one clean block, interrupted everywhere. Data that the tree then calls
/// clean must be on the backing device.
#[test]
fn concurrent_writes_to_a_clean_block_all_wait_for_its_mark() {
    let world = world(7, 4 << 20, 512);
    run(&world, async |disks| {
        let options = FormatOptions {
            dirty_tracking: DirtyTracking::Abt,
            ..FormatOptions::new(16 << 10, [5; 16])
        };
        (format(&devices(&disks), &options).await).expect("formats");
        let (cache, _) = open(&disks, Durability::Flush).await;
        let volume = attach(&cache, &disks, Mode::WriteBack).await;
        for block in 0..16 {
            write(&volume, block, 1).await;
        }
        cache.write_back(None).await.expect("writes back");
        cache.close().await.expect("closes");
    });
    let mut crashes = 0;
    for nth in 1.. {
        let mut cut = false;
        for seed in 0..8 {
            let world = world.fork();
            let disks = world.disks().to_vec();
            world.set_stop(Some(forebay_io::sim::Stop::AfterIo(nth)));
            let ended = world.run(seed, async move {
                let (cache, _) = open(&disks, Durability::Flush).await;
                let volume = attach(&cache, &disks, Mode::WriteBack).await;
                let other = Rc::clone(&volume);
                rt::spawn(async move { write(&other, 1, 2).await });
                write(&volume, 0, 2).await;
                rt::sleep(Duration::from_millis(20)).await;
            });
            cut |= !matches!(ended, Outcome::Finished(()));
            // One write alone survives: that of the tree must be durable before any of the data.
            world.crash_power(Keep::Only(seed as usize % world.unflushed().max(1)));
            crashes += 1;
            run(&world, async move |disks| {
                let options = CacheOptions {
                    cleaning: Cleaning::Nop,
                    ..CacheOptions::new([10; 16])
                };
                let (cache, report) = (Cache::open(devices(&disks), options).await).expect("opens");
                let volume = attach(&cache, &disks, Mode::WriteBack).await;
                for block in 0..2 {
                    let found = Buf::zeroed(BLOCK as usize);
                    (volume.read(block * BLOCK, found.clone()).await).expect("reads");
                    let below = disks[1].peek(block * BLOCK, BLOCK as usize);
                    assert!(
                        report.dirty_blocks > 0 || found.to_vec() == below,
                        "cut off after {nth}: block {block} is called clean and is not"
                    );
                }
            });
        }
        if !cut {
            break;
        }
    }
    assert!(crashes > 50, "{crashes}");
}

/// A block is overwritten in place, written back, and not flushed on the cache device. Until that
/// flush the tree must not call it clean: the record that calls it clean describes older data.
#[test]
fn a_mark_stays_until_the_cache_device_was_flushed() {
    for commits in [false, true] {
        let world = world(8, 4 << 20, 512);
        let marked = run(&world, async move |disks| {
            make_tracked(&disks, DirtyTracking::Abt).await;
            let options = CacheOptions {
                journal: Some(Buf::zeroed(1 << 16)),
                commit_interval: Duration::from_secs(if commits { 1 } else { 1 << 20 }),
                ..CacheOptions::new([9; 16])
            };
            let (cache, _) = (Cache::open(devices(&disks), options).await).expect("opens");
            let volume = attach(&cache, &disks, Mode::WriteBack).await;
            for block in 0..BLOCKS {
                write(&volume, block, 1).await;
            }
            cache.write_back(None).await.expect("writes back");
            write(&volume, HOT.start, 2).await;
            // The cleaner comes, and the tree has time and leave to say what is clean.
            rt::sleep(Duration::from_secs(20)).await;
            assert_eq!(cache.stats().dirty_blocks, 0);
            let id = {
                let map = cache.engine.map.borrow();
                let of_volume = map.of_volume(1).collect::<Vec<_>>();
                let hot = of_volume
                    .into_iter()
                    .find(|id| map.state(*id).key.block() == HOT.start);
                hot.expect("it is cached")
            };
            let map = cache.engine.map.borrow();
            map.has(id, crate::map::MARKED)
        });
        assert_eq!(marked, !commits, "a commit flushes the cache device");
        world.crash_power(Keep::None);
        let found = run(&world, async |disks| {
            let options = CacheOptions::new([10; 16]);
            let (cache, _) = (Cache::open(devices(&disks), options).await).expect("opens");
            let volume = attach(&cache, &disks, Mode::WriteBack).await;
            let found = Buf::zeroed(BLOCK as usize);
            (volume.read(HOT.start * BLOCK, found.clone()).await).expect("reads");
            while cache.stats().dirty_blocks > 0 {
                rt::sleep(Duration::from_millis(100)).await;
            }
            found.to_vec()
        });
        let below = world.disks()[1].peek(HOT.start * BLOCK, BLOCK as usize);
        assert_eq!(found, below, "what was read stays");
    }
}

/// A write that fails before its first byte leaves a clean block clean, and the tree says so.
#[test]
fn a_mark_goes_when_its_write_did_not_begin() {
    for (is_dirty, tries) in [(false, 1), (false, 3), (true, 1)] {
        let world = world(8, 4 << 20, 512);
        run(&world, async move |disks| {
            let options = FormatOptions {
                dirty_tracking: DirtyTracking::Abt,
                checksums: true,
                ..FormatOptions::new(32 << 10, [5; 16])
            };
            (format(&devices(&disks), &options).await).expect("formats");
            let (cache, _) = open(&disks, Durability::Flush).await;
            let volume = attach(&cache, &disks, Mode::WriteBack).await;
            let two = Buf::copied(&[1; 2 * BLOCK as usize]);
            volume.write(0, two).await.expect("writes");
            cache.write_back(None).await.expect("writes back");
            cache.set_cleaning(Cleaning::Nop);
            if is_dirty {
                write(&volume, 1, 2).await;
            }
            rt::sleep(Duration::from_secs(20)).await;
            let id = (cache.engine.map.borrow().of_volume(1).next()).expect("it is cached");
            let is_marked = || cache.engine.map.borrow().has(id, crate::map::MARKED);
            assert_eq!(is_marked(), is_dirty);
            // A part of a cell is merged with what cannot be read.
            disks[0].set_faults(forebay_io::sim::FaultPlan {
                bad_range: Some(cache.engine.superblock.current().data_offset..4 << 20),
                ..forebay_io::sim::FaultPlan::default()
            });
            for _ in 0..tries {
                let part = Buf::copied(&[3; 512]);
                volume.write(512, part).await.expect_err("unreadable");
            }
            disks[0].set_faults(forebay_io::sim::FaultPlan::default());
            // Something else is committed.
            write(&volume, 100, 4).await;
            volume.flush().await.expect("flushes");
            rt::sleep(Duration::from_secs(20)).await;
            assert_eq!(is_marked(), is_dirty, "{tries} tries");
            let found = Buf::zeroed(BLOCK as usize);
            volume.read(0, found.clone()).await.expect("reads");
            assert_eq!(found.to_vec(), [1; BLOCK as usize]);
            cache.set_cleaning(Cleaning::Auto);
            cache.write_back(None).await.expect("writes back");
            write(&volume, 101, 4).await;
            rt::sleep(Duration::from_secs(20)).await;
            assert!(!is_marked(), "all is clean");
        });
    }
}
