//! Ways to know after a crash what was dirty, driven beside a simulated cache.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ops::Range;
use std::time::Duration;

use forebay_mapperx::{Adjuster, Adjustment};
use forebay_metadata::tree::{
    DEFAULT_DEGREE, DEFAULT_LEVELS, Marked, Plane, Shape, Tree, TreeExtent, TreeOptions,
};
use serde_json::{Value, json};

/// Commit unit of the tree, bytes: the physical block of most devices.
const UNIT_BYTES: u32 = 4096;
/// Today's marks: blocks of the smallest size in a region, and how long one stays after its last
/// use.
const REGION_BLOCKS: u64 = 64;
const QUIET: Duration = Duration::from_secs(3);
/// Time for which the record of a block still has it dirty after the write-back. The new record
/// waits for a batch, from one tick of the engine's timer to the next.
pub(crate) const RECORD_LAG: Duration = Duration::from_secs(1);

/// A block.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    pub(crate) volume: u16,
    /// Its part of the volume, in blocks of the smallest size.
    pub(crate) units: Range<u64>,
    /// The slots that it takes, of the smallest size.
    pub(crate) slots: Range<u64>,
}

impl Block {
    fn key(&self) -> (u16, u64) {
        (self.volume, self.units.start)
    }
}

/// Cost of readiness for a crash.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cost {
    /// Writes of metadata.
    pub(crate) persists: u64,
    /// Client writes that waited for one.
    pub(crate) waited: u64,
}

/// Blocks that their records call dirty, by volume and first unit: that are, and that were until a
/// moment ago.
#[derive(Default)]
struct Records {
    dirty: BTreeSet<(u16, u64)>,
    late: BTreeSet<(u16, u64)>,
    /// The late ones in the order in which they turned clean.
    queue: VecDeque<(Duration, (u16, u64))>,
}

impl Records {
    fn dirtied(&mut self, block: &Block) {
        self.dirty.insert(block.key());
    }

    /// Returns whether its record called the block dirty while it was.
    fn cleaned(&mut self, block: &Block, now: Duration) -> bool {
        let key = block.key();
        let known = self.dirty.remove(&key);
        if known && self.late.insert(key) {
            self.queue.push_back((now, key));
        }
        known
    }

    fn removed(&mut self, block: &Block) {
        self.late.remove(&block.key());
    }

    fn pass(&mut self, now: Duration) {
        while let Some((cleaned, key)) = self.queue.front()
            && *cleaned + RECORD_LAG <= now
        {
            self.late.remove(key);
            self.queue.pop_front();
        }
    }

    fn call_dirty(&self, block: &Block) -> bool {
        let key = block.key();
        self.dirty.contains(&key) || self.late.contains(&key)
    }
}

/// Which writes are announced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// All that make a block dirty, as in the paper.
    All,
    /// Those to a block that is cached and clean; the record of a new block says itself that it is
    /// dirty.
    InPlace,
}

/// Address space of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Over {
    /// Volumes, each with one of its own, as in the paper.
    Volumes,
    /// The slots of the cache, as in the engine: one tree.
    Slots,
}

/// One tree a volume, or one.
pub(crate) struct Trees {
    pub(crate) name: &'static str,
    options: TreeOptions,
    adjustment: Adjustment,
    scope: Scope,
    over: Over,
    sizes: BTreeMap<u16, u64>,
    trees: BTreeMap<u16, VolumeTree>,
    records: Records,
    now: Duration,
    pub(crate) cost: Cost,
}

struct VolumeTree {
    tree: Tree<Adjuster>,
    writes: u64,
}

impl Trees {
    pub(crate) fn new(
        name: &'static str,
        adjustment: Adjustment,
        sla_nines: f64,
        (scope, over): (Scope, Over),
        sizes: &BTreeMap<u16, u64>,
    ) -> Self {
        Self {
            name,
            options: TreeOptions { sla_nines },
            adjustment,
            scope,
            over,
            sizes: sizes.clone(),
            trees: BTreeMap::new(),
            records: Records::default(),
            now: Duration::ZERO,
            cost: Cost::default(),
        }
    }

    fn tree(&mut self, volume: u16) -> &mut VolumeTree {
        self.trees.entry(volume).or_insert_with(|| {
            let blocks = self.sizes.get(&volume).copied().unwrap_or(1);
            let shape = Shape::covering(blocks, DEFAULT_DEGREE, DEFAULT_LEVELS);
            let extent = TreeExtent {
                offset: 0,
                unit_bytes: UNIT_BYTES,
                volume,
                plane: Plane::Dirty,
                shape: shape.expect("the defaults are valid"),
            };
            let adjuster = self.adjustment.adjuster(extent.shape);
            VolumeTree {
                tree: Tree::new(extent.shape, extent.unit_words(), self.options, adjuster),
                writes: 0,
            }
        })
    }

    /// Returns the tree of a block, and its range there.
    fn at(&self, block: &Block) -> (u16, Range<u64>) {
        match self.over {
            Over::Volumes => (block.volume, block.units.clone()),
            Over::Slots => (0, block.slots.clone()),
        }
    }

    /// These blocks turn dirty by one client write.
    pub(crate) fn dirtied(&mut self, blocks: &[(Block, bool)]) {
        let mut waits: Option<(u16, u64)> = None;
        for (block, fresh) in blocks {
            if *fresh && self.scope == Scope::InPlace {
                self.records.dirtied(block);
                continue;
            }
            let (volume, blocks) = self.at(block);
            if let Marked::After(round) = self.tree(volume).tree.mark(blocks) {
                waits = waits.max(Some((volume, round)));
            }
        }
        // One request is to one volume.
        let Some((volume, round)) = waits else { return };
        self.cost.waited += 1;
        while self.tree(volume).tree.durable_round() < round {
            let wrote = self.round(volume);
            assert!(wrote, "somebody waits for it");
        }
    }

    fn round(&mut self, volume: u16) -> bool {
        let tree = &mut self.tree(volume).tree;
        let Some(round) = tree.begin_round() else {
            return false;
        };
        let units = round.units().len() as u64;
        tree.finish_round(round, true);
        self.cost.persists += units;
        true
    }

    pub(crate) fn cleaned(&mut self, block: &Block) {
        if !self.records.cleaned(block, self.now) {
            let (volume, blocks) = self.at(block);
            self.tree(volume).tree.clear(blocks);
        }
    }

    pub(crate) fn placed(&mut self, block: &Block) {
        let (volume, blocks) = self.at(block);
        self.tree(volume).tree.place(blocks);
    }

    pub(crate) fn removed(&mut self, block: &Block) {
        self.records.removed(block);
        let (volume, blocks) = self.at(block);
        self.tree(volume).tree.remove(blocks);
    }

    /// A request was served.
    pub(crate) fn served(&mut self, volume: u16, write: bool, now: Duration) {
        self.now = now;
        self.records.pass(now);
        let volume = match self.over {
            Over::Volumes => volume,
            Over::Slots => 0,
        };
        let one = self.tree(volume);
        one.writes += u64::from(write);
        let persists = one.tree.persists();
        one.tree.adjust(now, one.writes, persists);
        while self.tree(volume).tree.is_due() && self.round(volume) {}
    }

    /// Returns whether a crash now would have this cached block written back.
    pub(crate) fn writes_back(&self, block: &Block) -> bool {
        let (volume, blocks) = self.at(block);
        let tree = self.trees.get(&volume);
        tree.is_some_and(|one| one.tree.may_be_dirty(blocks)) || self.records.call_dirty(block)
    }

    pub(crate) fn describe(&self) -> Value {
        let memory: usize = self.trees.values().map(|one| one.tree.memory_bytes()).sum();
        let units: u32 = self.trees.values().map(|one| one.tree.units()).sum();
        json!({
            "name": self.name,
            "nines": self.options.sla_nines,
            "memory_bytes": memory,
            "units": units,
        })
    }
}

/// The log's marks of fixed regions, as the engine has them. They announce writes in place, and are
/// cleared after a while.
#[derive(Default)]
pub(crate) struct Marks {
    /// By volume and region, when it was last used.
    marked: HashMap<(u16, u64), Duration>,
    records: Records,
    swept: Duration,
    now: Duration,
    pub(crate) cost: Cost,
}

impl Marks {
    fn regions(units: &Range<u64>) -> Range<u64> {
        units.start / REGION_BLOCKS..(units.end - 1) / REGION_BLOCKS + 1
    }

    pub(crate) fn dirtied(&mut self, blocks: &[(Block, bool)], now: Duration) {
        let mut waits = false;
        for (block, fresh) in blocks {
            // Once its mark is cleared, its record says that it is dirty.
            self.records.dirtied(block);
            if *fresh {
                continue;
            }
            for region in Self::regions(&block.units) {
                waits |= self.marked.insert((block.volume, region), now).is_none();
            }
        }
        self.cost.waited += u64::from(waits);
        self.cost.persists += u64::from(waits);
    }

    pub(crate) fn cleaned(&mut self, block: &Block) {
        self.records.cleaned(block, self.now);
    }

    pub(crate) fn removed(&mut self, block: &Block) {
        self.records.removed(block);
    }

    pub(crate) fn served(&mut self, now: Duration) {
        self.now = now;
        self.records.pass(now);
        if now < self.swept + QUIET {
            return;
        }
        self.swept = now;
        let before = self.marked.len();
        self.marked.retain(|_, used| *used + QUIET > now);
        // The marks that go share a batch.
        self.cost.persists += u64::from(self.marked.len() < before);
    }

    pub(crate) fn writes_back(&self, block: &Block) -> bool {
        let mut regions = Self::regions(&block.units);
        self.records.call_dirty(block)
            || regions.any(|region| self.marked.contains_key(&(block.volume, region)))
    }
}
