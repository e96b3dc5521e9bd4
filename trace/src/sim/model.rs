//! A write-back cache without its data: what would be read and written where.

use forebay_policy::{BlockId, BlockSizes, BlockTable, Span, TwoLevel, Victim};

use super::cost::{Clock, Costs};
use super::volumes::Counts;
use crate::request::{Op, Request};

/// What is brought in with a missed block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fill {
    /// The whole block, before a write to it, too; a victim is written back whole while the request
    /// waits (AdaCache, section III-A).
    Whole,
    /// What was asked for, by granules of 4 KiB; victims are written back ahead of need, dirty granules
    /// only. This is what Forebay does.
    Granules,
}

/// What to simulate.
#[derive(Clone, Copy, Debug)]
pub struct CacheModel {
    /// The block sizes.
    pub sizes: BlockSizes,
    /// Bytes for data; whole groups of it are used.
    pub capacity_bytes: u64,
    /// What goes.
    pub replace: TwoLevel,
    /// What comes.
    pub fill: Fill,
    /// Costs of the devices.
    pub costs: Costs,
}

#[derive(Clone, Copy, Debug, Default)]
struct Granules {
    valid: u64,
    dirty: u64,
}

/// One simulated cache.
#[derive(Debug)]
pub struct Simulated {
    model: CacheModel,
    table: BlockTable,
    granules: Vec<Granules>,
    clock: Clock,
    counts: Counts,
    /// Of the present region: blocks of the cache that the request touches.
    found: Vec<(BlockId, Span)>,
}

/// The part of a request that lies in one region.
#[derive(Clone, Copy)]
struct Part {
    volume: u16,
    region: u64,
    start: u64,
    end: u64,
    write: bool,
}

impl Simulated {
    /// An empty cache.
    #[must_use]
    pub fn new(model: CacheModel) -> Self {
        let groups = model.capacity_bytes / model.sizes.region_bytes();
        let groups = u32::try_from(groups).unwrap_or(u32::MAX).max(1);
        Self {
            table: BlockTable::new(model.sizes, groups),
            granules: Vec::new(),
            clock: Clock::new(&model.costs),
            counts: Counts::default(),
            found: Vec::new(),
            model,
        }
    }

    /// What it did so far.
    #[must_use]
    pub const fn counts(&self) -> &Counts {
        &self.counts
    }

    /// The blocks.
    #[must_use]
    pub const fn table(&self) -> &BlockTable {
        &self.table
    }

    /// Serves a request; flushes and discards are passed over.
    pub fn request(&mut self, request: &Request) {
        let write = match request.op {
            Op::Read => false,
            Op::Write => true,
            Op::Flush | Op::Discard => return,
        };
        self.clock.begin();
        let region_bytes = self.model.sizes.region_bytes();
        let (mut at, end) = (request.offset_bytes, request.end_bytes());
        let mut hit_bytes = 0;
        while at < end {
            let region = at / region_bytes;
            let base = region * region_bytes;
            let part = Part {
                volume: request.volume as u16,
                region,
                start: at - base,
                end: (end - base).min(region_bytes),
                write,
            };
            hit_bytes += self.part(part);
            at = base + part.end;
        }
        let kind = match write {
            true => &mut self.counts.writes,
            false => &mut self.counts.reads,
        };
        kind.note(u64::from(request.len_bytes), hit_bytes);
        self.counts.latency_sum_ns += self.clock.end();
        let cached = self.table.len() as u64;
        self.counts.cached_blocks_sum += cached;
        self.counts.cached_blocks_max = self.counts.cached_blocks_max.max(cached);
    }

    /// Writes everything back, as at the end of a trace.
    pub fn write_back_all(&mut self) {
        let blocks: Vec<BlockId> = self.table.coldest_blocks().collect();
        for id in blocks {
            self.write_back(id);
        }
    }

    /// Serves a part; returns how many of its bytes were in the cache.
    fn part(&mut self, part: Part) -> u64 {
        let sizes = self.model.sizes;
        let wanted = sizes.touched(part.start, part.end);
        let mut missing = wanted;
        self.found.clear();
        for (id, span) in self.table.find(part.volume, part.region) {
            if span.mask() & wanted != 0 {
                missing &= !span.mask();
                self.found.push((id, span));
            }
        }
        let mut hit_bytes = 0;
        for index in 0..self.found.len() {
            let (id, span) = self.found[index];
            self.table.touch(id);
            hit_bytes += self.serve(part, id, span, false);
        }
        for span in sizes.cut(missing) {
            let id = self.place(part, span);
            hit_bytes += self.serve(part, id, span, true);
        }
        hit_bytes
    }

    /// Places a missed block.
    fn place(&mut self, part: Part, span: Span) -> BlockId {
        while !self.table.has_room(span.class) {
            let victim = self.model.replace.victim(&self.table, span.class);
            match victim.expect("no room, so something is cached") {
                Victim::Block(id) => self.evict(id),
                Victim::Group(group) => {
                    self.counts.evicted_groups += 1;
                    self.found.clear();
                    let blocks = self.table.blocks_of(group);
                    let blocks: Vec<BlockId> = blocks.collect();
                    for id in blocks {
                        self.evict(id);
                    }
                }
            }
        }
        let id = self.table.allocate(part.volume, part.region, span);
        let id = id.expect("there is room");
        if id as usize >= self.granules.len() {
            self.granules.resize(id as usize + 1, Granules::default());
        }
        self.granules[id as usize] = Granules::default();
        self.counts.allocated_blocks += 1;
        self.counts.allocated_bytes += self.model.sizes.block_bytes(span.class);
        id
    }

    fn evict(&mut self, id: BlockId) {
        self.write_back(id);
        self.table.remove(id);
        self.counts.evicted_blocks += 1;
    }

    fn write_back(&mut self, id: BlockId) {
        let Granules { valid, dirty } = self.granules[id as usize];
        if dirty == 0 {
            return;
        }
        self.granules[id as usize] = Granules { valid, dirty: 0 };
        match self.model.fill {
            Fill::Whole => {
                let bytes = self.model.sizes.block_bytes(self.table.class(id));
                self.counts.io.read_from_cache.add(bytes);
                self.counts.io.write_to_core.add(bytes);
                let at = self.clock.now();
                self.clock.read_cache(at, bytes);
                let read = self.clock.done();
                self.clock.write_core(read, bytes);
            }
            Fill::Granules => {
                let granule = self.granule_bytes(self.table.class(id));
                for run in runs(dirty) {
                    let bytes = u64::from(run.1) * granule;
                    self.counts.io.read_from_cache.add(bytes);
                    self.counts.io.write_to_core.add(bytes);
                    self.clock.background_cache(bytes);
                    self.clock.background_core(bytes);
                }
            }
        }
    }

    fn granule_bytes(&self, class: u8) -> u64 {
        (self.model.sizes.block_bytes(class) / 64).max(4096)
    }

    /// Serves what of a part lies in one block; returns how many of the bytes it held.
    fn serve(&mut self, part: Part, id: BlockId, span: Span, fresh: bool) -> u64 {
        let sizes = self.model.sizes;
        let base = u64::from(span.first) * sizes.unit_bytes();
        let size = sizes.block_bytes(span.class);
        let start = part.start.max(base) - base;
        let end = part.end.min(base + size) - base;
        match self.model.fill {
            Fill::Whole => self.serve_whole(part.write, id, size, end - start, fresh),
            Fill::Granules => self.serve_granules(part.write, id, size, start, end),
        }
    }

    fn serve_whole(&mut self, write: bool, id: BlockId, size: u64, bytes: u64, fresh: bool) -> u64 {
        let (io, clock) = (&mut self.counts.io, &mut self.clock);
        let mut at = clock.now();
        if fresh {
            // After the write-back of what had to go.
            at = clock.done();
            io.read_from_core.add(size);
            clock.read_core(at, size);
            io.write_to_cache.add(size);
            clock.background_cache(size);
            at = clock.done();
        }
        if write {
            io.write_to_cache.add(bytes);
            clock.write_cache(at, bytes);
            self.granules[id as usize].dirty = u64::MAX;
        } else if !fresh {
            io.read_from_cache.add(bytes);
            clock.read_cache(at, bytes);
        }
        if fresh { 0 } else { bytes }
    }

    fn serve_granules(&mut self, write: bool, id: BlockId, size: u64, start: u64, end: u64) -> u64 {
        let granule = (size / 64).max(4096);
        let bits = |first: u64, last: u64| -> u64 {
            if first >= last {
                return 0;
            }
            (u64::MAX >> (64 - (last - first))) << first
        };
        let touched = bits(start / granule, end.div_ceil(granule));
        let Granules { valid, dirty } = self.granules[id as usize];
        let absent = touched & !valid;
        let (io, clock) = (&mut self.counts.io, &mut self.clock);
        let at = clock.now();
        if write {
            // The rest of granules that are written in part, and hold nothing yet.
            let covered = bits(start.div_ceil(granule), end / granule);
            let ragged = absent & !covered;
            for (_, len) in runs(ragged) {
                let bytes = u64::from(len) * granule;
                io.read_from_core.add(bytes);
                clock.read_core(at, bytes);
            }
            let at = clock.done();
            let bytes = end - start + ragged_bytes(ragged, granule, start, end);
            io.write_to_cache.add(bytes);
            clock.write_cache(at, bytes);
            self.granules[id as usize] = Granules {
                valid: valid | touched,
                dirty: dirty | touched,
            };
            return if absent == 0 { end - start } else { 0 };
        }
        for (_, len) in runs(absent) {
            let bytes = u64::from(len) * granule;
            io.read_from_core.add(bytes);
            clock.read_core(at, bytes);
            io.write_to_cache.add(bytes);
            clock.background_cache(bytes);
        }
        let mut hit_bytes = 0;
        for (first, len) in runs(touched & valid) {
            let from = start.max(u64::from(first) * granule);
            let to = end.min(u64::from(first + len) * granule);
            hit_bytes += to - from;
            io.read_from_cache.add(to - from);
            clock.read_cache(at, to - from);
        }
        self.granules[id as usize].valid = valid | touched;
        hit_bytes
    }
}

/// What a write of `start..end` grows by when these granules are completed.
fn ragged_bytes(ragged: u64, granule: u64, start: u64, end: u64) -> u64 {
    let whole = u64::from(ragged.count_ones()) * granule;
    let mut inside = 0;
    for (first, len) in runs(ragged) {
        let from = start.max(u64::from(first) * granule);
        let to = end.min(u64::from(first + len) * granule);
        inside += to - from;
    }
    whole - inside
}

/// Runs of set bits: first, and how many.
fn runs(mask: u64) -> impl Iterator<Item = (u32, u32)> {
    let mut rest = mask;
    std::iter::from_fn(move || {
        if rest == 0 {
            return None;
        }
        let first = rest.trailing_zeros();
        let len = (rest >> first).trailing_ones();
        let run = if len == 64 {
            u64::MAX
        } else {
            ((1 << len) - 1) << first
        };
        rest &= !run;
        Some((first, len))
    })
}
