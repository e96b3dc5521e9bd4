//! The engine's half of `cargo xtask study mapperx`, for each trace. The engine serves the trace in
//! front of a simulated disk, and the machine loses power. The program counts the blocks that the
//! next process compares and writes back. It reads a job as JSON, prints counts as JSON, and judges
//! only whether a byte was lost.
//!
//! A job is the same as for the example `mapperx`.

#[path = "../../planner/trace/examples/mapperx/input.rs"]
mod input;
#[path = "../../planner/trace/examples/study/source.rs"]
mod source;

use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use forebay_block::{BlockDevice, BlockDeviceExt, Buf};
use forebay_cache::{
    Cache, CacheOptions, CacheStats, Devices, DirtyTracking, FormatOptions, Mode, VolumeOptions,
};
use forebay_io::rt;
use forebay_io::sim::{DiskConfig, Keep, Outcome as Ended, SimDisk, World};
use forebay_trace::{Op, Request};
use serde_json::{Value, json};

use input::{Input, UNIT_BYTES};
use source::Outcome;

/// The cache's share of the working set, percent.
const CACHE_PERCENT: u64 = 10;
/// Points of the trace at which power is lost, percent.
const CRASHES_PERCENT: [u64; 4] = [40, 60, 80, 100];
/// Shortest and longest time of an operation, microseconds.
const CACHE_US: (u64, u64) = (20, 60);
const BACKING_US: (u64, u64) = (400, 1200);
/// Unit of the written data, bytes.
const SECTOR: u64 = 512;

fn main() {
    let argument = std::env::args().nth(1).unwrap_or_default();
    match run(&argument) {
        Ok(result) => println!("{result}"),
        Err(error) => {
            eprintln!("recovery: {error}");
            std::process::exit(1);
        }
    }
}

fn run(job: &str) -> Outcome<Value> {
    let job: Value = serde_json::from_str(job).map_err(|error| format!("the job: {error}"))?;
    let percents = job["dirty_percents"].as_array();
    let percents = percents.ok_or("the job has no dirty_percents")?;
    let input = Rc::new(Input::read(&job, 1)?);
    let mut crashes = Vec::new();
    for percent in percents.iter().filter_map(Value::as_u64) {
        for tracking in DirtyTracking::ALL {
            for at in CRASHES_PERCENT {
                crashes.push(crash(&input, percent, tracking, at)?);
            }
        }
    }
    Ok(json!({
        "requests": input.requests.len(),
        "writes": input.writes,
        "write_bytes": input.write_bytes,
        "crashes": crashes,
    }))
}

/// Serves the trace to `at` percent, loses power, and recovers.
fn crash(input: &Rc<Input>, percent: u64, tracking: DirtyTracking, at: u64) -> Outcome<Value> {
    let volume_bytes = input.blocks.values().sum::<u64>() * UNIT_BYTES;
    let mut world = World::new(percent);
    let disk = |name: &str, bytes: u64, latency_us| DiskConfig {
        latency_us,
        physical_block_bytes: 4096,
        ..DiskConfig::new(name, bytes)
    };
    // The log and the tree lie on it, too.
    let cache_bytes = input.working_set_bytes * CACHE_PERCENT / 100 + (1 << 20);
    world.add_disk(&disk("cache", cache_bytes.next_multiple_of(4096), CACHE_US));
    world.add_disk(&disk("backing", volume_bytes, BACKING_US));
    let requests = input.requests.len() * at as usize / 100;
    let (before, stamps) = in_world(&world, {
        let input = Rc::clone(input);
        async move |disks| live(&disks, &input.requests[..requests], percent, tracking).await
    })?;
    world.crash_power(Keep::None);
    let written = world.disks()[1].counters().write_bytes;
    let (found, after) = in_world(&world, async |disks| recover(&disks).await)?;
    let written = world.disks()[1].counters().write_bytes - written;
    for (sector, stamp) in &stamps {
        let found = world.disks()[1].peek(sector * SECTOR, 8);
        if found != stamp.to_le_bytes() {
            return Err(format!(
                "{tracking}, {percent}% dirty, power lost at {at}%: sector {sector} is lost"
            ));
        }
    }
    let volume = &before.volumes[0];
    let pieces = volume.write_hits + volume.write_misses;
    Ok(json!({
        "dirty_percent": percent,
        "tracking": tracking.to_string(),
        "at": at,
        "cached_blocks": before.cached_blocks,
        "dirty_blocks": before.dirty_blocks,
        "dirty_bytes": volume.dirty_bytes,
        "found_dirty_blocks": found,
        "presumed_blocks": after.recovery.found_blocks,
        "compared_bytes": after.recovery.compared_bytes,
        "written_bytes": written,
        "client_writes": pieces,
        "persists": before.tree.map_or(before.marks, |tree| tree.persists),
    }))
}

fn in_world<T: 'static>(
    world: &World,
    main: impl AsyncFnOnce(Vec<SimDisk>) -> T + 'static,
) -> Outcome<T> {
    let disks = world.disks().to_vec();
    match world.run(1, async move { main(disks).await }) {
        Ended::Finished(value) => Ok(value),
        Ended::Crashed => Err("the world stopped by itself".into()),
        Ended::Deadlock(why) => Err(why.into()),
    }
}

fn devices(disks: &[SimDisk]) -> Devices {
    Devices {
        data: Rc::new(disks[0].clone()),
        metadata: None,
    }
}

async fn open(disks: &[SimDisk], boot: u8, percent: u64) -> (Cache, u64, Rc<dyn BlockDevice>) {
    let limit = u8::try_from(percent).expect("at most 100");
    let options = CacheOptions {
        journal: Some(Buf::zeroed(1 << 20)),
        dirty_limit_percent: limit,
        dirty_low_percent: limit / 2,
        ..CacheOptions::new([boot; 16])
    };
    let (cache, report) = (Cache::open(devices(disks), options).await).expect("opens");
    let backing = Rc::new(disks[1].clone());
    let options = VolumeOptions::new(Mode::WriteBack);
    let volume = (cache.attach("v", backing, options).await).expect("attaches");
    (cache, report.dirty_blocks, volume)
}

/// Returns the cache's state at the end, and the first bytes of each written sector.
async fn live(
    disks: &[SimDisk],
    requests: &[Request],
    percent: u64,
    tracking: DirtyTracking,
) -> (CacheStats, HashMap<u64, u64>) {
    let sizes = [1, 2, 4, 8].map(|times| times * UNIT_BYTES);
    let options = FormatOptions {
        dirty_tracking: tracking,
        ..FormatOptions::sizes(&sizes, [5; 16])
    };
    (forebay_cache::format(&devices(disks), &options).await).expect("formats");
    let (cache, _, volume) = open(disks, 1, percent).await;
    let mut stamps = HashMap::new();
    for (stamp, request) in (1..).zip(requests) {
        let from = request.offset_bytes / SECTOR;
        let to = request.end_bytes().div_ceil(SECTOR);
        let buf = Buf::scratch(((to - from) * SECTOR) as usize);
        if request.op == Op::Read {
            (volume.read(from * SECTOR, buf).await).expect("reads");
            continue;
        }
        buf.fill(stamp as u8);
        for sector in from..to {
            buf.copy_from(
                ((sector - from) * SECTOR) as usize,
                &u64::to_le_bytes(stamp),
            );
            stamps.insert(sector, stamp);
        }
        (volume.write(from * SECTOR, buf).await).expect("writes");
    }
    volume.flush().await.expect("flushes");
    (cache.stats(), stamps)
}

/// Returns the number of blocks that the next process presumes dirty, and its state once all are
/// clean.
async fn recover(disks: &[SimDisk]) -> (u64, CacheStats) {
    let (cache, found, _volume) = open(disks, 2, 75).await;
    while cache.stats().dirty_blocks > 0 {
        rt::sleep(Duration::from_millis(100)).await;
    }
    (found, cache.stats())
}
