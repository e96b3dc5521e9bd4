//! A write-back cache without data, which counts reads and writes of both devices.

use std::cell::Cell;

use forebay_policy::{
    BlockId, BlockSizes, BlockTable, Footprint, Span, Victim, VictimSelector, Worth,
};

use super::changes::{Change, Changed};
use super::cost::{Clock, Costs};
use super::fetch::Fetch;
use super::maps::bits;
use super::replacer::{Replace, Replacer};
use super::volumes::Counts;
use crate::request::{Op, Request};

/// Memory of the engine for each block besides the table, bytes: the place of its last record, and
/// its flags.
const ENGINE_BLOCK_BYTES: usize = 6;
/// Memory for each unit, bits: one for the cleaner's hand, and the units of records at the tail of
/// the log. There are four records for each unit, two of 64 windows, with four bytes each.
const ENGINE_UNIT_BITS: u64 = 1 + 4;

/// Amount of data that a miss reads from the backing device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fill {
    /// Whole blocks, also before a write. A victim with any dirty data is written back whole while
    /// the request waits (AdaCache, section III-A).
    Whole,
    /// Blocks have valid and dirty maps of granules. A read miss fills all missing granules of its
    /// blocks. A write fills only the rest of granules that it covers in part. Victims are written
    /// back ahead of need, dirty granules only. Adjacent missing granules are one read of the
    /// backing device, up to 256 KiB.
    SubBlock,
    /// As `SubBlock`, but a read fills only the granules that it requests.
    Demand,
    /// As in the engine. A read fills the range of a [`Footprint`], in blocks cut by
    /// [`BlockSizes::cut_asked`]. [`VictimSelector`] evicts clean blocks ahead of need, and writes
    /// back dirty ones.
    Learned,
}

/// Write-back for a dirty victim. With [`Fill::Whole`] it is the whole block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteBack {
    /// Its dirty granules.
    Victim,
    /// Also dirty granules of its neighbours, as in `clean_with`.
    Runs,
}

/// Configuration of a simulation.
#[derive(Clone, Copy, Debug)]
pub struct CacheModel {
    /// The block sizes.
    pub sizes: BlockSizes,
    /// Capacity for data, bytes; only whole groups are used.
    pub capacity_bytes: u64,
    /// Rule of replacement.
    pub replace: Replace,
    /// Amount of data that a miss reads.
    pub fill: Fill,
    /// Write-back for a dirty victim.
    pub write_back: WriteBack,
    /// Costs of the devices.
    pub costs: Costs,
}

/// State that every use of a block reads: granules of its region, one bit each.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct State {
    pub(super) valid: u64,
    /// Granules requested by clients since the block was placed.
    pub(super) asked: u64,
}

/// State that only some uses read.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Traffic {
    pub(super) dirty: u64,
    /// Granules in flight from the backing device, until `ready_ns`.
    pub(super) pending: u64,
    pub(super) ready_ns: u64,
}

/// One simulated cache.
#[derive(Debug)]
pub struct Simulated {
    pub(super) model: CacheModel,
    pub(super) granule_bytes: u64,
    /// Binary logarithms, since sizes are powers of two and divisions are slow.
    pub(super) granule_shift: u32,
    pub(super) region_shift: u32,
    pub(super) table: BlockTable,
    pub(super) replacer: Replacer,
    /// Only for [`Fill::Learned`].
    pub(super) footprint: Option<Footprint>,
    pub(super) ahead: VictimSelector,
    /// Whether the present request placed a block.
    placed: bool,
    pub(super) states: Vec<State>,
    pub(super) traffic: Vec<Traffic>,
    /// Blocks with fills in flight, and some with completed fills, with the times of arrival. They
    /// are few, so that few hits read `traffic`.
    pub(super) arriving: Vec<(BlockId, u64)>,
    pub(super) clock: Clock,
    pub(super) counts: Counts,
    /// Recorded changes; `None` without an observer.
    pub(super) changes: Option<Vec<Changed>>,
    /// Reads of the backing device for the present request, and writes of the cache device.
    pub(super) fetches: Vec<Fetch>,
    pub(super) writes: Vec<u64>,
    /// Buffer for found blocks.
    found: Vec<(BlockId, Span)>,
    pub(super) window: Vec<(BlockId, u64)>,
    pub(super) victims: Vec<BlockId>,
}

/// The part of a request in one region, in bytes of the region: the requested range, and the
/// granules to cache.
#[derive(Clone, Copy)]
pub(super) struct Part {
    pub(super) volume: u16,
    pub(super) region: u64,
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) wanted: u64,
    pub(super) write: bool,
}

impl Simulated {
    /// Returns an empty cache.
    #[must_use]
    pub fn new(model: CacheModel) -> Self {
        let sizes = model.sizes;
        let groups = model.capacity_bytes / sizes.region_bytes();
        let groups = u32::try_from(groups).unwrap_or(u32::MAX).max(1);
        // A map has one word for each region.
        let granule_bytes = (sizes.region_bytes() / 64).max(4096.min(sizes.unit_bytes()));
        let units = groups * sizes.region_units();
        let footprint = (model.fill == Fill::Learned).then(|| {
            let granules = (sizes.region_bytes() / granule_bytes) as u32;
            Footprint::new(sizes, granules, units, worth(&model.costs, granule_bytes))
        });
        let table = BlockTable::new(sizes, groups);
        Self {
            granule_bytes,
            granule_shift: granule_bytes.ilog2(),
            region_shift: sizes.region_bytes().ilog2(),
            replacer: Replacer::new(model.replace, &table),
            table,
            footprint,
            ahead: VictimSelector::new(sizes, units),
            placed: false,
            states: Vec::new(),
            traffic: Vec::new(),
            arriving: Vec::new(),
            clock: Clock::new(&model.costs),
            counts: Counts::default(),
            changes: None,
            fetches: Vec::new(),
            writes: Vec::new(),
            found: Vec::new(),
            window: Vec::new(),
            victims: Vec::new(),
            model,
        }
    }

    /// Returns the counts so far.
    #[must_use]
    pub const fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Returns the table of blocks.
    #[must_use]
    pub const fn table(&self) -> &BlockTable {
        &self.table
    }

    /// Returns the memory that the engine's metadata would take now, bytes.
    ///
    /// The sum has the table and the rule, and the engine's state of each block and each unit. It
    /// also has two bits for each granule, and the footprint if there is one.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        let learned = self.footprint.as_ref().map_or(0, Footprint::memory_bytes);
        let of_blocks = self.table.numbers() * ENGINE_BLOCK_BYTES;
        let units = u64::from(self.table.units());
        let granules = units << (self.model.sizes.unit_shift() - self.granule_shift);
        let bits = units * ENGINE_UNIT_BITS + 2 * granules;
        let table = self.table.memory_bytes() + self.replacer.memory_bytes();
        (table + of_blocks + learned) as u64 + bits / 8
    }

    /// Serves a request. Skips flushes and discards, and counts requests beyond the largest volume.
    pub fn request(&mut self, request: &Request) {
        let end = (request.offset_bytes).checked_add(u64::from(request.len_bytes));
        if end.is_none_or(|end| end > self.model.sizes.largest_volume_bytes()) {
            self.counts.beyond += 1;
            return;
        }
        let write = match request.op {
            Op::Read => false,
            Op::Write => true,
            Op::Flush | Op::Discard => return,
        };
        self.clock.begin();
        let first = request.offset_bytes >> self.granule_shift;
        let last = (request.end_bytes() + self.granule_bytes - 1) >> self.granule_shift;
        let hit = !write && self.hit_in_one_block(request, first, last);
        let hit_bytes = match hit {
            true => u64::from(request.len_bytes),
            false => self.serve_parts(request, first, last, write),
        };
        let kind = match write {
            true => &mut self.counts.writes,
            false => &mut self.counts.reads,
        };
        kind.note(u64::from(request.len_bytes), hit_bytes);
        self.counts.latency_sum_ns += self.clock.end();
        if self.placed {
            self.placed = false;
            while self.model.fill == Fill::Learned && self.ahead.is_low(&self.table) {
                if !self.make_room() {
                    break;
                }
            }
        }
        self.counts.cached_blocks_sum += self.table.len() as u64;
    }

    /// Serves a read of granules `first..last` if one block holds all of it, which is the most
    /// frequent case.
    fn hit_in_one_block(&mut self, request: &Request, first: u64, last: u64) -> bool {
        if self.model.fill == Fill::Whole {
            return false;
        }
        let volume = request.volume as u16;
        let region = request.offset_bytes >> self.region_shift;
        let base = region << (self.region_shift - self.granule_shift);
        if last - base > 1 << (self.region_shift - self.granule_shift) {
            return false;
        }
        let start = request.offset_bytes - (region << self.region_shift);
        let asked = bits(first - base, last - base);
        let holds = |(id, _): &(BlockId, Span)| asked & !self.states[id.index()].valid == 0;
        let unit = (start >> self.model.sizes.unit_shift()) as u32;
        let found = self.table.find_at(volume, region, unit).find(holds);
        let Some((id, _)) = found else {
            return false;
        };
        if let Some(footprint) = &mut self.footprint {
            footprint.used(volume, region, asked, false);
        }
        self.note_use(id, asked);
        self.read_cached(id, asked, u64::from(request.len_bytes));
        true
    }

    /// Records a request for granules of a cached block.
    fn note_use(&mut self, id: BlockId, touched: u64) {
        let state = &mut self.states[id.index()];
        let repeated = state.asked & touched;
        state.asked |= touched;
        let units = u64::from(1_u32 << self.table.class(id));
        let granules = (units << self.model.sizes.unit_shift()) >> self.granule_shift;
        self.replacer
            .used(&mut self.table, id, repeated, granules as u32);
    }

    /// Serves a request for granules `first..last` part by part. Returns how many of its bytes were
    /// in the cache.
    fn serve_parts(&mut self, request: &Request, first: u64, last: u64, write: bool) -> u64 {
        let (granule, volume) = (self.granule_bytes, request.volume as u16);
        let region_bytes = self.model.sizes.region_bytes();
        let wanted = self.widen(volume, first, last, write);
        let (start, end) = (wanted.0 * granule, wanted.1 * granule);
        let mut hit_bytes = 0;
        // Requested granules are placed first.
        for asked in [true, false] {
            let mut at = start;
            while at < end {
                let region = at >> self.region_shift;
                let base = region << self.region_shift;
                let to = end.min(base + region_bytes);
                let inside = |bytes: u64| bytes.clamp(base, base + region_bytes) - base;
                let part = Part {
                    volume,
                    region,
                    start: inside(request.offset_bytes),
                    end: inside(request.end_bytes()),
                    wanted: bits(
                        (at - base) >> self.granule_shift,
                        (to - base) >> self.granule_shift,
                    ),
                    write,
                };
                if (part.start < part.end) == asked {
                    hit_bytes += self.part(part);
                }
                at = to;
            }
        }
        self.issue();
        hit_bytes
    }

    /// Writes back all dirty data, as at the end of a trace.
    pub fn write_back_all(&mut self) {
        let blocks: Vec<BlockId> = self.table.blocks().collect();
        for id in blocks {
            self.write_back(id);
        }
    }

    /// Returns the granules to cache for a request for `first..last`.
    fn widen(&mut self, volume: u16, first: u64, last: u64, write: bool) -> (u64, u64) {
        let Some(footprint) = &mut self.footprint else {
            return (first, last);
        };
        let shift = self.region_shift - self.granule_shift;
        let per = 1 << shift;
        // The footprint repeats its query for the last region.
        let known = Cell::new((u64::MAX, 0));
        let cached = |region: u64| -> u64 {
            if known.get().0 != region {
                let valid = |id: BlockId, _| self.states[id.index()].valid;
                known.set((region, self.table.gather(volume, region, valid)));
            }
            known.get().1
        };
        let mut missing = None;
        let mut at = first;
        while at < last {
            let region = at >> shift;
            let (base, to) = (region << shift, last.min((region << shift) + per));
            let asked = bits(at - base, to - base);
            footprint.used(volume, region, asked, write);
            let absent = if write { 0 } else { asked & !cached(region) };
            if absent != 0 {
                let from = base + u64::from(absent.trailing_zeros());
                let end = base + 64 - u64::from(absent.leading_zeros());
                missing = Some((missing.map_or(from, |(from, _)| from), end));
            }
            at = to;
        }
        let Some((from, end)) = missing else {
            return (first, last);
        };
        let wanted = footprint.miss(volume, first..last, from..end, cached);
        (first.min(wanted.start), last.max(wanted.end))
    }

    /// Serves a part. Returns how many of its bytes were in the cache.
    fn part(&mut self, part: Part) -> u64 {
        let sizes = self.model.sizes;
        let granules = sizes.unit_shift() - self.granule_shift;
        let asked = match part.start < part.end {
            true => sizes.touched(part.start, part.end),
            false => 0,
        };
        let first = u64::from(part.wanted.trailing_zeros() >> granules);
        let last = u64::from((63 - part.wanted.leading_zeros()) >> granules);
        let wanted = bits(first, last + 1);
        let mut missing = wanted;
        let mut found = std::mem::take(&mut self.found);
        for (id, span) in self.table.find_near(part.volume, part.region, wanted) {
            if span.mask() & wanted != 0 {
                missing &= !span.mask();
                found.push((id, span));
            }
        }
        let mut hit_bytes = 0;
        for (id, span) in found.drain(..) {
            if span.mask() & asked != 0 {
                self.note_use(id, self.touched(part, span));
            }
            hit_bytes += self.serve(part, id, span, false);
        }
        self.found = found;
        if missing == 0 {
            return hit_bytes;
        }
        if self.model.fill == Fill::Learned {
            for span in sizes.cut_asked(missing, asked) {
                hit_bytes += match span.mask() & asked {
                    0 => self.place_beside(part, span),
                    _ => self.place(part, span),
                };
            }
        } else {
            for span in sizes.cut(missing) {
                hit_bytes += self.place(part, span);
            }
        }
        hit_bytes
    }

    /// Places a block without requested granules, if there is room at once.
    fn place_beside(&mut self, part: Part, span: Span) -> u64 {
        if self.table.has_room(span.class) {
            return self.place(part, span);
        }
        self.ahead.ask(span.class);
        0
    }

    /// Places a missed block and serves the part in it.
    fn place(&mut self, part: Part, span: Span) -> u64 {
        if self.model.fill == Fill::Learned {
            self.ahead.ask(span.class);
            for _ in 0..2 {
                if !self.table.has_room(span.class) {
                    // In the second attempt, blocks that were written back are evictable.
                    self.make_room();
                    self.ahead.ask(span.class);
                }
            }
        }
        while !self.table.has_room(span.class) {
            let victim = self.replacer.victim(&self.table, span.class);
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
        self.replacer.placed(&self.table, id);
        if id.index() >= self.states.len() {
            self.states.resize(id.index() + 1, State::default());
            self.traffic.resize(id.index() + 1, Traffic::default());
        }
        self.states[id.index()] = State {
            valid: 0,
            asked: self.touched(part, span),
        };
        self.traffic[id.index()] = Traffic::default();
        self.placed = true;
        self.note(Change::Placed, id);
        self.counts.allocated_blocks += 1;
        self.counts.allocated_bytes += self.model.sizes.block_bytes(span.class);
        let cached = self.table.len() as u64;
        self.counts.cached_blocks_max = self.counts.cached_blocks_max.max(cached);
        self.counts.memory_max_bytes = self.counts.memory_max_bytes.max(self.memory_bytes());
        self.serve(part, id, span, true)
    }

    /// Returns the granules of a block.
    pub(super) fn granules(&self, span: Span) -> u64 {
        let shift = self.model.sizes.unit_shift() - self.granule_shift;
        let first = u64::from(span.first) << shift;
        bits(first, first + (u64::from(span.units()) << shift))
    }

    /// Returns the requested granules of a block.
    pub(super) fn touched(&self, part: Part, span: Span) -> u64 {
        let shift = self.granule_shift;
        let asked = match part.start < part.end {
            true => bits(
                part.start >> shift,
                (part.end + self.granule_bytes - 1) >> shift,
            ),
            false => 0,
        };
        asked & self.granules(span)
    }
}

/// Returns the benefit of fills on these devices.
fn worth(costs: &Costs, granule_bytes: u64) -> Worth {
    let read = costs.core.read;
    Worth::of(read.latency_ns, read.iops, read.bytes_per_s, granule_bytes)
}
