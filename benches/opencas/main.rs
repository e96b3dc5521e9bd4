//! The Open CAS study (Z. Lin and others, HotStorage '23): a file is written twice through a
//! write-back cache, on emulated devices, by Open CAS's rule and by ours.
//!
//! Its method: cleaner off, one write at a time, each durable before the next (direct and dsync),
//! the file created before. `opencas` prints a JSON object for each run, `opencas --quick` has
//! fewer runs.
//!
//! Time is virtual: it counts the devices alone and is the same on every machine. The study's
//! figures contain the processor's time, these do not. `opencas --processor` measures that for
//! writes of 4 KiB.

mod layout;
mod processor;
mod timed;

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use forebay_block::{BlockDevice, BlockDeviceExt as _, Buf, Result};
use forebay_cache::{
    Admission, Cache, CacheOptions, Cleaning, Devices, Durability, FormatOptions, Mode,
    VolumeOptions,
};
use forebay_device::counted::{Counted, Counters};
use forebay_device::mem::MemDevice;
use forebay_io::rt::{self, block_on_simulated};
use serde_json::{Value, json};

use layout::OpenCas;
use timed::{Lines, Link, Speed, Timed};

/// Bytes of cached data.
const CACHE_BYTES: u64 = 64 << 20;
/// Bytes that our cache may take beside its data.
const METADATA_BYTES: u64 = 12 << 20;
/// The study's cache lines, bytes.
const LINES: [u64; 3] = [4 << 10, 16 << 10, 64 << 10];
/// Bytes of a write. Only whole lines occur.
const WRITES: [u64; 6] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 512 << 10, 1 << 20];
/// Bytes of the file in percent of the cache: 2 GB to 6 GB of 4 GB in the study.
const FILES: [u64; 5] = [50, 75, 100, 125, 150];
/// Evictions that Open CAS makes for a request. A request that needs more bypasses the cache.
const STATIC_EVICTIONS: usize = 32;

/// The systems to compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum System {
    /// The cache device alone.
    RawCache,
    /// The backing device alone.
    RawBacking,
    /// Open CAS's rule, which evicts for every write.
    OpenCasEvict,
    /// The same with its limit on evictions.
    OpenCasStatic,
    /// Ours, with records in blocks on the same device.
    Blocks,
    /// Ours, with records in lines of 64 bytes on persistent memory.
    Lines,
    /// *Blocks* with measured admission.
    BlocksMeasured,
    /// *Lines* with measured admission.
    LinesMeasured,
}

impl System {
    const ALL: [Self; 8] = [
        Self::RawCache,
        Self::RawBacking,
        Self::OpenCasEvict,
        Self::OpenCasStatic,
        Self::Blocks,
        Self::Lines,
        Self::BlocksMeasured,
        Self::LinesMeasured,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::RawCache => "raw-cache",
            Self::RawBacking => "raw-backing",
            Self::OpenCasEvict => "opencas-evict",
            Self::OpenCasStatic => "opencas-static",
            Self::Blocks => "blocks",
            Self::Lines => "lines",
            Self::BlocksMeasured => "blocks-measured",
            Self::LinesMeasured => "lines-measured",
        }
    }

    const fn has_lines(self) -> bool {
        matches!(self, Self::Lines | Self::LinesMeasured)
    }

    const fn admission(self) -> Admission {
        match self {
            Self::BlocksMeasured | Self::LinesMeasured => Admission::Measured,
            _ => Admission::Always,
        }
    }

    const fn is_raw(self) -> bool {
        matches!(self, Self::RawCache | Self::RawBacking)
    }
}

/// One run.
#[derive(Clone, Copy, Debug)]
struct Setup {
    system: System,
    cache: Speed,
    backing: Speed,
    line_bytes: u64,
    write_bytes: u64,
    file_percent: u64,
}

/// Creates a device with a declared speed that counts its requests.
fn device(
    memory: Rc<dyn BlockDevice>,
    speed: Speed,
    link: &Link,
) -> (Rc<dyn BlockDevice>, Rc<Counters>) {
    Counted::wrap(Timed::wrap(memory, speed, link))
}

/// The target of the writes.
enum Target {
    Device(Rc<dyn BlockDevice>),
    OpenCas(OpenCas),
    /// The cache stays open as long as its volume.
    Ours(Cache, Rc<dyn BlockDevice>),
}

impl Target {
    async fn write(&mut self, offset: u64, buf: &Buf) -> Result<()> {
        match self {
            Self::Device(device) | Self::Ours(_, device) => device.write(offset, buf.clone()).await,
            Self::OpenCas(cache) => cache.write(offset, buf.len() as u64).await,
        }
    }
}

async fn ours(setup: Setup, devices: Devices, backing: Rc<dyn BlockDevice>) -> Result<Target> {
    let format = FormatOptions::sizes(&[setup.line_bytes], [7; 16]);
    forebay_cache::format(&devices, &format).await?;
    let options = CacheOptions {
        durability: Durability::Sync,
        dirty_limit_percent: 100,
        cleaning: Cleaning::Nop,
        admission: setup.system.admission(),
        ..CacheOptions::new([9; 16])
    };
    let (cache, _) = Cache::open(devices, options).await?;
    let volume = VolumeOptions::new(Mode::WriteBack);
    let volume = cache.attach("file", backing, volume).await?;
    Ok(Target::Ours(cache, volume))
}

/// Writes the file twice. Returns a row for each pass.
async fn run(setup: Setup) -> Result<Vec<Value>> {
    let Setup {
        system,
        cache,
        backing,
        line_bytes,
        write_bytes,
        file_percent,
    } = setup;
    let links: [Link; 3] = std::array::from_fn(|_| Rc::new(Cell::new(Duration::ZERO)));
    let most = CACHE_BYTES * 2;
    let (behind, behind_count) = device(MemDevice::new("backing", most), backing, &links[0]);
    let lines = CACHE_BYTES / line_bytes;
    let data_bytes = match system {
        System::Blocks | System::BlocksMeasured => CACHE_BYTES + METADATA_BYTES,
        System::Lines | System::LinesMeasured => CACHE_BYTES + METADATA_BYTES / 4,
        _ => layout::device_bytes(line_bytes, lines).max(most),
    };
    let (data, data_count) = device(MemDevice::new("data", data_bytes), cache, &links[1]);
    // Metadata in memory shares the link of data in memory.
    let link = match cache.name == Speed::PMEM.name {
        true => &links[1],
        false => &links[2],
    };
    let lines_of = Lines::new("metadata", METADATA_BYTES as usize);
    let (metadata, metadata_count) = device(lines_of, Speed::PMEM, link);
    let mut target = match system {
        System::RawCache => Target::Device(data),
        System::RawBacking => Target::Device(behind),
        System::OpenCasEvict => {
            Target::OpenCas(OpenCas::new(data, behind, line_bytes, lines, None))
        }
        System::OpenCasStatic => {
            let most = Some(STATIC_EVICTIONS);
            Target::OpenCas(OpenCas::new(data, behind, line_bytes, lines, most))
        }
        System::Blocks | System::Lines | System::BlocksMeasured | System::LinesMeasured => {
            let metadata = system.has_lines().then_some(metadata);
            ours(setup, Devices { data, metadata }, behind).await?
        }
    };
    let capacity = match &target {
        Target::Ours(cache, _) => cache.stats().blocks * line_bytes,
        _ => CACHE_BYTES,
    };
    let file_bytes = capacity * file_percent / 100 / write_bytes * write_bytes;
    let buf = Buf::zeroed(usize::try_from(write_bytes).expect("small"));
    let counts = || [&data_count, &metadata_count, &behind_count].map(|count| count.get());
    let mut rows = Vec::new();
    for access in [1, 2] {
        let (began, before) = (rt::now(), counts());
        for offset in (0..file_bytes).step_by(write_bytes as usize) {
            target.write(offset, &buf).await?;
        }
        let (took, after) = (rt::now() - began, counts());
        let [data, metadata, behind] = std::array::from_fn(|at| {
            let (before, after) = (before[at], after[at]);
            (
                after.write_bytes - before.write_bytes,
                after.read_bytes - before.read_bytes,
            )
        });
        let per_byte = |bytes: u64| bytes as f64 / file_bytes as f64;
        rows.push(json!({
            "system": system.name(),
            "cache": cache.name,
            "backing": backing.name,
            "line_bytes": line_bytes,
            "write_bytes": write_bytes,
            "file_percent": file_percent,
            "access": access,
            "bytes_per_s": file_bytes as f64 / took.as_secs_f64(),
            "cache_written": per_byte(data.0 + metadata.0),
            "metadata_written": per_byte(metadata.0),
            "cache_read": per_byte(data.1),
            "backing_written": per_byte(behind.0),
        }));
    }
    if let Target::Ours(cache, volume) = target {
        drop(volume);
        cache.close().await?;
    }
    Ok(rows)
}

fn setups(quick: bool) -> Vec<Setup> {
    let mut setups = Vec::new();
    for (cache, backing) in [Speed::PMEM, Speed::NVME]
        .into_iter()
        .flat_map(|cache| [Speed::FAST, Speed::SLOW].map(|backing| (cache, backing)))
    {
        for (line_bytes, write_bytes) in LINES
            .into_iter()
            .flat_map(|line| WRITES.map(|write| (line, write)))
            .filter(|(line, write)| line <= write)
        {
            for (system, file_percent) in System::ALL
                .into_iter()
                .flat_map(|system| FILES.map(|file| (system, file)))
            {
                let raw = system.is_raw() && (file_percent, line_bytes) != (FILES[0], LINES[0]);
                let left_out = quick && (!matches!(file_percent, 50 | 125) || line_bytes != 4096);
                if !raw && !left_out {
                    setups.push(Setup {
                        system,
                        cache,
                        backing,
                        line_bytes,
                        write_bytes,
                        file_percent,
                    });
                }
            }
        }
    }
    setups
}

fn main() {
    let has = |flag: &str| std::env::args().any(|argument| argument == flag);
    let quick = has("--quick");
    if has("--processor") {
        let setup = setups(true).into_iter().next().expect("there are some");
        match processor::measure(setup) {
            Ok(rows) => return rows.iter().for_each(|row| println!("{row}")),
            Err(error) => {
                eprintln!("{}", error.report());
                std::process::exit(1);
            }
        }
    }
    for setup in setups(quick) {
        let rows = block_on_simulated(1, run(setup));
        match rows {
            Ok(rows) => rows.iter().for_each(|row| println!("{row}")),
            Err(error) => {
                eprintln!("{setup:?}: {}", error.report());
                std::process::exit(1);
            }
        }
    }
}
