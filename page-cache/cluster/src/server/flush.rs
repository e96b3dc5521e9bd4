//! Flushes of all nodes that a command requests. Each ends when all nodes have answered and the
//! pages of ended nodes are durable, when a node has ended, or after its time limit.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use forebay_pagecache::client::NAMED_MAX;
use forebay_pagecache::message::{NodeId, Place, ToDirectory, ToNode};

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
    /// Files with pages of ended nodes that were not durable in time.
    pub(super) unsaved: BTreeSet<u64>,
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

/// End of a sync of files with pages that outlived their nodes.
#[derive(Debug)]
pub(super) struct Synced {
    /// Ticket of the flush that requested it.
    pub(super) ticket: u64,
    pub(super) files: BTreeSet<u64>,
    /// Those of them whose sync failed.
    pub(super) failed: BTreeSet<u64>,
}

/// Progress of a flush with the pages in ended nodes' memory, which this process writes back.
#[derive(Debug)]
enum Outlived {
    /// These are not in the source: files by place.
    Pages(BTreeMap<Place, u64>),
    /// These files are not known to be durable.
    Syncing(BTreeSet<u64>),
}

impl Outlived {
    /// Returns the files that are not durable.
    fn files(self) -> BTreeSet<u64> {
        match self {
            Self::Pages(pages) => pages.into_values().collect(),
            Self::Syncing(files) => files,
        }
    }
}

/// A flush in progress.
#[derive(Debug)]
struct Flush {
    ticket: u64,
    outlived: Outlived,
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
        let unrescued = self.directory.unrescued_pages();
        let mut unrescued: BTreeMap<Place, u64> =
            unrescued.map(|(page, place)| (place, page.inode)).collect();
        let awaited = self.awaited_nodes();
        if !awaited.is_empty() {
            waiting.clear();
            unrescued.clear();
        }
        for node in waiting.keys() {
            self.send(*node, &[ToNode::FlushAll { ticket }]);
        }
        self.flushes.running.push(Flush {
            ticket,
            outlived: Outlived::Pages(unrescued),
            waiting,
            end_at: Instant::now() + patience,
            outcome: Flushed {
                bytes: 0,
                failed: std::mem::take(&mut self.rescue.unreported),
                unnamed: 0,
                unsaved: BTreeSet::new(),
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

    /// Ends the flushes that have all answers and no page of an ended node, a dead node, or no time
    /// left.
    pub(super) fn end_flushes(&mut self) {
        for flush in &mut self.flushes.running {
            if matches!(&flush.outlived, Outlived::Pages(pages) if pages.is_empty()) {
                flush.outlived = Outlived::Syncing(self.rescue.sync(flush.ticket));
            }
        }
        let now = Instant::now();
        let is_over = |flush: &mut Flush| {
            let is_rescued =
                matches!(&flush.outlived, Outlived::Syncing(files) if files.is_empty());
            let has_all = flush.waiting.is_empty() && is_rescued;
            has_all || !flush.outcome.ended.is_empty() || flush.end_at <= now
        };
        for flush in self.flushes.running.extract_if(.., is_over) {
            let mut outcome = flush.outcome;
            if outcome.ended.is_empty() {
                outcome.silent = flush.waiting.into_keys().collect();
                outcome.unsaved = flush.outlived.files();
            }
            // The client may be gone.
            let _ = flush.answer.send(outcome);
        }
    }

    /// Notes the end of a sync of files with pages of ended nodes. The system reports a failure
    /// once, so it counts for all flushes in progress, or for the next one.
    pub(super) fn synced(&mut self, synced: &Synced) {
        self.rescue.synced(synced);
        if self.flushes.running.is_empty() {
            self.rescue.unreported.extend(&synced.failed);
        }
        for flush in &mut self.flushes.running {
            flush.outcome.failed.extend(&synced.failed);
            if flush.ticket == synced.ticket {
                flush.outlived = Outlived::Syncing(BTreeSet::new());
            }
        }
    }
}

impl Flush {
    /// Removes a page of an ended node. Returns its file, if the flush waits for the page.
    fn take_page(&mut self, place: Place) -> Option<u64> {
        match &mut self.outlived {
            Outlived::Pages(pages) => pages.remove(&place),
            Outlived::Syncing(_) => None,
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

    /// Notes that a page of an ended node is in the source; `dirty` says whether it was not before.
    pub(super) fn rescued(&mut self, place: Place, dirty: bool) {
        for flush in &mut self.running {
            if flush.take_page(place).is_some() && dirty {
                flush.outcome.bytes += PAGE_BYTES as u64;
            }
        }
    }

    /// Notes that a page of an ended node is lost, since the source refuses it.
    pub(super) fn given_up(&mut self, place: Place) {
        for flush in &mut self.running {
            let lost = flush.take_page(place);
            flush.outcome.failed.extend(lost);
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
