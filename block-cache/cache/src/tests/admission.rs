//! Measured admission, in virtual time, on devices of declared latency.

use std::cell::Cell;
use std::time::Duration;

use forebay_block::{Completion, DeviceInfo, Request};
use forebay_io::sim::FaultPlan;

use super::*;
use crate::failpoints::{Fault, plant};

const BLOCK: u64 = 4096;

/// Results of a run.
#[derive(Clone, Debug)]
struct Came {
    took: Duration,
    stats: CacheStats,
}

impl Came {
    fn volume(&self) -> &VolumeStats {
        &self.stats.volumes[0]
    }
}

/// Writes a file of so many percent of the cache front to back, `passes` times, and reads it then.
/// Latencies are those of an operation of either kind, microseconds.
fn write(
    admission: Admission,
    cache_us: u64,
    backing_us: u64,
    file_percent: u64,
    passes: u64,
) -> Came {
    write_cleaned(admission, cache_us, backing_us, file_percent, passes, false)
}

/// The same; if `cleaned`, everything is written back before the last pass, which goes back to
/// front.
fn write_cleaned(
    admission: Admission,
    cache_us: u64,
    backing_us: u64,
    file_percent: u64,
    passes: u64,
    cleaned: bool,
) -> Came {
    let mut world = World::new(17);
    for (name, size, us) in [
        ("cache", 5 << 20, cache_us),
        ("backing", 8 << 20, backing_us),
    ] {
        world.add_disk(&DiskConfig {
            volatile_cache: false,
            latency_us: (us, us),
            ..config(name, size, 512)
        });
    }
    run(&world, async move |disks| {
        make(&disks, BLOCK as u32).await;
        let devices = Devices {
            data: Rc::new(disks[0].clone()),
            metadata: None,
        };
        let options = CacheOptions {
            journal: Some(Buf::zeroed(1 << 20)),
            dirty_limit_percent: 100,
            cleaning: Cleaning::Nop,
            admission,
            ..CacheOptions::new([9; 16])
        };
        let (cache, _) = Cache::open(devices, options).await.expect("opens");
        let volume = attach(&cache, &disks, Mode::WriteBack).await;
        let blocks = cache.stats().blocks * file_percent / 100;
        assert!(blocks * BLOCK <= 8 << 20, "{blocks} blocks");
        let data =
            |block: u64, pass: u64| (block * 7 + pass).to_le_bytes().repeat(BLOCK as usize / 8);
        let began = rt::now();
        for pass in 0..passes {
            let back = cleaned && pass + 1 == passes;
            if back {
                cache.write_back(None).await.expect("writes back");
            }
            for nth in 0..blocks {
                let block = if back { blocks - 1 - nth } else { nth };
                let buf = Buf::copied(&data(block, pass));
                volume.write(block * BLOCK, buf).await.expect("writes");
            }
        }
        let took = rt::now() - began;
        let stats = cache.stats();
        for block in 0..blocks {
            let buf = Buf::zeroed(BLOCK as usize);
            let read = volume.read(block * BLOCK, buf.clone()).await;
            read.expect("reads");
            assert!(buf.to_vec() == data(block, passes - 1), "block {block}");
        }
        cache.close().await.expect("closes");
        Came { took, stats }
    })
}

/// A disk that serves one request at a time, each so long.
#[derive(Debug)]
struct Queued {
    disk: SimDisk,
    each: Duration,
    free_at: Cell<Duration>,
}

impl BlockDevice for Queued {
    fn info(&self) -> DeviceInfo {
        self.disk.info()
    }

    fn submit(&self, request: Request, done: Completion) {
        let due = self.free_at.get().max(rt::now()) + self.each;
        self.free_at.set(due);
        let disk = self.disk.clone();
        rt::spawn(async move {
            rt::sleep(due - rt::now()).await;
            disk.submit(request, done);
        });
    }
}

/// Kind of backing device from which clean hits may be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Behind {
    Sound,
    /// Every read fails.
    Faulty,
    /// It has what was written in a volatile cache.
    Unflushed,
}

/// Eight clients read a cached clean file, a block or two at a time each. The devices serve one
/// request at a time. Returns the time, and the number of failed reads of the backing device.
fn read_together(
    admission: Admission,
    cache_us: u64,
    backing_us: u64,
    behind: Behind,
) -> (Came, u64) {
    const BLOCKS: u64 = 256;
    let mut world = World::new(12);
    for (name, size) in [("cache", 5 << 20), ("backing", 8 << 20)] {
        world.add_disk(&DiskConfig {
            volatile_cache: name == "backing",
            latency_us: (1, 1),
            ..config(name, size, 512)
        });
    }
    run(&world, async move |disks| {
        make(&disks, BLOCK as u32).await;
        let queued = |nth: usize, us| Queued {
            disk: disks[nth].clone(),
            each: Duration::from_micros(us),
            free_at: Cell::default(),
        };
        let devices = Devices {
            data: Rc::new(queued(0, cache_us)),
            metadata: None,
        };
        let options = CacheOptions {
            admission,
            ..CacheOptions::new([9; 16])
        };
        let (cache, _) = Cache::open(devices, options).await.expect("opens");
        let backing = Rc::new(queued(1, backing_us));
        let options = VolumeOptions::new(Mode::WriteThrough);
        let volume = cache.attach("v", backing, options).await;
        let volume: Rc<dyn BlockDevice> = volume.expect("attaches");
        let data = |block: u64| (block * 7 + 1).to_le_bytes().repeat(BLOCK as usize / 8);
        let in_flight = Rc::new(Cell::new(8));
        for block in 0..BLOCKS {
            let written = volume.write(block * BLOCK, Buf::copied(&data(block))).await;
            written.expect("writes");
        }
        if behind != Behind::Unflushed {
            volume.flush().await.expect("flushes");
        }
        if behind == Behind::Faulty {
            disks[1].set_faults(FaultPlan {
                bad_range: Some(0..8 << 20),
                ..FaultPlan::default()
            });
        }
        let began = rt::now();
        for client in 0..8 {
            let (volume, in_flight) = (Rc::clone(&volume), Rc::clone(&in_flight));
            rt::spawn(async move {
                let rng = Rng::new(client);
                for nth in 0..1000 {
                    let (block, count) = (rng.below(BLOCKS - 1), 1 + u64::from(nth % 8 == 0));
                    let buf = Buf::zeroed((count * BLOCK) as usize);
                    let read = volume.read(block * BLOCK, buf.clone()).await;
                    read.expect("reads");
                    let expected: Vec<u8> = (block..block + count).flat_map(data).collect();
                    assert!(buf.to_vec() == expected, "block {block}");
                }
                in_flight.set(in_flight.get() - 1);
            });
        }
        while in_flight.get() > 0 {
            rt::sleep(Duration::from_micros(10)).await;
        }
        let took = rt::now() - began;
        let stats = cache.stats();
        assert_eq!(stats.volumes[0].read_misses, 0);
        cache.close().await.expect("closes");
        (Came { took, stats }, disks[1].counters().failed)
    })
}

/// Room is made ahead of need by who always admits; a working set that just fits loses a part of
/// itself to that.
#[test]
fn nothing_is_given_up_before_a_write_finds_no_room() {
    let measured = write(Admission::Measured, 10, 100, 100, 2);
    assert_eq!(measured.stats.write_backs, 0);
    assert_eq!(measured.volume().write_misses, measured.stats.blocks);
    assert_eq!(measured.volume().write_hits, measured.stats.blocks);
    let always = write(Admission::Always, 10, 100, 100, 2);
    assert!(always.stats.write_backs > 0, "{always:?}");
    assert!(measured.took <= always.took, "{measured:?}\n{always:?}");
}

#[test]
fn writes_that_find_no_room_bypass_to_a_faster_backing_device() {
    let measured = write(Admission::Measured, 40, 10, 150, 3);
    let blocks = measured.stats.blocks;
    assert_eq!(measured.stats.evictions, 0, "{measured:?}");
    // Cached data keeps its hits, in each pass.
    assert_eq!(measured.volume().write_hits, 2 * blocks);
    assert_eq!(measured.volume().bypassed_writes, 3 * (blocks / 2));
    assert_eq!(measured.volume().bypassed_for_room, 3 * (blocks / 2));
    let always = write(Admission::Always, 40, 10, 150, 3);
    assert_eq!(always.volume().bypassed_for_room, 0);
    assert!(measured.took < always.took, "{measured:?}\n{always:?}");
}

/// Writes bypass the cache rather than force out dirty data. Clean data is evicted as usual.
#[test]
fn clean_blocks_are_evicted_while_writes_bypass() {
    let measured = write_cleaned(Admission::Measured, 40, 10, 150, 3, true);
    // Writes that arrive while room is being made still bypass.
    let evictions = measured.stats.evictions;
    assert!(evictions > measured.stats.blocks / 6, "{measured:?}");
}

/// A write that bypasses as a probe stops the cleaner, which is needed again at once. The cleaner
/// must not rest meanwhile while writes bypass.
#[test]
fn a_bypass_as_a_probe_does_not_hold_up_the_cleaner() {
    let measured = write(Admission::Measured, 1, 150, 170, 6);
    let (passed, missed) = (
        measured.volume().bypassed_writes,
        measured.volume().write_misses,
    );
    assert!(measured.stats.evictions > 0, "{measured:?}");
    assert!(passed < missed / 15, "{measured:?}");
}

#[test]
fn before_a_slow_backing_device_writes_wait_for_room_as_they_would_without() {
    let measured = write(Admission::Measured, 10, 5000, 150, 3);
    let always = write(Admission::Always, 10, 5000, 150, 3);
    assert!(measured.stats.evictions > 0, "{measured:?}");
    // A few writes without room bypass, to measure the cost of a bypass.
    assert!(
        measured.took <= always.took.mul_f64(1.03),
        "{measured:?}\n{always:?}"
    );
}

#[test]
fn a_cache_device_full_of_work_shares_its_clean_hits_with_the_backing_device() {
    let (always, _) = read_together(Admission::Always, 20, 30, Behind::Sound);
    assert_eq!(always.volume().split_reads, 0);
    let (measured, _) = read_together(Admission::Measured, 20, 30, Behind::Sound);
    // Both together serve 5 in 60 us, the cache alone 3.
    assert!(
        measured.took < always.took.mul_f64(0.75),
        "{measured:?}\n{always:?}"
    );
    assert!(measured.volume().split_reads > 2000, "{measured:?}");
}

#[test]
fn before_a_slow_backing_device_clean_hits_stay() {
    let (measured, _) = read_together(Admission::Measured, 20, 2000, Behind::Sound);
    let (always, _) = read_together(Admission::Always, 20, 2000, Behind::Sound);
    let tried = measured.volume().split_reads;
    assert!((1..10).contains(&tried), "{measured:?}");
    assert!(
        measured.took <= always.took.mul_f64(1.03),
        "{measured:?}\n{always:?}"
    );
}

#[test]
fn a_clean_hit_that_the_backing_device_fails_is_had_from_the_cache() {
    let (measured, failed) = read_together(Admission::Measured, 20, 30, Behind::Faulty);
    assert_eq!(measured.volume().split_reads, 0, "{measured:?}");
    assert!(failed > 0, "nothing was tried");
}

/// A device that restarts would show earlier data, and the cache would not.
#[test]
fn a_clean_hit_is_not_read_where_it_may_be_forgotten() {
    for (fault, tried) in [(None, false), (Some(Fault::SplitUnflushed), true)] {
        plant(fault);
        let (measured, _) = read_together(Admission::Measured, 20, 30, Behind::Unflushed);
        plant(None);
        assert_eq!(measured.volume().split_reads > 0, tried, "{fault:?}");
    }
}
