//! The decisions of a cache about a request, without the request's data: hits, misses, read-ahead,
//! placement and victims.
//!
//! Our rules evict ahead of need, as the engine does. AdaCache's rules evict when a request needs
//! room. The order of the questions is that of `policy`'s documentation.

use std::cell::Cell;

use forebay_benches::processor_time_ns;
use forebay_policy::{
    BlockId, BlockTable, Evictability, Footprint, Span, Victim, VictimSelector, Worth,
};
use forebay_trace::Op;
use forebay_trace::generate::{Arrivals, Generator, SizeCdf, VolumeLoad};
use forebay_trace::sim::Replacer;
use serde_json::{Value, json};

use super::{KIB, RULES, Rules, sizes};

/// Bytes of the cache: a tenth of the footprint. The requests follow the law and the exponent of
/// `forebay trace generate --preset alibaba`.
const CACHE_BYTES: u64 = 2 << 30;
/// Requests that fill the cache. The timed requests follow, in slices.
const WARM_REQUESTS: usize = 400_000;
const SLICE_REQUESTS: usize = 100_000;
const SLICES: usize = 8;
const GRANULE_BYTES: u64 = 4 * KIB;

/// Request sizes that are measured alone, KiB.
const SIZES_KIB: [u64; 7] = [4, 8, 16, 32, 64, 128, 256];
/// Percentage of each size in the mixture. As in Alibaba's traces, most requests are small.
const MIXTURE: [u64; 7] = [65, 10, 9, 4, 6, 4, 2];

/// State of a block: masks over the granules of its region.
#[derive(Clone, Copy, Debug, Default)]
struct State {
    valid: u64,
    asked: u64,
}

/// A cache that decides and holds no data.
struct Decider {
    rules: Rules,
    table: BlockTable,
    replacer: Replacer,
    footprint: Option<Footprint>,
    ahead: VictimSelector,
    states: Vec<State>,
    found: Vec<(BlockId, Span)>,
    victims: Vec<BlockId>,
    /// Binary logarithms of the granules of a region and of a unit.
    region_shift: u32,
    unit_shift: u32,
}

const fn bits(first: u64, last: u64) -> u64 {
    (u64::MAX >> (64 - (last - first))) << first
}

/// Returns a mask with one bit for each `1 << shift` bits: set if any of them is set. The set bits
/// of `granules` are consecutive.
fn units(granules: u64, shift: u32) -> u64 {
    if granules == 0 {
        return 0;
    }
    let first = granules.trailing_zeros() >> shift;
    let last = (63 - granules.leading_zeros()) >> shift;
    bits(u64::from(first), u64::from(last) + 1)
}

impl Decider {
    fn new(rules: Rules) -> Self {
        let sizes = sizes(rules.sizes_kib);
        let groups = (CACHE_BYTES / sizes.region_bytes()) as u32;
        let granules = (sizes.region_bytes() / GRANULE_BYTES) as u32;
        // Costs of a cloud volume in granules: an operation costs as much time as ten, its latency
        // as thirty.
        let worth = Worth::new(10.0, 30.0, 1.0);
        let units = groups * sizes.region_units();
        let table = BlockTable::new(sizes, groups);
        Self {
            rules,
            replacer: Replacer::new(rules.replace, &table),
            table,
            ahead: VictimSelector::new(sizes, units),
            footprint: rules
                .learned
                .then(|| Footprint::new(sizes, granules, units, worth)),
            states: Vec::new(),
            found: Vec::new(),
            victims: Vec::new(),
            region_shift: granules.ilog2(),
            unit_shift: (sizes.unit_bytes() / GRANULE_BYTES).ilog2(),
        }
    }

    fn granules(&self, span: Span) -> u64 {
        bits(0, u64::from(span.units()) << self.unit_shift)
            << (u32::from(span.first) << self.unit_shift)
    }

    /// Decides about granules `first..last`.
    fn request(&mut self, first: u64, last: u64, write: bool) {
        let region = first >> self.region_shift;
        let base = region << self.region_shift;
        if !write && last - base <= 1 << self.region_shift {
            let asked = bits(first - base, last - base);
            let states = &self.states;
            let holds = |(id, _): &(BlockId, Span)| asked & !states[id.index()].valid == 0;
            let unit = ((first - base) >> self.unit_shift) as u32;
            let hit = self.table.find_at(0, region, unit).find(holds);
            if let Some((id, _)) = hit {
                if let Some(footprint) = &mut self.footprint {
                    footprint.used(0, region, asked, false);
                }
                self.note_use(id, asked);
                return;
            }
        }
        let (from, to) = self.widen(first, last, write);
        let mut at = from;
        while at < to {
            let region = at >> self.region_shift;
            let base = region << self.region_shift;
            let end = to.min(base + (1 << self.region_shift));
            let inside = first.max(base)..last.min(base + (1 << self.region_shift));
            let asked = match inside.start < inside.end {
                true => bits(inside.start - base, inside.end - base),
                false => 0,
            };
            self.part(region, asked, bits(at - base, end - base), write);
            at = end;
        }
        while self.rules.learned && self.ahead.is_low(&self.table) {
            if !self.make_room() {
                break;
            }
        }
    }

    /// Makes room ahead of need. Returns whether a block was evicted.
    fn make_room(&mut self) -> bool {
        let (ahead, table) = (&mut self.ahead, &mut self.table);
        let victims = self
            .replacer
            .pick(ahead, table, |_, _| Evictability::Now)
            .leaving;
        let moved = !victims.is_empty();
        victims.into_iter().for_each(|id| self.evict(id));
        moved
    }

    fn note_use(&mut self, id: BlockId, asked: u64) {
        let state = &mut self.states[id.index()];
        let repeated = state.asked & asked;
        state.asked |= asked;
        let granules = 1 << (self.unit_shift + u32::from(self.table.class(id)));
        self.replacer.used(&mut self.table, id, repeated, granules);
    }

    /// Returns the range to cache, read-ahead included.
    fn widen(&mut self, first: u64, last: u64, write: bool) -> (u64, u64) {
        let Some(footprint) = &mut self.footprint else {
            return (first, last);
        };
        // The footprint asks for the last region repeatedly.
        let known = Cell::new((u64::MAX, 0));
        let cached = |region: u64| -> u64 {
            if known.get().0 != region {
                let valid = |id: BlockId, _| self.states[id.index()].valid;
                known.set((region, self.table.gather(0, region, valid)));
            }
            known.get().1
        };
        let mut missing = None;
        let mut at = first;
        while at < last {
            let region = at >> self.region_shift;
            let base = region << self.region_shift;
            let end = last.min(base + (1 << self.region_shift));
            let asked = bits(at - base, end - base);
            footprint.used(0, region, asked, write);
            let absent = if write { 0 } else { asked & !cached(region) };
            if absent != 0 {
                let from = base + u64::from(absent.trailing_zeros());
                let end = base + 64 - u64::from(absent.leading_zeros());
                missing = Some((missing.map_or(from, |(from, _)| from), end));
            }
            at = end;
        }
        let Some((from, end)) = missing else {
            return (first, last);
        };
        let widened = footprint.miss(0, first..last, from..end, cached);
        (first.min(widened.start), last.max(widened.end))
    }

    fn part(&mut self, region: u64, asked: u64, wanted: u64, write: bool) {
        let wanted_units = units(wanted, self.unit_shift);
        let mut missing = wanted_units;
        let mut found = std::mem::take(&mut self.found);
        for (id, span) in self.table.find_near(0, region, wanted_units) {
            if span.mask() & wanted_units != 0 {
                missing &= !span.mask();
                found.push((id, span));
            }
        }
        for (id, span) in found.drain(..) {
            let granules = self.granules(span);
            if asked & granules != 0 {
                self.note_use(id, asked & granules);
            }
            self.fill(id, granules, asked, wanted, write);
        }
        self.found = found;
        if missing == 0 {
            return;
        }
        let sizes = self.table.sizes();
        if self.footprint.is_some() {
            for span in sizes.cut_asked(missing, units(asked, self.unit_shift)) {
                self.place(region, span, asked, wanted, write);
            }
        } else {
            for span in sizes.cut(missing) {
                self.place(region, span, asked, wanted, write);
            }
        }
    }

    /// Notes the granules of a block that the request makes valid.
    fn fill(&mut self, id: BlockId, granules: u64, asked: u64, wanted: u64, write: bool) {
        let state = &mut self.states[id.index()];
        state.valid |= match (write, self.rules.learned) {
            (true, _) => asked & granules,
            (false, true) => wanted & granules,
            (false, false) if asked & granules & !state.valid != 0 => granules,
            (false, false) => 0,
        };
    }

    fn place(&mut self, region: u64, span: Span, asked: u64, wanted: u64, write: bool) {
        self.ahead.ask(span.class);
        while !self.table.has_room(span.class) {
            let victim = self.replacer.victim(&self.table, span.class);
            match victim.expect("no room, so something is cached") {
                Victim::Block(id) => self.evict(id),
                Victim::Group(group) => {
                    let mut victims = std::mem::take(&mut self.victims);
                    victims.extend(self.table.blocks_of(group));
                    victims.drain(..).for_each(|id| self.evict(id));
                    self.victims = victims;
                }
            }
        }
        let id = self.table.allocate(0, region, span);
        let id = id.expect("there is room");
        self.replacer.placed(&self.table, id);
        if id.index() >= self.states.len() {
            self.states.resize(id.index() + 1, State::default());
        }
        let granules = self.granules(span);
        self.states[id.index()] = State {
            valid: 0,
            asked: asked & granules,
        };
        self.fill(id, granules, asked, wanted, write);
    }

    fn evict(&mut self, id: BlockId) {
        if let Some(footprint) = &mut self.footprint {
            let (_, region, span) = self.table.address(id);
            let shift = self.unit_shift;
            let granules =
                bits(0, u64::from(span.units()) << shift) << (u32::from(span.first) << shift);
            footprint.evicted(0, region, granules);
        }
        let group = self.table.group_of(id);
        self.table.remove(id);
        self.replacer.removed(&self.table, group);
    }
}

/// Returns requests as (first granule, end, write). `weights` gives the shares of the sizes.
fn requests(weights: [u64; 7]) -> Vec<(u64, u64, bool)> {
    let sizes = SIZES_KIB.iter().zip(weights);
    let sizes = sizes.filter(|(_, weight)| *weight > 0);
    let sizes: Vec<_> = sizes
        .map(|(kib, weight)| ((kib * KIB) as u32, weight as f64))
        .collect();
    let sizes = SizeCdf::new(&sizes).expect("whole sectors");
    let load = VolumeLoad {
        name: "decisions".to_owned(),
        requests: (WARM_REQUESTS + SLICES * SLICE_REQUESTS) as u64,
        read_share: 0.7,
        read_sizes: sizes.clone(),
        write_sizes: sizes,
        working_set_bytes: 10 * CACHE_BYTES,
        zipf_exponent: 0.95,
        sequential_share: 0.15,
        arrivals: Arrivals::Fixed { rate_per_s: 1000.0 },
    };
    let mut generator = Generator::new(vec![load], 1).expect("a sound load");
    let (mut batch, mut requests) = (Vec::new(), Vec::new());
    while generator.fill(&mut batch) {
        requests.extend(batch.iter().map(|request| {
            let last = request.end_bytes().div_ceil(GRANULE_BYTES);
            let first = request.offset_bytes / GRANULE_BYTES;
            (first, last, request.op == Op::Write)
        }));
    }
    requests
}

/// Returns nanoseconds for a request and bytes of the table for a block. The fastest slice counts,
/// since other programs on the machine only add time.
fn time(rules: Rules, weights: [u64; 7]) -> (f64, f64) {
    let requests = requests(weights);
    let (warm, timed) = requests.split_at(WARM_REQUESTS);
    let mut decider = Decider::new(rules);
    let mut run = |requests: &[(u64, u64, bool)]| {
        let began = processor_time_ns();
        for (first, last, write) in requests {
            decider.request(*first, *last, *write);
        }
        (processor_time_ns() - began) as f64 / requests.len() as f64
    };
    run(warm);
    let times = timed.chunks(SLICE_REQUESTS).map(&mut run);
    let fastest = times.fold(f64::INFINITY, f64::min);
    let bytes = decider.table.memory_bytes() + decider.replacer.memory_bytes();
    (fastest, bytes as f64 / decider.table.len() as f64)
}

/// Measures one set of rules: on each size, their mean, and the mixture.
pub(crate) fn measure(rules: &Rules) -> Value {
    assert!(RULES.iter().any(|known| known.name == rules.name));
    let mut cases = Vec::new();
    let mut sum = 0.0;
    for (nth, kib) in SIZES_KIB.iter().enumerate() {
        let mut weights = [0; 7];
        weights[nth] = 1;
        let (ns, _) = time(*rules, weights);
        sum += ns;
        cases.push(json!({"sizes": format!("{kib}K"), "ns": ns}));
    }
    let mean = sum / SIZES_KIB.len() as f64;
    cases.push(json!({"sizes": "mean", "ns": mean}));
    let (ns, bytes_a_block) = time(*rules, MIXTURE);
    cases.push(json!({"sizes": "mix", "ns": ns}));
    json!({"name": rules.name, "cases": cases, "bytes_a_block": bytes_a_block})
}
