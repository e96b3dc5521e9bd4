//! A node's side: which pages it maps and where, what it wrote and has not flushed, and what it waits for.
//!
//! A state machine like the directory: calls and messages go in, [`Effect`]s come out, and whoever drives it does
//! them (sends, reads the store into frames, writes pages back) and says when they are done. A page that is mapped
//! costs a table lookup and no message, wherever its frame is.

mod read_ahead;
mod receive;
mod rejoin;
mod sync;
mod table;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use crate::fault::{Fault, Faults};
use crate::message::{Access, LockRange, NodeId, PageId, Place, ToDirectory};
use read_ahead::Stream;
use sync::{Sync, Written};
use table::{Mapping, Table};

/// What a program's operation is called between a node and who drives it; the driver chooses, and does not use one
/// again while it is waited for.
pub type Ticket = u64;

/// When a write is seen by other nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consistency {
    /// A completed write is seen by every later read on any node.
    Strong,
    /// That holds for pages that are resident. A whole page written where none was may stay with its node until
    /// the file is closed or flushed, and a file's size is what it was when the file was opened.
    Relaxed,
}

/// How a node behaves.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The node's number.
    pub node: NodeId,
    /// When its writes are seen.
    pub consistency: Consistency,
    /// Frames that it gives to the cluster.
    pub frames: u32,
    /// Most pages that it holds unpublished.
    pub unpublished_pages: u32,
    /// Most pages that are read ahead of a sequential reader; 0 for none.
    pub read_ahead_pages: u64,
}

/// What a node wants done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Send it to the directory, in this order.
    Send(ToDirectory),
    /// Read the page from the store into the frame ([`crate::store::fill`]), then call [`Node::filled`].
    Fill {
        /// The page.
        page: PageId,
        /// Where.
        place: Place,
    },
    /// Put the unpublished page into the frame, not as clean, then call [`Node::filled`].
    FillUnpublished {
        /// The page.
        page: PageId,
        /// Where.
        place: Place,
    },
    /// Store the unpublished page over what is in the frame, then call [`Node::merged`].
    Merge {
        /// The page.
        page: PageId,
        /// Where; it is pinned.
        place: Place,
    },
    /// Write the page to the store if it is dirty ([`crate::store::write_back`]), then call
    /// [`Node::written_back`].
    WriteBack {
        /// The page.
        page: PageId,
        /// Where.
        place: Place,
    },
    /// Something has changed: try the operation again.
    Ready(Ticket),
    /// The operation is over.
    Done {
        /// Which.
        ticket: Ticket,
        /// Or it failed: an I/O error.
        ok: bool,
    },
}

/// Where a page can be used now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acquired {
    /// In a frame. Copy, and check the generation; or pin it before the next call to the node.
    Mapped(Place),
    /// With this node alone: [`Node::unpublished`].
    Unpublished,
    /// Not yet: [`Effect::Ready`] or a failed [`Effect::Done`] will follow.
    Wait,
}

/// What became of a page that was written whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WroteWhole {
    /// It is written, for this node; others see it when it is published.
    Unpublished,
    /// It is being published: [`Effect::Done`] will follow.
    Publishing,
    /// Nothing: acquire the page and store into it.
    InPlace,
}

/// What a node has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Uses of pages that were mapped, in this node's memory.
    pub hits_local: u64,
    /// The same in other nodes' memory.
    pub hits_remote: u64,
    /// Uses that had to wait for the directory.
    pub misses: u64,
    /// Pages that nobody asked for yet.
    pub read_ahead: u64,
}

/// A lookup that was sent and not answered, or its fill.
#[derive(Debug)]
struct Pending {
    /// What it was asked for.
    access: Access,
    /// What the directory allowed, once it has answered with a frame to fill.
    filling: Option<(Place, Access)>,
    waiting: Vec<Ticket>,
}

/// A page that was written whole and that the directory does not know of.
#[derive(Debug)]
struct Unpublished {
    bytes: Box<[u8]>,
    publishing: bool,
    /// The write that waits for it to be published.
    writer: Option<Ticket>,
}

/// The node. See the module's text.
#[derive(Debug)]
pub struct Node {
    config: Config,
    first_frame: u32,
    frames: u32,
    unpublished_max: usize,
    joined: bool,
    /// Who waits to leave.
    leaving: Option<Ticket>,
    /// Locks that were asked for, and whether they are held.
    locks: BTreeMap<Ticket, (LockRange, bool)>,
    mapped: Table,
    pending: BTreeMap<PageId, Pending>,
    unpublished: BTreeMap<PageId, Unpublished>,
    /// What this node wrote and has not flushed.
    unflushed: BTreeMap<PageId, Written>,
    stores: u64,
    /// Files of which something unflushed was lost, until a flush has said so.
    lost: BTreeSet<u64>,
    /// How often something of a file was lost.
    losses: BTreeMap<u64, u64>,
    syncs: Vec<Sync>,
    files: BTreeMap<u64, Stream>,
    /// Frames of who died: the first of a run, the first behind it, and whose.
    dead: BTreeMap<u32, (u32, NodeId)>,
    /// Whether some of them are new, and what was written into them has not been called lost.
    unsettled: bool,
    /// Counts invalidations: the directory is told which pages are in use once after each.
    pressure: u32,
    counts: Counts,
    pub(crate) faults: Faults,
}

impl Node {
    /// A node; its first effect is that it joins.
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
            pending: BTreeMap::new(),
            unpublished: BTreeMap::new(),
            unflushed: BTreeMap::new(),
            stores: 0,
            lost: BTreeSet::new(),
            losses: BTreeMap::new(),
            syncs: Vec::new(),
            files: BTreeMap::new(),
            dead: BTreeMap::new(),
            unsettled: false,
            pressure: 0,
            counts: Counts::default(),
            faults: Faults::default(),
        }
    }

    /// The node's number.
    #[must_use]
    pub const fn id(&self) -> NodeId {
        self.config.node
    }

    /// Its frames, once the directory has said which.
    #[must_use]
    pub fn share(&self) -> Option<std::ops::Range<u32>> {
        let frames = self.first_frame..self.first_frame + self.frames;
        self.joined.then_some(frames)
    }

    /// What was counted.
    #[must_use]
    pub const fn counts(&self) -> Counts {
        self.counts
    }

    /// The page, if it may be used that way now; else it is looked up and `ticket` is told when to try again.
    pub fn acquire(
        &mut self,
        page: PageId,
        access: Access,
        ticket: Ticket,
        out: &mut Vec<Effect>,
    ) -> Acquired {
        if let Some(unpublished) = self.unpublished.get(&page) {
            if !unpublished.publishing {
                return Acquired::Unpublished;
            }
            // Ours is newer than what others may have published: nobody here uses the page before ours is in it.
            self.look_up(page, Access::Write, out).waiting.push(ticket);
            return Acquired::Wait;
        }
        if let Some(mapping) = self.mapped.find_mut(page)
            && !mapping.leaving
            && mapping.access >= access
        {
            let place = mapping.place;
            if mapping.pressure != self.pressure {
                mapping.pressure = self.pressure;
                out.push(Effect::Send(ToDirectory::Used { place }));
            }
            if (self.first_frame..self.first_frame + self.frames).contains(&place.frame) {
                self.counts.hits_local += 1;
            } else {
                self.counts.hits_remote += 1;
            }
            return Acquired::Mapped(place);
        }
        self.counts.misses += 1;
        self.look_up(page, access, out).waiting.push(ticket);
        if access == Access::Read {
            self.read_ahead(page, out);
        }
        Acquired::Wait
    }

    /// Writes a page whole without reading it first, if it is neither mapped nor asked for and there is room.
    ///
    /// # Panics
    /// If `bytes` are not as many as an unpublished page has.
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

    /// The bytes of a page that only this node has.
    #[must_use]
    pub fn unpublished(&mut self, page: PageId) -> Option<&mut [u8]> {
        let unpublished = self.unpublished.get_mut(&page)?;
        Some(&mut unpublished.bytes)
    }

    /// Keeps a page mapped, for a view or a store, until [`Node::unpin`]. To be called right after
    /// [`Node::acquire`] gave the place.
    ///
    /// # Panics
    /// If the page is not mapped there.
    pub fn pin(&mut self, page: PageId) {
        let mapping = self
            .mapped
            .find_mut(page)
            .expect("only mapped pages are pinned");
        mapping.pins += 1;
    }

    /// Ends a pin. If the page was to go meanwhile, it goes now.
    ///
    /// # Panics
    /// If the page is not pinned.
    pub fn unpin(&mut self, page: PageId, out: &mut Vec<Effect>) {
        let pinned = self
            .mapped
            .find_mut(page)
            .filter(|mapping| mapping.pins > 0);
        let Some(mapping) = pinned else {
            assert!(
                self.faults.has(Fault::AcknowledgeMapped),
                "{page} is not pinned"
            );
            return;
        };
        mapping.pins -= 1;
        if mapping.leaving && mapping.pins == 0 {
            self.unmap(page, out);
        }
    }

    /// This node has stored into a page: a flush of the file will cover it.
    pub fn stored(&mut self, page: PageId, place: Place) {
        self.lose_unflushed();
        if self.is_lost(place) {
            self.lose(page.inode);
            return;
        }
        self.stores += 1;
        let store = self.stores;
        self.unflushed.insert(page, Written { store, place });
    }

    /// A fill has ended. If it failed, nobody gets the page and who waited for it here is told.
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

    /// An unpublished page was stored over the page that others had published first.
    pub fn merged(&mut self, page: PageId, place: Place, out: &mut Vec<Effect>) {
        self.published(page, place, out);
        self.unpin(page, out);
        let waiting = self.pending.remove(&page).map(|pending| pending.waiting);
        out.extend(waiting.into_iter().flatten().map(Effect::Ready));
    }

    /// A write-back has ended.
    pub fn written_back(&mut self, place: Place, ok: bool, out: &mut Vec<Effect>) {
        out.push(Effect::Send(ToDirectory::WrittenBack { place, ok }));
    }

    /// Asks for a lock on a range of pages; [`Effect::Done`] says that it is held.
    pub fn lock(&mut self, range: LockRange, ticket: Ticket, out: &mut Vec<Effect>) {
        self.locks.insert(ticket, (range, false));
        out.push(Effect::Send(ToDirectory::Lock { ticket, range }));
    }

    /// Lets go of a lock.
    pub fn unlock(&mut self, ticket: Ticket, out: &mut Vec<Effect>) {
        self.locks.remove(&ticket);
        out.push(Effect::Send(ToDirectory::Unlock { ticket }));
    }

    /// Every page that is mapped, with its place.
    pub fn mappings(&self) -> impl Iterator<Item = (PageId, Place)> + '_ {
        self.mapped
            .iter()
            .map(|mapping| (mapping.page, mapping.place))
    }

    /// Every page that only this node has, and whether it is being published.
    pub fn unpublished_pages(&self) -> impl ExactSizeIterator<Item = (PageId, bool)> + '_ {
        let pages = self.unpublished.iter();
        pages.map(|(page, unpublished)| (*page, unpublished.publishing))
    }

    /// Most pages that only this node may have.
    #[must_use]
    pub const fn unpublished_max(&self) -> usize {
        self.unpublished_max
    }

    /// The lookup of a page, sent if there is none yet.
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
        if let Some(mapping) = self.mapped.remove(page) {
            let place = mapping.place;
            out.push(Effect::Send(ToDirectory::Invalidated { place }));
        }
    }

    fn begin_publish(&mut self, page: PageId, out: &mut Vec<Effect>) {
        if let Some(unpublished) = self.unpublished.get_mut(&page)
            && !std::mem::replace(&mut unpublished.publishing, true)
        {
            self.look_up(page, Access::Write, out);
        }
    }

    /// An unpublished page is in a frame now.
    fn published(&mut self, page: PageId, place: Place, out: &mut Vec<Effect>) {
        let writer = self
            .unpublished
            .remove(&page)
            .and_then(|unpublished| unpublished.writer);
        self.stored(page, place);
        out.extend(writer.map(|ticket| Effect::Done { ticket, ok: true }));
        self.sync_published(page, out);
    }
}
