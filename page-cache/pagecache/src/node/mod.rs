//! State machine of a node: the pages that it maps, its unflushed writes, and the operations that
//! wait.
//!
//! Calls and messages go in, [`Effect`]s come out. The driver executes the effects (sends messages,
//! fills frames from the store, writes pages back) and reports their end. The use of a mapped page
//! costs a table lookup and no message, wherever its frame is.

mod acquire;
mod cancel;
mod publish;
mod read_ahead;
mod receive;
mod rejoin;
mod replicas;
mod sync;
mod table;
#[cfg(test)]
mod tests;
mod unflushed;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use crate::fault::{Fault, Faults};
use crate::message::{Access, LockRange, NodeId, PageId, Place, ToDirectory};
use read_ahead::Stream;
use replicas::Replicas;
pub use sync::KnownLosses;
use sync::Sync;
use table::{Mapping, Table};
pub use unflushed::Dirty;
use unflushed::Unflushed;

/// Number of a program's operation. The driver chooses it, and does not reuse it while the
/// operation waits.
pub type Ticket = u64;

/// Visibility of a write on other nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consistency {
    /// A completed write is visible to every later read on any node.
    Strong,
    /// As `Strong` for pages in memory. If a page is not in memory, a whole-page write may stay
    /// with its node until the file is closed or flushed.
    Relaxed,
}

/// Configuration of a node.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Number of the node.
    pub node: NodeId,
    /// Visibility of its writes.
    pub consistency: Consistency,
    /// Number of frames that it offers to the cluster.
    pub frames: u32,
    /// Maximum number of unpublished pages.
    pub unpublished_pages: u32,
    /// Maximum number of pages of a read-ahead; 0 disables it.
    pub read_ahead_pages: u64,
    /// Number of copies of a page from another node's memory after which the node wants a replica;
    /// 0 for no replicas.
    pub replicate_after: u32,
}

/// Action that the driver must execute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Send the message to the directory, in this order.
    Send(ToDirectory),
    /// Read the page from the store into the frame ([`crate::store::fill`]), then call
    /// [`Node::filled`].
    Fill {
        /// The page.
        page: PageId,
        /// Place of the page.
        place: Place,
    },
    /// Copy the unpublished page into the frame, not as clean, then call [`Node::filled`].
    FillUnpublished {
        /// The page.
        page: PageId,
        /// Place of the page.
        place: Place,
    },
    /// Store the unpublished page over the content of the frame, then call [`Node::merged`].
    Merge {
        /// The page.
        page: PageId,
        /// Place of the page, which is pinned.
        place: Place,
    },
    /// Copy the page into its replica, as clean, then call [`Node::copied`]. Do so at once, before
    /// any message of a later effect is sent: the replica's frame may be dropped by one.
    Copy {
        /// The page.
        page: PageId,
        /// Place of the page.
        place: Place,
        /// Place of the replica.
        copy: Place,
    },
    /// Write the page to the store if it is dirty ([`crate::store::write_back`]), then call
    /// [`Node::written_back`].
    WriteBack {
        /// The page.
        page: PageId,
        /// Place of the page.
        place: Place,
    },
    /// The state has changed: retry the operation.
    Ready(Ticket),
    /// The operation has ended.
    Done {
        /// Ticket of the operation.
        ticket: Ticket,
        /// Whether it succeeded; if not, with an I/O error.
        ok: bool,
    },
}

/// Place where a page can be used now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acquired {
    /// In a frame. Copy and check the generation, or pin it before the next call to the node.
    Mapped(Place),
    /// On this node only: [`Node::unpublished`].
    Unpublished,
    /// Not yet: [`Effect::Ready`] or a failed [`Effect::Done`] will follow.
    Wait,
}

/// Outcome of a whole-page write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WroteWhole {
    /// The page is written for this node. Other nodes see it when it is published.
    Unpublished,
    /// The page is being published: [`Effect::Done`] will follow.
    Publishing,
    /// Nothing was done: acquire the page and store into it.
    InPlace,
}

/// Counters of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Uses of mapped pages in this node's memory.
    pub hits_local: u64,
    /// Uses of mapped pages in other nodes' memory.
    pub hits_remote: u64,
    /// Uses that had to wait for the directory.
    pub misses: u64,
    /// Pages that were read ahead.
    pub read_ahead: u64,
    /// Writes of a page by this node that the store refused, and failed syncs.
    pub write_back_failures: u64,
    /// Pages that this node wrote and that were lost before they were in the store.
    pub lost_pages: u64,
}

/// A lookup without an answer, or its fill.
#[derive(Debug)]
struct Pending {
    /// Requested access.
    access: Access,
    /// Granted place and access, once the directory has answered with a frame to fill.
    filling: Option<(Place, Access)>,
    waiting: Vec<Ticket>,
}

/// A page that was written whole and is unknown to the directory.
#[derive(Debug)]
struct Unpublished {
    bytes: Box<[u8]>,
    /// [Time](Node::set_time) of its first write.
    since: Duration,
    publishing: bool,
    /// Write that waits for the publication.
    writer: Option<Ticket>,
}

/// The node; see the module documentation.
#[derive(Debug)]
pub struct Node {
    config: Config,
    first_frame: u32,
    frames: u32,
    unpublished_max: usize,
    joined: bool,
    /// Operation that waits to leave.
    leaving: Option<Ticket>,
    /// Requested locks, and whether they are held.
    locks: BTreeMap<Ticket, (LockRange, bool)>,
    mapped: Table,
    replicas: Replicas,
    pending: BTreeMap<PageId, Pending>,
    unpublished: BTreeMap<PageId, Unpublished>,
    /// Unflushed writes of this node.
    unflushed: Unflushed,
    stores: u64,
    /// Time by which the age of unflushed writes is counted.
    time: Duration,
    /// Files with lost writes that no flush has reported yet.
    lost: BTreeSet<u64>,
    /// Number of losses of each file.
    losses: BTreeMap<u64, u64>,
    syncs: Vec<Sync>,
    /// Requested publications by all nodes, with their files.
    publications: BTreeMap<Ticket, u64>,
    /// Requests of the directory to flush all files.
    flush_requests: VecDeque<u64>,
    files: BTreeMap<u64, Stream>,
    /// Frames of dead nodes: start of a run, its end, and the node.
    dead: BTreeMap<u32, (u32, NodeId)>,
    /// Whether there are new dead frames whose unflushed writes were not declared lost yet.
    unsettled: bool,
    /// Number of invalidations. Pages in use are reported to the directory once after each.
    pressure: u32,
    counts: Counts,
    pub(crate) faults: Faults,
}

impl Node {
    /// Creates a node. Its first effect is the join.
    #[must_use]
    pub fn new(config: Config, out: &mut Vec<Effect>) -> Self {
        out.push(Effect::Send(ToDirectory::Join {
            frames: config.frames,
            unpublished_pages: config.unpublished_pages,
        }));
        Self {
            config,
            first_frame: 0,
            frames: 0,
            unpublished_max: 0,
            joined: false,
            leaving: None,
            locks: BTreeMap::new(),
            mapped: Table::default(),
            replicas: Replicas::default(),
            pending: BTreeMap::new(),
            unpublished: BTreeMap::new(),
            unflushed: Unflushed::default(),
            stores: 0,
            time: Duration::ZERO,
            lost: BTreeSet::new(),
            losses: BTreeMap::new(),
            syncs: Vec::new(),
            publications: BTreeMap::new(),
            flush_requests: VecDeque::new(),
            files: BTreeMap::new(),
            dead: BTreeMap::new(),
            unsettled: false,
            pressure: 0,
            counts: Counts::default(),
            faults: Faults::default(),
        }
    }

    /// Returns the node's number.
    #[must_use]
    pub const fn id(&self) -> NodeId {
        self.config.node
    }

    /// Returns its frames, once the directory has assigned them.
    #[must_use]
    pub fn share(&self) -> Option<std::ops::Range<u32>> {
        let frames = self.first_frame..self.first_frame + self.frames;
        self.joined.then_some(frames)
    }

    /// Returns the counters.
    #[must_use]
    pub const fn counts(&self) -> Counts {
        self.counts
    }

    /// Writes a whole page without reading it first, if it is neither mapped nor looked up and
    /// there is room.
    ///
    /// # Panics
    /// If `bytes` does not have the length of a page.
    pub fn write_whole(
        &mut self,
        page: PageId,
        bytes: &[u8],
        ticket: Ticket,
        out: &mut Vec<Effect>,
    ) -> WroteWhole {
        if let Some(unpublished) = self.unpublished.get_mut(&page) {
            if unpublished.publishing {
                return WroteWhole::InPlace;
            }
            unpublished.bytes.copy_from_slice(bytes);
            return WroteWhole::Unpublished;
        }
        let known = self.mapped.find(page).is_some() || self.pending.contains_key(&page);
        if known || self.unpublished.len() >= self.unpublished_max {
            return WroteWhole::InPlace;
        }
        let strong = self.config.consistency == Consistency::Strong;
        let unpublished = Unpublished {
            bytes: bytes.into(),
            since: self.time,
            publishing: false,
            writer: strong.then_some(ticket),
        };
        self.unpublished.insert(page, unpublished);
        if !strong {
            return WroteWhole::Unpublished;
        }
        self.begin_publish(page, out);
        WroteWhole::Publishing
    }

    /// Returns the bytes of a page that only this node has.
    #[must_use]
    pub fn unpublished(&mut self, page: PageId) -> Option<&mut [u8]> {
        let unpublished = self.unpublished.get_mut(&page)?;
        Some(&mut unpublished.bytes)
    }

    /// Notes the end of a fill. After a failure no node gets the page, and the waiting operations
    /// here fail.
    pub fn filled(&mut self, page: PageId, ok: bool, out: &mut Vec<Effect>) {
        let Some(pending) = self.pending.remove(&page) else {
            return;
        };
        let Some((place, access)) = pending.filling else {
            return;
        };
        if !ok {
            out.push(Effect::Send(ToDirectory::Abandon { place }));
            let failed = |ticket| Effect::Done { ticket, ok: false };
            out.extend(pending.waiting.into_iter().map(failed));
            return;
        }
        self.map(page, place, access);
        if !self.faults.has(Fault::PublishUnfilled) {
            out.push(Effect::Send(ToDirectory::Publish { place }));
        }
        if self.unpublished.contains_key(&page) {
            self.published(page, place, out);
        }
        out.extend(pending.waiting.into_iter().map(Effect::Ready));
    }

    /// Notes that an unpublished page was stored over the page that another node had published
    /// first.
    pub fn merged(&mut self, page: PageId, place: Place, out: &mut Vec<Effect>) {
        self.published(page, place, out);
        self.unpin(page, out);
        let waiting = self.pending.remove(&page).map(|pending| pending.waiting);
        out.extend(waiting.into_iter().flatten().map(Effect::Ready));
    }

    /// Notes the end of a write-back.
    pub fn written_back(&mut self, place: Place, ok: bool, out: &mut Vec<Effect>) {
        self.counts.write_back_failures += u64::from(!ok);
        out.push(Effect::Send(ToDirectory::WrittenBack { place, ok }));
    }

    /// Requests the lock of a range of pages. [`Effect::Done`] reports that it is held.
    pub fn lock(&mut self, range: LockRange, ticket: Ticket, out: &mut Vec<Effect>) {
        self.locks.insert(ticket, (range, false));
        out.push(Effect::Send(ToDirectory::Lock { ticket, range }));
    }

    /// Releases a lock.
    pub fn unlock(&mut self, ticket: Ticket, out: &mut Vec<Effect>) {
        self.locks.remove(&ticket);
        out.push(Effect::Send(ToDirectory::Unlock { ticket }));
    }

    /// Returns all mapped pages with their places.
    pub fn mappings(&self) -> impl Iterator<Item = (PageId, Place)> + '_ {
        self.mapped
            .iter()
            .map(|mapping| (mapping.page, mapping.place))
    }

    /// Returns all pages that only this node has, and whether each is being published.
    pub fn unpublished_pages(&self) -> impl ExactSizeIterator<Item = (PageId, bool)> + '_ {
        let pages = self.unpublished.iter();
        pages.map(|(page, unpublished)| (*page, unpublished.publishing))
    }

    /// Returns the maximum number of unpublished pages.
    #[must_use]
    pub const fn unpublished_max(&self) -> usize {
        self.unpublished_max
    }

    /// Returns the lookup of a page, and sends it if there is none.
    fn look_up(&mut self, page: PageId, access: Access, out: &mut Vec<Effect>) -> &mut Pending {
        self.pending.entry(page).or_insert_with(|| {
            out.push(Effect::Send(ToDirectory::Lookup { page, access }));
            Pending {
                access,
                filling: None,
                waiting: Vec::new(),
            }
        })
    }

    fn map(&mut self, page: PageId, place: Place, access: Access) {
        self.mapped.insert(Mapping {
            page,
            place,
            access,
            pins: 0,
            leaving: false,
            pressure: self.pressure,
        });
    }

    fn unmap(&mut self, page: PageId, out: &mut Vec<Effect>) {
        self.drop_replica(page, out);
        if let Some(mapping) = self.mapped.remove(page) {
            let place = mapping.place;
            out.push(Effect::Send(ToDirectory::Invalidated { place }));
        }
    }
}
