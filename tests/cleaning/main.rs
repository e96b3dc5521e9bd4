//! Cleaning on emulated devices, in virtual time: its effect on clients, and its progress.
//!
//! `FOREBAY_CLEANING=1` prints the results of each policy.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use forebay_block::{BlockDevice, BlockDeviceExt as _, Buf};
use forebay_cache::{Cache, CacheOptions, Cleaning, Devices, FormatOptions, Mode, VolumeOptions};
use forebay_device::emulate::disk::{DiskProfile, EmulatedDisk};
use forebay_device::emulate::{EmulateDevice, Profile};
use forebay_device::mem::MemDevice;
use forebay_io::rt::{self, block_on_simulated};
use forebay_io::sim::Rng;

const BLOCK: u64 = 4096;
const CACHE_BYTES: u64 = 16 << 20;
const VOLUME_BYTES: u64 = 256 << 20;

/// An SSD as its maker might declare it.
const SSD: Profile = Profile {
    read_latency_us: 90,
    write_latency_us: 30,
    flush_latency_us: 200,
    bandwidth_bytes_per_s: 2_000_000_000,
    iops: 0,
    queue_depth: 0,
};
/// A general-purpose cloud disk: 3,000 operations and 125 MiB a second.
const CLOUD: Profile = Profile {
    read_latency_us: 1000,
    write_latency_us: 1000,
    flush_latency_us: 1000,
    bandwidth_bytes_per_s: 125 << 20,
    iops: 3000,
    queue_depth: 0,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Backing {
    Hdd,
    Cloud,
}

impl Backing {
    fn device(self) -> Rc<dyn BlockDevice> {
        let memory = MemDevice::new("backing", VOLUME_BYTES);
        match self {
            Self::Hdd => EmulatedDisk::wrap(memory, DiskProfile::HDD),
            Self::Cloud => EmulateDevice::wrap(memory, CLOUD),
        }
    }
}

async fn open(cleaning: Cleaning, dirty_limit_percent: u8) -> Cache {
    let memory = MemDevice::new("ssd", CACHE_BYTES + (12 << 20));
    let devices = Devices {
        data: EmulateDevice::wrap(memory, SSD),
        metadata: None,
    };
    let format = FormatOptions::sizes(&[BLOCK], [7; 16]);
    forebay_cache::format(&devices, &format)
        .await
        .expect("formats");
    let options = CacheOptions {
        journal: Some(Buf::zeroed(4 << 20)),
        dirty_limit_percent,
        dirty_low_percent: dirty_limit_percent / 3,
        cleaning,
        ..CacheOptions::new([9; 16])
    };
    Cache::open(devices, options).await.expect("opens").0
}

async fn attach(cache: &Cache, name: &str, device: Rc<dyn BlockDevice>) -> Rc<dyn BlockDevice> {
    let options = VolumeOptions::new(Mode::WriteBack);
    cache.attach(name, device, options).await.expect("attaches")
}

fn dirty_percent(cache: &Cache) -> u64 {
    let stats = cache.stats();
    stats.dirty_blocks * 100 / stats.blocks
}

/// Result of random 4 KiB writes.
#[derive(Clone, Debug)]
struct Came {
    iops: f64,
    mean_ms: f64,
    p99_ms: f64,
}

/// Runs clients that write at random to the first `bytes` of a volume. Each sends its next write
/// when the last one is done.
async fn load(volume: &Rc<dyn BlockDevice>, bytes: u64, clients: u64, time: Duration) -> Came {
    let (latencies, running) = (
        Rc::new(RefCell::new(Vec::new())),
        Rc::new(Cell::new(clients)),
    );
    let (begin, rng) = (rt::now(), Rc::new(Rng::labelled(1, 1)));
    for _ in 0..clients {
        let (volume, latencies) = (Rc::clone(volume), Rc::clone(&latencies));
        let (running, rng) = (Rc::clone(&running), Rc::clone(&rng));
        rt::spawn(async move {
            while rt::now() < begin + time {
                let at = rng.below(bytes / BLOCK) * BLOCK;
                let asked = rt::now();
                volume.write(at, Buf::zeroed(4096)).await.expect("writes");
                latencies.borrow_mut().push(rt::now() - asked);
            }
            running.set(running.get() - 1);
        });
    }
    while running.get() > 0 {
        rt::sleep(Duration::from_millis(20)).await;
    }
    let mut latencies = latencies.take();
    latencies.sort_unstable();
    let sum: Duration = latencies.iter().sum();
    Came {
        iops: latencies.len() as f64 / (rt::now() - begin).as_secs_f64(),
        mean_ms: sum.as_secs_f64() * 1e3 / latencies.len() as f64,
        p99_ms: latencies[latencies.len() * 99 / 100].as_secs_f64() * 1e3,
    }
}

/// Writes at random until `percent` of the cache is dirty.
async fn fill(cache: &Cache, volume: &Rc<dyn BlockDevice>, percent: u64) {
    let rng = Rng::labelled(2, 2);
    while dirty_percent(cache) < percent {
        let at = rng.below(VOLUME_BYTES / BLOCK) * BLOCK;
        volume.write(at, Buf::zeroed(4096)).await.expect("writes");
    }
}

/// Whether to measure and print everything.
fn is_all() -> bool {
    std::env::var("FOREBAY_CLEANING").is_ok()
}

fn measured() -> Duration {
    Duration::from_secs(if is_all() { 20 } else { 10 })
}

fn bare(backing: Backing, clients: u64) -> Came {
    block_on_simulated(1, async move {
        load(&backing.device(), VOLUME_BYTES, clients, measured()).await
    })
}

/// Measures with a cache whose blocks are all dirty.
fn full(backing: Backing, clients: u64, cleaning: Cleaning) -> Came {
    block_on_simulated(1, async move {
        let cache = open(Cleaning::Nop, 100).await;
        let volume = attach(&cache, "v", backing.device()).await;
        fill(&cache, &volume, 99).await;
        cache.set_cleaning(cleaning);
        load(&volume, VOLUME_BYTES, clients, Duration::from_secs(5)).await;
        let before = cache.stats();
        let came = load(&volume, VOLUME_BYTES, clients, measured()).await;
        if is_all() {
            let after = cache.stats();
            println!(
                "    dirty {}%, {} written back, {} bypassed, {} evicted, {} commits",
                dirty_percent(&cache),
                after.write_backs - before.write_backs,
                after.volumes[0].bypassed_writes - before.volumes[0].bypassed_writes,
                after.evictions - before.evictions,
                after.commits - before.commits,
            );
        }
        came
    })
}

fn shown(what: &str, came: &Came, bare: &Came) {
    println!(
        "{what}: {:.0} IOPS ({:.2}x), mean {:.2} ms, p99 {:.2} ms ({:.2}x)",
        came.iops,
        came.iops / bare.iops,
        came.mean_ms,
        came.p99_ms,
        came.p99_ms / bare.p99_ms
    );
}

/// A cache full of dirty data is no slower than its backing device.
#[test]
fn a_cache_full_of_dirty_data_is_no_slower_than_its_backing_device() {
    let all = is_all();
    let depths: &[u64] = if all { &[1, 8, 32] } else { &[1, 32] };
    for (backing, least) in [(Backing::Cloud, 0.95), (Backing::Hdd, 1.0)] {
        for &clients in depths {
            let own = bare(backing, clients);
            shown(&format!("{backing:?}, {clients} clients, bare"), &own, &own);
            for cleaning in Cleaning::ALL {
                if cleaning != Cleaning::Auto && !all {
                    continue;
                }
                let came = full(backing, clients, cleaning);
                shown(
                    &format!("{backing:?}, {clients} clients, {cleaning}"),
                    &came,
                    &own,
                );
                if cleaning == Cleaning::Auto && !all {
                    assert!(came.iops >= least * own.iops, "{came:?}, bare {own:?}");
                    assert!(came.p99_ms <= 2.0 * own.p99_ms, "{came:?}, bare {own:?}");
                }
            }
        }
    }
}

/// The limit distinguishes policies that meet it from those that do not.
#[test]
fn a_policy_that_looks_at_nobody_is_found_out() {
    let own = bare(Backing::Cloud, 1);
    let came = full(Backing::Cloud, 1, Cleaning::Acp);
    assert!(came.p99_ms > 2.0 * own.p99_ms, "{came:?}, bare {own:?}");
}

/// Half of the cache is dirty and stays so, since clients rewrite all of it continuously.
fn half(backing: Backing, clients: u64, cleaning: Cleaning) -> Came {
    block_on_simulated(1, async move {
        let cache = open(Cleaning::Nop, 100).await;
        let volume = attach(&cache, "v", backing.device()).await;
        let set = CACHE_BYTES / 2;
        for at in (0..set).step_by(BLOCK as usize) {
            volume.write(at, Buf::zeroed(4096)).await.expect("writes");
        }
        cache.set_cleaning(cleaning);
        load(&volume, set, clients, Duration::from_secs(1)).await;
        load(&volume, set, clients, Duration::from_secs(2)).await
    })
}

#[test]
fn cleaning_half_a_cache_is_hardly_felt() {
    for backing in [Backing::Cloud, Backing::Hdd] {
        for clients in [1, 4] {
            let (off, on) = (
                half(backing, clients, Cleaning::Nop),
                half(backing, clients, Cleaning::Auto),
            );
            shown(
                &format!("{backing:?}, {clients} clients, half dirty"),
                &on,
                &off,
            );
            assert!(
                on.p99_ms <= 1.2 * off.p99_ms,
                "{on:?}, without cleaning {off:?}"
            );
        }
    }
}

/// After a load ends, its dirty data is written back: soon below the low mark, later all of it.
#[test]
fn dirty_data_is_written_back_after_a_load_ends() {
    for cleaning in [Cleaning::Auto, Cleaning::Alru, Cleaning::Acp] {
        let (soon, late) = block_on_simulated(1, async move {
            let cache = open(cleaning, 60).await;
            let volume = attach(&cache, "v", Backing::Cloud.device()).await;
            load(&volume, VOLUME_BYTES, 32, Duration::from_secs(5)).await;
            assert!(
                dirty_percent(&cache) >= 10 || cleaning == Cleaning::Acp,
                "{}",
                dirty_percent(&cache)
            );
            let pass = if cleaning == Cleaning::Alru { 60 } else { 0 };
            rt::sleep(Duration::from_secs(5 + pass)).await;
            let soon = dirty_percent(&cache);
            rt::sleep(Duration::from_secs(60)).await;
            (soon, cache.stats().dirty_blocks)
        });
        assert!(soon < 20, "{cleaning}: {soon}% after a while");
        assert_eq!(late, 0, "{cleaning}: blocks after a minute more");
    }
}

#[test]
fn nop_writes_nothing_back_without_a_request() {
    block_on_simulated(1, async {
        let cache = open(Cleaning::Nop, 60).await;
        let volume = attach(&cache, "v", Backing::Cloud.device()).await;
        fill(&cache, &volume, 60).await;
        let before = cache.stats();
        load(&volume, VOLUME_BYTES, 8, Duration::from_secs(2)).await;
        rt::sleep(Duration::from_secs(600)).await;
        let after = cache.stats();
        assert_eq!(after.write_backs, before.write_backs);
        assert!(after.dirty_blocks >= before.dirty_blocks);
        cache.write_back(None).await.expect("written back");
        assert_eq!(cache.stats().dirty_blocks, 0);
    });
}

/// Writes that are not admitted bypass the cache and need no commit, since no cached block could
/// count as newer after a crash.
#[test]
fn writes_round_a_full_cache_cost_no_commits() {
    block_on_simulated(1, async {
        let cache = open(Cleaning::Nop, 60).await;
        let volume = attach(&cache, "v", Backing::Cloud.device()).await;
        fill(&cache, &volume, 60).await;
        rt::sleep(Duration::from_secs(5)).await;
        let before = cache.stats();
        let rng = Rng::labelled(3, 3);
        for _ in 0..2000 {
            let at = rng.below(VOLUME_BYTES / BLOCK) * BLOCK;
            volume.write(at, Buf::zeroed(4096)).await.expect("writes");
        }
        let after = cache.stats();
        let round = after.volumes[0].bypassed_writes - before.volumes[0].bypassed_writes;
        assert!(round > 1800, "{round} went round");
        // Writes to cached blocks are recorded as usual. The timer does the rest.
        let commits = after.commits - before.commits;
        assert!(commits <= 10, "{commits} commits for {round} writes");
        assert_eq!(after.marks - before.marks, 0);
    });
}

/// A slow and busy backing device does not keep data of another volume dirty.
#[test]
fn no_policy_starves_another_volume() {
    for cleaning in [Cleaning::Auto, Cleaning::Alru, Cleaning::Acp] {
        let left = block_on_simulated(1, async move {
            let cache = open(cleaning, 60).await;
            let crawling = Profile {
                write_latency_us: 400_000,
                iops: 5,
                ..CLOUD
            };
            let memory = MemDevice::new("slow", VOLUME_BYTES);
            let slow = attach(&cache, "slow", EmulateDevice::wrap(memory, crawling)).await;
            let fast = attach(&cache, "fast", Backing::Cloud.device()).await;
            fill(&cache, &slow, 30).await;
            for block in 0..512 {
                fast.write(block * 8192, Buf::zeroed(4096))
                    .await
                    .expect("writes");
            }
            let busy = Rc::clone(&slow);
            rt::spawn(async move {
                load(&busy, VOLUME_BYTES, 8, Duration::from_secs(90)).await;
            });
            let pass = if cleaning == Cleaning::Alru { 60 } else { 0 };
            rt::sleep(Duration::from_secs(10 + pass)).await;
            let volumes = cache.stats().volumes;
            let of = |name: &str| {
                let volume = volumes.iter().find(|volume| volume.name == name);
                volume.expect("attached").dirty_bytes
            };
            (of("fast"), of("slow"))
        });
        assert_eq!(left.0, 0, "{cleaning}: bytes of the fast volume");
        assert!(left.1 > 0, "{cleaning}: the slow one cannot be done");
    }
}
