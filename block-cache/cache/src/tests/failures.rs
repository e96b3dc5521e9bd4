//! Data that must not be lost, or must be lost by name, when a journal fills up or another flush
//! fails.

use std::cell::Cell;
use std::time::Duration;

use forebay_block::{Completion, DeviceInfo, ErrorKind, Op, Request};
use forebay_io::sim::{FaultPlan, OpClass};

use super::*;
use crate::commit::queue::Entry;
use crate::failpoints::{Fault, plant};

const BLOCK: u64 = 32 << 10;
const GRANULE: u64 = 4096;

fn page(byte: u8) -> Buf {
    Buf::copied(&[byte; GRANULE as usize])
}

async fn open_with(disks: &[SimDisk], journal: Buf, interval_s: u64) -> (Cache, RecoveryReport) {
    let devices = Devices {
        data: Rc::new(disks[0].clone()),
        metadata: None,
    };
    let options = CacheOptions {
        journal: Some(journal),
        commit_interval: Duration::from_secs(interval_s),
        ..CacheOptions::new([9; 16])
    };
    Cache::open(devices, options).await.expect("opens")
}

async fn read_page(volume: &Rc<dyn BlockDevice>, offset: u64) -> Vec<u8> {
    let found = Buf::zeroed(GRANULE as usize);
    volume.read(offset, found.clone()).await.expect("reads");
    found.to_vec()
}

/// A write that finds the journal full waits for the log. A later write to the same block relies on
/// that record. An older journal entry must not hide it.
#[test]
fn a_full_journal_hides_no_later_write() {
    for seed in 0..20 {
        let mut world = World::new(seed);
        world.add_disk(&config("cache", 32 << 20, 512));
        world.add_disk(&config("backing", 16 << 20, 512));
        run(&world, async move |disks| {
            make(&disks, 32 << 10).await;
            let journal = Buf::zeroed(1 << 16);
            let (cache, _) = open_with(&disks, journal.clone(), 5).await;
            let volume = attach(&cache, &disks, Mode::WriteThrough).await;
            // Two clean blocks of one region with one granule each, recorded; then the region is
            // marked.
            volume.write(0, page(0)).await.expect("writes");
            volume.write(BLOCK, page(0)).await.expect("writes");
            volume.flush().await.expect("flushes");
            cache.set_mode("v", Mode::WriteBack).expect("attached");
            rt::sleep(Duration::from_secs(20)).await;
            volume.write(BLOCK, page(1)).await.expect("writes");
            // The journal fills.
            let room = ((1 << 16) - 4096) / 64;
            for granule in 0..room {
                let offset = 64 * BLOCK + granule * GRANULE;
                volume.write(offset, page(2)).await.expect("writes");
            }
            let before = cache.stats().commits;
            volume.write(GRANULE, page(3)).await.expect("writes");
            assert!(cache.stats().commits > before, "it waited for the log");
            volume.write(0, page(4)).await.expect("writes");
            // The process dies here.
            let left = Buf::copied(&journal.to_vec());
            let (cache, _) = open_with(&disks, left, 5).await;
            let volume = attach(&cache, &disks, Mode::WriteBack).await;
            assert_eq!(read_page(&volume, GRANULE).await, page(3).to_vec());
            assert_eq!(read_page(&volume, 0).await, page(4).to_vec(), "seed {seed}");
        });
    }
}

/// Fate of an acknowledged write after a flush of the cache device failed for another request.
#[derive(Debug, PartialEq, Eq)]
enum Fate {
    /// No flush failed.
    NoFailure,
    /// It is there.
    Survived,
    /// It is gone, and named.
    Named,
}

/// The n-th flush fails, and loses the unflushed data of the device. It belongs to the attach of
/// another volume, or to the round that the client requests at the same time.
fn fate(seed: u64, nth: u64, overwritten: bool) -> Fate {
    let mut world = World::new(seed);
    world.add_disk(&DiskConfig::new("cache", 2 << 20));
    world.add_disk(&config("backing", 1 << 20, 512));
    world.add_disk(&config("another", 1 << 20, 512));
    run(&world, async move |disks| {
        make(&disks, 4096).await;
        let journal = Buf::zeroed(1 << 16);
        let (cache, _) = open_with(&disks, journal.clone(), 50).await;
        let volume = attach(&cache, &disks, Mode::WriteBack).await;
        volume.flush().await.expect("flushes");
        volume.write(8192, page(6)).await.expect("writes");
        if overwritten {
            // Durable, so that what follows goes in place and has no entry in the journal.
            volume.flush().await.expect("flushes");
        }
        volume.write(8192, page(7)).await.expect("writes");
        disks[0].set_faults(FaultPlan {
            fail_nth: Some((OpClass::Flush, nth)),
            lose_at_failed_flush: true,
            ..FaultPlan::default()
        });
        let (other, backing) = (cache.clone(), Rc::new(disks[2].clone()));
        rt::spawn(async move {
            let options = VolumeOptions::new(Mode::WriteBack);
            let _ = other.attach("w", backing, options).await;
        });
        rt::sleep(Duration::from_micros(100 + (seed * 37) % 300)).await;
        let flushed = volume.flush().await;
        rt::sleep(Duration::from_millis(100)).await;
        if cache.stats().failure.is_none() {
            return Fate::NoFailure;
        }
        disks[0].set_faults(FaultPlan::default());
        let left = Buf::copied(&journal.to_vec());
        let (cache, report) = open_with(&disks, left, 50).await;
        let volume = attach(&cache, &disks, Mode::WriteBack).await;
        let there = read_page(&volume, 8192).await == page(7).to_vec();
        assert!(there || flushed.is_err(), "flushed and lost");
        let mut named = report.lost.iter();
        let named = named.any(|lost| (lost.offset..lost.offset + lost.len).contains(&8192));
        assert!(
            there || named,
            "lost, and not named: seed {seed}, flush {nth}"
        );
        if there { Fate::Survived } else { Fate::Named }
    })
}

#[test]
fn a_flush_that_failed_for_the_superblock_is_not_made_good_by_the_next() {
    for overwritten in [false, true] {
        let mut named = 0;
        for seed in 0..100 {
            for nth in 1..4 {
                named += u32::from(fate(seed, nth, overwritten) == Fate::Named);
            }
        }
        assert!(named > 0, "something is lost, or the test tries nothing");
    }
}

/// Of two concurrent flushes of a backing device, one gets an error for lost data. The other must
/// not succeed, whichever is answered first.
#[test]
fn a_flush_of_the_backing_device_that_failed_fails_those_beside_it() {
    for seed in 0..100 {
        let mut world = World::new(seed);
        world.add_disk(&config("cache", 2 << 20, 512));
        world.add_disk(&DiskConfig::new("backing", 1 << 20));
        run(&world, async move |disks| {
            make(&disks, 4096).await;
            let (cache, _) = open(&disks, Durability::Flush).await;
            let volume = attach(&cache, &disks, Mode::WriteThrough).await;
            volume.flush().await.expect("flushes");
            volume.write(0, page(1)).await.expect("writes");
            disks[1].set_faults(FaultPlan {
                fail_nth: Some((OpClass::Flush, 1)),
                lose_at_failed_flush: true,
                ..FaultPlan::default()
            });
            let beside = Rc::clone(&volume);
            rt::spawn(async move {
                let _ = beside.flush().await;
            });
            rt::sleep(Duration::from_micros(seed)).await;
            assert!(volume.flush().await.is_err(), "seed {seed}");
        });
    }
}

/// A device whose flushes fail while its peer is away.
struct Remote {
    disk: SimDisk,
    away: Rc<Cell<Option<ErrorKind>>>,
}

impl BlockDevice for Remote {
    fn info(&self) -> DeviceInfo {
        self.disk.info()
    }

    fn submit(&self, request: Request, done: Completion) {
        match self.away.get() {
            Some(kind) if request.op == Op::Flush => done.complete(Err(kind.into())),
            _ => self.disk.submit(request, done),
        }
    }
}

/// Writes through to a device, and flushes while its peer is away. The peer returns before the next
/// flush, or the process ends first. Returns whether the next flush failed, and whether the next
/// process reports a loss.
fn flushed_while_away(kind: ErrorKind, returns: bool) -> (bool, bool) {
    let world = world(1, 2 << 20, 512);
    run(&world, async move |disks| {
        make(&disks, 4096).await;
        let journal = Buf::zeroed(1 << 16);
        let (cache, _) = open_with(&disks, journal.clone(), 50).await;
        let away = Rc::new(Cell::new(None));
        let backing = Rc::new(Remote {
            disk: disks[1].clone(),
            away: Rc::clone(&away),
        });
        let options = VolumeOptions::new(Mode::WriteThrough);
        let volume = cache.attach("v", backing, options).await.expect("attaches");
        volume.write(0, page(1)).await.expect("writes");
        away.set(Some(kind));
        volume.flush().await.expect_err("the peer is away");
        away.set((!returns).then_some(kind));
        let next = volume.flush().await;
        let left = Buf::copied(&journal.to_vec());
        let (cache, _) = open_with(&disks, left, 50).await;
        let volume = attach(&cache, &disks, Mode::WriteThrough).await;
        volume.flush().await.expect("flushes");
        (next.is_err(), cache.stats().volumes[0].loss.is_some())
    })
}

/// A device whose peer is unreachable has every acknowledged change, until the process ends. After
/// other errors it may have dropped changes.
#[test]
fn a_flush_succeeds_after_the_peer_was_away() {
    let away = ErrorKind::Unreachable;
    assert_eq!(flushed_while_away(away, true), (false, false));
    assert_eq!(flushed_while_away(away, false), (true, true));
    for other in [ErrorKind::Disconnected, ErrorKind::TimedOut] {
        assert_eq!(flushed_while_away(other, true), (true, true));
    }
}

/// The close is requested during a round of several batches, and that round logs it. No round
/// follows, so the close must not wait for one.
#[test]
fn a_close_that_a_running_round_logs_ends() {
    let ends = |fault| {
        let mut world = World::new(1);
        world.add_disk(&config("cache", 32 << 20, 512));
        world.add_disk(&config("backing", 16 << 20, 512));
        let ended = Rc::new(Cell::new(false));
        let has_ended = Rc::clone(&ended);
        plant(fault);
        run(&world, async move |disks| {
            make(&disks, GRANULE as u32).await;
            let (cache, _) = open_with(&disks, Buf::zeroed(1 << 20), 1 << 20).await;
            let volume = attach(&cache, &disks, Mode::WriteBack).await;
            for at in 0..16 {
                let data = Buf::zeroed(1 << 20);
                volume.write(at << 20, data).await.expect("writes");
            }
            let committer = &cache.engine.committer;
            let logged = || cache.stats().log_bytes;
            let before = logged();
            committer.request_commit();
            while logged() == before {
                rt::sleep(Duration::from_micros(1)).await;
            }
            committer.queue_entry(Entry::Close);
            let closed = rt::at_most(Duration::from_secs(60), committer.commit());
            has_ended.set(closed.await.is_some_and(|closed| closed.is_ok()));
        });
        plant(None);
        ended.get()
    };
    assert!(ends(None));
    assert!(!ends(Some(Fault::AwaitRoundAfterClose)), "it is not found");
}
