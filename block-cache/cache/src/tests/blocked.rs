//! Eviction in a cache whose coldest blocks cannot leave, because their backing device takes no
//! data.

use std::time::Duration;

use forebay_io::sim::{FaultPlan, Trouble};

use super::*;

const BLOCK: u64 = 4096;

/// State of the backing device of the coldest blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Device {
    Vanished,
    Stalled,
    Detached,
}

async fn open_with(disks: &[SimDisk], journal: &Buf) -> Cache {
    let devices = Devices {
        data: Rc::new(disks[0].clone()),
        metadata: None,
    };
    let options = CacheOptions {
        journal: Some(journal.clone()),
        dirty_limit_percent: 100,
        cleaning: Cleaning::Nop,
        admission: Admission::Always,
        ..CacheOptions::new([9; 16])
    };
    Cache::open(devices, options).await.expect("opens").0
}

async fn read(volume: &Rc<dyn BlockDevice>, block: u64) {
    let buf = Buf::zeroed(BLOCK as usize);
    volume.read(block * BLOCK, buf).await.expect("reads");
}

/// Fills three quarters of a cache with dirty blocks of one volume, whose backing device takes no
/// data from then on. Returns the hits of 50 second reads of another volume, at the end of many
/// first reads.
fn second_reads(device: Device) -> u64 {
    let mut world = World::new(5);
    world.add_disk(&config("cache", 4 << 20, 512));
    world.add_disk(&config("backing", 16 << 20, 512));
    world.add_disk(&config("another", 8 << 20, 512));
    run(&world, async move |disks| {
        make(&disks, BLOCK as u32).await;
        let journal = Buf::zeroed(1 << 20);
        let mut cache = open_with(&disks, &journal).await;
        let another = Rc::new(disks[2].clone());
        let options = VolumeOptions::new(Mode::WriteBack);
        let dirty = cache.attach("w", another, options).await.expect("attaches");
        let blocks = cache.stats().blocks;
        for block in 0..blocks * 3 / 4 {
            let data = Buf::zeroed(BLOCK as usize);
            dirty.write(block * BLOCK, data).await.expect("writes");
        }
        dirty.flush().await.expect("flushes");
        let trouble = match device {
            Device::Vanished => Some(Trouble::Vanishes),
            Device::Stalled => Some(Trouble::Stalls(1_000_000_000_000)),
            Device::Detached => None,
        };
        disks[2].set_faults(FaultPlan {
            from_nth: trouble.map(|trouble| (1, trouble)),
            ..FaultPlan::default()
        });
        if device == Device::Detached {
            // The process dies, and the next one serves one volume.
            cache = open_with(&disks, &Buf::copied(&journal.to_vec())).await;
        }
        let clean = attach(&cache, &disks, Mode::WriteThrough).await;
        let first = 0..blocks * 2;
        for block in first.clone() {
            read(&clean, block).await;
            rt::sleep(Duration::from_millis(20)).await;
        }
        let hits = || {
            let volumes = cache.stats().volumes;
            let served = volumes.iter().find(|volume| volume.name == "v");
            served.expect("attached").read_hits
        };
        let before = hits();
        for block in first.end - 50..first.end {
            read(&clean, block).await;
        }
        assert!(cache.stats().dirty_blocks >= blocks * 3 / 4, "{device:?}");
        hits() - before
    })
}

#[test]
fn blocks_that_cannot_be_written_back_do_not_end_eviction() {
    for device in [Device::Vanished, Device::Stalled, Device::Detached] {
        assert_eq!(second_reads(device), 50, "{device:?}");
    }
}
