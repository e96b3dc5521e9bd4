//! Checksums: rot is found wherever data goes, named, and never spread. No sound data is called
//! corrupt.

mod lives;

use std::cell::Cell;
use std::time::Duration;

use forebay_io::sim::{FaultPlan, Stop};
use forebay_metadata::superblock::Superblock;

use super::*;
use crate::failpoints::{Fault, plant};

async fn make_summed(disks: &[SimDisk], block_size_bytes: u32) {
    let devices = Devices {
        data: Rc::new(disks[0].clone()),
        metadata: None,
    };
    let options = FormatOptions {
        checksums: true,
        ..FormatOptions::new(block_size_bytes, [5; 16])
    };
    format(&devices, &options).await.expect("formats");
}

async fn open_on_demand(disks: &[SimDisk], journal: &Buf) -> (Cache, RecoveryReport) {
    let devices = Devices {
        data: Rc::new(disks[0].clone()),
        metadata: None,
    };
    let options = CacheOptions {
        journal: Some(journal.clone()),
        cleaning: Cleaning::Nop,
        dirty_limit_percent: 95,
        accept_journal_loss: true,
        ..CacheOptions::new([9; 16])
    };
    Cache::open(devices, options).await.expect("opens")
}

fn pattern(byte: u8, len: usize) -> Buf {
    Buf::copied(&vec![byte; len])
}

/// Where on the cache device a cell of this byte lies.
fn cell_of(disk: &SimDisk, byte: u8) -> u64 {
    (0..disk.info().size_bytes)
        .step_by(4096)
        .find(|&at| disk.peek(at, 4096) == [byte; 4096])
        .expect("it is cached")
}

async fn read_at(volume: &Rc<dyn BlockDevice>, offset: u64, len: usize) -> Result<Vec<u8>, String> {
    let found = Buf::zeroed(len);
    let read = volume.read(offset, found.clone()).await;
    read.map_err(|error| error.report())?;
    Ok(found.to_vec())
}

fn sums(cache: &Cache) -> ChecksumStats {
    cache.stats().checksums.expect("it has some")
}

fn journal() -> Buf {
    Buf::zeroed(1 << 16)
}

#[test]
fn corrupt_clean_blocks_are_refetched_from_the_backing_device() {
    for len in [512, 4096, 16384] {
        let world = world(3, 4 << 20, 512);
        run(&world, async move |disks| {
            make_summed(&disks, 32 << 10).await;
            let (cache, _) = open_on_demand(&disks, &journal()).await;
            let volume = attach(&cache, &disks, Mode::WriteThrough).await;
            let fill = pattern(7, 32 << 10);
            volume.write(0, fill).await.expect("writes");
            volume.flush().await.expect("flushes");
            disks[0].rot(cell_of(&disks[0], 7) + 100, 300, 1);
            assert_eq!(read_at(&volume, 0, len).await, Ok(vec![7; len]));
            assert_eq!(sums(&cache).refetched, 1, "{len}");
            // And once more, from the copy that took the place of the corrupt one.
            assert_eq!(read_at(&volume, 0, len).await, Ok(vec![7; len]));
            assert_eq!(sums(&cache).refetched, 1, "{len}");
        });
    }
}

#[test]
fn corrupt_dirty_blocks_are_errors_until_rewritten_whole() {
    let world = world(4, 4 << 20, 512);
    run(&world, async |disks| {
        make_summed(&disks, 32 << 10).await;
        let memory = journal();
        let (cache, _) = open_on_demand(&disks, &memory).await;
        let volume = attach(&cache, &disks, Mode::WriteBack).await;
        for cell in 0..8_u8 {
            let at = u64::from(cell) * 4096;
            volume
                .write(at, pattern(cell + 1, 4096))
                .await
                .expect("writes");
        }
        volume.flush().await.expect("flushes");
        disks[0].rot(cell_of(&disks[0], 3), 512, 1);
        let message = read_at(&volume, 0, 32 << 10).await.expect_err("it is lost");
        assert!(
            message.contains("volume v") && message.contains("4096 bytes at 8192"),
            "{message}"
        );
        // A part of it does not make it readable, neither written nor zeroed.
        let part = volume.write(8192, pattern(9, 512)).await;
        assert_eq!(part.expect_err("a part").kind(), ErrorKind::Corrupt);
        let part = volume.write_zeroes(8192, 512).await;
        assert_eq!(part.expect_err("a part").kind(), ErrorKind::Corrupt);
        assert_eq!(sums(&cache).corrupt_bytes, 4096);
        // Its neighbours are sound and are written back. The corrupt block is not, and is reported.
        let message = cache.write_back(None).await.expect_err("it cannot");
        assert!(message.report().contains("4096 bytes at 8192"), "{message}");
        assert_eq!(disks[1].peek(4096, 4096), [2; 4096]);
        assert_eq!(
            disks[1].peek(8192, 4096),
            [0; 4096],
            "nothing corrupt is written back"
        );
        assert_eq!(cache.stats().dirty_blocks, 1);
        cache.close().await.expect("closes");
        // Neither does a clean end, nor that of a process.
        for dies in [false, true] {
            let (cache, report) = open_on_demand(&disks, &memory).await;
            assert_eq!(report.clean_shutdown, !dies);
            let volume = attach(&cache, &disks, Mode::WriteBack).await;
            read_at(&volume, 8192, 4096)
                .await
                .expect_err("it is lost still");
            assert_eq!(
                read_at(&volume, 0, 8192).await.map(|found| found[4096]),
                Ok(2)
            );
            if !dies {
                volume
                    .write(8704, pattern(9, 512))
                    .await
                    .expect_err("a part");
                // Overwritten in place: the region has a mark, and all else in it is not known
                // after a crash.
                volume.write(0, pattern(5, 4096)).await.expect("writes");
                volume.write(0, pattern(6, 4096)).await.expect("writes");
                continue;
            }
            volume
                .write(8192, pattern(10, 4096))
                .await
                .expect("is rewritten");
            assert_eq!(sums(&cache).corrupt_bytes, 0);
            assert_eq!(read_at(&volume, 8192, 4096).await, Ok(vec![10; 4096]));
            cache
                .write_back(None)
                .await
                .expect("all of it can be written back");
            assert_eq!(disks[1].peek(8192, 4096), [10; 4096]);
        }
    });
}

#[test]
fn a_partial_write_to_a_corrupt_clean_block_is_merged_with_sound_data() {
    for mode in [Mode::WriteBack, Mode::WriteThrough] {
        let world = world(5, 4 << 20, 512);
        run(&world, async move |disks| {
            make_summed(&disks, 32 << 10).await;
            let (cache, _) = open_on_demand(&disks, &journal()).await;
            let volume = attach(&cache, &disks, Mode::WriteThrough).await;
            volume.write(0, pattern(7, 8192)).await.expect("writes");
            volume.flush().await.expect("flushes");
            cache.set_mode("v", mode).expect("is attached");
            disks[0].rot(cell_of(&disks[0], 7) + 4000, 64, 3);
            volume.write(512, pattern(8, 512)).await.expect("writes");
            let mut wanted = vec![7; 8192];
            wanted[512..1024].fill(8);
            assert_eq!(read_at(&volume, 0, 8192).await, Ok(wanted), "{mode}");
            assert_eq!(sums(&cache).refetched, 1, "{mode}");
        });
    }
}

#[test]
fn a_clean_end_knows_every_checksum_and_a_crash_all_that_has_no_mark() {
    for block in [4096, 32 << 10, 1 << 20] {
        let world = world(6, 16 << 20, 512);
        let memory = journal();
        let (one, two, three) = (memory.clone(), memory.clone(), memory);
        run(&world, async move |disks| {
            make_summed(&disks, block).await;
            let (cache, _) = open_on_demand(&disks, &one).await;
            let volume = attach(&cache, &disks, Mode::WriteBack).await;
            let rng = Rng::new(8);
            let mut model = vec![0; usize::try_from(volume.info().size_bytes).expect("small")];
            exercise(&volume, &mut model, &rng, 300).await;
            cache.close().await.expect("closes");
        });
        let overwritten = async move |disks: Vec<SimDisk>| {
            let (cache, report) = open_on_demand(&disks, &two).await;
            // Where the volume ends within a cell, there is no checksum.
            let granule = u64::from(block / 64).max(4096);
            assert!(report.unverified_bytes <= granule, "{report:?}");
            let volume = attach(&cache, &disks, Mode::WriteBack).await;
            volume.write(0, pattern(1, 4096)).await.expect("writes");
            volume.flush().await.expect("flushes");
            for byte in 2..20 {
                volume.write(0, pattern(byte, 4096)).await.expect("writes");
            }
            rt::sleep(Duration::from_secs(1)).await;
            assert!(cache.stats().marked_regions <= 2, "one mark a region");
        };
        run(&world, overwritten);
        world.crash_power(Keep::All);
        run(&world, async move |disks| {
            let (cache, report) = open_on_demand(&disks, &three).await;
            assert!(report.unverified_bytes > 0, "what has a mark: {report:?}");
            let volume = attach(&cache, &disks, Mode::WriteBack).await;
            assert_eq!(read_at(&volume, 0, 4096).await, Ok(vec![19; 4096]));
            assert!(sums(&cache).unverified > 0);
        });
    }
}

#[test]
fn after_a_clean_end_a_damaged_log_is_no_reason_to_believe_rot() {
    let world = world(6, 16 << 20, 512);
    let memory = journal();
    let (first, second) = (memory.clone(), memory);
    run(&world, async move |disks| {
        make_summed(&disks, 4096).await;
        let (cache, _) = open_on_demand(&disks, &first).await;
        let volume = attach(&cache, &disks, Mode::WriteBack).await;
        // A batch of its own for each.
        for block in 0..4_u8 {
            let at = u64::from(block) * 4096;
            let written = volume.write(at, pattern(block + 1, 4096)).await;
            written.expect("writes");
            volume.flush().await.expect("flushes");
        }
        cache.close().await.expect("closes");
        let superblock = Superblock::read(&disks[0]).await.expect("sound");
        let unit = u64::from(superblock.log.unit_bytes);
        disks[0].rot(superblock.log.offset + unit + 8, 1, 1);
        disks[0].rot(cell_of(&disks[0], 4) + 100, 300, 1);
    });
    run(&world, async move |disks| {
        let (cache, report) = open_on_demand(&disks, &second).await;
        assert!(
            report.clean_shutdown && report.damaged_records > 0,
            "{report:?}"
        );
        assert_eq!(report.unverified_bytes, 0, "{report:?}");
        let volume = attach(&cache, &disks, Mode::WriteBack).await;
        let message = read_at(&volume, 3 * 4096, 4096).await;
        let message = message.expect_err("it is not what was written");
        assert!(message.contains("4096 bytes at 12288"), "{message}");
    });
}

#[test]
fn a_volume_that_ends_within_a_cell_grows_and_shrinks() {
    let world = world(7, 4 << 20, 512);
    run(&world, async |disks| {
        make_summed(&disks, 4096).await;
        let memory = journal();
        for (round, size) in [5632_u64, 8192, 6144, 12288, 512].into_iter().enumerate() {
            let (cache, _) = open_on_demand(&disks, &memory).await;
            let mut world = World::new(1);
            world.add_disk(&config("backing", size, 512));
            let backing = Rc::new(world.disks()[0].clone());
            let options = VolumeOptions {
                adopt: true,
                ..VolumeOptions::new(Mode::WriteThrough)
            };
            let volume = cache.attach("v", backing, options).await.expect("attaches");
            let byte = u8::try_from(round + 1).expect("few");
            let len = usize::try_from(size).expect("small");
            volume.write(0, pattern(byte, len)).await.expect("writes");
            volume.flush().await.expect("flushes");
            assert_eq!(read_at(&volume, 0, len).await, Ok(vec![byte; len]));
            assert_eq!(sums(&cache).refetched, 0, "{size}");
            cache.close().await.expect("closes");
        }
    });
}

#[test]
fn a_scrub_finds_corruption_in_blocks_that_are_never_read() {
    let world = world(10, 4 << 20, 512);
    run(&world, async |disks| {
        make_summed(&disks, 32 << 10).await;
        let (cache, _) = open_on_demand(&disks, &journal()).await;
        let volume = attach(&cache, &disks, Mode::WriteThrough).await;
        volume.write(0, pattern(1, 32 << 10)).await.expect("writes");
        volume.flush().await.expect("flushes");
        cache.set_mode("v", Mode::WriteBack).expect("is attached");
        for (at, byte) in [(64 << 10, 2), (128 << 10, 3)] {
            volume.write(at, pattern(byte, 8192)).await.expect("writes");
        }
        volume.flush().await.expect("flushes");
        let well = cache.scrub(1 << 30).await.expect("scrubs");
        assert_eq!((well.blocks_done, well.read_bytes), (3, 48 << 10));
        assert_eq!(
            (well.refetched, well.corrupt_blocks, well.errors),
            (0, 0, 0)
        );
        disks[0].rot(cell_of(&disks[0], 1), 4096, 2);
        disks[0].rot(cell_of(&disks[0], 3), 4096, 2);
        let before = rt::now();
        let found = cache.scrub(48 << 10).await.expect("scrubs");
        assert!(
            rt::now() - before >= Duration::from_millis(900),
            "its rate is kept to"
        );
        assert_eq!(
            (found.refetched, found.corrupt_blocks, found.running),
            (1, 1, false)
        );
        let first = found.first.expect("is named");
        assert!(first.contains("4096 bytes at 131072"), "{first}");
        // Clean data is filled once more; dirty data is an error.
        let hits = cache.stats().volumes[0].read_hits;
        assert_eq!(read_at(&volume, 0, 32 << 10).await, Ok(vec![1; 32 << 10]));
        assert_eq!(cache.stats().volumes[0].read_hits, hits + 1);
        read_at(&volume, 128 << 10, 4096)
            .await
            .expect_err("is lost");
        // One at a time, and it can be stopped.
        let other = cache.clone();
        rt::spawn(async move {
            other.scrub(4096).await.expect("is stopped");
        });
        rt::sleep(Duration::from_millis(100)).await;
        assert_eq!(
            cache.scrub(1).await.expect_err("one is under way").kind(),
            ErrorKind::Busy
        );
        assert!(cache.stop_scrub());
        rt::sleep(Duration::from_secs(2)).await;
        let stopped = cache.scrub_progress().expect("there was one");
        assert!(stopped.stopped && !stopped.running && stopped.blocks_done < 3);
        assert!(!cache.stop_scrub());
    });
}

#[test]
fn without_checksums_there_are_none() {
    let world = world(8, 4 << 20, 512);
    run(&world, async |disks| {
        make(&disks, 4096).await;
        let (cache, report) = open(&disks, Durability::Flush).await;
        assert_eq!(
            (cache.stats().checksums, report.unverified_bytes),
            (None, 0)
        );
    });
}

/// A block with a corrupt dirty granule and a corrupt clean one, in either order. Requests that
/// fail for the first one must not turn the second one dirty, neither at once nor by the death of
/// the process. The backing device has its data.
#[test]
fn corrupt_clean_data_beside_corrupt_dirty_data_is_not_lost() {
    let lives = |fault, reads: bool, dies: bool, dirty_first: bool| {
        let (world, found) = (world(6, 4 << 20, 512), Rc::new(Cell::new(false)));
        let is_there = Rc::clone(&found);
        let (clean, dirty) = match dirty_first {
            true => (4096, 0),
            false => (0, 4096),
        };
        // The half that the write which fails leaves as it was.
        let half = if dirty_first { clean + 2048 } else { clean };
        plant(fault);
        run(&world, async move |disks| {
            make_summed(&disks, 32 << 10).await;
            let memory = journal();
            let (mut cache, _) = open_on_demand(&disks, &memory).await;
            let mut volume = attach(&cache, &disks, Mode::WriteBack).await;
            volume.write(0, pattern(1, 8192)).await.expect("writes");
            cache.write_back(None).await.expect("clean");
            (volume.write(dirty, pattern(2, 4096)).await).expect("writes");
            volume.flush().await.expect("flushes");
            for byte in [1, 2] {
                disks[0].rot(cell_of(&disks[0], byte), 512, 1);
            }
            if reads {
                let message = read_at(&volume, 0, 8192).await.expect_err("part is lost");
                assert!(
                    message.contains(&format!("4096 bytes at {dirty}")),
                    "{message}"
                );
            }
            // Both granules would be overwritten in part. The failed write may have happened in
            // part, too.
            let write = volume.write(2048, pattern(3, 4096)).await;
            assert_eq!(write.expect_err("a part").kind(), ErrorKind::Corrupt);
            if dies {
                drop((volume, cache));
                let (opened, report) = open_on_demand(&disks, &memory).await;
                assert!(!report.clean_shutdown);
                volume = attach(&opened, &disks, Mode::WriteBack).await;
                cache = opened;
                // Corrupt data that is believed would be written back.
                let _ = cache.write_back(None).await;
            }
            is_there.set(read_at(&volume, half, 2048).await == Ok(vec![1; 2048]));
            drop(cache);
        });
        plant(None);
        found.get()
    };
    for dirty_first in [false, true] {
        for (reads, dies) in [(false, false), (false, true), (true, false), (true, true)] {
            let lived = lives(None, reads, dies, dirty_first);
            assert!(
                lived,
                "reads {reads}, dies {dies}, dirty first {dirty_first}"
            );
        }
    }
    for (fault, reads, dies, dirty_first) in [
        (Fault::DirtyUnwritten, false, false, true),
        (Fault::KeepCorrupt, true, true, false),
        (Fault::KeepCorrupt, false, true, false),
    ] {
        let lived = lives(Some(fault), reads, dies, dirty_first);
        assert!(!lived, "{fault:?} is not found, reads {reads}, dies {dies}");
    }
}

/// A corrupt clean copy is dropped, also if the backing device cannot be read. After the death of
/// the process it could count as dirty.
#[test]
fn corrupt_clean_data_goes_though_its_backing_device_fails() {
    let refetches = |fault| {
        let (world, counted) = (world(8, 4 << 20, 512), Rc::new(Cell::new(0)));
        let refetched = Rc::clone(&counted);
        plant(fault);
        run(&world, async move |disks| {
            make_summed(&disks, 32 << 10).await;
            let (cache, _) = open_on_demand(&disks, &journal()).await;
            let volume = attach(&cache, &disks, Mode::WriteBack).await;
            volume.write(0, pattern(1, 8192)).await.expect("writes");
            cache.write_back(None).await.expect("clean");
            disks[0].rot(cell_of(&disks[0], 1), 512, 1);
            disks[1].set_faults(FaultPlan {
                bad_range: Some(0..4096),
                ..FaultPlan::default()
            });
            (read_at(&volume, 0, 4096).await).expect_err("nobody has it");
            let errors = cache.stats().cache_read_errors;
            assert_eq!(errors, 0, "the cache device answered");
            disks[1].set_faults(FaultPlan::default());
            assert_eq!(read_at(&volume, 0, 4096).await, Ok(vec![1; 4096]));
            refetched.set(sums(&cache).refetched);
        });
        plant(None);
        counted.get()
    };
    assert_eq!(refetches(None), 0, "the copy is gone, and the read a miss");
    assert_eq!(refetches(Some(Fault::KeepCorrupt)), 1, "it is not found");
}
