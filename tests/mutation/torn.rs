//! A crash during the completion of a torn batch.
//!
//! Random lives hardly reach it. Power must be lost between the write of a batch of several units
//! and its flush, and take a part of them. It must be lost once more while the next process opens.
//! By then the padding of the gaps is not flushed, and the process's first own record is there.

use std::rc::Rc;
use std::time::Duration;

use forebay_block::{BlockDeviceExt, Buf};
use forebay_cache::failpoints::{Part, SitePart, reached, take_out};
use forebay_cache::{
    Cache, CacheOptions, Devices, FormatOptions, Mode, RecoveryReport, VolumeOptions, format,
};
use forebay_io::sim::{DiskConfig, Keep, Outcome, SimDisk, Stop, World};

const BLOCK: u32 = 4096;
/// Number of blocks. Their records fill several units.
const BLOCKS: u32 = 30;
/// Number of seeds. Some of them reach the state.
const SEEDS: u64 = 48;

fn world(seed: u64) -> World {
    let mut world = World::new(seed);
    for (name, latency_us) in [
        ("cache", (1, 2)),
        ("metadata", (10, 5000)),
        ("backing", (1, 2)),
    ] {
        world.add_disk(&DiskConfig {
            latency_us,
            fua: false,
            ..DiskConfig::new(name, 2 << 20)
        });
    }
    world
}

fn devices(disks: &[SimDisk]) -> Devices {
    Devices {
        data: Rc::new(disks[0].clone()),
        metadata: Some(Rc::new(disks[1].clone())),
    }
}

async fn open(disks: &[SimDisk], boot: u8) -> (Cache, RecoveryReport) {
    let options = CacheOptions {
        commit_interval: Duration::from_secs(1 << 20),
        ..CacheOptions::new([boot; 16])
    };
    (Cache::open(devices(disks), options).await).expect("opens")
}

fn run<T: 'static>(
    world: &World,
    main: impl AsyncFnOnce(Vec<SimDisk>) -> T + 'static,
) -> Option<T> {
    let disks = world.disks().to_vec();
    match world.run(1, async move { main(disks).await }) {
        Outcome::Finished(value) => Some(value),
        Outcome::Crashed => None,
        Outcome::Deadlock(why) => panic!("{why}"),
    }
}

/// Prepares a cache whose next flush writes one batch of several units.
async fn fill(disks: Vec<SimDisk>) {
    let (cache, _) = open(&disks, 1).await;
    let backing = Rc::new(disks[2].clone());
    let volume = (cache
        .attach("v", backing, VolumeOptions::new(Mode::WriteBack))
        .await)
        .expect("attaches");
    let fill = |block: u32, blocks: u32| {
        let buf = Buf::zeroed((blocks * BLOCK) as usize);
        volume.write(u64::from(block * BLOCK), buf)
    };
    fill(0, 1).await.expect("writes");
    volume.flush().await.expect("flushes");
    fill(1, BLOCKS).await.expect("writes");
    volume.flush().await.expect("flushes");
}

/// Returns the number of records that look damaged though power was only lost, twice.
fn damaged(seed: u64) -> u64 {
    let mut damaged = 0;
    let fresh = world(seed);
    let made = run(&fresh, async |disks| {
        format(&devices(&disks), &FormatOptions::new(BLOCK, [7; 16])).await
    });
    made.expect("is not cut off").expect("formats");
    for first in 1.. {
        let crashed = fresh.fork();
        crashed.set_stop(Some(Stop::BeforeIo(first)));
        if run(&crashed, fill).is_some() {
            return damaged;
        }
        crashed.set_stop(None);
        crashed.crash_power(Keep::Torn(first));
        for second in 1..12 {
            let world = crashed.fork();
            world.set_stop(Some(Stop::BeforeIo(second)));
            if run(&world, async |disks| open(&disks, 2).await).is_some() {
                break;
            }
            for keep in [Keep::None, Keep::Disk(1)]
                .into_iter()
                .chain((0..4).map(|more| Keep::Torn(second + 8 * more)))
            {
                let world = world.fork();
                world.set_stop(None);
                world.crash_power(keep);
                let opened = run(&world, async |disks| open(&disks, 3).await);
                damaged += opened.expect("is not cut off").1.damaged_records;
            }
        }
    }
    unreachable!("the loop ends when the life does")
}

#[test]
fn the_repair_of_a_torn_batch_is_durable_before_the_next_batch() {
    let _ = reached();
    let whole: Vec<u64> = (0..SEEDS).map(damaged).collect();
    assert_eq!(whole, [0; SEEDS as usize], "records look damaged");
    let waits: Vec<SitePart> = (reached().into_iter())
        .filter(|&(file, _, _, part)| {
            file.ends_with("cache/src/recover/mod.rs") && part == Part::Wait
        })
        .collect();
    assert!(!waits.is_empty(), "the wait has moved");
    for site in waits {
        take_out(Some(site));
        let is_found = (0..SEEDS).any(|seed| damaged(seed) > 0);
        take_out(None);
        assert!(is_found, "nobody misses {site:?}");
    }
}
