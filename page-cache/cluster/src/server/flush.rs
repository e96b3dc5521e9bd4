//! Flushes of all nodes that a command requests. Each ends when all nodes have answered, when one
//! of them has ended, or after its time limit.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use forebay_pagecache::client::NAMED_MAX;
use forebay_pagecache::message::{NodeId, ToDirectory, ToNode};

use super::{PAGE_BYTES, Server};
use crate::pool::Pool;

/// Bits of a ticket that count the flushes of one directory. The others are its epoch.
const COUNT_BITS: u32 = 32;

/// Outcome of a flush.
#[derive(Debug)]
pub(super) struct Flushed {
    /// Bytes of dirty pages that are durable now.
    pub(super) bytes: u64,
    /// Files of which a write was refused or lost, as far as nodes name them.
    pub(super) failed: BTreeSet<u64>,
    /// Number of such files that nodes did not name.
    pub(super) unnamed: u64,
    /// Nodes that did not answer in time.
    pub(super) silent: Vec<NodeId>,
    /// Nodes that ended before they answered.
    pub(super) ended: Vec<NodeId>,
    /// Nodes that this directory waits for since its start. Nothing was flushed then.
    pub(super) awaited: Vec<NodeId>,
    /// Source of the files.
    pub(super) source: String,
    pub(super) pool: Pool,
}

/// A flush in progress.
#[derive(Debug)]
struct Flush {
    ticket: u64,
    /// Nodes that have not answered, with the number of files that each has named.
    waiting: BTreeMap<NodeId, u64>,
    /// Time at which it ends without their answer.
    end_at: Instant,
    outcome: Flushed,
    answer: SyncSender<Flushed>,
}

/// Flushes in progress.
#[derive(Debug, Default)]
pub(super) struct Flushes {
    /// Number of flushes since the start.
    count: u64,
    running: Vec<Flush>,
}

impl Server {
    /// Starts a flush. The outcome goes to `answer`.
    pub(super) fn begin_flush(&mut self, patience: Duration, answer: SyncSender<Flushed>) {
        self.flushes.count += 1;
        let ticket = (self.nodes.epoch << COUNT_BITS) + self.flushes.count;
        let shares = self.directory.shares().filter(|share| share.alive);
        let mut waiting: BTreeMap<NodeId, u64> = shares.map(|share| (share.node, 0)).collect();
        let awaited = self.awaited_nodes();
        if !awaited.is_empty() {
            waiting.clear();
        }
        for node in waiting.keys() {
            self.send(*node, &[ToNode::FlushAll { ticket }]);
        }
        self.flushes.running.push(Flush {
            ticket,
            waiting,
            end_at: Instant::now() + patience,
            outcome: Flushed {
                bytes: 0,
                failed: BTreeSet::new(),
                unnamed: 0,
                silent: Vec::new(),
                ended: Vec::new(),
                awaited,
                source: self.nodes.source.clone(),
                pool: self.pool.clone(),
            },
            answer,
        });
        self.end_flushes();
    }

    /// Ends the flushes that have all answers, a dead node, or no time left.
    pub(super) fn end_flushes(&mut self) {
        let now = Instant::now();
        let is_over = |flush: &mut Flush| {
            flush.waiting.is_empty() || !flush.outcome.ended.is_empty() || flush.end_at <= now
        };
        for flush in self.flushes.running.extract_if(.., is_over) {
            let mut outcome = flush.outcome;
            if outcome.ended.is_empty() {
                outcome.silent = flush.waiting.into_keys().collect();
            }
            // The client may be gone.
            let _ = flush.answer.send(outcome);
        }
    }
}

impl Flushes {
    /// Applies a message of a node. An answer to an earlier flush, or to one of an earlier
    /// directory, counts for nothing.
    pub(super) fn receive(&mut self, node: NodeId, message: &ToDirectory) {
        let (ToDirectory::NotFlushed { ticket, .. } | ToDirectory::FlushedAll { ticket, .. }) =
            message
        else {
            return;
        };
        let mut flushes = self.running.iter_mut();
        let same = |flush: &&mut Flush| flush.ticket == *ticket;
        let Some(flush) = flushes.find(same) else {
            return;
        };
        let Some(named) = flush.waiting.get_mut(&node) else {
            return;
        };
        match message {
            // A correct node names no more.
            ToDirectory::NotFlushed { inode, .. } if *named < NAMED_MAX as u64 => {
                *named += 1;
                flush.outcome.failed.insert(*inode);
            }
            ToDirectory::FlushedAll { pages, failed, .. } => {
                flush.outcome.bytes += pages.saturating_mul(PAGE_BYTES as u64);
                let unnamed = failed.saturating_sub(*named);
                flush.outcome.unnamed = flush.outcome.unnamed.saturating_add(unnamed);
                flush.waiting.remove(&node);
            }
            _ => {}
        }
    }

    /// Notes that a node has ended.
    pub(super) fn node_ended(&mut self, node: NodeId) {
        for flush in &mut self.running {
            if flush.waiting.remove(&node).is_some() {
                flush.outcome.ended.push(node);
            }
        }
    }
}
