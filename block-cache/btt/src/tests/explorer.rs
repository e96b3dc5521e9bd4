//! Lives of a table on the simulated medium, crashed at every step.
//!
//! A life is random operations over several lanes. Before each store, stream, flush and fence the
//! explorer takes several possible states after a power loss. It opens each, and compares it with
//! the model. A block that is being written is old or new, every other one is unchanged. In the
//! middle of an operation, another lane may do a whole one, on another strand. Sometimes the
//! recovery itself is crashed, and sometimes the life continues from a crash state.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use forebay_block::Buf;
use forebay_io::sim::{PmemSite, PmemStep, Rng, SimPmem, Survival};

use super::{SIZE, formatted, holds, options, stamp};
use crate::Btt;
use crate::fault::{Fault, Faults};
use crate::open::OpenOptions;

/// Number of strands of operations, independent of lanes.
const STRANDS: u64 = 3;
const LANES: u64 = 3;
/// Map entries that share a lock.
const LINE: u64 = 16;

/// Planted fault of a life.
#[derive(Clone, Copy, Debug)]
pub(super) enum Wrong {
    Nothing,
    Fault(Fault),
    LeftOut(PmemSite),
}

/// Versions that a reader may find, for each watched block.
type Model = BTreeMap<u64, Vec<u64>>;

pub(super) struct Explorer {
    state: Mutex<State>,
    states: AtomicU64,
    wrong: Wrong,
}

struct State {
    rng: Rng,
    model: Model,
    version: u64,
    /// Lanes of the current operations, outermost first, and their locks of the map.
    lanes: Vec<u64>,
    locks: Vec<u64>,
    lock_count: u64,
    /// Crash state from which the life continues.
    heir: Option<(Arc<SimPmem>, Model)>,
    violation: Option<String>,
}

type Table = Arc<Btt<SimPmem>>;

impl Explorer {
    pub(super) fn new(seed: u64, wrong: Wrong) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(State {
                rng: Rng::labelled(seed, 1),
                model: Model::new(),
                version: 0,
                lanes: Vec::new(),
                locks: Vec::new(),
                lock_count: 1,
                heir: None,
                violation: None,
            }),
            states: AtomicU64::new(0),
            wrong,
        })
    }

    /// Runs lives with `operations` operations. Returns the number of checked crash states and the
    /// number of flushes and fences, or the error.
    pub(super) fn live(self: &Arc<Self>, operations: u64) -> Result<(u64, Vec<PmemSite>), String> {
        let block_bytes = if self.below(8) == 0 { 512 } else { 4096 };
        let mut format = options(block_bytes);
        format.free_blocks = self.choose(&[3, 4, 8]);
        let mut memory = formatted(SIZE, &format);
        let mut table = self.open(&memory).expect("a table");
        let watched = self.watch(table.blocks());
        self.with(|state| {
            state.model = watched;
            state.lock_count = u64::from(format.free_blocks);
        });
        let mut sites = Vec::new();
        for _ in 0..operations {
            self.observe(&memory, &table);
            self.operate(&memory, &table);
            memory.observe(None);
            if let Some((after, model)) = self.with(|state| state.heir.take()) {
                sites.extend(memory.sites());
                table = self.open(&after).map_err(|why| self.blame(&why))?;
                memory = after;
                self.with(|state| state.model = model);
                self.settle(&table);
            }
            if let Some(violation) = self.with(|state| state.violation.take()) {
                return Err(violation);
            }
        }
        sites.extend(memory.sites());
        Ok((self.states.load(Ordering::Relaxed), sites))
    }

    fn with<T>(&self, what: impl FnOnce(&mut State) -> T) -> T {
        what(&mut self.state.lock().expect("no test panics with it"))
    }

    fn below(&self, bound: u64) -> u64 {
        self.with(|state| state.rng.below(bound))
    }

    fn choose<T: Copy>(&self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }

    fn open(&self, memory: &Arc<SimPmem>) -> Result<Table, String> {
        if let Wrong::LeftOut(site) = self.wrong {
            memory.leave_out(site);
        }
        let options = OpenOptions {
            lanes: LANES as usize,
            faults: match self.wrong {
                Wrong::Fault(fault) => Faults::planted(fault),
                _ => Faults::default(),
            },
            ..OpenOptions::default()
        };
        let table = Btt::open_with(Arc::clone(memory), options);
        table.map(Arc::new).map_err(|error| error.report())
    }

    /// Neighbours in the map, and distant blocks.
    fn watch(&self, blocks: u64) -> Model {
        let lines = [0, 1, self.below(blocks / LINE - 2) + 2, (blocks - 1) / LINE];
        let mut model = Model::new();
        for line in lines {
            for _ in 0..3 {
                let block = (line * LINE + self.below(LINE)).min(blocks - 1);
                model.insert(block, vec![0]);
            }
        }
        model
    }

    fn observe(self: &Arc<Self>, memory: &Arc<SimPmem>, table: &Table) {
        let (explorer, table) = (Arc::clone(self), Arc::clone(table));
        memory.observe(Some(Arc::new(move |memory, step| {
            explorer.step(memory, &table, step);
        })));
    }

    /// Runs one operation, on an unused lane and strand.
    fn operate(&self, memory: &SimPmem, table: &Table) {
        let Some((block, lane)) = self.with(|state| {
            let lock_of = |block: u64| block / LINE % state.lock_count;
            let free = |block: &&u64| !state.locks.contains(&lock_of(**block));
            let blocks: Vec<u64> = state.model.keys().filter(free).copied().collect();
            let lanes: Vec<u64> = (0..LANES).filter(|l| !state.lanes.contains(l)).collect();
            let block = *blocks.get(state.rng.index(blocks.len().max(1)))?;
            let lane = *lanes.get(state.rng.index(lanes.len().max(1)))?;
            state.lanes.push(lane);
            state.locks.push(block / LINE % state.lock_count);
            Some((block, lane))
        }) else {
            return;
        };
        let before = memory.strand();
        let nested = self.with(|state| state.lanes.len() > 1);
        // A strand in the middle of an operation does no other one meanwhile.
        let other = (u64::from(before) + 1 + self.below(STRANDS - 1)) % STRANDS;
        let strand = if nested { other } else { self.below(STRANDS) };
        memory.set_strand(strand as u32);
        match self.below(8) {
            0 => self.check_one(table, block),
            1 => {
                let left = LINE - block % LINE;
                let count = (1 + self.below(3)).min(left).min(table.blocks() - block);
                let change = |state: &mut State, settle: bool| {
                    for (_, versions) in state.model.range_mut(block..block + count) {
                        versions.push(0);
                        if settle {
                            *versions = vec![0];
                        }
                    }
                };
                self.with(|state| change(state, false));
                let done = table.zero(block, count);
                self.with(|state| change(state, true));
                self.note(done.map_err(|error| error.report()));
            }
            _ => {
                let version = self.with(|state| {
                    state.version += 1;
                    let versions = state.model.get_mut(&block).expect("it is watched");
                    versions.push(state.version);
                    state.version
                });
                let source = stamp(block, version, table.block_bytes());
                let done = {
                    let mut lane = table.lanes.take_this(lane as usize);
                    table.write_on(&mut lane, block, &source)
                };
                self.with(|state| state.model.insert(block, vec![version]));
                self.note(done.map_err(|error| error.report()));
            }
        }
        memory.set_strand(before);
        self.with(|state| {
            state.lanes.pop();
            state.locks.pop();
        });
    }

    fn note(&self, result: Result<(), String>) {
        if let Err(why) = result {
            let why = self.blame(&why);
            self.with(|state| {
                state.violation.get_or_insert(why);
            });
        }
    }

    fn blame(&self, why: &str) -> String {
        format!("{:?}: {why}", self.wrong)
    }

    /// Checks a block's content against the model.
    fn check_one(&self, table: &Table, block: u64) {
        let versions = self.with(|state| state.model[&block].clone());
        self.note(find(table, block, &versions).map(drop));
    }

    /// Replaces the possible versions by the actual ones.
    fn settle(&self, table: &Table) {
        let model = self.with(|state| state.model.clone());
        for (block, versions) in model {
            match find(table, block, &versions) {
                Ok(version) => self.with(|state| state.model.insert(block, vec![version])),
                Err(why) => return self.note(Err(why)),
            };
        }
    }

    /// Before every step: crashes, and sometimes another lane's operation.
    fn step(self: &Arc<Self>, memory: &SimPmem, table: &Table, step: PmemStep) {
        if self.with(|state| state.violation.is_some()) {
            return;
        }
        let words = memory.undurable_words();
        let mut states = vec![Survival::None, Survival::All];
        for _ in 0..3 {
            states.push(Survival::Random(self.with(|state| state.rng.draw())));
        }
        if words > 0 {
            states.push(Survival::Only(self.below(words as u64) as usize));
            states.push(Survival::AllBut(self.below(words as u64) as usize));
            // Metadata follows the data.
            states.push(Survival::Only(words - 1));
            states.push(Survival::AllBut(words - 1));
        }
        let model = self.with(|state| state.model.clone());
        for state in states {
            let after = memory.crash(state);
            if self.below(64) == 0 {
                let heir = (after.crash(Survival::All), model.clone());
                self.with(|state| state.heir = Some(heir));
            }
            if let Err(why) = self.examine(&after, &model) {
                return self.note(Err(format!("{state:?} before a {step:?}: {why}")));
            }
        }
        if self.below(4) == 0 {
            self.operate(memory, table);
        }
    }

    /// Opens a crash state, may crash that too, and checks all of it.
    fn examine(self: &Arc<Self>, after: &Arc<SimPmem>, model: &Model) -> Result<(), String> {
        if self.below(8) == 0 {
            let (explorer, inner) = (Arc::clone(self), model.clone());
            after.observe(Some(Arc::new(move |memory, step| {
                for state in [
                    Survival::None,
                    Survival::All,
                    Survival::Random(explorer.below(1 << 32)),
                ] {
                    let crashed = memory.crash(state);
                    let looked = explorer.look(&crashed, &inner);
                    let why = |why| format!("{state:?} in recovery, before a {step:?}: {why}");
                    explorer.note(looked.map_err(why));
                }
            })));
        }
        let looked = self.look(after, model);
        after.observe(None);
        looked
    }

    fn look(&self, after: &Arc<SimPmem>, model: &Model) -> Result<(), String> {
        self.states.fetch_add(1, Ordering::Relaxed);
        let table = self.open(after)?;
        table.check().map_err(|error| error.report())?;
        for (&block, versions) in model {
            find(&table, block, versions)?;
        }
        Ok(())
    }
}

/// Returns which of these versions a block contains.
fn find(table: &Btt<SimPmem>, block: u64, versions: &[u64]) -> Result<u64, String> {
    let buf = Buf::zeroed(table.block_bytes() as usize);
    table.read(block, &buf).map_err(|error| error.report())?;
    let found = versions
        .iter()
        .find(|version| holds(&buf, block, **version));
    let torn = || format!("block {block} holds none of {versions:?}");
    found.copied().ok_or_else(torn)
}
