//! A small cache that has nothing but a tree. Clients overwrite cached blocks in place, and a
//! cleaner writes them back. After a crash, blocks that the tree calls clean must be on the backing
//! device.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use forebay_block::{BlockDeviceExt, Buf};
use forebay_io::rt;
use forebay_io::sim::{DiskConfig, Rng, SimDisk, Stopper, World};
use forebay_mapperx::{Adjuster, Adjustment};
use forebay_metadata::Seed;
use forebay_metadata::order;
use forebay_metadata::tree::{
    LoadReport, Marked, Plane, Shape, TreeExtent, TreeOptions, TreeWriter, format, load,
};

const SECTOR: u64 = 512;

/// A configuration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    pub(crate) adjustment: Adjustment,
    /// Bytes of the commit unit. The device tears it between blocks of 512 bytes.
    pub(crate) unit_bytes: u32,
    pub(crate) fua: bool,
    pub(crate) volatile_cache: bool,
    /// Blocks of the volume.
    pub(crate) blocks: u64,
    pub(crate) levels: u8,
    /// Operations of each client in its life.
    pub(crate) operations: u64,
}

impl Setup {
    pub(crate) fn extent(&self) -> TreeExtent {
        TreeExtent {
            offset: u64::from(self.unit_bytes),
            unit_bytes: self.unit_bytes,
            volume: 3,
            plane: Plane::Dirty,
            shape: Shape::covering(self.blocks, 4, self.levels).expect("valid"),
        }
    }

    fn options(&self) -> TreeOptions {
        TreeOptions {
            // One persist for three writes, so that everything happens often.
            sla_nines: 0.5,
        }
    }
}

pub(crate) fn seed() -> Seed {
    Seed::new(&[9; 16])
}

/// State that outlives a crash beside the tree: the cache's data, as the number of writes by block.
pub(crate) type Cached = BTreeMap<u64, u64>;

/// A machine: the devices, and the content of the cache device.
pub(crate) struct Machine {
    pub(crate) setup: Setup,
    pub(crate) world: World,
    pub(crate) cached: Rc<RefCell<Cached>>,
    /// Rises with each life.
    pub(crate) epoch: Cell<u32>,
}

impl Machine {
    pub(crate) fn new(setup: Setup, seed: u64) -> Self {
        let mut world = World::new(seed);
        world.add_disk(&DiskConfig {
            physical_block_bytes: setup.unit_bytes,
            volatile_cache: setup.volatile_cache,
            fua: setup.fua,
            ..DiskConfig::new("tree", 256 << 10)
        });
        world.add_disk(&DiskConfig::new("backing", setup.blocks * SECTOR));
        let rng = Rng::labelled(seed, 21);
        let mut cached = Cached::new();
        // A few neighbourhoods.
        for _ in 0..6 {
            let first = rng.below(setup.blocks - 8);
            cached.extend((first..first + 8).map(|block| (block, 0)));
        }
        Self {
            setup,
            world,
            cached: Rc::new(RefCell::new(cached)),
            epoch: Cell::new(1),
        }
    }

    pub(crate) fn fork(&self) -> Self {
        Self {
            setup: self.setup,
            world: self.world.fork(),
            cached: Rc::new(RefCell::new(self.cached.borrow().clone())),
            epoch: self.epoch.clone(),
        }
    }

    pub(crate) fn process(&self) -> Process {
        self.epoch.set(self.epoch.get() + 1);
        Process {
            setup: self.setup,
            tree: self.world.disks()[0].clone(),
            backing: self.world.disks()[1].clone(),
            cached: Rc::clone(&self.cached),
            epoch: self.epoch.get(),
            stopper: self.world.stopper(),
        }
    }
}

/// A process on a machine.
pub(crate) struct Process {
    setup: Setup,
    tree: SimDisk,
    backing: SimDisk,
    cached: Rc<RefCell<Cached>>,
    epoch: u32,
    stopper: Stopper,
}

impl Process {
    pub(crate) async fn format(self) -> forebay_block::Result<()> {
        format(&self.tree, self.setup.extent(), seed(), self.epoch).await
    }

    /// Opens the tree and checks every cached block that it calls clean. Blocks that it calls dirty
    /// are marked.
    pub(crate) async fn open(&self) -> Result<Opened, String> {
        let (extent, options) = (self.setup.extent(), self.setup.options());
        let adjuster = self.setup.adjustment.adjuster(extent.shape);
        let loaded = load(&self.tree, extent, seed(), self.epoch, options, adjuster).await;
        let loaded = loaded.map_err(|error| format!("the tree does not load: {error}"))?;
        let report = loaded.report;
        let writer = TreeWriter::new(Rc::new(self.tree.clone()), extent, seed(), loaded);
        let mut dirty = BTreeSet::new();
        for (&block, &written) in &*self.cached.borrow() {
            let mut tree = writer.tree();
            tree.place(block..block + 1);
            if tree.may_be_dirty(block..block + 1) {
                if tree.mark(block..block + 1) != Marked::Durable {
                    return Err(format!(
                        "block {block} was loaded as dirty, and is not so durably"
                    ));
                }
                dirty.insert(block);
                continue;
            }
            let stored = self.backing.peek(block * SECTOR, 8);
            let stored = u64::from_le_bytes(stored.try_into().expect("eight bytes"));
            if stored != written {
                return Err(format!(
                    "block {block} counts as clean: the cache has write {written}, the backing \
                     device {stored}"
                ));
            }
        }
        Ok(Opened {
            writer,
            dirty,
            report,
        })
    }

    /// Runs a life: opens, then clients write, blocks are written back, and the tree is adjusted.
    pub(crate) async fn live(self, seed: u64, close: bool) -> Result<(), String> {
        let opened = self.open().await?;
        let rng = Rng::labelled(seed, u64::from(self.epoch));
        let blocks = self.cached.borrow().keys().copied().collect();
        let life = Rc::new(Life {
            blocks,
            process: self,
            writer: opened.writer,
            dirty: RefCell::new(opened.dirty),
            busy: RefCell::default(),
            writes: Cell::new(0),
            lanes: Cell::new(LANES),
            flush_failed: Cell::new(false),
        });
        for lane in 0..LANES {
            rt::spawn(Rc::clone(&life).lane(Rng::labelled(rng.draw(), lane)));
        }
        let mut now = Duration::ZERO;
        while life.lanes.get() > 0 {
            rt::sleep(Duration::from_micros(900)).await;
            now += Duration::from_secs(1);
            let persists = life.writer.tree().persists();
            // The next life meets the failed device, too.
            let _ = life.writer.tick(now, life.writes.get(), persists).await;
        }
        if close {
            let _ = life.writer.close().await;
        }
        Ok(())
    }
}

/// An open tree.
pub(crate) struct Opened {
    writer: TreeWriter<Adjuster>,
    /// Blocks that are dirty, or that the tree calls dirty.
    pub(crate) dirty: BTreeSet<u64>,
    pub(crate) report: LoadReport,
}

const LANES: u64 = 3;

/// State that the lanes of a process share.
struct Life {
    process: Process,
    writer: TreeWriter<Adjuster>,
    blocks: Vec<u64>,
    dirty: RefCell<BTreeSet<u64>>,
    /// Blocks in use by a lane.
    busy: RefCell<BTreeSet<u64>>,
    writes: Cell<u64>,
    lanes: Cell<u64>,
    /// After a failed flush of the backing device nothing turns clean.
    flush_failed: Cell<bool>,
}

impl Life {
    /// Runs a client and a cleaner, as the next number says.
    async fn lane(self: Rc<Self>, rng: Rng) {
        for _ in 0..self.process.setup.operations {
            // Some blocks get many more writes than others.
            let spread = [2, 8, self.blocks.len()][rng.index(3)];
            let block = self.blocks[rng.index(spread)];
            if !self.busy.borrow_mut().insert(block) {
                rt::sleep(Duration::from_micros(50)).await;
                continue;
            }
            // Where a device fails, other blocks continue.
            let _ = match rng.chance(1, 2) {
                true => self.write(block).await,
                false => self.clean(block).await,
            };
            self.busy.borrow_mut().remove(&block);
        }
        self.lanes.set(self.lanes.get() - 1);
    }

    async fn write(&self, block: u64) -> forebay_block::Result<()> {
        self.writes.set(self.writes.get() + 1);
        if !self.dirty.borrow().contains(&block) {
            if let Err(error) = self.writer.mark(block..block + 1).await {
                self.writer.tree().clear(block..block + 1);
                return Err(error);
            }
            self.dirty.borrow_mut().insert(block);
        }
        // Events after the end of the world do not count.
        if !self.process.stopper.is_stopped() {
            *self.process.cached.borrow_mut().entry(block).or_default() += 1;
        }
        Ok(())
    }

    async fn clean(&self, block: u64) -> forebay_block::Result<()> {
        if !self.dirty.borrow().contains(&block) || self.flush_failed.get() {
            return Ok(());
        }
        let written = self.process.cached.borrow()[&block];
        let mut sector = [0; SECTOR as usize];
        sector[..8].copy_from_slice(&written.to_le_bytes());
        let backing = &self.process.backing;
        backing.write(block * SECTOR, Buf::copied(&sector)).await?;
        let flushed = order::flush(backing).await;
        self.flush_failed
            .set(self.flush_failed.get() | flushed.is_err());
        if !self.flush_failed.get() {
            self.dirty.borrow_mut().remove(&block);
            self.writer.tree().clear(block..block + 1);
        }
        flushed
    }
}
