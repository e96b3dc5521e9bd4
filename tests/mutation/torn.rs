//! A crash in the middle of making a torn batch whole. Random lives hardly come there: power must be lost between the
//! writing of a batch of some units and its flush, take a part of them, and be lost again while the next process opens,
//! before what it filled the gaps with is flushed and after its first own record is there.

use std::rc::Rc;
use std::time::Duration;

use forebay_block::{BlockDeviceExt, Buf};
use forebay_cache::failpoints::{Part, SitePart, reached, take_out};
use forebay_cache::{
    Cache, CacheOptions, Devices, FormatOptions, Mode, RecoveryReport, VolumeOptions, format,
};
use forebay_io::sim::{DiskConfig, Keep, Outcome, SimDisk, Stop, World};

const BLOCK: u32 = 4096;
/// So many that their records fill some units.
const BLOCKS: u32 = 30;
/// So many that some of them get there.
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

/// A cache whose next flush writes one batch, of some units.
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

/// Records that look damaged though only power was lost, twice.
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
fn what_makes_a_torn_batch_whole_is_durable_before_the_next_batch() {
    let _ = reached();
    let whole: Vec<u64> = (0..SEEDS).map(damaged).collect();
    assert_eq!(whole, [0; SEEDS as usize], "records look damaged");
    let waits: Vec<SitePart> = (reached().into_iter())
        .filter(|&(file, _, _, part)| {
            file.ends_with("cache/src/recover/mod.rs") && part == Part::Wait
        })
        .collect();
    assert!(!waits.is_empty(), "the wait is not where it was");
    for site in waits {
        take_out(Some(site));
        let is_found = (0..SEEDS).any(|seed| damaged(seed) > 0);
        take_out(None);
        assert!(is_found, "nobody misses {site:?}");
    }
}
