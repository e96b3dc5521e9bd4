//! Merges several files to one trace by time, as if their requests had arrived together. The order
//! within a file is unchanged.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use forebay_block::{Error, Result};

use super::{Counts, Source};
use crate::{Request, Volumes};

/// Number of requests read ahead of each file.
const AHEAD_REQUESTS: usize = 4096;

/// State of one file.
struct Lane {
    source: Box<dyn Source>,
    ahead: Vec<Request>,
    at: usize,
    ended: bool,
    /// Error to return after the requests before it.
    failed: Option<Error>,
    /// The trace's numbers of the file's volumes.
    numbers: Vec<Option<u32>>,
}

impl Lane {
    /// Returns the time of the next request; `None` at the end of the file.
    fn due_ns(&mut self) -> Result<Option<u64>> {
        if self.at == self.ahead.len() {
            self.ahead.clear();
            self.at = 0;
            while self.ahead.is_empty() && !self.ended {
                match self.source.fill(&mut self.ahead, AHEAD_REQUESTS) {
                    Ok(more) => self.ended = !more,
                    Err(error) => {
                        self.ended = true;
                        self.failed = Some(error);
                    }
                }
            }
            if self.ahead.is_empty()
                && let Some(error) = self.failed.take()
            {
                return Err(error);
            }
        }
        // A request that is late within its file is due at once, so that the order is unchanged.
        Ok(self.ahead.get(self.at).map(|request| request.time_ns))
    }
}

pub(super) struct Merge {
    lanes: Vec<Lane>,
    /// Times of the lanes' next requests.
    due: BinaryHeap<Reverse<(u64, usize)>>,
    started: bool,
    volumes: Volumes,
}

impl Merge {
    pub(super) fn new(sources: Vec<Box<dyn Source>>) -> Self {
        let lanes = sources.into_iter().map(|source| Lane {
            source,
            ahead: Vec::with_capacity(AHEAD_REQUESTS),
            at: 0,
            ended: false,
            failed: None,
            numbers: Vec::new(),
        });
        Self {
            lanes: lanes.collect(),
            due: BinaryHeap::new(),
            started: false,
            volumes: Volumes::new(),
        }
    }

    /// Returns remarks about how the files are read.
    pub(super) fn remarks(&self) -> Vec<&'static str> {
        let mut remarks: Vec<_> = (self.lanes.iter())
            .filter_map(|lane| lane.source.remark())
            .collect();
        remarks.dedup();
        remarks
    }

    /// Appends up to `limit` requests. Returns false if there are no more.
    pub(super) fn fill(&mut self, batch: &mut Vec<Request>, limit: usize) -> Result<bool> {
        let begin = batch.len();
        if let [lane] = &mut self.lanes[..] {
            let more = lane.source.fill(batch, limit);
            renumber(lane, &mut self.volumes, &mut batch[begin..]);
            return more;
        }
        if !self.started {
            for (number, lane) in self.lanes.iter_mut().enumerate() {
                if let Some(due_ns) = lane.due_ns()? {
                    self.due.push(Reverse((due_ns, number)));
                }
            }
            self.started = true;
        }
        let full = begin + limit;
        while batch.len() < full {
            let Some(Reverse((_, number))) = self.due.pop() else {
                return Ok(false);
            };
            // The lane continues until another one is due.
            let until = self.due.peek().map(|Reverse(next)| *next);
            let lane = &mut self.lanes[number];
            loop {
                let from = batch.len();
                batch.push(lane.ahead[lane.at]);
                lane.at += 1;
                renumber(lane, &mut self.volumes, &mut batch[from..]);
                let Some(due_ns) = lane.due_ns()? else { break };
                let yields = until.is_some_and(|next| (due_ns, number) > next);
                if yields || batch.len() == full {
                    self.due.push(Reverse((due_ns, number)));
                    break;
                }
            }
        }
        Ok(true)
    }

    /// Returns the volumes with requests so far.
    pub(super) const fn volumes(&self) -> &Volumes {
        &self.volumes
    }

    /// Returns the counts of all files.
    pub(super) fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        for lane in &self.lanes {
            counts.add(lane.source.counts());
        }
        counts
    }
}

/// Replaces the file's volume numbers by those of the trace.
#[inline]
fn renumber(lane: &mut Lane, volumes: &mut Volumes, requests: &mut [Request]) {
    for request in requests {
        let known = lane.numbers.get(request.volume as usize).copied().flatten();
        request.volume = match known {
            Some(number) => number,
            None => appear(lane, volumes, request.volume),
        };
    }
}

/// Returns the number of a volume that appears for the first time.
#[cold]
fn appear(lane: &mut Lane, volumes: &mut Volumes, volume: u32) -> u32 {
    // If several files have too many volumes together, those beyond the limit share the last
    // number. The reader of each file enforces the limit for that file.
    let last = u32::try_from(crate::MAX_VOLUMES - 1).expect("a small number");
    let number = volumes
        .number(lane.source.volumes().name(volume))
        .unwrap_or(last);
    let at = volume as usize;
    if lane.numbers.len() <= at {
        lane.numbers.resize(at + 1, None);
    }
    lane.numbers[at] = Some(number);
    number
}
