//! A write-back cache without its data: what would be read and written where.

use forebay_policy::{BlockId, BlockSizes, BlockTable, Span, TwoLevel, Victim};

use super::cost::{Clock, Costs, Way};
use super::maps::{bits, runs};
use super::volumes::Counts;
use crate::request::{Op, Request};

/// What is brought in from the backing device on a miss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fill {
    /// Whole blocks, before a write, too; a victim with anything dirty is written back whole while the
    /// request waits (AdaCache, section III-A).
    Whole,
    /// Blocks have valid and dirty maps of granules. A read brings in all that is missing of the
    /// blocks that it misses in, a write only the rest of granules that it writes in part. Victims are
    /// written back ahead of need, dirty granules only. Missing granules that touch each other are one
    /// read of the backing device, up to 256 KiB.
    SubBlock,
    /// As `SubBlock`, but a read brings in only the granules that it asks for.
    Demand,
}

/// Most bytes of one read of the backing device that is put together from missing granules.
const READ_MAX_BYTES: u64 = 256 << 10;

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

/// What the simulator knows of a block: granules of its region, one bit each.
#[derive(Clone, Copy, Debug, Default)]
struct State {
    valid: u64,
    dirty: u64,
    /// On their way from the backing device, until `ready_ns`.
    pending: u64,
    ready_ns: u64,
}

/// Granules of a block that are to be read from the backing device.
#[derive(Clone, Copy, Debug)]
struct Fetch {
    /// Their first byte on the volume.
    start: u64,
    bytes: u64,
    id: BlockId,
    mask: u64,
}

/// One simulated cache.
#[derive(Debug)]
pub struct Simulated {
    model: CacheModel,
    granule_bytes: u64,
    table: BlockTable,
    states: Vec<State>,
    clock: Clock,
    counts: Counts,
    /// Blocks of the present region that the request touches.
    found: Vec<(BlockId, Span)>,
    /// What the present request reads from the backing device, and writes to the cache device.
    fetches: Vec<Fetch>,
    writes: Vec<u64>,
    victims: Vec<BlockId>,
}

/// The part of a request that lies in one region, in bytes of the region.
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
            granule_bytes: (model.sizes.region_bytes() / 64).max(4096),
            table: BlockTable::new(model.sizes, groups),
            states: Vec::new(),
            clock: Clock::new(&model.costs),
            counts: Counts::default(),
            found: Vec::new(),
            fetches: Vec::new(),
            writes: Vec::new(),
            victims: Vec::new(),
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

    /// Bytes of memory that the metadata of a real cache would take now: the table, 20 bytes a block
    /// for the rest of its record, two bits a granule.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        let maps = self.table.cached_bytes() / self.granule_bytes * 2 / 8;
        (self.table.memory_bytes() + 20 * self.table.len()) as u64 + maps
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
        self.issue();
        let kind = match write {
            true => &mut self.counts.writes,
            false => &mut self.counts.reads,
        };
        kind.note(u64::from(request.len_bytes), hit_bytes);
        self.counts.latency_sum_ns += self.clock.end();
        let cached = self.table.len() as u64;
        self.counts.cached_blocks_sum += cached;
        self.counts.cached_blocks_max = self.counts.cached_blocks_max.max(cached);
        self.counts.memory_max_bytes = self.counts.memory_max_bytes.max(self.memory_bytes());
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
                    let mut victims = std::mem::take(&mut self.victims);
                    victims.extend(self.table.blocks_of(group));
                    for id in victims.drain(..) {
                        self.evict(id);
                    }
                    self.victims = victims;
                }
            }
        }
        let id = self.table.allocate(part.volume, part.region, span);
        let id = id.expect("there is room");
        if id as usize >= self.states.len() {
            self.states.resize(id as usize + 1, State::default());
        }
        self.states[id as usize] = State::default();
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
        let dirty = std::mem::take(&mut self.states[id as usize].dirty);
        if dirty == 0 {
            return;
        }
        if self.model.fill == Fill::Whole {
            let bytes = self.model.sizes.block_bytes(self.table.class(id));
            let written = self.copy_back(bytes);
            self.clock.wait(written);
            return;
        }
        for (_, len) in runs(dirty) {
            self.copy_back(u64::from(len) * self.granule_bytes);
        }
    }

    /// Copies dirty data to the backing device; returns when it is there.
    fn copy_back(&mut self, bytes: u64) -> u64 {
        self.counts.io.read_from_cache.add(bytes);
        self.counts.io.write_to_core.add(bytes);
        let at = self.clock.now();
        let read = self.clock.cache(Way::Read, at, bytes);
        self.clock.core(Way::Write, read, bytes)
    }

    /// Serves what of a part lies in one block; returns how many of the bytes it held.
    fn serve(&mut self, part: Part, id: BlockId, span: Span, fresh: bool) -> u64 {
        let sizes = self.model.sizes;
        let base = u64::from(span.first) * sizes.unit_bytes();
        let size = sizes.block_bytes(span.class);
        let (start, end) = (part.start.max(base), part.end.min(base + size));
        if self.model.fill == Fill::Whole {
            return self.serve_whole(part.write, id, size, end - start, fresh);
        }
        let block = bits(
            base / self.granule_bytes,
            (base + size) / self.granule_bytes,
        );
        let touched = bits(start / self.granule_bytes, end.div_ceil(self.granule_bytes));
        if part.write {
            self.write_granules(part, id, touched, start, end)
        } else {
            let wanted = match self.model.fill {
                Fill::Demand => touched,
                Fill::Whole | Fill::SubBlock => block,
            };
            self.read_granules(part, id, (touched, wanted), start, end)
        }
    }

    fn serve_whole(&mut self, write: bool, id: BlockId, size: u64, bytes: u64, fresh: bool) -> u64 {
        if fresh {
            // After the write-back of what had to go.
            let at = self.clock.done();
            self.counts.io.read_from_core.add(size);
            let read = self.clock.core(Way::Read, at, size);
            self.counts.io.write_to_cache.add(size);
            self.clock.cache(Way::Write, read, size);
            self.clock.wait(read);
            self.states[id as usize].ready_ns = read;
        }
        let at = self.clock.now().max(self.states[id as usize].ready_ns);
        if write {
            self.counts.io.write_to_cache.add(bytes);
            let written = self.clock.cache(Way::Write, at, bytes);
            self.clock.wait(written);
            self.states[id as usize].dirty = u64::MAX;
        } else if !fresh {
            self.counts.io.read_from_cache.add(bytes);
            let read = self.clock.cache(Way::Read, at, bytes);
            self.clock.wait(read);
        }
        if fresh { 0 } else { bytes }
    }

    /// Reads `start..end` of the region, granules `touched`, from a block; if any of them is absent,
    /// what is absent of `wanted` is brought in.
    fn read_granules(
        &mut self,
        part: Part,
        id: BlockId,
        (touched, wanted): (u64, u64),
        start: u64,
        end: u64,
    ) -> u64 {
        let State {
            valid,
            pending,
            ready_ns,
            ..
        } = self.states[id as usize];
        if touched & !valid != 0 {
            self.bring(part, id, wanted & !valid);
        }
        let mut at = self.clock.now();
        if touched & valid & pending != 0 {
            at = at.max(ready_ns);
        }
        let mut hit_bytes = 0;
        for (first, len) in runs(touched & valid) {
            let from = start.max(u64::from(first) * self.granule_bytes);
            let to = end.min(u64::from(first + len) * self.granule_bytes);
            hit_bytes += to - from;
            self.counts.io.read_from_cache.add(to - from);
            let read = self.clock.cache(Way::Read, at, to - from);
            self.clock.wait(read);
        }
        hit_bytes
    }

    /// Writes `start..end` of the region, granules `touched`, to a block. What it writes of an absent
    /// granule in part is completed from the backing device first.
    fn write_granules(
        &mut self,
        part: Part,
        id: BlockId,
        touched: u64,
        start: u64,
        end: u64,
    ) -> u64 {
        let granule = self.granule_bytes;
        let absent = touched & !self.states[id as usize].valid;
        let ragged = absent & !bits(start.div_ceil(granule), end / granule);
        self.bring(part, id, ragged);
        let state = &mut self.states[id as usize];
        state.valid |= touched;
        state.dirty |= touched;
        state.pending &= !touched;
        self.writes.push(end - start);
        if absent == 0 { end - start } else { 0 }
    }

    /// Notes granules of a block that are to be read from the backing device.
    fn bring(&mut self, part: Part, id: BlockId, mask: u64) {
        let base = part.region * self.model.sizes.region_bytes();
        for (first, len) in runs(mask) {
            self.fetches.push(Fetch {
                start: base + u64::from(first) * self.granule_bytes,
                bytes: u64::from(len) * self.granule_bytes,
                id,
                mask: bits(u64::from(first), u64::from(first + len)),
            });
        }
        self.states[id as usize].valid |= mask;
    }

    /// Issues what the request needs from the backing device, then its writes.
    fn issue(&mut self) {
        self.fetches.sort_unstable_by_key(|fetch| fetch.start);
        let at = self.clock.now();
        let mut next = 0;
        while let Some(first) = self.fetches.get(next) {
            let (mut end, mut bytes) = (next + 1, first.bytes);
            while let Some(more) = self.fetches.get(end)
                && more.start == first.start + bytes
                && bytes + more.bytes <= READ_MAX_BYTES
            {
                bytes += more.bytes;
                end += 1;
            }
            self.counts.io.read_from_core.add(bytes);
            let read = self.clock.core(Way::Read, at, bytes);
            self.clock.wait(read);
            for fetch in &self.fetches[next..end] {
                self.counts.io.write_to_cache.add(fetch.bytes);
                self.clock.cache(Way::Write, read, fetch.bytes);
                let state = &mut self.states[fetch.id as usize];
                state.pending = fetch.mask
                    | if state.ready_ns > at {
                        state.pending
                    } else {
                        0
                    };
                state.ready_ns = state.ready_ns.max(read);
            }
            next = end;
        }
        self.fetches.clear();
        let at = self.clock.done();
        for bytes in self.writes.drain(..) {
            self.counts.io.write_to_cache.add(bytes);
            let written = self.clock.cache(Way::Write, at, bytes);
            self.clock.wait(written);
        }
    }
}
