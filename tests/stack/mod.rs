//! The cache as the stack under test, in every configuration that the tests need.

mod aims;
#[allow(dead_code, reason = "not every test goes through families")]
pub(crate) mod families;
mod metadata;
mod opening;
mod rot;
mod setup;

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use forebay_block::{BlockDevice, Result};
use forebay_cache::{Cache, Cleaning, Devices, Durability, FormatOptions, Mode, RepairOptions};
use forebay_io::sim::{DiskConfig, World};
use forebay_io::sync::Promise;
use forebay_metadata::superblock::{LINE_BYTES, PlanInput, Superblock};
use forebay_testkit::stack::Promise as Promised;
use forebay_testkit::stack::{Damage, Decay, LostRange, Process, Running, Stack};
use forebay_volume::Volume;

use metadata::Metadata;
#[allow(unused_imports, reason = "not every test plants one")]
pub(crate) use metadata::{StoreFault, plant_store_fault};
#[allow(unused_imports, reason = "not every test counts them")]
pub(crate) use opening::reads_before_open;
pub(crate) use setup::Setup;
#[allow(unused_imports, reason = "not every test asks for variants by name")]
pub(crate) use setup::{CHANGING, CLEANED, LINES, ONLINE, SUMS, TREE};
use setup::{Details, VOLUMES};

/// The cache over two backing devices.
pub(crate) struct CacheStack {
    setup: Setup,
    details: Details,
    /// Losses that openings have reported, and that they must report.
    losses: Rc<Losses>,
}

/// Losses of the cache.
#[derive(Default)]
struct Losses {
    /// Whether the log was damaged, and no opening has reported that.
    unreported_damage: Cell<bool>,
    /// Ranges that openings reported lost.
    reported: RefCell<Vec<LostRange>>,
}

impl CacheStack {
    pub(crate) fn new(setup: Setup) -> Rc<Self> {
        let details = setup.details();
        Rc::new(Self {
            setup,
            details,
            losses: Rc::default(),
        })
    }

    /// Longer than any operation of a working device. The devices of some aims are very slow.
    fn timeout(&self) -> Duration {
        Duration::from_secs(if self.setup.is_aimed() { 2000 } else { 60 })
    }

    pub(crate) fn devices(&self, process: &Process) -> Devices {
        Devices {
            data: Rc::new(process.disks[0].clone()),
            metadata: self.details.metadata.device(process),
        }
    }
}

impl Details {
    /// Returns the size of the smallest data device that holds `blocks` blocks of the smallest
    /// size.
    fn bytes_for(&self, blocks: u64, metadata_bytes: u64) -> u64 {
        let block = self.block_sizes[0];
        let holds = |data_bytes: &u64| {
            let classes = self
                .block_sizes
                .iter()
                .map(|size| 1 << (size / block).ilog2());
            let plan = Superblock::plan(PlanInput {
                data_bytes: *data_bytes,
                metadata_bytes: (self.metadata != Metadata::Beside).then_some(metadata_bytes),
                unit_bytes: match self.metadata {
                    Metadata::Memory => LINE_BYTES,
                    Metadata::Beside | Metadata::Disk => self.unit_bytes,
                },
                block_size_bytes: block as u32,
                classes: classes.sum(),
                region_shift: self
                    .region_shift
                    .max((self.largest_block() / block).ilog2() as u8),
                uuid: [7; 16],
                dirty_tracking: self.dirty_tracking,
                checksums: self.checksums,
            });
            plan.is_ok_and(|plan| u64::from(plan.slots) >= blocks)
        };
        let found = (0..).map(|nth| nth * 4096).find(holds);
        found.expect("some device is large enough")
    }
}

impl CacheStack {
    /// Returns the options of a repair.
    #[allow(dead_code, reason = "not every test repairs")]
    pub(crate) fn repair_options(&self, process: &Process) -> RepairOptions {
        RepairOptions {
            journal: self.details.journal.then(|| process.journal.clone()),
            boot_id: process.boot_id,
            data: true,
            ..RepairOptions::default()
        }
    }

    /// Drops the requirement that the next start reports damage: a repair may precede it.
    #[allow(dead_code, reason = "not every test repairs")]
    pub(crate) fn excuse(&self) {
        self.losses.unreported_damage.set(false);
    }
}

/// An open cache with its volumes.
pub(crate) struct OpenCache {
    cache: Promise<Result<Cache>>,
    volumes: Vec<Volume>,
}

thread_local! {
    static SENT_ROUND: Cell<u64> = const { Cell::new(0) };
}

/// Number of writes of this thread's caches that found no room and that measured admission sent
/// past the cache.
#[allow(dead_code, reason = "not every test counts them")]
pub(crate) fn bypassed_for_room() -> u64 {
    SENT_ROUND.get()
}

impl Drop for OpenCache {
    fn drop(&mut self) {
        if let Some(Ok(cache)) = self.cache.now() {
            let volumes = cache.stats().volumes;
            let sent: u64 = volumes.iter().map(|volume| volume.bypassed_for_room).sum();
            SENT_ROUND.set(SENT_ROUND.get() + sent);
        }
    }
}

fn name(volume: usize) -> String {
    format!("v{volume}")
}

impl Stack for CacheStack {
    type Running = OpenCache;

    fn world(&self, seed: u64) -> World {
        let details = &self.details;
        let (block, largest) = (details.block_sizes[0], details.largest_block());
        let volume_bytes = self.setup.volume_bytes();
        let blocks = if self.setup.fits {
            VOLUMES as u64 * (volume_bytes / block + 4) + 16 * (largest / block - 1)
        } else {
            // The engine needs at least this many.
            let sizes = details.block_sizes.len() as u64;
            let least = ((sizes + 3) * largest / block).max(6);
            (VOLUMES as u64 * volume_bytes / block / details.share).max(least)
        };
        let overhead_bytes = self.setup.overhead_bytes();
        let data_bytes = match details.blocks {
            Some(blocks) => details.bytes_for(blocks, overhead_bytes),
            None => overhead_bytes + blocks * block,
        };
        let mut world = World::new(seed);
        world.add_disk(&DiskConfig {
            physical_block_bytes: details.unit_bytes,
            volatile_cache: details.volatile[0],
            fua: details.fua,
            latency_us: details.latency_us[0],
            ..DiskConfig::new("cache", data_bytes)
        });
        let metadata_bytes = overhead_bytes + blocks * 192;
        match details.metadata {
            Metadata::Beside => {}
            Metadata::Disk => {
                world.add_disk(&DiskConfig {
                    logical_block_bytes: details.unit_bytes,
                    physical_block_bytes: details.unit_bytes,
                    volatile_cache: details.volatile[1],
                    fua: details.fua,
                    latency_us: details.latency_us[1],
                    ..DiskConfig::new("metadata", metadata_bytes)
                });
            }
            Metadata::Memory => {
                world.add_memory(metadata_bytes.next_multiple_of(4096));
            }
        }
        for volume in 0..VOLUMES {
            world.add_disk(&DiskConfig {
                volatile_cache: details.volatile[2],
                fua: details.fua,
                latency_us: details.latency_us[2],
                ..DiskConfig::new(format!("backing{volume}"), volume_bytes)
            });
        }
        world
    }

    fn volume_bytes(&self) -> Vec<u64> {
        vec![self.setup.volume_bytes(); VOLUMES]
    }

    fn promise(&self) -> Promised {
        match self.setup.durability {
            Durability::Sync => Promised::Sync,
            Durability::Flush => Promised::Flush,
        }
    }

    fn ailing(&self) -> Range<usize> {
        let first = match self.details.metadata {
            Metadata::Beside | Metadata::Memory => 1,
            Metadata::Disk => 2,
        };
        match self.setup.is_ailing() {
            true => first..first + VOLUMES,
            false => 0..0,
        }
    }

    async fn format(&self, process: &Process) -> Result<()> {
        let sizes = self.details.block_sizes;
        let top = (self.details.largest_block() / sizes[0]).ilog2() as u8;
        let options = FormatOptions {
            region_shift: self.details.region_shift.max(top),
            dirty_tracking: self.details.dirty_tracking,
            checksums: self.details.checksums,
            // As long as the largest block, or 16 KiB.
            zone_shift: 14,
            ..FormatOptions::sizes(sizes, [7; 16])
        };
        forebay_cache::format(&self.devices(process), &options).await
    }

    fn take_lost(&self) -> Vec<LostRange> {
        self.losses.reported.take()
    }

    async fn open(&self, process: &Process) -> Result<OpenCache> {
        opening::open(self, process).await
    }

    async fn rot(&self, process: &Process, decay: Decay, draw: u64) -> Result<Damage> {
        self.decay(process, decay, draw).await
    }
}

impl Running for OpenCache {
    fn volumes(&self) -> Vec<Rc<dyn BlockDevice>> {
        (self.volumes.iter())
            .map(|volume| volume.handle().open())
            .collect()
    }

    async fn opened(&self) -> Result<()> {
        self.cache.get().await.map(|_| ())
    }

    async fn control(&self, volume: usize, draw: u64) -> Result<()> {
        let cache = self.cache.get().await?;
        match draw % 3 {
            0 => cache.write_back(Some(&name(volume))).await,
            2 if draw / 18 % 4 == 3 => {
                let cleaning = Cleaning::ALL[(draw / 72 % 4) as usize];
                cache.set_cleaning(cleaning);
                Ok(())
            }
            _ => {
                let mode = Mode::ALL[(draw / 3 % 6) as usize];
                cache.set_mode(&name(volume), mode)
            }
        }
    }

    async fn close(&self) -> Result<()> {
        for volume in &self.volumes {
            volume.drain().await;
        }
        self.cache.get().await?.close().await
    }
}
