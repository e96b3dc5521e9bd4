//! The configurations.

use forebay_policy::BlockSizes;
use forebay_trace::Request;
use forebay_trace::sim::{
    CacheModel, Costs, Fill, Replace, Requests, Simulated, Volume, WriteBack,
};
use serde_json::{Value, json};

const KIB: u64 = 1 << 10;
const FIXED: [u64; 4] = [32, 64, 128, 256];
/// Shards of a sharded cache, and what of a volume is in one before the next begins: a multiple of
/// the largest block.
const SHARDS: u64 = 64;
const STRIPE_BYTES: u64 = 1 << 20;

/// A configuration under simulation.
pub(crate) struct Row {
    name: String,
    percent: u64,
    capacity_bytes: u64,
    /// One, unless it is sharded.
    shards: Vec<Simulated>,
}

/// Which rules decide.
#[derive(Clone, Copy)]
struct Rules {
    replace: Replace,
    fill: Fill,
    write_back: WriteBack,
}

const fn paper(fill: Fill, write_back: WriteBack) -> Rules {
    Rules {
        replace: Replace::Paper,
        fill,
        write_back,
    }
}

const fn ours(fill: Fill, write_back: WriteBack) -> Rules {
    Rules {
        replace: Replace::Ours,
        fill,
        write_back,
    }
}

/// Which configurations.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Choice {
    /// Every one.
    All,
    /// Fixed sizes and the paper's rules in every family, and ours.
    Families,
    /// With sub-block maps, and ours.
    SubBlock,
}

/// The configurations of a cache of this size.
pub(crate) fn rows(percent: u64, capacity_bytes: u64, choice: Choice) -> Vec<Row> {
    use WriteBack::{Runs, Victim};
    let mut rows = Vec::new();
    let mut add = |name: String, sizes_kib: &[u64], rules: Rules, shards: u64| {
        let groups = (capacity_bytes / (256 * KIB)).max(1);
        let sizes: Vec<u64> = sizes_kib.iter().map(|kib| kib * KIB).collect();
        let shard = |nth: u64| {
            let groups = groups / shards + u64::from(nth < groups % shards);
            Simulated::new(CacheModel {
                sizes: BlockSizes::new(&sizes).expect("powers of two"),
                capacity_bytes: groups * 256 * KIB,
                replace: rules.replace,
                fill: rules.fill,
                write_back: rules.write_back,
                costs: Costs::CLOUD,
            })
        };
        rows.push(Row {
            name,
            percent,
            capacity_bytes: groups * 256 * KIB,
            shards: (0..shards).map(shard).collect(),
        });
    };
    // Names of rows of the paper's sizes and of fixed sizes, with their fill and write-back.
    let mut families = vec![("sub", paper(Fill::SubBlock, Victim))];
    if choice != Choice::SubBlock {
        families.push(("whole", paper(Fill::Whole, Victim)));
        families.push(("runs", paper(Fill::SubBlock, Runs)));
    }
    for (family, rules) in families {
        for kib in FIXED {
            add(format!("{family}/{kib}K"), &[kib], rules, 1);
        }
        add(format!("{family}/paper"), &FIXED, rules, 1);
    }
    add("ours".into(), &FIXED, ours(Fill::Learned, Runs), 1);
    add("ours/32K".into(), &[32], ours(Fill::Learned, Runs), 1);
    if choice == Choice::All {
        let demand = paper(Fill::Demand, Victim);
        add("demand/32K".into(), &[32], demand, 1);
        add("demand/paper".into(), &FIXED, demand, 1);
        let learned = paper(Fill::Learned, Runs);
        add("paper+runs+learned".into(), &FIXED, learned, 1);
        let segments = ours(Fill::SubBlock, Runs);
        add("paper+runs+segments".into(), &FIXED, segments, 1);
        let no_runs = ours(Fill::Learned, Victim);
        add("paper+learned+segments".into(), &FIXED, no_runs, 1);
        if capacity_bytes / (256 * KIB) >= SHARDS {
            let rules = ours(Fill::Learned, Runs);
            add("ours/shards".into(), &FIXED, rules, SHARDS);
        }
    }
    rows
}

impl Row {
    pub(crate) fn request(&mut self, request: &Request) {
        if let [only] = &mut self.shards[..] {
            only.request(request);
            return;
        }
        let mut rest = *request;
        while rest.len_bytes > 0 {
            let stripe = rest.offset_bytes / STRIPE_BYTES;
            let end = (stripe + 1) * STRIPE_BYTES;
            let len_bytes = u64::from(rest.len_bytes).min(end - rest.offset_bytes) as u32;
            let shard = (stripe + u64::from(rest.volume)) % self.shards.len() as u64;
            self.shards[shard as usize].request(&Request { len_bytes, ..rest });
            rest.offset_bytes += u64::from(len_bytes);
            rest.len_bytes -= len_bytes;
        }
    }

    /// Writes back all dirty data and returns the counts. They are the sum over shards. Each shard
    /// has its own devices in the model, so the latency of several shards has no meaning.
    pub(crate) fn finish(mut self) -> Value {
        self.shards.iter_mut().for_each(Simulated::write_back_all);
        let sum = |value: &dyn Fn(&Simulated) -> u64| self.shards.iter().map(value).sum::<u64>();
        let requests = |of: &dyn Fn(&Simulated) -> Requests| {
            json!({
                "count": sum(&|shard| of(shard).count),
                "hits": sum(&|shard| of(shard).hits),
                "bytes": sum(&|shard| of(shard).bytes),
                "hit_bytes": sum(&|shard| of(shard).hit_bytes),
                "missed_request_bytes": sum(&|shard| of(shard).missed_request_bytes),
            })
        };
        let volume = |of: &dyn Fn(&Simulated) -> Volume| {
            json!({
                "bytes": sum(&|shard| of(shard).bytes),
                "ios": sum(&|shard| of(shard).ios),
            })
        };
        json!({
            "name": self.name,
            "percent": self.percent,
            "capacity_bytes": self.capacity_bytes,
            "reads": requests(&|shard| shard.counts().reads),
            "writes": requests(&|shard| shard.counts().writes),
            "read_from_core": volume(&|shard| shard.counts().io.read_from_core),
            "write_to_core": volume(&|shard| shard.counts().io.write_to_core),
            "read_from_cache": volume(&|shard| shard.counts().io.read_from_cache),
            "write_to_cache": volume(&|shard| shard.counts().io.write_to_cache),
            "allocated_blocks": sum(&|shard| shard.counts().allocated_blocks),
            "allocated_bytes": sum(&|shard| shard.counts().allocated_bytes),
            "cached_blocks_sum": sum(&|shard| shard.counts().cached_blocks_sum),
            "memory_max_bytes": sum(&|shard| shard.counts().memory_max_bytes),
            "latency_sum_ns": sum(&|shard| shard.counts().latency_sum_ns),
        })
    }
}
