//! Sorts requests by time within a window.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use forebay_block::{Error, Result};

use super::merge::Merge;
use crate::Request;

/// A waiting request, ordered by time and then by arrival.
struct Waiting {
    arrival: u64,
    request: Request,
}

impl Waiting {
    const fn key(&self) -> (u64, u64) {
        (self.request.time_ns, self.arrival)
    }
}

impl PartialEq for Waiting {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Waiting {}

impl PartialOrd for Waiting {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Waiting {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

pub(super) struct Sort {
    window: usize,
    waiting: BinaryHeap<Reverse<Waiting>>,
    arrivals: u64,
    batch: Vec<Request>,
    ended: bool,
    /// Error to return after the requests before it.
    failed: Option<Error>,
}

impl Sort {
    pub(super) fn new(window: usize) -> Self {
        Self {
            window,
            waiting: BinaryHeap::new(),
            arrivals: 0,
            batch: Vec::new(),
            ended: false,
            failed: None,
        }
    }

    /// Appends up to `limit` requests of `merge`. Returns false if there are no more.
    pub(super) fn fill(
        &mut self,
        merge: &mut Merge,
        batch: &mut Vec<Request>,
        limit: usize,
    ) -> Result<bool> {
        if self.window == 0 {
            return merge.fill(batch, limit);
        }
        self.batch.clear();
        if !self.ended {
            match merge.fill(&mut self.batch, limit) {
                Ok(more) => self.ended = !more,
                Err(error) => {
                    self.ended = true;
                    self.failed = Some(error);
                }
            }
        }
        for request in &self.batch {
            self.waiting.push(Reverse(Waiting {
                arrival: self.arrivals,
                request: *request,
            }));
            self.arrivals += 1;
            if self.waiting.len() > self.window {
                batch.extend(self.waiting.pop().map(|Reverse(first)| first.request));
            }
        }
        if !self.ended {
            return Ok(true);
        }
        for _ in self.batch.len()..limit {
            match self.waiting.pop() {
                Some(Reverse(first)) => batch.push(first.request),
                None => return self.failed.take().map_or(Ok(false), Err),
            }
        }
        Ok(true)
    }
}
