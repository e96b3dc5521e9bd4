//! A trace, as the study of the bit-tree takes it: in memory, with operations and times.

use std::collections::{BTreeMap, HashMap};

use forebay_trace::stats::{Stats, StatsOptions};
use forebay_trace::{Op, Request, Volumes};
use serde_json::Value;

use crate::source::{Outcome, Source};

/// The smallest block.
pub(crate) const UNIT_BYTES: u64 = 32 << 10;

/// A trace in memory.
pub(crate) struct Input {
    pub(crate) requests: Vec<Request>,
    pub(crate) writes: u64,
    pub(crate) write_bytes: u64,
    pub(crate) working_set_bytes: u64,
    /// By volume, blocks of the smallest size.
    pub(crate) blocks: BTreeMap<u16, u64>,
}

impl Input {
    /// Reads the trace of a job. Where it has more volumes than `most`, all are laid one behind
    /// another.
    pub(crate) fn read(job: &Value, most: usize) -> Outcome<Self> {
        let mut source = Source::open(job)?;
        let as_writes = job["as_writes"].as_f64();
        let mut stats = Stats::new(StatsOptions::default());
        let (mut requests, mut batch) = (Vec::new(), Vec::new());
        while source.fill(&mut batch)? {
            batch.retain(|request| matches!(request.op, Op::Read | Op::Write));
            stats.add(&batch);
            requests.append(&mut batch);
        }
        let mut latest = 0;
        for (nth, request) in requests.iter_mut().enumerate() {
            if let Some(rate) = as_writes {
                request.op = Op::Write;
                request.time_ns = (nth as f64 / rate * 1e9) as u64;
            }
            latest = request.time_ns.max(latest);
            request.time_ns = latest;
        }
        let mut ends = BTreeMap::new();
        for request in &requests {
            let end = ends.entry(request.volume).or_insert(0);
            *end = request.end_bytes().max(*end);
        }
        let mut names = Volumes::new();
        for number in 0..=ends.keys().copied().max().unwrap_or(0) {
            let _ = names.number(&number.to_string());
        }
        let working_set_bytes = stats.summary(&names).working_set_bytes();
        if ends.len() > most {
            ends = lay_out(&mut requests, &ends);
        }
        let writes = requests.iter().filter(|request| request.op == Op::Write);
        let write_bytes = writes
            .clone()
            .map(|request| u64::from(request.len_bytes))
            .sum();
        let writes = writes.count() as u64;
        let blocks = ends.into_iter();
        let blocks = blocks.map(|(volume, end)| (volume as u16, end.div_ceil(UNIT_BYTES)));
        Ok(Self {
            requests,
            writes,
            write_bytes,
            working_set_bytes,
            blocks: blocks.collect(),
        })
    }
}

/// Puts all volumes one behind another.
fn lay_out(requests: &mut [Request], ends: &BTreeMap<u32, u64>) -> BTreeMap<u32, u64> {
    let mut at = 0;
    let mut starts = HashMap::new();
    for (volume, end) in ends {
        starts.insert(*volume, at);
        at += end.next_multiple_of(1 << 20);
    }
    for request in requests {
        request.offset_bytes += starts[&request.volume];
        request.volume = 0;
    }
    BTreeMap::from([(0, at)])
}
