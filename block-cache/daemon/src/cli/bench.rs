//! `forebay bench`: measures the speed of the cache's own code. Cache and volume are memory of one
//! process, so that neither media nor protocols add time.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use forebay_block::{BlockDevice, BlockDeviceExt as _, Buf, Result};
use forebay_cache::{Cache, CacheOptions, Devices, FormatOptions, Mode, VolumeOptions};
use forebay_device::mem::MemDevice;
use forebay_io::{Engine, Reactor, rt, system};
use forebay_volume::Volume;
use serde_json::json;

use forebay_terminal::out;
use forebay_terminal::size::human_duration;
use forebay_terminal::table::Table;

/// Size of the volume, bytes. All of it fits into the cache.
const VOLUME_BYTES: u64 = 256 << 20;
const CACHE_BYTES: u64 = 512 << 20;
const REQUEST_BYTES: u64 = 4096;

/// Measure the speed of the cache's own code, in memory
///
/// Hits of 4 KiB at random offsets on one thread, in write-back mode, including copies and
/// metadata. Devices and protocols add their own time.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// Time for each row, in seconds
    #[arg(long, default_value = "2", value_parser = parse_seconds)]
    pub(super) seconds: Duration,
    /// Print the rows as JSON
    #[arg(long)]
    pub(super) json: bool,
}

fn parse_seconds(text: &str) -> Result<Duration, &'static str> {
    let seconds: Option<f64> = text.parse().ok();
    seconds
        .filter(|seconds| (0.01..=3600.0).contains(seconds))
        .map(Duration::from_secs_f64)
        .ok_or("write a number from 0.01 to 3600, such as 0.5")
}

#[derive(Clone, Copy)]
struct Load {
    name: &'static str,
    write: bool,
    depth: usize,
}

const LOADS: [Load; 4] = [
    Load {
        name: "read hit",
        write: false,
        depth: 1,
    },
    Load {
        name: "read hit",
        write: false,
        depth: 32,
    },
    Load {
        name: "write hit",
        write: true,
        depth: 1,
    },
    Load {
        name: "write hit",
        write: true,
        depth: 32,
    },
];

struct Row {
    load: Load,
    iops: f64,
    p50_us: f64,
    p99_us: f64,
}

pub(super) fn run(arguments: &Arguments) -> Result<()> {
    let time = arguments.seconds;
    let reactor = Reactor::new(Engine::Auto)?;
    let rows = reactor.run(measure(time))?;
    if arguments.json {
        let rows: Vec<_> = rows
            .iter()
            .map(|row| {
                json!({
                    "load": row.load.name,
                    "queue_depth": row.load.depth,
                    "iops": row.iops,
                    "p50_us": row.p50_us,
                    "p99_us": row.p99_us,
                })
            })
            .collect();
        let all = json!({
            "request_bytes": REQUEST_BYTES,
            "seconds": time.as_secs_f64(),
            "rows": rows,
        });
        return out::print(&format!("{all}\n"));
    }
    out::print(&format!(
        "4 KiB at random, in memory, one thread, write-back, {} a row\n",
        human_duration(time)
    ))?;
    let mut table = Table::new(&["load", ">queue depth", ">IOPS", ">p50 us", ">p99 us"]);
    for row in rows {
        table.row(vec![
            row.load.name.to_owned(),
            row.load.depth.to_string(),
            format!("{:.0}", row.iops),
            format!("{:.2}", row.p50_us),
            format!("{:.2}", row.p99_us),
        ]);
    }
    out::print(&table.render(2))
}

async fn measure(time: Duration) -> Result<Vec<Row>> {
    let devices = Devices {
        data: MemDevice::new("cache", CACHE_BYTES),
        metadata: None,
    };
    let mut uuid = [0; 16];
    system::random(&mut uuid);
    let format = FormatOptions::new(32 << 10, uuid);
    forebay_cache::format(&devices, &format).await?;
    let options = CacheOptions {
        journal: Some(Buf::zeroed(4 << 20)),
        dirty_limit_percent: 90,
        ..CacheOptions::new(system::boot_id()?)
    };
    let (cache, _) = Cache::open(devices, options).await?;
    let backing = MemDevice::new("backing", VOLUME_BYTES);
    let cached = cache
        .attach("bench", backing, VolumeOptions::new(Mode::WriteBack))
        .await?;
    let volume = Volume::new("bench", cached, false);
    let device = volume.handle().open();
    for offset in (0..VOLUME_BYTES).step_by(1 << 20) {
        device.write(offset, Buf::zeroed(1 << 20)).await?;
    }
    let mut rows = Vec::new();
    for load in LOADS {
        rows.push(run_load(&device, load, time).await?);
    }
    volume.drain().await;
    cache.close().await?;
    Ok(rows)
}

/// Runs one load: `depth` tasks with one request in flight each.
async fn run_load(device: &Rc<dyn BlockDevice>, load: Load, time: Duration) -> Result<Row> {
    let latencies = Rc::new(RefCell::new(Vec::with_capacity(1 << 20)));
    let (sender, mut receiver) = tokio::sync::mpsc::channel(load.depth);
    let begin = Instant::now();
    for number in 0..load.depth {
        let (device, latencies) = (Rc::clone(device), Rc::clone(&latencies));
        let sender = sender.clone();
        rt::spawn(async move {
            let done = client(&device, load.write, number as u64, begin + time, &latencies).await;
            let _ = sender.send(done).await;
        });
    }
    drop(sender);
    let mut count = 0;
    while let Some(done) = receiver.recv().await {
        count += done?;
    }
    let elapsed = begin.elapsed().as_secs_f64();
    let mut latencies = latencies.take();
    latencies.sort_unstable();
    let quantile_us = |share: f64| {
        let rank = (latencies.len() as f64 * share) as usize;
        let value: Option<&u32> = latencies.get(rank.min(latencies.len().saturating_sub(1)));
        value.map_or(0.0, |ns| f64::from(*ns) / 1e3)
    };
    Ok(Row {
        load,
        iops: count as f64 / elapsed,
        p50_us: quantile_us(0.50),
        p99_us: quantile_us(0.99),
    })
}

async fn client(
    device: &Rc<dyn BlockDevice>,
    write: bool,
    number: u64,
    until: Instant,
    latencies: &RefCell<Vec<u32>>,
) -> Result<u64> {
    let buf = Buf::zeroed(REQUEST_BYTES as usize);
    // SplitMix64, seeded with the client's number.
    let mut state = number;
    let mut random = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    let mut count = 0;
    loop {
        let offset = random() % (VOLUME_BYTES / REQUEST_BYTES) * REQUEST_BYTES;
        let begin = Instant::now();
        if write {
            device.write(offset, buf.clone()).await?;
        } else {
            device.read(offset, buf.clone()).await?;
        }
        let end = Instant::now();
        count += 1;
        // A sample, so that memory stays small.
        if count % 7 == 0 {
            let ns = u32::try_from((end - begin).as_nanos()).unwrap_or(u32::MAX);
            latencies.borrow_mut().push(ns);
        }
        if end >= until {
            return Ok(count);
        }
        // Memory completes at once; this lets other clients and the cache's own tasks run.
        if count % 32 == 0 {
            rt::yield_now().await;
        }
    }
}
