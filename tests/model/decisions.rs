//! The simulator and the engine make the same decisions: placed blocks, read-ahead, victims.
//!
//! Where the largest block is over 256 KiB, the engine has finer maps of small blocks than the
//! simulator. The missing part of a granule may differ. Those sizes are not compared.

use std::rc::Rc;
use std::time::Duration;

use forebay_block::{BlockDevice, BlockDeviceExt, Buf};
use forebay_cache::{
    BlockSizes, Cache, CacheOptions, Cleaning, Devices, FormatOptions, Mode, VolumeOptions,
};
use forebay_device::mem::MemDevice;
use forebay_io::rt;
use forebay_io::sim::Rng;
use forebay_metadata::superblock::ZONE_BITS;
use forebay_policy::{Decision, take_decisions};
use forebay_trace::sim::{CacheModel, Costs, Fill, Replace, Simulated, WriteBack};
use forebay_trace::{Op, Request};

const K: u64 = 1 << 10;
const M: u64 = 1 << 20;
/// Counters of the stretches of regions with blocks, for a small cache.
const STRETCHES: u64 = 1 << 10;

/// The common result: decisions by request, numbers of placed and evicted blocks, and final bytes
/// of metadata in memory.
#[derive(Debug, Default)]
struct Same {
    placed: usize,
    left: usize,
    brought: usize,
    simulated_bytes: u64,
    engine_bytes: u64,
}

/// Serves requests with the simulator, with `replace` in it, and with an engine on memory devices.
fn compare(
    replace: Replace,
    sizes: &[u64],
    cache_bytes: u64,
    requests: Vec<Request>,
) -> Result<Same, String> {
    let sizes: Vec<u64> = sizes.iter().map(|size| size * K).collect();
    rt::block_on_in_order(async move {
        let devices = Devices {
            data: MemDevice::new("cache", cache_bytes),
            metadata: None,
        };
        let format = FormatOptions::sizes(&sizes, [7; 16]);
        forebay_cache::format(&devices, &format)
            .await
            .expect("formats");
        let options = CacheOptions {
            journal: Some(Buf::zeroed(1 << 20)),
            dirty_limit_percent: 100,
            // The simulator has no clock by which dirty blocks could be cleaned.
            cleaning: Cleaning::Nop,
            ..CacheOptions::new([9; 16])
        };
        let (cache, _) = Cache::open(devices, options).await.expect("opens");
        let end = requests
            .iter()
            .map(Request::end_bytes)
            .max()
            .expect("requests");
        let sizes = BlockSizes::new(&sizes).expect("right");
        let backing = MemDevice::new("backing", end.next_multiple_of(sizes.region_bytes()));
        let volume: Rc<dyn BlockDevice> = cache
            .attach("v", backing, VolumeOptions::new(Mode::WriteBack))
            .await
            .expect("attaches");
        let mut simulated = Simulated::new(CacheModel {
            sizes,
            capacity_bytes: cache.stats().blocks * sizes.unit_bytes(),
            replace,
            fill: Fill::Learned,
            write_back: WriteBack::Runs,
            costs: Costs::CLOUD,
        });
        let mut same = Same::default();
        drop(take_decisions());
        for (number, request) in requests.iter().enumerate() {
            simulated.request(&Request {
                volume: 1,
                ..*request
            });
            let expected = take_decisions();
            let buf = Buf::zeroed(request.len_bytes as usize);
            let served = match request.op {
                Op::Write => volume.write(request.offset_bytes, buf).await,
                _ => volume.read(request.offset_bytes, buf).await,
            };
            served.expect("served");
            // Kills join the client's round. Then all other tasks run.
            volume.flush().await.expect("flushes");
            let mut decided = take_decisions();
            while decided.len() < expected.len() {
                let before = decided.len();
                rt::sleep(Duration::from_millis(7)).await;
                volume.flush().await.expect("flushes");
                decided.extend(take_decisions());
                if decided.len() == before {
                    break;
                }
            }
            if decided
                .iter()
                .any(|one| matches!(one, Decision::Leave { .. }))
            {
                // Dirty blocks that replacement skipped are written back, as the simulator has
                // already done.
                rt::sleep(Duration::from_millis(7)).await;
            }
            if decided != expected {
                return Err(format!(
                    "request {number}, {request:?}:\nthe simulator decided {expected:?},\nthe \
                     engine {decided:?}"
                ));
            }
            for decision in decided {
                match decision {
                    Decision::Place { .. } => same.placed += 1,
                    Decision::Leave { .. } => same.left += 1,
                    Decision::Fetch { .. } => same.brought += 1,
                }
            }
        }
        same.simulated_bytes = simulated.memory_bytes();
        // The counters of dirty zones and of stretches have one size for every small cache. The
        // simulator has none.
        let counters = ZONE_BITS as u64 * 4 + STRETCHES * 4;
        same.engine_bytes = cache.stats().memory_bytes - counters;
        cache.close().await.expect("closes");
        Ok(same)
    })
}

/// Returns streams, and requests of all sizes to a hot and a cold set.
fn mixed(seed: u64, volume_bytes: u64, longest: u64, count: usize) -> Vec<Request> {
    let rng = Rng::new(seed);
    let mut streams = [0; 3];
    let request = |_| {
        let len = (4 * K) << rng.below(u64::from((longest / (4 * K)).ilog2()) + 1);
        let (offset, op) = match rng.below(10) {
            0..=2 => {
                let stream = rng.index(streams.len());
                if streams[stream] + len > volume_bytes || rng.chance(1, 50) {
                    streams[stream] = rng.below(volume_bytes / M) * M;
                }
                streams[stream] += len;
                (streams[stream] - len, Op::Read)
            }
            kind => {
                let of = if rng.chance(4, 5) {
                    volume_bytes / 8
                } else {
                    volume_bytes
                };
                let offset = rng.below((of - len) / 512) * 512;
                (offset, if kind < 7 { Op::Read } else { Op::Write })
            }
        };
        Request {
            time_ns: 0,
            volume: 0,
            op,
            offset_bytes: offset.min(volume_bytes - len),
            len_bytes: u32::try_from(len).expect("small"),
        }
    };
    (0..count).map(request).collect()
}

#[test]
fn simulator_and_engine_decide_the_same() {
    for (sizes, cache_bytes, longest) in [
        (&[32][..], 9 * M, 64 * K),
        (&[4, 8, 16, 32], 5 * M, 64 * K),
        (&[32, 64, 128, 256], 40 * M, 512 * K),
        (&[16, 256], 40 * M, 512 * K),
    ] {
        for seed in 0..2 {
            let requests = mixed(seed, cache_bytes * 8, longest, 6000);
            let same = compare(Replace::Ours, sizes, cache_bytes, requests);
            let same = same.unwrap_or_else(|what| panic!("{sizes:?}, seed {seed}: {what}"));
            println!("{sizes:?}, seed {seed}: {same:?}");
            assert!(
                same.placed > 1000 && same.left > 300 && same.brought > 300,
                "{same:?}"
            );
            // Slots still have numbers while they wait until their kill is durable. The simulator
            // has no such wait.
            let (simulated, engine) = (same.simulated_bytes, same.engine_bytes);
            assert!(simulated.abs_diff(engine) * 100 <= engine, "{same:?}");
        }
    }
}

#[test]
fn another_policy_differs() {
    let requests = mixed(3, 40 * M, 64 * K, 6000);
    let compared = compare(Replace::Paper, &[4, 8, 16, 32], 5 * M, requests);
    assert!(
        compared
            .expect_err("they differ")
            .contains("the simulator decided")
    );
}
