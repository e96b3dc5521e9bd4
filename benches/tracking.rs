//! Time that a write waits before it overwrites a clean cached block in place, for each kind of
//! dirty tracking. This is MapperX's micro-benchmark: all-hit random writes as large as a cache
//! block, on an emulated SSD.
//!
//! `tracking HOW BLOCK_KIB DEPTH WRITES` prints one JSON object. HOW is `none`, `abt`, `exact` (a
//! mark for 64 blocks) or `each` (a mark for each block, as the paper's synchronous update). Time
//! is virtual and the same in each run. It has the devices' delays and the engine's waits for them,
//! to the microsecond, and no processor time.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use forebay_benches::Hollow;
use forebay_block::{
    BlockDevice, BlockDeviceExt as _, Buf, Completion, DeviceInfo, Request, Result,
};
use forebay_cache::{
    Cache, CacheOptions, CacheStats, Devices, DirtyTracking, FormatOptions, Mode, VolumeOptions,
};
use forebay_device::emulate::{EmulateDevice, Profile};
use forebay_io::rt;
use forebay_io::sim::{Outcome, Rng, World};

/// Cached blocks. All are clean at first.
const BLOCKS: u64 = 1 << 15;
/// An NVMe SSD with a volatile cache.
const SSD: Profile = Profile {
    read_latency_us: 80,
    write_latency_us: 20,
    flush_latency_us: 400,
    bandwidth_bytes_per_s: 2_500_000_000,
    iops: 400_000,
    queue_depth: 64,
};
/// The backing device.
const BACKING: Profile = Profile {
    read_latency_us: 500,
    write_latency_us: 500,
    flush_latency_us: 1000,
    bandwidth_bytes_per_s: 1_000_000_000,
    iops: 20_000,
    queue_depth: 64,
};
/// Extra time of a FUA write, as much as a flush takes. The emulation has no such time of its own.
const FUA: Duration = Duration::from_micros(200);

/// A device with a volatile cache.
struct Volatile(Rc<dyn BlockDevice>);

impl BlockDevice for Volatile {
    fn info(&self) -> DeviceInfo {
        let mut info = self.0.info();
        (info.volatile_cache, info.fua) = (true, true);
        info
    }

    fn submit(&self, request: Request, done: Completion) {
        if request.op != (forebay_block::Op::Write { fua: true }) {
            return self.0.submit(request, done);
        }
        let device = Rc::clone(&self.0);
        rt::spawn(async move {
            let written = device.start(request).await;
            rt::sleep(FUA).await;
            done.complete(written);
        });
    }
}

/// Settings of one run.
#[derive(Clone, Debug)]
struct Settings {
    how: String,
    block_bytes: u64,
    depth: usize,
    writes: usize,
}

impl Settings {
    fn parse(arguments: &[String]) -> Option<Self> {
        let [how, kib, depth, writes] = arguments else {
            return None;
        };
        let known = matches!(how.as_str(), "none" | "abt" | "exact" | "each");
        known.then_some(Self {
            how: how.clone(),
            block_bytes: kib.parse::<u64>().ok()? << 10,
            depth: depth.parse().ok()?,
            writes: writes.parse().ok()?,
        })
    }

    fn format(&self) -> FormatOptions {
        let plain = FormatOptions::sizes(&[self.block_bytes], [7; 16]);
        FormatOptions {
            dirty_tracking: match self.how.as_str() {
                "abt" => DirtyTracking::Abt,
                "none" => DirtyTracking::None,
                _ => DirtyTracking::Exact,
            },
            region_shift: if self.how == "each" { 0 } else { 6 },
            ..plain
        }
    }
}

/// Result of one run.
struct Measured {
    latencies_us: Vec<u64>,
    time: Duration,
    before: CacheStats,
    after: CacheStats,
    /// Blocks that a restart would write back if the machine stopped now.
    doubtful_blocks: u64,
}

async fn measure(settings: Settings) -> Result<Measured> {
    let volume_bytes = BLOCKS * settings.block_bytes;
    let log_bytes = 64 << 20;
    let ssd = Hollow::new(
        "ssd",
        volume_bytes + volume_bytes / 8 + log_bytes,
        log_bytes,
    );
    let ssd: Rc<dyn BlockDevice> = Rc::new(Volatile(EmulateDevice::wrap(ssd, SSD)));
    let devices = Devices {
        data: ssd,
        metadata: None,
    };
    forebay_cache::format(&devices, &settings.format()).await?;
    let options = CacheOptions {
        journal: Some(Buf::zeroed(4 << 20)),
        dirty_limit_percent: 95,
        ..CacheOptions::new([9; 16])
    };
    let (cache, _) = Cache::open(devices.clone(), options).await?;
    let backing = Volatile(EmulateDevice::wrap(
        Hollow::new("backing", volume_bytes, 0),
        BACKING,
    ));
    let volume = (cache.attach("v", Rc::new(backing), VolumeOptions::new(Mode::WriteBack))).await?;
    let buf = Buf::zeroed(settings.block_bytes as usize);
    for block in 0..BLOCKS {
        volume
            .write(block * settings.block_bytes, buf.clone())
            .await?;
    }
    cache.write_back(None).await?;
    let before = cache.stats();
    let left = Rc::new(Cell::new(settings.writes));
    let latencies = Rc::new(RefCell::new(Vec::with_capacity(settings.writes)));
    let rng = Rc::new(Rng::labelled(1, 1));
    let begin = rt::now();
    let clients: Vec<_> = (0..settings.depth)
        .map(|_| {
            let (volume, buf) = (Rc::clone(&volume), buf.clone());
            let (left, latencies, rng) = (Rc::clone(&left), Rc::clone(&latencies), Rc::clone(&rng));
            let over = forebay_io::sync::Promise::new();
            let set = over.clone();
            rt::spawn(async move {
                let mut result = Ok(());
                while left.get() > 0 && result.is_ok() {
                    left.set(left.get() - 1);
                    let at = rng.below(BLOCKS) * settings.block_bytes;
                    let sent = rt::now();
                    result = volume.write(at, buf.clone()).await;
                    let us = (rt::now() - sent).as_micros();
                    (latencies.borrow_mut()).push(u64::try_from(us).unwrap_or(u64::MAX));
                }
                set.set(result);
            });
            over
        })
        .collect();
    for client in clients {
        client.get().await?;
    }
    let time = rt::now() - begin;
    let mut latencies_us = latencies.take();
    latencies_us.sort_unstable();
    let after = cache.stats();
    let found = forebay_cache::inspect(&devices, None, &[9; 16]).await?;
    let dirty_bytes: u64 = found.volumes.iter().map(|volume| volume.dirty_bytes).sum();
    Ok(Measured {
        doubtful_blocks: dirty_bytes / settings.block_bytes,
        latencies_us,
        time,
        before,
        after,
    })
}

fn main() {
    let arguments: Vec<String> = (std::env::args().skip(1))
        .filter(|argument| argument != "--bench")
        .collect();
    // `cargo bench` runs all benchmarks: one small run.
    let default = ["abt", "64", "1", "2000"].map(str::to_owned);
    let settings = match &arguments[..] {
        [] => Settings::parse(&default),
        given => Settings::parse(given),
    };
    let Some(settings) = settings else {
        eprintln!("tracking none|abt|exact|each BLOCK_KIB DEPTH WRITES");
        std::process::exit(2);
    };
    let run = settings.clone();
    let measured = match World::new(1).run(1, measure(run)) {
        Outcome::Finished(measured) => measured.expect("nothing fails"),
        Outcome::Crashed | Outcome::Deadlock(_) => panic!("the run did not end"),
    };
    let latencies = &measured.latencies_us;
    let at = |share: f64| latencies[((latencies.len() - 1) as f64 * share) as usize];
    let tree = |stats: &CacheStats| stats.tree.unwrap_or_default();
    let (before, after) = (&measured.before, &measured.after);
    let metadata_bytes = |stats: &CacheStats| stats.log_bytes + tree(stats).bytes;
    let mean = latencies.iter().sum::<u64>() as f64 / latencies.len() as f64;
    println!(
        "{}",
        serde_json::json!({
            "how": settings.how,
            "block_kib": settings.block_bytes >> 10,
            "depth": settings.depth,
            "writes": latencies.len(),
            "iops": latencies.len() as f64 / measured.time.as_secs_f64(),
            "mean_us": mean,
            "p50_us": at(0.5),
            "p99_us": at(0.99),
            "p999_us": at(0.999),
            "marks": after.marks - before.marks,
            "persists": tree(after).persists - tree(before).persists,
            "metadata_bytes": metadata_bytes(after) - metadata_bytes(before),
            "written_back": after.write_backs - before.write_backs,
            "dirty_blocks": after.dirty_blocks,
            "doubtful_blocks": measured.doubtful_blocks,
        })
    );
}
