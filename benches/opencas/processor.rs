//! The processor's time for a write of 4 KiB, measured on this machine. The virtual clock leaves it
//! out.
//!
//! Engine, options and order of writes are those of the modelled runs. The memory devices answer at
//! once, so the thread's time is that of the engine, its executor and the copy. No front end, file
//! system or system call takes part.

use std::rc::Rc;

use forebay_benches::processor_time_ns;
use forebay_block::{BlockDeviceExt as _, Buf, Result};
use forebay_cache::Devices;
use forebay_device::mem::MemDevice;
use forebay_io::{Engine, Reactor};
use serde_json::{Value, json};

use crate::timed::Lines;
use crate::{CACHE_BYTES, METADATA_BYTES, Setup, System, Target, ours};

/// Samples, each with a new cache. The median counts.
const SAMPLES: usize = 9;
/// Writes of half a cache, the size at which the first access is compared with the second.
const WRITES: u64 = CACHE_BYTES / 2 / 4096;

/// Returns a row for each system and access.
pub(crate) fn measure(setup: Setup) -> Result<Vec<Value>> {
    let mut rows = Vec::new();
    for system in [System::RawCache, System::Blocks, System::Lines] {
        let setup = Setup { system, ..setup };
        let mut samples = [Vec::new(), Vec::new()];
        for _ in 0..SAMPLES {
            let sample = Reactor::new(Engine::Threads)?.run(sample(setup))?;
            for (all, one) in samples.iter_mut().zip(sample) {
                all.push(one);
            }
        }
        for (access, mut all) in (1..).zip(samples) {
            all.sort_unstable_by(f64::total_cmp);
            rows.push(json!({
                "system": system.name(),
                "access": access,
                "processor_ns": all[SAMPLES / 2],
                "least_ns": all[0],
                "most_ns": all[SAMPLES - 1],
            }));
        }
    }
    Ok(rows)
}

/// Returns nanoseconds for a write, of the first access and of the second.
async fn sample(setup: Setup) -> Result<[f64; 2]> {
    let data = MemDevice::new("data", CACHE_BYTES + METADATA_BYTES);
    let backing = MemDevice::new("backing", CACHE_BYTES);
    let metadata = Lines::new("metadata", METADATA_BYTES as usize);
    // The system allocates the memory here, not during the first writes.
    let mib = Buf::zeroed(1 << 20);
    for device in [&data, &backing, &metadata] {
        for at in 0..device.info().size_bytes >> 20 {
            device.write(at << 20, mib.clone()).await?;
        }
    }
    let mut target = match setup.system {
        System::RawCache => Target::Device(data),
        system => {
            let metadata = system.has_lines().then(|| Rc::clone(&metadata));
            ours(setup, Devices { data, metadata }, backing).await?
        }
    };
    let buf = Buf::zeroed(4096);
    let mut took = [0.0; 2];
    for took in &mut took {
        let before = processor_time_ns();
        for nth in 0..WRITES {
            target.write(nth * 4096, &buf).await?;
        }
        *took = (processor_time_ns() - before) as f64 / WRITES as f64;
    }
    if let Target::Ours(cache, volume) = target {
        drop(volume);
        cache.close().await?;
    }
    Ok(took)
}
