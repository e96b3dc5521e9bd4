//! Nodes, a directory, their memory and the store, run until idle after each operation. It uses the
//! library's own state machines, and counts all their effects. Several nodes are the distributed
//! cache. A single node is a private cache with the same code, eviction and memory.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use forebay_block::{Buf, Result};
use forebay_pagecache::directory::{self, Directory, Outbox};
use forebay_pagecache::message::{Access, NodeId, PageId, Place, ToDirectory, ToNode};
use forebay_pagecache::node::{self, Acquired, Consistency, Effect, Node, Ticket, WroteWhole};
use forebay_pagecache::segment::Segment;
use forebay_pagecache::store::{self, Store};

/// Bytes of a page here: enough to distinguish contents.
pub(crate) const PAGE: usize = 64;

/// Maximum number of unpublished pages of a node: all writes of one operation.
pub(crate) const UNPUBLISHED: u32 = 64;

/// The store: the version of each page, 0 if it was never written.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shelf {
    pages: Rc<RefCell<BTreeMap<PageId, u64>>>,
}

impl Shelf {
    pub(crate) fn version(&self, page: PageId) -> u64 {
        self.pages.borrow().get(&page).copied().unwrap_or(0)
    }
}

impl Store for Shelf {
    fn read_pages(&self, page: PageId, into: &mut [u8]) -> Result<()> {
        into.copy_from_slice(&bytes_of(self.version(page)));
        Ok(())
    }

    fn write_pages(&self, page: PageId, from: &[u8]) -> Result<()> {
        self.pages.borrow_mut().insert(page, version_in(from));
        Ok(())
    }

    fn sync(&self, _: u64) -> Result<()> {
        Ok(())
    }
}

fn bytes_of(version: u64) -> [u8; PAGE] {
    let mut bytes = [0; PAGE];
    bytes[..8].copy_from_slice(&version.to_le_bytes());
    bytes
}

fn version_in(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes[..8].try_into().expect("a page has a word"))
}

/// Options of the nodes of a pool.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Protocol {
    pub(crate) consistency: Consistency,
    /// Number of copies of a remote page after which a node wants a replica; 0 for no replicas.
    pub(crate) replicate_after: u32,
}

/// Effects of an operation.
#[derive(Debug, Default)]
pub(crate) struct Did {
    /// Pages that were mapped already, in the node's own memory and in other nodes'.
    pub(crate) hits_local: u64,
    pub(crate) hits_remote: u64,
    /// Pages that a lookup found in memory.
    pub(crate) found: u64,
    /// Frames that the node filled from the store.
    pub(crate) filled: Vec<u32>,
    /// Frames that it copied from or to.
    pub(crate) used: Vec<u32>,
    /// Pages that it wrote and did not publish.
    pub(crate) unpublished: u64,
    /// Round trips that it waited for.
    pub(crate) round_trips: u64,
    /// Pages written to the store, and those of them that the operation waited for.
    pub(crate) store_writes: u64,
    pub(crate) waited_writes: u64,
    /// Packets between nodes and directory, in both directions, and requested invalidations.
    pub(crate) packets: u64,
    pub(crate) messages: u64,
    pub(crate) invalidations: u64,
    /// Nodes that copied a page into a replica, and the page's frame.
    pub(crate) replicated: Vec<(usize, u32)>,
    /// Pages that left the memory of a node.
    pub(crate) evicted: Vec<PageId>,
    /// Pages that were read.
    pub(crate) seen: Vec<(PageId, u64)>,
}

/// The pool; see the module documentation.
pub(crate) struct Pool {
    directory: Directory,
    nodes: Vec<Node>,
    pub(crate) segment: Segment,
    shelf: Shelf,
    next_ticket: Ticket,
}

impl Pool {
    /// Creates `nodes` nodes of `pages` pages of memory each, including unpublished pages.
    pub(crate) fn new(nodes: usize, pages: u32, protocol: Protocol, shelf: Shelf) -> Self {
        let count = u32::try_from(nodes).expect("few");
        let frames = pages - UNPUBLISHED;
        let config = directory::Config {
            budget_pages: count * pages,
            free_low: count * frames / 64,
            free_high: count * frames / 32,
            placement: directory::Placement::Node,
        };
        let memory = Buf::zeroed(Segment::size_bytes(count * frames, PAGE));
        let mut pool = Self {
            directory: Directory::new(config).expect("a possible configuration"),
            nodes: Vec::new(),
            segment: Segment::new(memory, count * frames, PAGE).expect("it fits"),
            shelf,
            next_ticket: 0,
        };
        for number in 0..nodes {
            let mut effects = Vec::new();
            let config = node::Config {
                node: NodeId::new(u8::try_from(number).expect("few")).expect("at most 32"),
                consistency: protocol.consistency,
                frames,
                unpublished_pages: UNPUBLISHED,
                read_ahead_pages: 0,
                replicate_after: protocol.replicate_after,
            };
            pool.nodes.push(Node::new(config, &mut effects));
            pool.settle(number, effects, 0, &mut Did::default());
            let share = pool.nodes[number].share().expect("it has joined");
            let first = u32::try_from(number).expect("few") * frames;
            assert_eq!(share, first..first + frames, "all give as much");
        }
        pool
    }

    /// Returns the node of a frame.
    pub(crate) fn host(&self, frame: u32) -> usize {
        // All nodes have shares of equal size, one after another.
        let each = self.segment.frames() as usize / self.nodes.len();
        frame as usize / each
    }

    /// Returns the place of a page, if it is published.
    pub(crate) fn place(&self, page: PageId) -> Option<Place> {
        self.directory.page(page).map(|(_, place)| place)
    }

    /// Returns all pages in frames, replicas too, and all unpublished pages.
    pub(crate) fn copies(&self) -> impl Iterator<Item = (PageId, Option<Place>)> + '_ {
        self.nodes.iter().flat_map(|node| {
            let places = node.mappings().chain(node.replicas());
            let mapped = places.map(|(page, place)| (page, Some(place)));
            mapped.chain(node.unpublished_pages().map(|(page, _)| (page, None)))
        })
    }

    /// Reads pages on `node`.
    pub(crate) fn read(&mut self, node: usize, pages: &[PageId], did: &mut Did) {
        let mut missing = self.touch(node, pages, None, true, did);
        while !missing.is_empty() {
            missing = self.touch(node, &missing, None, false, did);
        }
    }

    /// Writes whole pages on `node`.
    pub(crate) fn write(&mut self, node: usize, pages: &[PageId], version: u64, did: &mut Did) {
        let (mut effects, mut waiting, mut in_place) = (Vec::new(), 0, Vec::new());
        for page in pages {
            let ticket = self.ticket();
            let bytes = bytes_of(version);
            match self.nodes[node].write_whole(*page, &bytes, ticket, &mut effects) {
                WroteWhole::Unpublished => did.unpublished += 1,
                WroteWhole::Publishing => waiting += 1,
                WroteWhole::InPlace => in_place.push(*page),
            }
        }
        self.settle(node, effects, waiting, did);
        let mut first = true;
        while !in_place.is_empty() {
            in_place = self.touch(node, &in_place, Some(version), first, did);
            first = false;
        }
    }

    /// Flushes a file on `node`.
    pub(crate) fn fsync(&mut self, node: usize, inode: u64, did: &mut Did) {
        let (ticket, mut effects) = (self.ticket(), Vec::new());
        self.nodes[node].fsync(inode, ticket, &mut effects);
        self.settle(node, effects, 1, did);
    }

    /// Closes a file on `node`.
    pub(crate) fn close(&mut self, node: usize, inode: u64, did: &mut Did) {
        let (ticket, mut effects) = (self.ticket(), Vec::new());
        self.nodes[node].close(inode, ticket, &mut effects);
        self.settle(node, effects, 1, did);
    }

    /// Evicts a page from all memory, with a write-back if it is dirty. Returns whether it was in
    /// memory.
    pub(crate) fn evict(&mut self, page: PageId, did: &mut Did) -> bool {
        let mut out = Outbox::default();
        let there = self.directory.evict(page, &mut out);
        let mut todo = VecDeque::new();
        self.deliver(out, &mut todo, did);
        self.rest(usize::MAX, todo, 0, did);
        there
    }

    /// Writes a page to the store if it is dirty, and keeps it.
    pub(crate) fn write_back(&mut self, page: PageId, did: &mut Did) {
        let Some(place) = self.place(page) else {
            return;
        };
        did.store_writes += u64::from(self.segment.is_dirty(place));
        store::write_back(
            &self.segment,
            &self.shelf,
            &[(page, place)],
            &mut Vec::new(),
        )
        .expect("the store does not fail");
    }

    /// Uses pages once in their frames, for a store of `version` or a read. Returns those that must
    /// be waited for.
    fn touch(
        &mut self,
        node: usize,
        pages: &[PageId],
        version: Option<u64>,
        first: bool,
        did: &mut Did,
    ) -> Vec<PageId> {
        let (mut effects, mut waiting) = (Vec::new(), Vec::new());
        for page in pages {
            let ticket = self.ticket();
            let acquired = match version {
                Some(_) => self.nodes[node].acquire(*page, Access::Write, ticket, &mut effects),
                None => self.nodes[node].acquire_copy(*page, ticket, &mut effects),
            };
            match acquired {
                Acquired::Mapped(place) => {
                    self.copy(node, *page, place, version, did);
                    let local = self.host(place.frame) == node;
                    did.hits_local += u64::from(first && local);
                    did.hits_remote += u64::from(first && !local);
                }
                Acquired::Unpublished => {
                    let bytes = self.nodes[node].unpublished(*page);
                    let bytes = bytes.expect("the node has just said so");
                    match version {
                        Some(version) => bytes.copy_from_slice(&bytes_of(version)),
                        None => did.seen.push((*page, version_in(bytes))),
                    }
                    did.unpublished += 1;
                }
                Acquired::Wait => waiting.push(*page),
            }
        }
        let filled = did.filled.len();
        self.settle(node, effects, waiting.len(), did);
        let filled = (did.filled.len() - filled) as u64;
        did.found += waiting.len() as u64 - filled;
        waiting
    }

    fn copy(
        &mut self,
        node: usize,
        page: PageId,
        place: Place,
        version: Option<u64>,
        did: &mut Did,
    ) {
        did.used.push(place.frame);
        match version {
            Some(version) => {
                let id = self.nodes[node].id();
                let written = self.segment.write(place, id, 0, &bytes_of(version));
                written.expect("a mapped page is there");
                self.nodes[node].stored(page, place);
            }
            None => {
                let mut bytes = [0; PAGE];
                let read = self.segment.read(place, &mut bytes);
                read.expect("a mapped page is there");
                did.seen.push((page, version_in(&bytes)));
            }
        }
    }

    const fn ticket(&mut self) -> Ticket {
        self.next_ticket += 1;
        self.next_ticket
    }

    /// Executes a node's effects and their consequences. The operation waits for `waits` results.
    fn settle(&mut self, node: usize, effects: Vec<Effect>, waits: usize, did: &mut Did) {
        if effects.is_empty() && waits == 0 {
            return;
        }
        let todo = effects.into_iter().map(|effect| (node, effect)).collect();
        self.rest(node, todo, waits, did);
    }

    /// Runs until no effect is left. In each round a node sends all its messages in one packet.
    fn rest(
        &mut self,
        asker: usize,
        mut todo: VecDeque<(usize, Effect)>,
        mut waits: usize,
        did: &mut Did,
    ) {
        let (mut round, writes) = (0, did.store_writes);
        loop {
            let mut packets: Vec<Vec<ToDirectory>> = vec![Vec::new(); self.nodes.len()];
            while let Some((node, effect)) = todo.pop_front() {
                match effect {
                    Effect::Send(message) => packets[node].push(message),
                    Effect::Ready(_) | Effect::Done { .. } => {
                        assert!(
                            !matches!(effect, Effect::Done { ok: false, .. }),
                            "nothing fails here"
                        );
                        assert!(node == asker && waits > 0, "nobody else waits");
                        waits -= 1;
                        if waits == 0 {
                            did.round_trips += round;
                            did.waited_writes += did.store_writes - writes;
                        }
                    }
                    work => {
                        let more = self.work(node, work, node == asker, did);
                        todo.extend(more.into_iter().map(|effect| (node, effect)));
                    }
                }
            }
            if packets.iter().all(Vec::is_empty) {
                break;
            }
            round += 1;
            let mut out = Outbox::default();
            for (node, messages) in packets.into_iter().enumerate() {
                did.packets += u64::from(!messages.is_empty());
                did.messages += messages.len() as u64;
                let id = self.nodes[node].id();
                for message in messages {
                    let taken = self.directory.receive(id, message, &mut out);
                    taken.expect("nodes say what correct nodes say");
                }
            }
            self.deliver(out, &mut todo, did);
        }
        assert_eq!(waits, 0, "all that is waited for comes");
    }

    fn deliver(&mut self, out: Outbox, todo: &mut VecDeque<(usize, Effect)>, did: &mut Did) {
        assert!(out.discarded.is_empty() && out.lost.is_empty() && out.written.is_empty());
        let mut receivers = 0_u32;
        for (to, message) in out.messages {
            receivers |= to.bit();
            did.messages += 1;
            if let ToNode::Invalidate { page, .. } = message {
                did.invalidations += 1;
                did.evicted.push(page);
            }
            let mut effects = Vec::new();
            let taken = self.nodes[to.index()].receive(message, &mut effects);
            taken.expect("the directory says what a correct one says");
            todo.extend(effects.into_iter().map(|effect| (to.index(), effect)));
        }
        did.packets += u64::from(receivers.count_ones());
    }

    /// Executes a fill, a merge or a write-back, as the library's client does.
    fn work(&mut self, node: usize, work: Effect, asked: bool, did: &mut Did) -> Vec<Effect> {
        let (id, mut out, mut scratch) = (self.nodes[node].id(), Vec::new(), vec![0; PAGE]);
        match work {
            Effect::Fill { page, place } => {
                let run = [(page, place)];
                store::fill(&self.segment, &self.shelf, id, &run, &mut scratch)
                    .expect("the store does not fail");
                assert!(asked, "only who asks fills");
                did.filled.push(place.frame);
                self.nodes[node].filled(page, true, &mut out);
            }
            Effect::FillUnpublished { page, place } => {
                let bytes = self.nodes[node].unpublished(page);
                scratch.copy_from_slice(bytes.expect("it is unpublished"));
                self.segment.fill(page, place, id, &scratch, false);
                did.used.push(place.frame);
                self.nodes[node].filled(page, true, &mut out);
            }
            Effect::Merge { page, place } => {
                let bytes = self.nodes[node].unpublished(page);
                scratch.copy_from_slice(bytes.expect("it is unpublished"));
                let merged = self.segment.write(place, id, 0, &scratch);
                merged.expect("the page is pinned");
                did.used.push(place.frame);
                self.nodes[node].merged(page, place, &mut out);
            }
            Effect::Copy { page, place, copy } => {
                let read = self.segment.read(place, &mut scratch);
                read.expect("no node stores into it");
                self.segment.fill(page, copy, id, &scratch, true);
                did.replicated.push((node, place.frame));
                self.nodes[node].copied(page, copy, true, &mut out);
            }
            Effect::WriteBack { page, place } => {
                did.store_writes += u64::from(self.segment.is_dirty(place));
                let run = [(page, place)];
                store::write_back(&self.segment, &self.shelf, &run, &mut scratch)
                    .expect("the store does not fail");
                self.nodes[node].written_back(place, true, &mut out);
            }
            Effect::Send(_) | Effect::Ready(_) | Effect::Done { .. } => {
                unreachable!("not work")
            }
        }
        out
    }
}
