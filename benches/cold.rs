//! `cargo bench --bench cold`: the time that a cache with millions of blocks takes to open after a
//! power cut, and the waiting times of requests meanwhile.
//!
//! - `cold make FILE BLOCKS exact|abt|none` fills a cache of 4 KiB blocks with the engine and stops
//!   as a power cut does. All blocks are written and written back twice, then three in ten are
//!   rewritten. The file holds the log and no data: there it has a hole, which reads as fast as
//!   data and takes no room. Blocks are written in stretches of 1 GiB of the volume, in random
//!   order within each. So neither the log nor the slots follow the order of addresses.
//! - `cold open FILE BLOCKS exact|abt|none` opens it with direct I/O on the caller's reactor, and
//!   sends requests from the first moment. It prints one JSON object.

use std::cell::RefCell;
use std::future::Future;
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use forebay_benches::Hollow;
use forebay_block::{BlockDevice, BlockDeviceExt as _, Buf, DeviceInfo, Error, ErrorKind, Result};
use forebay_cache::{
    Cache, CacheOptions, Cleaning, Devices, DirtyTracking, FormatOptions, Mode, OpeningMap,
    OpeningProgress, OpeningVolume, VolumeOptions,
};
use forebay_device::file::{FileDevice, FileDeviceOptions};
use forebay_io::sync::Promise;
use forebay_io::{Engine, Reactor, rt};
use forebay_metadata::superblock::Superblock;
use serde_json::json;

const VOLUME: &str = "bench";
const BLOCK_BYTES: u64 = 4096;
/// Blocks of a stretch, which is written in random order.
const STRETCH: u64 = 1 << 18;
/// Dirty blocks among ten.
const DIRTY_TENTHS: u64 = 3;
/// Writers at a time.
const WRITERS: u64 = 256;
/// Timed reads of each kind.
const READS: usize = 2000;
/// Bytes read to measure the device's bandwidth.
const PROBE_BYTES: u64 = 1 << 30;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().filter(|word| word != "--bench").collect();
    let words: Vec<&str> = arguments.iter().skip(1).map(String::as_str).collect();
    let [what @ ("make" | "open"), file, blocks, how] = words[..] else {
        println!("cold make|open FILE BLOCKS exact|abt|none");
        return Ok(());
    };
    let blocks: u64 = (blocks.parse().ok())
        .ok_or_else(|| Error::new(ErrorKind::InvalidInput, "BLOCKS is not a number"))?;
    let tracking = match how {
        "abt" => DirtyTracking::Abt,
        "none" => DirtyTracking::None,
        _ => DirtyTracking::Exact,
    };
    let path = Path::new(file).to_owned();
    let reactor = Reactor::new(Engine::Auto)?;
    match what {
        "make" => reactor.run(async move { make(&path, blocks, tracking).await }),
        _ => reactor.run(async move { open(&path, blocks).await }),
    }
}

/// Runs `count` tasks at once and waits for all.
async fn run_all<F>(count: u64, what: impl Fn(u64) -> F) -> Result<()>
where
    F: Future<Output = Result<()>> + 'static,
{
    let begun: Vec<_> = (0..count)
        .map(|nth| {
            let (work, over) = (what(nth), Promise::new());
            let set = over.clone();
            rt::spawn(async move { set.set(work.await) });
            over
        })
        .collect();
    for over in begun {
        over.get().await?;
    }
    Ok(())
}

/// Returns the device's bytes, a little more than blocks, log and superblock take.
const fn device_bytes(blocks: u64) -> u64 {
    blocks * (BLOCK_BYTES + 256) + (8 << 20)
}

/// Opens the file, or the part of it that holds the log.
fn file(path: &Path, bytes: u64) -> Result<Rc<dyn BlockDevice>> {
    let options = FileDeviceOptions {
        name: "cache".into(),
        direct: true,
        exclusive: true,
        create_bytes: Some(bytes),
        ..FileDeviceOptions::default()
    };
    FileDevice::open(path, options)
}

fn options() -> CacheOptions {
    CacheOptions {
        journal: Some(Buf::zeroed(64 << 20)),
        dirty_limit_percent: 100,
        cleaning: Cleaning::Nop,
        // Each opening has another boot: the journal is lost, as after a power cut.
        ..CacheOptions::new(std::array::from_fn(|at| {
            (std::process::id() >> (8 * (at % 4))) as u8
        }))
    }
}

/// Returns the block that is written as the `nth`: stretch by stretch, in random order within each.
const fn nth_block(nth: u64, blocks: u64) -> u64 {
    let first = nth - nth % STRETCH;
    let length = if blocks - first < STRETCH {
        blocks - first
    } else {
        STRETCH
    };
    // The prime exceeds every length that occurs, so it divides none.
    first + (nth - first) * 1_000_000_007 % length
}

async fn make(path: &Path, blocks: u64, tracking: DirtyTracking) -> Result<()> {
    let began = Instant::now();
    let _ = std::fs::remove_file(path);
    let inner = file(path, device_bytes(blocks))?;
    let devices = Devices {
        data: Hollow::over(inner, blocks * 256 + (4 << 20)),
        metadata: None,
    };
    let format = FormatOptions {
        dirty_tracking: tracking,
        ..FormatOptions::new(BLOCK_BYTES as u32, [7; 16])
    };
    forebay_cache::format(&devices, &format).await?;
    eprintln!("formatted after {:.1} s", began.elapsed().as_secs_f64());
    let (cache, _) = Cache::open(devices, options()).await?;
    let (backing, how) = attached(blocks);
    let volume = cache.attach(VOLUME, backing, how).await?;
    let dirty = blocks * DIRTY_TENTHS / 10;
    let steps = [(blocks, "filled"), (blocks, "rewritten"), (dirty, "dirty")];
    for (count, what) in steps {
        let write = |writer| {
            let volume = Rc::clone(&volume);
            async move {
                let buf = Buf::zeroed(BLOCK_BYTES as usize);
                for nth in (writer..count).step_by(WRITERS as usize) {
                    let offset = nth_block(nth, count) * BLOCK_BYTES;
                    volume.write(offset, buf.clone()).await?;
                    if nth % 64 == 0 {
                        rt::yield_now().await;
                    }
                }
                Ok(())
            }
        };
        run_all(WRITERS, write).await?;
        volume.flush().await?;
        if what != "dirty" {
            cache.write_back(None).await?;
        }
        let stats = cache.stats();
        eprintln!(
            "{what} after {:.1} s: {} cached, {} dirty, {} of {} records in use",
            began.elapsed().as_secs_f64(),
            stats.cached_blocks,
            stats.dirty_blocks,
            stats.log_used_records,
            stats.log_records,
        );
    }
    // The superblock learns of clean dirty zones within seconds.
    rt::sleep(Duration::from_secs(10)).await;
    // The power fails.
    std::process::exit(0);
}

/// Returns the backing device and its options.
fn attached(blocks: u64) -> (Rc<dyn BlockDevice>, VolumeOptions) {
    let backing = Hollow::new("backing", blocks * BLOCK_BYTES, 0);
    (backing, VolumeOptions::new(Mode::WriteBack))
}

/// Returns bytes a second that the device delivers to a sequential read.
async fn bandwidth(device: &Rc<dyn BlockDevice>, end: u64) -> Result<f64> {
    const CHUNK: u64 = 2 << 20;
    let end = end.min(PROBE_BYTES);
    let began = Instant::now();
    let read = |reader| {
        let device = Rc::clone(device);
        async move {
            let buf = Buf::zeroed(CHUNK as usize);
            for at in (reader * CHUNK..end - CHUNK).step_by(4 * CHUNK as usize) {
                device.read(at, buf.clone()).await?;
            }
            Ok(())
        }
    };
    run_all(4, read).await?;
    Ok(end as f64 / began.elapsed().as_secs_f64())
}

/// Drops the kernel's page cache. Returns whether that was allowed.
fn drop_caches() -> bool {
    std::fs::write("/proc/sys/vm/drop_caches", "3").is_ok()
}

/// Returns a number from a file of proc(5), by its name.
fn proc_number(file: &str, name: &str) -> u64 {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|rest| rest.split_whitespace().next()?.parse().ok());
    number.unwrap_or(0)
}

/// Returns a quantile of the waiting times in seconds.
fn per_mille(times: &mut [Duration], per_mille: usize) -> f64 {
    times.sort_unstable();
    let at = (times.len() * per_mille / 1000).min(times.len() - 1);
    times[at].as_secs_f64()
}

/// Reads blocks of `from..to`. Each read has waited since `asked`.
async fn waits(
    volume: &Rc<dyn BlockDevice>,
    (from, to): (u64, u64),
    asked: Instant,
) -> Result<Vec<Duration>> {
    let times = Rc::new(RefCell::new(Vec::with_capacity(READS)));
    let read = |reader| {
        let (volume, times) = (Rc::clone(volume), Rc::clone(&times));
        async move {
            let buf = Buf::zeroed(BLOCK_BYTES as usize);
            let mut state = 0x9e37_79b9_7f4a_7c15_u64 + reader;
            for _ in 0..READS / 16 {
                // Xorshift64 (Marsaglia 2003).
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                let block = from + state % (to - from);
                volume.read(block * BLOCK_BYTES, buf.clone()).await?;
                times.borrow_mut().push(asked.elapsed());
            }
            Ok(())
        }
    };
    run_all(16, read).await?;
    Ok(times.take())
}

async fn open(path: &Path, blocks: u64) -> Result<()> {
    let device = file(path, device_bytes(blocks))?;
    let log_bytes = blocks * 256;
    let dropped = drop_caches();
    let bandwidth = bandwidth(&device, log_bytes).await?;
    drop_caches();
    let read_before = proc_number("/proc/self/io", "read_bytes:");
    let cpu_before = proc_number("/proc/self/schedstat", "");
    let began = Instant::now();
    let devices = Devices {
        data: device,
        metadata: None,
    };
    // The daemon does the same.
    let found = Superblock::read(devices.data.as_ref()).await?;
    let (backing, how) = attached(blocks);
    let durability = CacheOptions::new([0; 16]).durability;
    let (map, progress) = (OpeningMap::default(), OpeningProgress::default());
    let volume = OpeningVolume::new(
        &devices,
        &found,
        durability,
        VOLUME,
        Rc::clone(&backing),
        &how,
        Some(&map),
    );
    let volume = volume.ok_or_else(|| {
        let what = "the cache does not know where it may be dirty: run cold make";
        Error::new(ErrorKind::InvalidInput, what)
    })?;
    let device: Rc<dyn BlockDevice> = Rc::clone(&volume) as Rc<dyn BlockDevice>;
    let opening = Promise::new();
    let (set, online) = (opening.clone(), Rc::clone(&volume));
    let options = CacheOptions {
        opening_map: Some(map.clone()),
        progress: Some(progress.clone()),
        ..options()
    };
    rt::spawn(async move {
        let opened = async {
            let (cache, report) = Cache::open(devices, options).await?;
            let cpu_ns = proc_number("/proc/self/schedstat", "") - cpu_before;
            let opened = began.elapsed();
            let served = online.served();
            let volume = cache.attach(VOLUME, backing, how).await?;
            let attached = began.elapsed();
            online.hand_over(Ok(volume));
            Ok::<_, Error>((cache, report, cpu_ns, opened, attached, served))
        };
        set.set(opened.await);
    });
    let dirty = blocks * DIRTY_TENTHS / 10;
    // Some clean stretches share a dirty zone with the last dirty one.
    let zone = (1 << found.zones.map_or(0, |zones| zones.shift())) / BLOCK_BYTES;
    let clean = (dirty + zone).min(blocks - 1);
    let all = Promise::new();
    let (set, of) = (all.clone(), Rc::clone(&device));
    rt::spawn(async move { set.set(waits(&of, (0, dirty), began).await) });
    let mut clean_waits = waits(&device, (clean, blocks), began).await?;
    let mut dirty_waits = all.get().await?;
    let (cache, report, cpu_ns, opened, attached, served) = opening.get().await?;
    let read_bytes = proc_number("/proc/self/io", "read_bytes:") - read_before;
    let first_clean = clean_waits.iter().min().map_or(0.0, Duration::as_secs_f64);
    let stats = cache.stats();
    let out = json!({
        "blocks": blocks,
        "dirty_tracking": format!("{:?}", stats.dirty_tracking).to_lowercase(),
        "caches_dropped": dropped,
        "cached_blocks": report.cached_blocks,
        "dirty_blocks": report.dirty_blocks,
        "doubtful_blocks": report.doubtful_blocks,
        "damaged_records": report.damaged_records,
        "log_bytes": log_bytes,
        "log_used_bytes": stats.log_used_records * 64,
        "read_bytes": read_bytes,
        "metadata_bytes": progress.bytes().1,
        "cpu_s": cpu_ns as f64 / 1e9,
        "bandwidth_bytes_per_s": bandwidth,
        "opened_s": opened.as_secs_f64(),
        "attached_s": attached.as_secs_f64(),
        "served_early": served,
        "dirty_early": map.answered(),
        "first_clean_s": first_clean,
        "clean_p99_s": per_mille(&mut clean_waits, 990),
        "dirty_p50_s": per_mille(&mut dirty_waits, 500),
        "dirty_p99_s": per_mille(&mut dirty_waits, 990),
        "peak_memory_bytes": proc_number("/proc/self/status", "VmHWM:") * 1024,
        "map_bytes": stats.memory_bytes,
    });
    println!("{out}");
    // Closing would write records for minutes, and nothing measures it.
    let _: DeviceInfo = volume.info();
    std::process::exit(0);
}
