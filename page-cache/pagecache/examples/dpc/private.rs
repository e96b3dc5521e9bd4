//! Private caches: each node has its own copies, with the code, eviction and memory of the
//! distributed cache. The variants differ in how a node learns that its copy is stale, and where it
//! gets another.

use std::collections::{BTreeSet, HashMap, VecDeque};

use forebay_io::sim::Rng;
use forebay_pagecache::message::PageId;
use forebay_pagecache::node::Consistency;

use crate::clock::Meter;
use crate::pool::{Did, Pool, Protocol, Shelf};
use crate::tokens::{ATTRIBUTES, Key, Tokens};
use crate::workload::Operation;

/// Coherence protocol of the copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Files are revalidated at open, and written back at close.
    CloseToOpen,
    /// Tokens for ranges of this number of pages.
    Tokens(u64),
    /// Tokens for single pages. Pages also come from other nodes' memory, and the last copy in the
    /// cluster is forwarded.
    NChance,
    /// One node of virtiofs: every call that misses its cache goes to the daemon, and so do all
    /// writes.
    Virtiofs,
}

/// Number of times that the last copy of a page is forwarded unused: two, as in Dahlin's paper.
const CHANCES: u8 = 2;

/// The nodes and their server.
pub(crate) struct Private {
    kind: Kind,
    /// Whether a file's name and size need a token too.
    opens: bool,
    pools: Vec<Pool>,
    tokens: Tokens,
    /// Close-to-open: version of each file, and the version of each node's copies.
    files: HashMap<u64, u64>,
    known: HashMap<(usize, u64), u64>,
    /// Nodes with a copy of each page, for the variants in which the server knows them.
    copies: HashMap<PageId, u32>,
    /// Forwarded pages without a use since, and their remaining chances.
    chances: HashMap<PageId, u8>,
    rng: Rng,
    /// Time at which the last fill of each frame of each node was complete, ns.
    ready_ns: Vec<Vec<u64>>,
}

impl Private {
    pub(crate) fn new(kind: Kind, nodes: usize, pages: u32, opens: bool, shelf: &Shelf) -> Self {
        let protocol = Protocol {
            consistency: Consistency::Strong,
            replicate_after: 0,
        };
        let pool = || Pool::new(1, pages, protocol, shelf.clone());
        let pools: Vec<Pool> = (0..nodes).map(|_| pool()).collect();
        Self {
            kind,
            opens,
            ready_ns: vec![vec![0; pools[0].segment.frames() as usize]; nodes],
            pools,
            tokens: Tokens::default(),
            files: HashMap::new(),
            known: HashMap::new(),
            copies: HashMap::new(),
            chances: HashMap::new(),
            rng: Rng::new(1),
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
        if operation.session {
            meter.call();
        }
        let mut asked = false;
        match self.kind {
            Kind::CloseToOpen if operation.session => self.open(node, operation, meter),
            Kind::CloseToOpen | Kind::Virtiofs => {}
            Kind::Tokens(unit) => asked = self.take_tokens(node, operation, unit, meter),
            Kind::NChance => asked = self.take_tokens(node, operation, 1, meter),
        }
        let mut seen = Vec::new();
        if !operation.reads.is_empty() {
            let peers = self.peers(node, &operation.reads, asked, meter);
            let mut did = Did::default();
            self.pools[node].read(0, &operation.reads, &mut did);
            meter.call();
            self.charge(node, &did, &peers, meter);
            if self.kind == Kind::Virtiofs && !did.filled.is_empty() {
                meter.spent_ns += meter.machines.costs.virtiofs_ns;
            }
            seen.append(&mut did.seen);
            self.moved(node, &operation.reads, did.evicted, meter);
        }
        if !operation.writes.is_empty() {
            let mut did = Did::default();
            let pool = &mut self.pools[node];
            pool.write(0, &operation.writes, version, &mut did);
            meter.call();
            self.charge(node, &did, &HashMap::new(), meter);
            if self.kind == Kind::Virtiofs {
                meter.spent_ns += meter.machines.costs.virtiofs_ns;
            }
            self.moved(node, &operation.writes, did.evicted, meter);
        }
        let writes = !operation.writes.is_empty();
        let closes = self.kind == Kind::CloseToOpen && operation.session && writes;
        if operation.fsync || closes {
            let mut did = Did::default();
            self.pools[node].fsync(0, operation.inode, &mut did);
            meter.call();
            self.charge(node, &did, &HashMap::new(), meter);
            if self.kind == Kind::Virtiofs {
                meter.spent_ns += meter.machines.costs.virtiofs_ns;
            }
        }
        if closes {
            // The server sets the file's time; the node knows its own.
            meter.messages(2, 2, 1);
            let file = self.files.entry(operation.inode).or_default();
            *file += 1;
            self.known.insert((node, operation.inode), *file);
        }
        seen
    }

    /// Returns every place with a page, once.
    pub(crate) fn copies(&self) -> Vec<(PageId, u64)> {
        let pools = self.pools.iter().enumerate();
        let copies = pools.flat_map(|(node, pool)| {
            let copies = pool.copies();
            copies.map(move |(page, _)| (page, node as u64))
        });
        copies.collect()
    }

    /// Requests the file's version; copies of another version are dropped.
    fn open(&mut self, node: usize, operation: &Operation, meter: &mut Meter<'_>) {
        meter.messages(2, 2, 1);
        let version = self.files.get(&operation.inode).copied().unwrap_or(0);
        let known = self.known.insert((node, operation.inode), version);
        if known.is_some_and(|known| known != version) {
            for index in 0..operation.file_pages {
                let page = PageId {
                    inode: operation.inode,
                    index,
                };
                let evicted = self.pools[node].evict(page, &mut Did::default());
                meter.counts.invalidations += u64::from(evicted);
            }
        }
    }

    /// Requests the missing tokens of an operation, in one packet. Returns whether there were any.
    fn take_tokens(
        &mut self,
        node: usize,
        operation: &Operation,
        unit: u64,
        meter: &mut Meter<'_>,
    ) -> bool {
        let key = |page: &PageId| (page.inode, page.index / unit);
        let mut wanted: Vec<(Key, bool)> = Vec::new();
        if operation.session && self.opens {
            wanted.push(((operation.inode, ATTRIBUTES), operation.grows));
        }
        wanted.extend(operation.reads.iter().map(|page| (key(page), false)));
        wanted.extend(operation.writes.iter().map(|page| (key(page), true)));
        // Once for each range, for writing if any page needs that.
        wanted.sort_unstable();
        wanted.reverse();
        wanted.dedup_by_key(|(key, _)| *key);
        wanted.retain(|(key, write)| !self.tokens.has(node, *key, *write));
        if wanted.is_empty() {
            return false;
        }
        let mut nodes = BTreeSet::new();
        let (mut revoked, mut did) = (0, Did::default());
        for (key, write) in &wanted {
            for revoke in self.tokens.grant(node, *key, *write) {
                nodes.insert(revoke.node);
                revoked += 1;
                self.give_up(
                    revoke.node,
                    revoke.key,
                    unit,
                    revoke.may_read,
                    &mut did,
                    meter,
                );
            }
        }
        let (others, wanted) = (nodes.len() as u64, wanted.len() as u64);
        let round_trips = 1 + u64::from(others > 0);
        meter.messages(2 + 2 * others, 2 * wanted + 2 * revoked, round_trips);
        // Other nodes' unwritten data reaches the store before the token is granted.
        meter.store_writes(did.store_writes, true);
        true
    }

    /// Writes back the range of a token and drops it, unless the node may go on reading.
    fn give_up(
        &mut self,
        node: usize,
        (inode, range): Key,
        unit: u64,
        may_read: bool,
        did: &mut Did,
        meter: &mut Meter<'_>,
    ) {
        if range == ATTRIBUTES {
            return;
        }
        for index in range * unit..(range + 1) * unit {
            let page = PageId { inode, index };
            if self.pools[node].place(page).is_none() {
                continue;
            }
            self.pools[node].write_back(page, did);
            if !may_read {
                self.pools[node].evict(page, did);
                meter.counts.invalidations += 1;
                self.gone(node, page);
            }
        }
    }

    /// Returns pages that only other nodes have; the server is asked for them, unless that was
    /// done.
    fn peers(
        &mut self,
        node: usize,
        pages: &[PageId],
        asked: bool,
        meter: &mut Meter<'_>,
    ) -> HashMap<PageId, usize> {
        let mut peers = HashMap::new();
        if self.kind != Kind::NChance {
            return peers;
        }
        let pool = &self.pools[node];
        let missing: Vec<PageId> = pages
            .iter()
            .filter(|page| pool.place(**page).is_none())
            .copied()
            .collect();
        if !missing.is_empty() && !asked {
            meter.messages(2, 2 * missing.len() as u64, 1);
        }
        for page in missing {
            let holders = self.copies.get(&page).copied().unwrap_or(0);
            if holders != 0 {
                peers.insert(page, holders.trailing_zeros() as usize);
            }
        }
        peers
    }

    fn charge(
        &mut self,
        node: usize,
        did: &Did,
        peers: &HashMap<PageId, usize>,
        meter: &mut Meter<'_>,
    ) {
        let ready = &mut self.ready_ns[node];
        meter.counts.hits_local += did.hits_local;
        meter.counts.first_remote += peers.len() as u64;
        // A page from a peer was filled too, and a second time if it was evicted meanwhile.
        meter.store_reads(did.filled.len().saturating_sub(peers.len()) as u64);
        for peer in peers.values() {
            meter.remote(node, *peer);
        }
        meter.pool_writes(did);
        for frame in &did.filled {
            ready[*frame as usize] = meter.end_ns();
        }
        meter.local(did.unpublished);
        for frame in &did.used {
            meter.wait_until(ready[*frame as usize]);
            meter.local(1);
        }
    }

    /// Notifies the server of copies that changed; the last copy of a page gets another chance on
    /// another node.
    fn moved(&mut self, node: usize, used: &[PageId], evicted: Vec<PageId>, meter: &mut Meter<'_>) {
        if self.kind != Kind::NChance {
            return;
        }
        let mut going: VecDeque<(usize, PageId)> =
            evicted.into_iter().map(|page| (node, page)).collect();
        for page in used {
            // A node that has a page only for other nodes gives it to the first that wants it.
            if self.chances.remove(page).is_some() {
                let holders = self.copies.get(page).copied().unwrap_or(0) & !(1 << node);
                for holder in (0..self.pools.len()).filter(|holder| holders & (1 << holder) != 0) {
                    self.pools[holder].evict(*page, &mut Did::default());
                    self.gone(holder, *page);
                }
            }
            if self.pools[node].place(*page).is_some() {
                *self.copies.entry(*page).or_default() |= 1 << node;
            }
        }
        // A node reports all evictions in one packet, and gets all forwarded pages in one.
        let (mut left, mut takes, mut messages) = (BTreeSet::new(), BTreeSet::new(), 0);
        while let Some((from, page)) = going.pop_front() {
            if self.pools[from].place(page).is_some() {
                continue;
            }
            left.insert(from);
            messages += 1;
            if !self.gone(from, page) || self.pools.len() == 1 {
                continue;
            }
            let chances = self.chances.remove(&page).unwrap_or(CHANCES);
            if chances == 0 {
                continue;
            }
            let to = (from + 1 + self.rng.index(self.pools.len() - 1)) % self.pools.len();
            let mut did = Did::default();
            self.pools[to].read(0, &[page], &mut did);
            self.tokens.pass(from, to, (page.inode, page.index));
            self.chances.insert(page, chances - 1);
            self.copies.insert(page, 1 << to);
            takes.insert(to);
            messages += 1;
            // No program waits for the copy.
            meter.store_writes(did.store_writes, false);
            going.extend(did.evicted.into_iter().map(|page| (to, page)));
        }
        if messages > 0 {
            meter.messages((left.len() + takes.len()) as u64, messages, 0);
        }
    }

    /// Notes that a node has no copy any more. Returns whether it was the last one.
    fn gone(&mut self, node: usize, page: PageId) -> bool {
        let Some(holders) = self.copies.get_mut(&page) else {
            return false;
        };
        *holders &= !(1 << node);
        if *holders == 0 {
            self.copies.remove(&page);
            return true;
        }
        false
    }
}
