//! The cache as the stack under test, in every configuration that the tests ask for.

mod aims;
mod rot;
mod setup;

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use forebay_block::{BlockDevice, Error, ErrorKind, Result};
use forebay_cache::{
    Cache, CacheOptions, Cleaning, Devices, Durability, FormatOptions, Mode, RepairOptions,
    VolumeOptions,
};
use forebay_io::sim::{DiskConfig, SimDisk, World};
use forebay_metadata::superblock::{PlanInput, Superblock};
use forebay_testkit::model::Promise;
use forebay_testkit::stack::{Damage, Decay, LostRange, Process, Running, Stack};
use forebay_volume::Volume;

pub(crate) use setup::Setup;
#[allow(unused_imports, reason = "not every test asks for variants by name")]
pub(crate) use setup::{CHANGING, CLEANED, SUMS, TREE, UNTRACKED};
use setup::{Details, VOLUMES};

/// The cache over two backing devices.
pub(crate) struct CacheStack {
    setup: Setup,
    details: Details,
    /// The log was damaged, and the next start that succeeds must say so.
    damaged: Cell<bool>,
}

impl CacheStack {
    pub(crate) fn new(setup: Setup) -> Rc<Self> {
        let details = setup.details();
        Rc::new(Self {
            setup,
            details,
            damaged: Cell::new(false),
        })
    }

    /// Longer than anything takes that is well: the devices of some aims are very slow.
    fn timeout(&self) -> Duration {
        Duration::from_secs(if self.setup.is_aimed() { 2000 } else { 60 })
    }

    pub(crate) fn devices(&self, process: &Process) -> Devices {
        Devices {
            data: Rc::new(process.disks[0].clone()),
            metadata: (self.details.metadata_device)
                .then(|| Rc::new(process.disks[1].clone()) as Rc<dyn BlockDevice>),
        }
    }
}

impl CacheStack {
    /// What a repair is given.
    #[allow(dead_code, reason = "not every test repairs")]
    pub(crate) fn repair_options(&self, process: &Process) -> RepairOptions {
        RepairOptions {
            journal: self.details.journal.then(|| process.journal.clone()),
            boot_id: process.boot_id,
            data: true,
        }
    }

    /// The next start need not tell of damage: somebody may have mended it before.
    #[allow(dead_code, reason = "not every test repairs")]
    pub(crate) fn excuse(&self) {
        self.damaged.set(false);
    }
}

impl Details {
    /// The smallest data device that holds so many blocks of the smallest size.
    fn bytes_for(&self, blocks: u64, metadata_bytes: u64) -> u64 {
        let block = self.block_sizes[0];
        let holds = |data_bytes: &u64| {
            let classes = self
                .block_sizes
                .iter()
                .map(|size| 1 << (size / block).ilog2());
            let plan = Superblock::plan(PlanInput {
                data_bytes: *data_bytes,
                metadata_bytes: self.metadata_device.then_some(metadata_bytes),
                unit_bytes: self.unit_bytes,
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

/// An open cache with its volumes.
pub(crate) struct OpenCache {
    cache: Cache,
    volumes: Vec<Volume>,
    lost: Vec<LostRange>,
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
            // Never less than the engine works with.
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
        if details.metadata_device {
            world.add_disk(&DiskConfig {
                logical_block_bytes: details.unit_bytes,
                physical_block_bytes: details.unit_bytes,
                volatile_cache: details.volatile[1],
                fua: details.fua,
                latency_us: details.latency_us[1],
                ..DiskConfig::new("metadata", overhead_bytes + blocks * 192)
            });
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

    fn promise(&self) -> Promise {
        match self.setup.durability {
            Durability::Sync => Promise::Sync,
            Durability::Flush => Promise::Flush,
        }
    }

    async fn format(&self, process: &Process) -> Result<()> {
        let sizes = self.details.block_sizes;
        let top = (self.details.largest_block() / sizes[0]).ilog2() as u8;
        let options = FormatOptions {
            region_shift: self.details.region_shift.max(top),
            dirty_tracking: self.details.dirty_tracking,
            checksums: self.details.checksums,
            ..FormatOptions::sizes(sizes, [7; 16])
        };
        forebay_cache::format(&self.devices(process), &options).await
    }

    async fn open(&self, process: &Process) -> Result<OpenCache> {
        let details = &self.details;
        let options = CacheOptions {
            durability: self.setup.durability,
            journal: details.journal.then(|| process.journal.clone()),
            dirty_limit_percent: details.dirty_limit_percent,
            cleaning: details.cleaning,
            commit_interval: details.commit_interval,
            patience: self.timeout(),
            ..CacheOptions::new(process.boot_id)
        };
        // A start that is cut off may have left the damage behind already.
        let damaged = self.damaged.take();
        let (cache, report) = Cache::open(self.devices(process), options).await?;
        if let Some(blocks) = details.blocks {
            // Of several sizes, whole groups only.
            let found = cache.stats().blocks;
            assert!(found <= blocks, "{found} blocks, {blocks} were drawn");
        }
        let count = |disk: &SimDisk| disk.counters().failed + disk.counters().rotted;
        let devices_are_well = process.disks.iter().all(|disk| count(disk) == 0);
        if damaged && report.damaged_records == 0 {
            let what = format!("damage is not told: {report:?}");
            return Err(Error::new(ErrorKind::Corrupt, what));
        }
        if devices_are_well && report.damaged_records + report.unreadable_units > 0 {
            let what = format!("a crash looks like damage: {report:?}");
            return Err(Error::new(ErrorKind::Corrupt, what));
        }
        if devices_are_well && !report.lost.is_empty() {
            let what = format!("data was lost though no device failed: {:?}", report.lost);
            return Err(Error::new(ErrorKind::Lost, what));
        }
        let boot = usize::from(process.boot_id[0]);
        let mut volumes = Vec::new();
        for volume in 0..VOLUMES {
            let backing = process.disks[process.disks.len() - VOLUMES + volume].clone();
            let options = VolumeOptions {
                promotion: details.promotion,
                sequential_cutoff_bytes: details.cutoff_bytes,
                ..VolumeOptions::new(details.modes[boot % details.modes.len()])
            };
            let attached = cache
                .attach(&name(volume), Rc::new(backing), options)
                .await?;
            let attached = Volume::new(name(volume), attached, false);
            attached.time_out(self.timeout());
            volumes.push(attached);
        }
        let lost = (report.lost.iter())
            .map(|range| LostRange {
                volume: (0..VOLUMES)
                    .find(|&volume| name(volume) == range.volume)
                    .expect("a volume of ours"),
                offset: range.offset,
                len: range.len.min(self.setup.volume_bytes() - range.offset),
            })
            .collect();
        Ok(OpenCache {
            cache,
            volumes,
            lost,
        })
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

    fn lost(&self) -> Vec<LostRange> {
        self.lost.clone()
    }

    async fn control(&self, volume: usize, draw: u64) -> Result<()> {
        match draw % 3 {
            0 => self.cache.write_back(Some(&name(volume))).await,
            2 if draw / 18 % 4 == 3 => {
                let cleaning = Cleaning::ALL[(draw / 72 % 4) as usize];
                self.cache.set_cleaning(cleaning);
                Ok(())
            }
            _ => {
                let mode = Mode::ALL[(draw / 3 % 6) as usize];
                self.cache.set_mode(&name(volume), mode)
            }
        }
    }

    async fn close(&self) -> Result<()> {
        for volume in &self.volumes {
            volume.drain().await;
        }
        self.cache.close().await
    }
}
