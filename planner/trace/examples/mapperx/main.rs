//! Job of `cargo xtask study mapperx` for each trace: a simulated cache with several trackers.
//!
//! The dirty blocks of the cache are held at a share of the cached ones. Each tracker is a way to
//! know after a crash which blocks were dirty. The program takes a job as JSON and prints the
//! counts as JSON.
//!
//! A job is as for the example `study`, with `dirty_percents` in place of `percents`. It may have
//! `as_writes`, requests a second, for a trace that has neither operations nor times. All its
//! requests are then writes.

mod bounds;
mod input;
#[path = "../study/source.rs"]
mod source;
mod trackers;

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use forebay_mapperx::Adjustment;
use forebay_policy::{BlockId, BlockSizes};
use forebay_trace::sim::{CacheModel, Change, Changed, Costs, Fill, Replace, Simulated, WriteBack};
use forebay_trace::{Op, Request};
use serde_json::{Value, json};

use bounds::{Bound, Log};
use input::{Input, UNIT_BYTES};
use source::Outcome;
use trackers::{Block, Cost, Marks, Over, Scope, Trees};

/// The cache's share of the working set, percent.
const CACHE_PERCENT: u64 = 10;
/// A cache knows this many volumes; of a trace with more, all are laid one behind another.
const MAX_VOLUMES: usize = 64;
/// The tree warms up until this much of the trace's writes have been served, percent.
const WARM_UP_PERCENT: u64 = 20;
/// Crashes at these parts of the trace, percent.
const CRASHES_PERCENT: std::ops::RangeInclusive<u64> = 30..=100;
/// Target ratios, as 10 to the power of minus this.
const NINES: [f64; 3] = [2.0, 3.0, 4.0];

fn main() {
    let argument = std::env::args().nth(1).unwrap_or_default();
    match run(&argument) {
        Ok(result) => println!("{result}"),
        Err(error) => {
            eprintln!("mapperx: {error}");
            std::process::exit(1);
        }
    }
}

fn run(job: &str) -> Outcome<Value> {
    let job: Value = serde_json::from_str(job).map_err(|error| format!("the job: {error}"))?;
    let percents = job["dirty_percents"].as_array();
    let percents = percents.ok_or("the job has no dirty_percents")?;
    let percents: Vec<u64> = percents.iter().filter_map(Value::as_u64).collect();
    let input = Input::read(&job, MAX_VOLUMES)?;
    let runs: Vec<Value> = percents
        .iter()
        .map(|percent| one(&input, *percent))
        .collect();
    Ok(json!({
        "requests": input.requests.len(),
        "writes": input.writes,
        "write_bytes": input.write_bytes,
        "seconds": input.requests.last().map_or(0.0, |last| last.time_ns as f64 / 1e9),
        "volumes": input.blocks.len(),
        "volume_bytes": input.blocks.values().sum::<u64>() * UNIT_BYTES,
        "working_set_bytes": input.working_set_bytes,
        "runs": runs,
    }))
}

fn model(capacity_bytes: u64) -> CacheModel {
    CacheModel {
        sizes: BlockSizes::new(&[1, 2, 4, 8].map(|times| times * UNIT_BYTES))
            .expect("powers of two"),
        capacity_bytes,
        replace: Replace::Ours,
        fill: Fill::Learned,
        write_back: WriteBack::Runs,
        costs: Costs::CLOUD,
    }
}

/// A cache and its trackers.
struct Run {
    cache: Simulated,
    log: Log,
    changes: Vec<Changed>,
    dirty: DirtyList,
    trees: Vec<Trees>,
    marks: Marks,
    exact: Cost,
}

fn one(input: &Input, dirty_percent: u64) -> Value {
    let cache = model(input.working_set_bytes * CACHE_PERCENT / 100);
    let groups = (cache.capacity_bytes / cache.sizes.region_bytes()).max(1);
    let slots = BTreeMap::from([(0, groups * u64::from(cache.sizes.region_units()))]);
    let tree = |name, adjustment, nines, scope, over| {
        let sizes = match over {
            Over::Volumes => &input.blocks,
            Over::Slots => &slots,
        };
        Trees::new(name, adjustment, nines, (scope, over), sizes)
    };
    let (priced, paper) = (Adjustment::Priced, Adjustment::Paper);
    let (in_place, all) = (Scope::InPlace, Scope::All);
    let mut trees = Vec::new();
    for nines in NINES {
        trees.push(tree("ours", priced, nines, in_place, Over::Volumes));
        trees.push(tree("places", priced, nines, in_place, Over::Slots));
        trees.push(tree("paper", paper, nines, in_place, Over::Volumes));
    }
    trees.push(tree("ours, all", priced, 2.0, all, Over::Volumes));
    trees.push(tree("paper, all", paper, 2.0, all, Over::Volumes));
    let mut run = Run {
        cache: Simulated::new(cache),
        log: Log::default(),
        changes: Vec::new(),
        dirty: DirtyList::default(),
        trees,
        marks: Marks::default(),
        exact: Cost::default(),
    };
    run.cache.watch();
    let at = |percent: u64| input.requests.len() as u64 * percent / 100;
    let (mut writes, mut warm_writes, mut warm) = (0_u64, 0, Vec::new());
    let (mut points, mut crashes) = (Vec::new(), CRASHES_PERCENT.step_by(2).peekable());
    for (nth, request) in (1..).zip(&input.requests) {
        writes += u64::from(request.op == Op::Write);
        run.request(request, dirty_percent);
        if writes * 100 < input.writes * WARM_UP_PERCENT {
            (warm, warm_writes) = (run.costs(), writes);
        }
        if crashes.peek().is_some_and(|percent| nth == at(*percent)) {
            crashes.next();
            run.log.crash();
            points.push(run.crash());
        }
    }
    let names = run.trees.iter().map(Trees::describe);
    let others = ["marks", "exact"].map(|name| json!({"name": name}));
    let rows = names.chain(others).zip(run.costs()).enumerate();
    let rows = rows.map(|(nth, (mut row, cost))| {
        let before = warm.get(nth).copied().unwrap_or_default();
        row["warm_up_persists"] = json!(before.persists);
        row["persists"] = json!(cost.persists - before.persists);
        row["waited"] = json!(cost.waited - before.waited);
        let written_back = points.iter().map(|point| point.written_back[nth]);
        row["written_back"] = json!(written_back.collect::<Vec<_>>());
        row
    });
    let mut rows: Vec<Value> = rows.collect();
    let ratio = 10_f64.powf(-NINES[0]);
    let foresight = run.log.foresight(ratio, warm_writes);
    rows.push(bound_row("foresight", NINES[0], &foresight));
    let recency = run.log.recency(ratio, warm_writes);
    rows.push(bound_row("recency", NINES[0], &recency));
    json!({
        "dirty_percent": dirty_percent,
        "warm_up_writes": warm_writes,
        "writes": writes - warm_writes,
        "cached": points.iter().map(|point| point.cached).collect::<Vec<_>>(),
        "dirty": points.iter().map(|point| point.dirty).collect::<Vec<_>>(),
        "rows": rows,
    })
}

fn bound_row(name: &str, nines: f64, bound: &Bound) -> Value {
    json!({
        "name": name,
        "nines": nines,
        "kept": bound.clean_marks,
        "warm_up_persists": bound.warm_up.persists,
        "persists": bound.all.persists - bound.warm_up.persists,
        "waited": bound.all.waited - bound.warm_up.waited,
        "written_back": bound.written_back,
    })
}

/// State of the cache at a crash, in blocks.
struct Point {
    cached: u64,
    dirty: u64,
    /// As the tracker of each row has it.
    written_back: Vec<u64>,
}

impl Run {
    fn request(&mut self, request: &Request, dirty_percent: u64) {
        let now = Duration::from_nanos(request.time_ns);
        self.cache.request(request);
        self.follow(now);
        let cached = self.cache.table().len() as u64;
        while self.dirty.len() * 100 > cached * dirty_percent {
            let oldest = self.dirty.oldest().expect("some are dirty");
            self.cache.clean(oldest);
            self.follow(now);
        }
        let write = request.op == Op::Write;
        self.log.served(write, now);
        for trees in &mut self.trees {
            trees.served(request.volume as u16, write, now);
        }
        self.marks.served(now);
    }

    /// Gives the trackers the changes: blocks that turned dirty before blocks that were placed.
    fn follow(&mut self, now: Duration) {
        self.cache.take_changes(&mut self.changes);
        let changes = std::mem::take(&mut self.changes);
        let mut dirtied: Vec<(Block, bool)> = Vec::new();
        let mut placed: Vec<(BlockId, Block)> = Vec::new();
        for changed in &changes {
            let block = Block {
                volume: changed.volume,
                units: changed.units.clone(),
                slots: changed.slots.clone(),
            };
            match changed.change {
                Change::Placed => placed.push((changed.id, block)),
                Change::Written => {
                    if self.dirty.written(changed.id) {
                        let fresh = placed.iter().any(|(id, _)| *id == changed.id);
                        dirtied.push((block, fresh));
                    }
                }
                Change::Cleaned => {
                    self.announce(&mut dirtied, now);
                    self.dirty.cleaned(changed.id);
                    self.log.cleaned(&block);
                    self.marks.cleaned(&block);
                    self.trees
                        .iter_mut()
                        .for_each(|trees| trees.cleaned(&block));
                }
                Change::Removed => {
                    self.announce(&mut dirtied, now);
                    self.place(&mut placed);
                    self.log.removed(&block);
                    self.marks.removed(&block);
                    self.trees
                        .iter_mut()
                        .for_each(|trees| trees.removed(&block));
                }
            }
        }
        self.announce(&mut dirtied, now);
        self.place(&mut placed);
        self.changes = changes;
        self.changes.clear();
    }

    fn announce(&mut self, dirtied: &mut Vec<(Block, bool)>, now: Duration) {
        if dirtied.is_empty() {
            return;
        }
        for (block, fresh) in &*dirtied {
            self.log.dirtied(block, *fresh);
        }
        self.exact.waited += 1;
        self.exact.persists += 1;
        self.marks.dirtied(dirtied, now);
        for trees in &mut self.trees {
            trees.dirtied(dirtied);
        }
        dirtied.clear();
    }

    fn place(&mut self, placed: &mut Vec<(BlockId, Block)>) {
        for (_, block) in placed.drain(..) {
            self.log.placed(&block);
            self.trees.iter_mut().for_each(|trees| trees.placed(&block));
        }
    }

    fn costs(&self) -> Vec<Cost> {
        let trees = self.trees.iter().map(|trees| trees.cost);
        trees.chain([self.marks.cost, self.exact]).collect()
    }

    fn crash(&self) -> Point {
        let blocks: Vec<BlockId> = self.cache.table().blocks().collect();
        let mut written_back = vec![0; self.trees.len() + 2];
        let exact = self.trees.len() + 1;
        for &id in &blocks {
            let (volume, units) = self.cache.units_of(id);
            let slots = self.cache.slots_of(id);
            let block = Block {
                volume,
                units,
                slots,
            };
            let dirty = self.dirty.has(id);
            for (count, trees) in written_back.iter_mut().zip(&self.trees) {
                let found = trees.writes_back(&block);
                assert!(found || !dirty, "{}: {block:?} is forgotten", trees.name);
                *count += u64::from(found);
            }
            written_back[exact - 1] += u64::from(self.marks.writes_back(&block));
            written_back[exact] += u64::from(dirty);
        }
        Point {
            cached: blocks.len() as u64,
            dirty: self.dirty.len(),
            written_back,
        }
    }
}

/// Dirty blocks in the order of their last write.
#[derive(Default)]
struct DirtyList {
    order: BTreeMap<u64, BlockId>,
    turns: HashMap<BlockId, u64>,
    turn: u64,
}

impl DirtyList {
    /// A block is written to; whether it was clean.
    fn written(&mut self, id: BlockId) -> bool {
        self.turn += 1;
        self.order.insert(self.turn, id);
        let before = self.turns.insert(id, self.turn);
        before.is_none_or(|turn| {
            self.order.remove(&turn);
            false
        })
    }

    fn cleaned(&mut self, id: BlockId) {
        if let Some(turn) = self.turns.remove(&id) {
            self.order.remove(&turn);
        }
    }

    fn has(&self, id: BlockId) -> bool {
        self.turns.contains_key(&id)
    }

    fn oldest(&self) -> Option<BlockId> {
        self.order.values().next().copied()
    }

    fn len(&self) -> u64 {
        self.turns.len() as u64
    }
}
