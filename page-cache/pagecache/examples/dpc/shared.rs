//! The distributed cache, and a single node with all the memory.

use std::collections::HashMap;

use forebay_pagecache::message::PageId;

use crate::clock::Meter;
use crate::pool::{Did, Pool, Protocol, Shelf};
use crate::workload::Operation;

/// One pool for all nodes.
pub(crate) struct Shared {
    pool: Pool,
    /// Whether all programs run on the node with the memory.
    one_node: bool,
    /// Whether each open asks the directory.
    opens: bool,
    /// Time at which the last fill of each frame was complete, ns.
    ready_ns: Vec<u64>,
    /// Words for changes of sizes: the last holder of each, and the time of its release, ns.
    words: HashMap<u32, (usize, u64)>,
}

impl Shared {
    pub(crate) fn new(
        nodes: usize,
        pages: u32,
        protocol: Protocol,
        one_node: bool,
        opens: bool,
        shelf: Shelf,
    ) -> Self {
        let all = u32::try_from(nodes).expect("few") * pages;
        let pool = match one_node {
            true => Pool::new(1, all, protocol, shelf),
            false => Pool::new(nodes, pages, protocol, shelf),
        };
        Self {
            ready_ns: vec![0; pool.segment.frames() as usize],
            pool,
            one_node,
            opens,
            words: HashMap::new(),
        }
    }

    /// Runs a program's operation on `node`. Returns the pages that it read.
    pub(crate) fn run(
        &mut self,
        node: usize,
        operation: &Operation,
        version: u64,
        meter: &mut Meter<'_>,
    ) -> Vec<(PageId, u64)> {
        let node = if self.one_node { 0 } else { node };
        let asks = |meter: &mut Meter<'_>, packets| {
            if !self.one_node {
                meter.messages(packets, packets, 1);
            }
        };
        if operation.session {
            meter.call();
        }
        if operation.session && self.opens {
            asks(meter, 2);
        }
        if operation.grows && !self.one_node {
            self.take_alone(node, operation.inode, meter);
        }
        let mut seen = Vec::new();
        if !operation.reads.is_empty() {
            let mut did = Did::default();
            self.pool.read(node, &operation.reads, &mut did);
            meter.call();
            self.charge(node, &did, meter);
            seen = did.seen;
        }
        if !operation.writes.is_empty() {
            let mut did = Did::default();
            self.pool.write(node, &operation.writes, version, &mut did);
            meter.call();
            self.charge(node, &did, meter);
        }
        if operation.fsync {
            let mut did = Did::default();
            self.pool.fsync(node, operation.inode, &mut did);
            meter.call();
            self.charge(node, &did, meter);
        }
        if operation.session {
            let mut did = Did::default();
            self.pool.close(node, operation.inode, &mut did);
            self.charge(node, &did, meter);
        }
        seen
    }

    /// Returns every place with a page, once.
    pub(crate) fn copies(&self) -> Vec<(PageId, u64)> {
        let place = |place| match place {
            Some(forebay_pagecache::message::Place { frame, .. }) => u64::from(frame),
            None => u64::MAX,
        };
        let copies = self.pool.copies();
        copies.map(|(page, at)| (page, place(at))).collect()
    }

    /// Takes and releases the word of the file's size
    /// ([`Client::alone`](forebay_pagecache::client::Client::alone)). Each is an access to a line
    /// of another node's memory. If two nodes meet, the later one also takes and releases the
    /// directory's lock.
    fn take_alone(&mut self, node: usize, inode: u64, meter: &mut Meter<'_>) {
        let word = self.pool.segment.alone_word(inode);
        let last = self.words.get(&word).copied();
        if let Some((holder, until_ns)) = last.filter(|(_, until_ns)| *until_ns > meter.end_ns()) {
            if holder != node {
                meter.messages(3, 3, 1);
            }
            meter.wait_until(until_ns);
        }
        meter.spent_ns += 2 * meter.machines.costs.remote_ns;
        self.words.insert(word, (node, meter.end_ns()));
    }

    fn charge(&mut self, node: usize, did: &Did, meter: &mut Meter<'_>) {
        meter.counts.hits_local += did.hits_local;
        meter.counts.hits_remote += did.hits_remote;
        meter.counts.first_remote += did.found;
        meter.counts.invalidations += did.invalidations;
        if !self.one_node {
            meter.messages(did.packets, did.messages, did.round_trips);
        }
        meter.store_reads(did.filled.len() as u64);
        meter.pool_writes(did);
        for frame in &did.filled {
            self.ready_ns[*frame as usize] = meter.end_ns();
        }
        for (to, frame) in &did.replicated {
            meter.replicate(*to, self.pool.host(*frame));
        }
        meter.local(did.unpublished);
        for frame in &did.used {
            meter.wait_until(self.ready_ns[*frame as usize]);
            match self.pool.host(*frame) {
                host if host == node => meter.local(1),
                host => meter.remote(node, host),
            }
        }
    }
}
