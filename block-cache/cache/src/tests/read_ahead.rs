//! Read-ahead: data that a read fetches without a request for it.

use std::cell::Cell;
use std::time::Duration;

use forebay_block::{Completion, DeviceInfo, Op, Request};

use super::*;
use crate::engine::Engine;
use crate::geometry::Extent;
use crate::job::Job;
use crate::read_ahead::MAX_BYTES;

const K: u64 = 1 << 10;

fn device(name: &str, size: u64, latency_us: u64) -> DiskConfig {
    DiskConfig {
        latency_us: (latency_us, latency_us),
        ..config(name, size, 4096)
    }
}

/// Reads the first 4 KiB of a region with a read-ahead of 24 KiB. Returns the time.
async fn read_with_miss(engine: &Rc<Engine>, region: u64) -> Duration {
    read_first(engine, region, 28 << 10).await
}

/// Reads the first 4 KiB of a region with a read-ahead up to byte `end`. Returns the time.
async fn read_first(engine: &Rc<Engine>, region: u64, end: u32) -> Duration {
    let volume = engine.volumes.named("v").expect("attached");
    let start = 0;
    let part = |end| Extent { region, start, end };
    let job = Job {
        part: part(4096),
        buf: Buf::zeroed(4096),
        durable: false,
        bypass: false,
    };
    let began = rt::now();
    let read = crate::read::read(engine, &volume, job, part(end));
    read.await.expect("reads");
    rt::now() - began
}

#[test]
fn a_block_that_several_reads_fill_counts_once() {
    let mut world = World::new(14);
    world.add_disk(&device("cache", 8 << 20, 10));
    world.add_disk(&device("backing", 2 << 20, 10));
    run(&world, async |disks| {
        make_sizes(&disks, &[1 << 20]).await;
        let (cache, _) = open(&disks, Durability::Flush).await;
        let _volume = attach(&cache, &disks, Mode::WriteBack).await;
        let engine = Rc::clone(&cache.engine);
        let reads = disks[1].counters().reads;
        read_first(&engine, 0, 1 << 20).await;
        cache.close().await.expect("closes");
        assert!(disks[1].counters().reads > reads + 1, "several reads");
        assert_eq!(engine.stats.promotions.get(), 1);
    });
}

/// The answer waits neither for others' locks nor for the fill. Read-ahead data that can be fetched
/// arrives after it.
#[test]
fn reads_do_not_wait_for_their_read_ahead() {
    let mut world = World::new(12);
    world.add_disk(&device("cache", 4 << 20, 50_000));
    world.add_disk(&device("backing", 1 << 20, 1000));
    run(&world, async |disks| {
        make_sizes(&disks, &[4, 8, 16, 32].map(|size| size * K)).await;
        let (cache, _) = open(&disks, Durability::Flush).await;
        let volume = attach(&cache, &disks, Mode::WriteBack).await;
        let engine = &cache.engine;
        let id = engine.volumes.named("v").expect("attached").id;
        let cached = |region| engine.map.borrow().cached(id, region);

        // One of the blocks of the read-ahead is locked.
        let key = forebay_policy::BlockKey::new(id, 0);
        let others = engine.locks.exclusive(key, 0b1000).await;
        read_with_miss(engine, 0).await;
        assert_eq!(cached(0), 1, "what was asked for, and no more");
        drop(others);

        let took = read_with_miss(engine, 1).await;
        assert!(took < Duration::from_millis(10), "waited for {took:?}");
        assert_eq!(cached(1), 0, "it is on its way");
        assert_eq!(engine.read_ahead.in_flight_bytes(), 24 * K);
        let reads = disks[1].counters().reads;
        let block = Buf::zeroed(4096);
        volume.read(56 * K, block).await.expect("waits, and reads");
        assert_eq!(disks[1].counters().reads, reads, "one read brought all");
        assert_eq!((cached(1), engine.read_ahead.in_flight_bytes()), (0x7f, 0));

        // Closing the cache waits for the read-ahead.
        read_with_miss(engine, 2).await;
        cache.close().await.expect("closes");
        assert_eq!((cached(2), engine.read_ahead.in_flight_bytes()), (0x7f, 0));
    });
}

/// A device that knows how many bytes are being read from it.
struct Counting {
    disk: SimDisk,
    now: Rc<Cell<u64>>,
    most: Rc<Cell<u64>>,
}

impl BlockDevice for Counting {
    fn info(&self) -> DeviceInfo {
        self.disk.info()
    }

    fn submit(&self, request: Request, done: Completion) {
        let bytes = if request.op == Op::Read {
            request.len
        } else {
            0
        };
        self.now.set(self.now.get() + bytes);
        self.most.set(self.most.get().max(self.now.get()));
        let (io, now) = (self.disk.start(request), Rc::clone(&self.now));
        rt::spawn(async move {
            let result = io.await;
            now.set(now.get() - bytes);
            done.complete(result);
        });
    }
}

/// However many reads miss, their read-ahead has a bound.
#[test]
fn read_ahead_is_bounded() {
    const READS: u64 = 1800;
    const { assert!(READS * 24 * K > MAX_BYTES * 5 / 4, "too few reads") };
    let mut world = World::new(13);
    world.add_disk(&device("cache", 64 << 20, 10));
    world.add_disk(&device("backing", READS * 32 * K, 1_000_000));
    run(&world, async |disks| {
        make_sizes(&disks, &[32 * K]).await;
        let (cache, _) = open(&disks, Durability::Flush).await;
        let (now, most) = (Rc::default(), Rc::default());
        let backing = Counting {
            disk: disks[1].clone(),
            now,
            most: Rc::clone(&most),
        };
        let options = VolumeOptions::new(Mode::WriteBack);
        let attached = cache.attach("v", Rc::new(backing), options).await;
        drop(attached.expect("attaches"));
        let read = |region| {
            let engine = Rc::clone(&cache.engine);
            async move { read_with_miss(&engine, region).await }
        };
        crate::parallel::join((0..READS).map(read).collect()).await;
        let prefetched = most.get() - READS * 4 * K;
        assert!(prefetched <= MAX_BYTES, "{prefetched} bytes came along");
        assert!(prefetched > MAX_BYTES - 24 * K, "only {prefetched} bytes");
        rt::sleep(Duration::from_secs(1)).await;
        assert_eq!(cache.engine.read_ahead.in_flight_bytes(), 0);
        cache.close().await.expect("closes");
    });
}
