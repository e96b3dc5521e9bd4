//! Runs a workload on a system: the thread with the earliest clock is next.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};

use forebay_pagecache::message::PageId;
use forebay_pagecache::node::Consistency;
use serde_json::{Value, json};

use crate::clock::{Counts, Machines, Meter, bytes};
use crate::costs::Costs;
use crate::pool::{Protocol, Shelf};
use crate::private::{Kind, Private};
use crate::shared::Shared;
use crate::workload::{MEMORY_PAGES, Operation, THREADS, Thread, Workload};

/// Pages of a large token: 1 MiB, or the whole file if it is shorter.
const EXTENT_PAGES: u64 = 256;

/// Copies of a page after which a node wants a replica: the value of the product.
const REPLICATE_AFTER: u32 = 4;

/// Compared systems.
pub(crate) enum System {
    Shared(Box<Shared>),
    Private(Box<Private>),
}

impl System {
    /// With `opens`, a server has the files' names and sizes, and each open asks it. Otherwise they
    /// are in the tree, as in this project, at no cost.
    pub(crate) fn new(name: &str, nodes: usize, pages: u32, opens: bool) -> Result<Self, String> {
        let shelf = Shelf::default();
        let shared = |consistency, replicate_after, one| {
            let protocol = Protocol {
                consistency,
                replicate_after,
            };
            let shelf = shelf.clone();
            Box::new(Shared::new(nodes, pages, protocol, one, opens, shelf))
        };
        let private = |kind| Box::new(Private::new(kind, nodes, pages, opens, &shelf));
        Ok(match name {
            "one-node" => Self::Shared(shared(Consistency::Strong, 0, true)),
            "dpc-relaxed" => Self::Shared(shared(Consistency::Relaxed, 0, false)),
            "dpc-strong" => Self::Shared(shared(Consistency::Strong, 0, false)),
            "dpc-replicas" => Self::Shared(shared(Consistency::Strong, REPLICATE_AFTER, false)),
            "close-to-open" => Self::Private(private(Kind::CloseToOpen)),
            "page-tokens" => Self::Private(private(Kind::Tokens(1))),
            "extent-tokens" => Self::Private(private(Kind::Tokens(EXTENT_PAGES))),
            "n-chance" => Self::Private(private(Kind::NChance)),
            "virtiofs" => Self::Private(private(Kind::Virtiofs)),
            other => return Err(format!("no system is called {other:?}")),
        })
    }

    pub(crate) fn run(
        &mut self,
        node: usize,
        operation: &Operation,
        version: u64,
        meter: &mut Meter<'_>,
    ) -> Vec<(PageId, u64)> {
        match self {
            Self::Shared(system) => system.run(node, operation, version, meter),
            Self::Private(system) => system.run(node, operation, version, meter),
        }
    }

    pub(crate) fn copies(&self) -> Vec<(PageId, u64)> {
        match self {
            Self::Shared(system) => system.copies(),
            Self::Private(system) => system.copies(),
        }
    }
}

/// Number of copies of pages in all memory at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Copies {
    pub(crate) most: u64,
    pub(crate) mean: f64,
}

impl Copies {
    /// Counts (page, place) pairs; each place occurs once for each node that knows it.
    pub(crate) fn of(mut places: Vec<(PageId, u64)>) -> Self {
        places.sort_unstable();
        places.dedup();
        let mut pages: BTreeMap<PageId, u64> = BTreeMap::new();
        for (page, _) in &places {
            *pages.entry(*page).or_default() += 1;
        }
        Self {
            most: pages.values().copied().max().unwrap_or(0),
            mean: places.len() as f64 / pages.len().max(1) as f64,
        }
    }
}

/// Runs one cell of the study: a system, a workload, a number of nodes and costs, as JSON. Returns
/// the cell with its results.
pub(crate) fn run(job: &Value) -> Result<Value, String> {
    let name = job["system"].as_str().unwrap_or_default();
    let nodes = usize::try_from(job["nodes"].as_u64().unwrap_or(0)).unwrap_or(0);
    if !(1..=32).contains(&nodes) {
        return Err(format!("{nodes} nodes: 1 to 32"));
    }
    let workload = Workload::of(job, nodes)?;
    let opens = job["opens"].as_bool().unwrap_or(false);
    let mut system = System::new(name, nodes, MEMORY_PAGES, opens)?;
    let (counts, copies) = measure(&mut system, &workload, nodes, Costs::of(job));
    Ok(json!({
        "job": job,
        "operations": counts.operations,
        "pages": counts.pages,
        "hits_local": counts.hits_local,
        "hits_remote": counts.hits_remote,
        "first_remote": counts.first_remote,
        "store_read_bytes": bytes(counts.store_reads),
        "store_write_bytes": bytes(counts.store_writes),
        "packets": counts.packets,
        "messages": counts.messages,
        "invalidations": counts.invalidations,
        "stale": counts.stale,
        "copies_most": copies.most,
        "copies_mean": copies.mean,
        "operation_ns": counts.time_ns as f64 / counts.operations.max(1) as f64,
    }))
}

/// Number of samples of the copies.
const LOOKS: u64 = 8;

fn measure(
    system: &mut System,
    workload: &Workload,
    nodes: usize,
    costs: Costs,
) -> (Counts, Copies) {
    let mut machines = Machines::new(costs, nodes);
    let (mut counts, mut warming) = (Counts::default(), Counts::default());
    let (mut copies, mut newest) = (Copies::default(), HashMap::new());
    let each = workload.warm + workload.counted;
    let threads = (0..nodes).flat_map(|node| (0..THREADS).map(move |thread| (node, thread)));
    let mut threads: Vec<(usize, Thread, u64)> = threads
        .map(|(node, thread)| (node, Thread::new(workload, node, thread, 1), 0))
        .collect();
    let mut next: BinaryHeap<Reverse<(u64, usize)>> = (0..threads.len())
        .map(|thread| Reverse((0, thread)))
        .collect();
    let all = each * threads.len() as u64;
    let (mut version, mut done) = (0, 0);
    while let Some(Reverse((now_ns, at))) = next.pop() {
        let (node, thread, operations) = &mut threads[at];
        *operations += 1;
        let warm = *operations <= workload.warm;
        let operation = thread.next();
        version += 1;
        let mut meter = Meter {
            machines: &mut machines,
            counts: if warm { &mut warming } else { &mut counts },
            now_ns,
            spent_ns: 0,
        };
        let seen = system.run(*node, &operation, version, &mut meter);
        let spent_ns = meter.spent_ns;
        let old = seen
            .iter()
            .filter(|(page, read)| newest.get(page).copied().unwrap_or(0) != *read);
        let old = old.count() as u64;
        newest.extend(operation.writes.iter().map(|page| (*page, version)));
        let counts = if warm { &mut warming } else { &mut counts };
        counts.operations += 1;
        counts.pages += (operation.reads.len() + operation.writes.len()) as u64;
        counts.stale += old;
        counts.time_ns += spent_ns;
        if *operations < each {
            next.push(Reverse((now_ns + spent_ns, at)));
        }
        done += 1;
        if done % (all / LOOKS).max(1) == 0 {
            let now = Copies::of(system.copies());
            copies.most = copies.most.max(now.most);
            copies.mean = now.mean;
        }
    }
    (counts, copies)
}
