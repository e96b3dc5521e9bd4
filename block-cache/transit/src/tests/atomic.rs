//! Over a block translation table: blocks are as atomic as they are there, and evictions go to
//! threads.

use std::rc::Rc;
use std::sync::{Arc, Mutex};

use forebay_block::{BlockDevice, BlockDeviceExt, Buf, DeviceInfo};
use forebay_btt::{Btt, BttDevice, FormatOptions, format};
use forebay_io::pmem::{Pmem, PmemMapping};
use forebay_io::rt::{self, block_on_simulated};
use forebay_io::sim::{PmemStep, Rng, SimPmem, Survival};
use forebay_io::{Engine, Reactor};

use crate::comparators;
use crate::{Transit, TransitOptions, Workers, memory_bytes};

const BLOCKS: u64 = 6;
const BYTES: usize = 512;

fn table<P: Pmem>(memory: &Arc<P>) -> BttDevice<P> {
    let under = DeviceInfo::new("pm", memory.size_bytes());
    let table = Btt::open(Arc::clone(memory)).expect("a table");
    BttDevice::new(Arc::new(table), "b", &under)
}

fn formatted<P: Pmem>(memory: &P) {
    format(memory, &FormatOptions::new(BYTES as u32, [7; 16])).expect("large enough");
}

/// A block in a version: all bytes depend on both.
fn stamp(block: u64, version: u64) -> Buf {
    let buf = Buf::zeroed(BYTES);
    if version > 0 {
        let mut word = (block << 32 | version).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        for at in (0..BYTES).step_by(8) {
            word = word.wrapping_mul(0xd134_2543_de82_ef95).wrapping_add(1);
            buf.copy_from(at, &word.to_le_bytes());
        }
    }
    buf
}

/// By block: the version that a flush covered, and the newest.
type Versions = Arc<Mutex<[(u64, u64); BLOCKS as usize]>>;

/// Power loss would leave one whole version of each block, none older than promised.
fn survives(memory: &SimPmem, versions: &Versions, seed: u64) {
    let table = table(&memory.crash(Survival::Random(seed)));
    for (block, (promised, newest)) in (0..).zip(*versions.lock().expect("sound")) {
        let buf = Buf::zeroed(BYTES);
        let read = forebay_block::Request::read(block * BYTES as u64, buf.clone());
        table.run(&read).expect("readable");
        let seen = buf.to_vec();
        let known = (promised..=newest).any(|version| stamp(block, version).to_vec() == seen);
        assert!(
            known,
            "block {block} is none of versions {promised} to {newest}, wholly"
        );
    }
}

#[test]
fn power_loss_at_any_step_leaves_whole_blocks() {
    for (seed, policy) in (0..).zip(comparators::ALL) {
        let memory = SimPmem::new(16 << 20);
        formatted(&*memory);
        let memory = memory.crash(Survival::All);
        let versions = Versions::default();
        let looked = Arc::new(Mutex::new(0_u64));
        let (seen, count) = (Arc::clone(&versions), Arc::clone(&looked));
        memory.observe(Some(Arc::new(move |memory: &SimPmem, step| {
            let mut count = count.lock().expect("sound");
            *count += 1;
            if step == PmemStep::Fence || count.is_multiple_of(7) {
                survives(memory, &seen, *count);
            }
        })));
        let keep = Arc::clone(&memory);
        block_on_simulated(seed, async move {
            let device: Rc<dyn BlockDevice> = Rc::new(table(&memory));
            let options = TransitOptions {
                policy,
                ..TransitOptions::new("t", [1; 16])
            };
            let slots = Buf::zeroed(memory_bytes(4, BYTES as u32));
            let (cache, _) =
                Transit::open(Rc::clone(&device), device, slots, options).expect("opens");
            let rng = Rng::new(seed);
            for version in 1..150 {
                let block = rng.below(BLOCKS);
                let at = block * BYTES as u64;
                versions.lock().expect("sound")[block as usize].1 = version;
                if rng.chance(1, 8) {
                    cache
                        .write_fua(at, stamp(block, version))
                        .await
                        .expect("written");
                    versions.lock().expect("sound")[block as usize].0 = version;
                } else {
                    cache
                        .write(at, stamp(block, version))
                        .await
                        .expect("written");
                }
                if rng.chance(1, 10) {
                    cache.flush().await.expect("flushed");
                    for block in &mut *versions.lock().expect("sound") {
                        block.0 = block.1;
                    }
                }
                if rng.chance(1, 2) {
                    rt::yield_now().await;
                }
            }
        });
        keep.observe(None);
        assert!(*looked.lock().expect("sound") > 500, "{policy}");
    }
}

#[test]
fn threads_evict_and_every_read_is_of_the_last_version() {
    let path = std::env::temp_dir().join(format!("fb-transit-{}", std::process::id()));
    let memory = PmemMapping::open(&path, Some(16 << 20)).expect("a file");
    std::fs::remove_file(&path).expect("it is mapped");
    formatted(&memory);
    let memory = Arc::new(memory);
    for policy in comparators::ALL {
        let reactor = Reactor::new(Engine::Threads).expect("a reactor");
        let table = Arc::new(table(&memory));
        let behind = Arc::clone(&table);
        let last = reactor.run(async move {
            let run = Arc::clone(&table);
            let info = table.info();
            let workers = Workers::new(info, Arc::new(move |request| run.run(request)), 2);
            let evictor: Rc<dyn BlockDevice> = Rc::new(workers.expect("threads"));
            let device: Rc<dyn BlockDevice> = Rc::new(table);
            let options = TransitOptions {
                policy,
                evictions: 4,
                ..TransitOptions::new("t", [1; 16])
            };
            let slots = Buf::zeroed(memory_bytes(20, BYTES as u32));
            let (cache, _) = Transit::open(device, evictor, slots, options).expect("opens");
            let rng = Rng::new(5);
            let mut last = vec![0; 64];
            for version in 1..20_000 {
                let block = rng.below(64);
                let at = block * BYTES as u64;
                match rng.below(20) {
                    0..10 => {
                        last[block as usize] = version;
                        let fua = rng.chance(1, 30);
                        let data = stamp(block, version);
                        let write = forebay_block::Request::write(at, data, fua);
                        cache.start(write).await.expect("written");
                    }
                    10..19 => {
                        let buf = Buf::zeroed(BYTES);
                        cache.read(at, buf.clone()).await.expect("read");
                        let expected = stamp(block, last[block as usize]);
                        assert_eq!(buf.to_vec(), expected.to_vec(), "{policy}: block {block}");
                    }
                    _ if rng.chance(1, 10) => cache.flush().await.expect("flushed"),
                    _ => (),
                }
            }
            cache.flush().await.expect("flushed");
            let stats = cache.stats();
            assert_eq!(stats.owed, 0, "{policy}");
            assert!(stats.evicted > 100, "{policy}: {stats:?}");
            last
        });
        for (block, version) in (0..).zip(last) {
            let buf = Buf::zeroed(BYTES);
            let read = forebay_block::Request::read(block * BYTES as u64, buf.clone());
            behind.run(&read).expect("readable");
            assert_eq!(
                buf.to_vec(),
                stamp(block, version).to_vec(),
                "{policy}: block {block}"
            );
            let blank = forebay_block::Request::write_zeroes(block * 512, 512, false, false);
            behind.run(&blank).expect("zeroed");
        }
    }
}
