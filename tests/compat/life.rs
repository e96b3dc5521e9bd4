//! The life of a cache that ends in an image, and the expected contents of the image. Nothing here
//! may change: images of earlier versions were made with it.

use std::rc::Rc;

use forebay_block::{BlockDevice, BlockDeviceExt, Buf};
use forebay_cache::{
    Cache, CacheOptions, Cleaning, Devices, DirtyTracking, FormatOptions, Mode, VolumeOptions,
};
use forebay_io::sim::{DiskConfig, Outcome, SimDisk, World};

pub(crate) const CACHE_BYTES: u64 = 3 << 20;
pub(crate) const VOLUME_BYTES: u64 = 2 << 20;
const SECTOR: u64 = 512;

/// The cache of an image.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    pub(crate) dirty_tracking: DirtyTracking,
    pub(crate) checksums: bool,
    pub(crate) sizes: &'static [u64],
    /// Whether the cache was closed. Otherwise power was lost.
    pub(crate) closed: bool,
}

/// The kinds of caches of which each version has images.
pub(crate) const KINDS: [Kind; 4] = [
    Kind {
        name: "exact",
        dirty_tracking: DirtyTracking::Exact,
        checksums: false,
        sizes: &[32 << 10],
        closed: false,
    },
    Kind {
        name: "abt-checksums",
        dirty_tracking: DirtyTracking::Abt,
        checksums: true,
        sizes: &[4 << 10, 8 << 10, 16 << 10, 32 << 10],
        closed: false,
    },
    Kind {
        name: "none",
        dirty_tracking: DirtyTracking::None,
        checksums: false,
        sizes: &[4 << 10],
        closed: false,
    },
    Kind {
        name: "closed",
        dirty_tracking: DirtyTracking::Exact,
        checksums: true,
        sizes: &[16 << 10, 64 << 10],
        closed: true,
    },
];

/// `SplitMix64`.
struct Draw(u64);

impl Draw {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }
}

/// Returns the writes before the write-back and after it: first byte, length, and the byte to fill
/// with.
fn writes() -> [Vec<(u64, u64, u8)>; 2] {
    let mut draw = Draw(27);
    let mut some = |count: u64| -> Vec<(u64, u64, u8)> {
        (0..count)
            .map(|_| {
                let sectors = [1, 8, 8, 64][draw.below(4) as usize];
                let at = draw.below(VOLUME_BYTES / SECTOR - sectors);
                (at * SECTOR, sectors * SECTOR, 1 + draw.below(255) as u8)
            })
            .collect()
    };
    [some(150), some(60)]
}

/// Returns the expected contents of a volume.
pub(crate) fn expected() -> Vec<u8> {
    let mut bytes = vec![0; VOLUME_BYTES as usize];
    for (at, len, byte) in writes().into_iter().flatten() {
        bytes[at as usize..(at + len) as usize].fill(byte);
    }
    bytes
}

pub(crate) fn world() -> World {
    let mut world = World::new(27);
    for (name, bytes) in [("cache", CACHE_BYTES), ("backing", VOLUME_BYTES)] {
        world.add_disk(&DiskConfig {
            physical_block_bytes: 4096,
            ..DiskConfig::new(name, bytes)
        });
    }
    world
}

pub(crate) fn run<T: 'static>(
    world: &World,
    main: impl AsyncFnOnce(Vec<SimDisk>) -> T + 'static,
) -> T {
    let disks = world.disks().to_vec();
    match world.run(1, async move { main(disks).await }) {
        Outcome::Finished(value) => value,
        _ => panic!("the run did not finish"),
    }
}

pub(crate) fn devices(disks: &[SimDisk]) -> Devices {
    Devices {
        data: Rc::new(disks[0].clone()),
        metadata: None,
    }
}

pub(crate) async fn attach(cache: &Cache, disks: &[SimDisk]) -> Rc<dyn BlockDevice> {
    let backing = Rc::new(disks[1].clone());
    let options = VolumeOptions::new(Mode::WriteBack);
    (cache.attach("v", backing, options).await).expect("attaches")
}

/// Lives, and ends as its kind says. All dirty data was flushed.
pub(crate) async fn live(disks: &[SimDisk], kind: Kind) {
    let options = FormatOptions {
        dirty_tracking: kind.dirty_tracking,
        checksums: kind.checksums,
        ..FormatOptions::sizes(kind.sizes, [5; 16])
    };
    (forebay_cache::format(&devices(disks), &options).await).expect("formats");
    let options = CacheOptions {
        journal: Some(Buf::zeroed(1 << 16)),
        cleaning: Cleaning::Nop,
        ..CacheOptions::new([9; 16])
    };
    let (cache, _) = (Cache::open(devices(disks), options).await).expect("opens");
    let volume = attach(&cache, disks).await;
    let [before, behind] = writes();
    for (nth, (at, len, byte)) in before.into_iter().chain(behind).enumerate() {
        if nth == 150 {
            cache.write_back(None).await.expect("writes back");
        }
        let buf = Buf::zeroed(len as usize);
        buf.fill(byte);
        volume.write(at, buf).await.expect("writes");
    }
    volume.flush().await.expect("flushes");
    if kind.closed {
        cache.close().await.expect("closes");
    }
}
