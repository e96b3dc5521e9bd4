//! The directory: location and sharers of each page, and the order in which they may change.
//!
//! It is a state machine without I/O, clock or threads: messages go in, messages come out. The
//! daemon passes it messages from sockets, the simulation from seeded links. Both run the same
//! code. `docs/internals/pagecache/orders.md` argues each order.

mod death;
mod entry;
mod evict;
mod locks;
mod members;
mod outbox;
mod protections;
mod publications;
mod recover;
mod replicas;
#[cfg(test)]
mod tests;
mod warmth;

use std::collections::{BTreeMap, VecDeque};

use forebay_block::{Error, ErrorKind, Result};
use hashbrown::HashTable;

use crate::fault::{Fault, Faults};
use crate::message::{Access, NODES_MAX, NodeId, PageId, Place, ToDirectory, ToNode};
pub use death::Unsaved;
pub use entry::State;
use entry::{Entry, NONE, SETTLED, STORABLE, WRITTEN};
use evict::Flushes;
use locks::RangeLocks;
pub use members::Held;
use members::{Life, Member};
pub use outbox::{Outbox, Share};
use protections::Protections;
use publications::Publications;
use recover::Recovery;
use replicas::Replicas;

/// Fate of pages in the memory of a node that dies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// They are lost: the memory belongs to the node's machine.
    #[default]
    Node,
    /// They stay and are written back: the memory outlives the nodes (a pool on the fabric, a file
    /// on tmpfs).
    Pool,
}

/// Memory limit of the cluster, and the marks for eviction.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Maximum number of pages in DRAM in the whole cluster, including unpublished ones.
    pub budget_pages: u32,
    /// Eviction starts when fewer frames than this are free or being freed.
    pub free_low: u32,
    /// Eviction continues until this many frames are free or being freed: the size of a batch.
    pub free_high: u32,
    /// Whether pages outlive the node in whose memory they are.
    pub placement: Placement,
}

/// Counters of the directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Lookups that found the page, local or remote.
    pub found: u64,
    /// Lookups that were answered with a frame to fill.
    pub filled: u64,
    /// Pages whose invalidation has started.
    pub invalidations: u64,
    /// Evicted pages.
    pub evicted: u64,
    /// Requested write-backs.
    pub write_backs: u64,
    /// Written pages into which no node stores without a lookup any more.
    pub protections: u64,
    /// Granted replicas.
    pub replicas: u64,
}

/// A waiting lookup.
#[derive(Clone, Copy, Debug)]
struct Waiter {
    node: NodeId,
    page: PageId,
    access: Access,
}

/// The directory; see the module documentation.
#[derive(Debug)]
pub struct Directory {
    config: Config,
    members: [Member; NODES_MAX as usize],
    entries: Vec<Entry>,
    /// Frames by their page.
    pages: HashTable<u32>,
    /// Published pages, from the least to the most recently used.
    coldest: u32,
    warmest: u32,
    published: u32,
    replicas: Replicas,
    /// Number of living nodes' frames that are being emptied.
    leaving: u32,
    last_generation: u64,
    /// Lookups that wait for a page to be published or evicted, by page.
    waiting: BTreeMap<PageId, VecDeque<Waiter>>,
    /// Lookups that wait for a free frame.
    room: VecDeque<Waiter>,
    /// Whether they may get one now.
    serves: bool,
    flushes: BTreeMap<u32, Flushes>,
    protections: Protections,
    publications: Publications,
    locks: RangeLocks,
    /// State of a recovery after a restart.
    recovery: Option<Recovery>,
    counts: Counts,
    pub(crate) faults: Faults,
}

impl Directory {
    /// Creates a directory without nodes and pages. All memory for pages is allocated here.
    ///
    /// # Errors
    /// `InvalidInput` if the marks of free frames are in the wrong order, or leave no room for a
    /// page.
    pub fn new(config: Config) -> Result<Self> {
        if config.free_low > config.free_high || config.free_high >= config.budget_pages {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                format!(
                    "page cache directory: free_low = {} and free_high = {} do not fit a budget of \
                     {} pages\n\
                     help: choose free_low <= free_high < budget",
                    config.free_low, config.free_high, config.budget_pages
                ),
            ));
        }
        let pages = config.budget_pages as usize;
        Ok(Self {
            config,
            members: [Member::NOBODY; NODES_MAX as usize],
            entries: Vec::with_capacity(pages),
            pages: HashTable::with_capacity(pages),
            coldest: NONE,
            warmest: NONE,
            published: 0,
            replicas: Replicas::NONE,
            leaving: 0,
            last_generation: 0,
            waiting: BTreeMap::new(),
            room: VecDeque::new(),
            serves: true,
            flushes: BTreeMap::new(),
            protections: Protections::default(),
            publications: Publications::default(),
            locks: RangeLocks::default(),
            recovery: None,
            counts: Counts::default(),
            faults: Faults::default(),
        })
    }

    /// Processes one message of a living node.
    ///
    /// # Errors
    /// `InvalidInput` if no correct node would send it now. The caller must close the connection
    /// and have the node declared dead. The state does not change.
    pub fn receive(&mut self, from: NodeId, message: ToDirectory, out: &mut Outbox) -> Result<()> {
        if self.recovery.is_some() {
            return self.receive_recovering(from, message);
        }
        let life = self.members[from.index()].life;
        let joins = matches!(message, ToDirectory::Join { .. });
        if life == Life::Dead || joins != (life == Life::Unknown) {
            return Err(refused(
                from,
                &message,
                "it has not joined, or did before: choose a new number",
            ));
        }
        match message {
            ToDirectory::Join {
                frames,
                unpublished_pages,
            } => self.join(from, frames, unpublished_pages, out),
            ToDirectory::Lookup { page, access } => {
                self.lookup(
                    Waiter {
                        node: from,
                        page,
                        access,
                    },
                    out,
                );
            }
            ToDirectory::Publish { place } => {
                self.filling(from, place, &message)?;
                self.publish(place.frame, out);
            }
            ToDirectory::Abandon { place } => {
                self.filling(from, place, &message)?;
                self.release(place.frame, false, out);
            }
            ToDirectory::Invalidated { place } => {
                let sharer = |entry: &Entry| {
                    entry.state == State::ToBeInvalidated && entry.sharers & from.bit() != 0
                };
                if !self.at(place).is_some_and(sharer) {
                    if self.has(Fault::ReuseBeforeAcknowledged) || self.has(Fault::RefillMapped) {
                        return Ok(());
                    }
                    return Err(refused(from, &message, "it was not requested"));
                }
                self.acknowledged(from, place.frame, out);
            }
            ToDirectory::WrittenBack { place, ok } => {
                let owner = |entry: &Entry| entry.host == from && entry.is(entry::WRITING);
                if !self.at(place).is_some_and(owner) {
                    return Err(refused(from, &message, "it was not requested"));
                }
                self.written_back(place.frame, ok, out);
            }
            ToDirectory::Flush { page, place } => {
                let filled = |entry: &Entry| {
                    !matches!(entry.state, State::Exclusive | State::Replica) && entry.page == page
                };
                if !self.at(place).is_none_or(filled) {
                    return Err(refused(
                        from,
                        &message,
                        "the page was not there to be written",
                    ));
                }
                self.flush(from, page, place, out);
            }
            ToDirectory::Used { place } => {
                // The page may have been evicted meanwhile.
                let published = |entry: &Entry| entry.state.is_published();
                if self.at(place).is_some_and(published) {
                    self.unlink(place.frame);
                    self.link_warmest(place.frame);
                }
            }
            ToDirectory::Replicate { place } => self.replicate(from, place, out),
            ToDirectory::Dropped { place } => {
                let replica = |entry: &Entry| entry.state == State::Replica && entry.host == from;
                if !self.at(place).is_some_and(replica) {
                    return Err(refused(from, &message, "it has no such replica"));
                }
                self.release_replica(place.frame, out);
            }
            ToDirectory::Protected { place, ok } => self.protected(from, place, ok, out),
            ToDirectory::PublishAll { ticket, inode } => {
                self.publish_all(from, ticket, inode, out);
            }
            ToDirectory::PublishedFile { request } => self.published_file(from, request, out),
            ToDirectory::Lock { ticket, range } => {
                if range.start >= range.end {
                    return Err(refused(from, &message, "the range is empty"));
                }
                let granted = &mut |node, ticket| out.send(node, ToNode::Locked { ticket });
                self.locks.lock(from, ticket, range, granted);
            }
            ToDirectory::Unlock { ticket } => {
                let granted = &mut |node, ticket| out.send(node, ToNode::Locked { ticket });
                let gone = |node, lock| node == from && lock == ticket;
                if self.locks.release(gone, granted) == 0 {
                    return Err(refused(from, &message, "the lock does not exist"));
                }
            }
            // For the directory's process.
            ToDirectory::Alive { .. }
            | ToDirectory::Dirty { .. }
            | ToDirectory::NotFlushed { .. }
            | ToDirectory::FlushedAll { .. } => {}
            ToDirectory::Leave {} => self.leave(from, out),
            ToDirectory::Forgotten { node } => self.forgotten(from, node, out),
            ToDirectory::Hello { .. }
            | ToDirectory::Rejoin { .. }
            | ToDirectory::Have { .. }
            | ToDirectory::Filling { .. }
            | ToDirectory::Relock { .. }
            | ToDirectory::HadAll {} => {
                return Err(refused(from, &message, "this is not the time for it"));
            }
        }
        self.make_room(out);
        if self.pooled() {
            // The last page may have left a dead node's memory.
            self.forget_dead(out);
        }
        Ok(())
    }

    /// Returns the counters.
    #[must_use]
    pub const fn counts(&self) -> Counts {
        self.counts
    }

    /// Returns the page's state and place, if it is in memory.
    #[must_use]
    pub fn page(&self, page: PageId) -> Option<(State, Place)> {
        let frame = self.find(page)?;
        let entry = self.entries[frame as usize];
        Some((entry.state, entry.place(frame)))
    }

    /// Returns the memory allocated for the pages of the whole budget, bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Entry>() + self.pages.allocation_size()
    }

    /// Answers a lookup, or queues it.
    fn lookup(&mut self, waiter: Waiter, out: &mut Outbox) {
        let Waiter { node, page, access } = waiter;
        let Some(frame) = self.find(page) else {
            match self.take_frame(node) {
                Some(frame) => self.fill(frame, waiter, out),
                None => self.room.push_back(waiter),
            }
            return;
        };
        let is_premature = self.has(Fault::ReplicaNotRevoked);
        let entry = &mut self.entries[frame as usize];
        if !entry.state.is_published() {
            self.waiting.entry(page).or_default().push_back(waiter);
            return;
        }
        if access == Access::Write && entry.replicas != 0 && !is_premature {
            self.revoke_replicas(frame, out);
            self.waiting.entry(page).or_default().push_back(waiter);
            return;
        }
        if access == Access::Write {
            self.cancel_protection(frame);
        }
        let is_protected = self.is_being_protected(frame);
        let entry = &mut self.entries[frame as usize];
        entry.sharers |= node.bit();
        entry.state = entry.published();
        if access == Access::Write {
            entry.flags |= WRITTEN | STORABLE;
            entry.flags &= !SETTLED;
        }
        // Once one node may store, all may, so that other nodes need not ask again.
        let access = if entry.is(STORABLE) && !is_protected {
            Access::Write
        } else {
            Access::Read
        };
        let place = entry.place(frame);
        self.counts.found += 1;
        self.unlink(frame);
        self.link_warmest(frame);
        out.send(
            node,
            ToNode::Map {
                page,
                place,
                access,
            },
        );
    }

    /// Takes a frame of the node that asks, if it has a free one, else of the node with the most
    /// free frames.
    fn take_frame(&mut self, node: NodeId) -> Option<u32> {
        let by_room = |index: &usize| (self.members[*index].free, std::cmp::Reverse(*index));
        let host = match self.members[node.index()].free {
            0 => (0..self.members.len()).max_by_key(by_room)?,
            _ => node.index(),
        };
        self.take_frame_of(host)
    }

    /// Takes a free frame of a node.
    fn take_frame_of(&mut self, host: usize) -> Option<u32> {
        let member = &mut self.members[host];
        if member.free == 0 {
            return None;
        }
        let frame = member.free_head;
        member.free_head = self.entries[frame as usize].after;
        member.free -= 1;
        member.used += 1;
        Some(frame)
    }

    fn fill(&mut self, frame: u32, waiter: Waiter, out: &mut Outbox) {
        let Waiter { node, page, access } = waiter;
        self.last_generation += 1;
        let entry = &mut self.entries[frame as usize];
        *entry = Entry {
            page,
            generation: self.last_generation,
            sharers: node.bit(),
            holder: node,
            state: State::Exclusive,
            flags: entry::flags_of(access),
            ..Entry::free(entry.host)
        };
        let place = entry.place(frame);
        let entries = &self.entries;
        let hasher = |frame: &u32| entries[*frame as usize].page.hash64();
        self.pages.insert_unique(page.hash64(), frame, hasher);
        self.counts.filled += 1;
        out.send(
            node,
            ToNode::Fill {
                page,
                place,
                access,
            },
        );
    }

    fn publish(&mut self, frame: u32, out: &mut Outbox) {
        let entry = &mut self.entries[frame as usize];
        entry.state = entry.published();
        let page = entry.page;
        let host = self.members[entry.host.index()];
        self.link_warmest(frame);
        if host.life == Life::Dead {
            self.invalidate(frame, out);
        } else if host.leaving {
            self.leaving += 1;
            self.invalidate(frame, out);
        }
        self.wake(page, out);
    }

    /// Retries the lookups that wait for `page`.
    fn wake(&mut self, page: PageId, out: &mut Outbox) {
        for waiter in self.waiting.remove(&page).unwrap_or_default() {
            self.lookup(waiter, out);
        }
    }

    /// Gives free frames to waiting lookups, in order of arrival.
    fn serve_room(&mut self, out: &mut Outbox) {
        while self.serves
            && self.free() > 0
            && let Some(waiter) = self.room.pop_front()
        {
            self.lookup(waiter, out);
        }
    }

    fn free(&self) -> u32 {
        self.members.iter().map(|member| member.free).sum()
    }

    fn find(&self, page: PageId) -> Option<u32> {
        let same = |frame: &u32| self.entries[*frame as usize].page == page;
        self.pages.find(page.hash64(), same).copied()
    }

    /// Returns the entry, if the frame still has the generation of `place`.
    fn at(&self, place: Place) -> Option<&Entry> {
        let entry = self.entries.get(place.frame as usize)?;
        let same = entry.state != State::Invalid && entry.generation == place.generation;
        same.then_some(entry)
    }

    fn filling(&self, from: NodeId, place: Place, message: &ToDirectory) -> Result<()> {
        let holder = |entry: &Entry| entry.state == State::Exclusive && entry.holder == from;
        if self.at(place).is_some_and(holder) {
            Ok(())
        } else {
            Err(refused(from, message, "it does not fill that frame"))
        }
    }

    /// Returns whether pages outlive their nodes.
    pub(super) fn pooled(&self) -> bool {
        self.config.placement == Placement::Pool
    }

    const fn has(&self, fault: Fault) -> bool {
        self.faults.has(fault)
    }
}

fn refused(from: NodeId, message: &ToDirectory, why: &str) -> Error {
    Error::new(
        ErrorKind::InvalidInput,
        format!("page cache directory: {from} sent {message:?}: {why}"),
    )
}
