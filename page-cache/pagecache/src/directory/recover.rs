//! Restart of the directory: it rebuilds its state from the nodes' reports and the frames' headers.
//!
//! No lookup is answered before every earlier node has reported its mappings or is dead. An
//! unmapped page is still in its frame if the store may not have it. Other state is not needed: an
//! interrupted invalidation starts again when room is needed. A node may have a fill in progress,
//! which it continues, or a write-back, which it completes before a later one of that page.

use forebay_block::Result;

use super::entry::{STORABLE, WRITTEN, flags_of};
use super::{Config, Directory, Entry, Fault, Life, Outbox, Share, State, refused};
use crate::message::{Access, LockRange, NodeId, PageId, Place, ToDirectory, ToNode};

/// Generations of one start; the bits above are the epoch.
const EPOCH_SHIFT: u32 = 40;

/// A lock that a node had or waited for.
#[derive(Debug)]
struct Relock {
    node: NodeId,
    ticket: u64,
    range: LockRange,
    held: bool,
}

/// State of a recovery.
#[derive(Debug, Default)]
pub(super) struct Recovery {
    /// Nodes whose report is incomplete.
    awaited: u32,
    /// Those of them whose report has started.
    begun: u32,
    /// Nodes that joined without an answer.
    unheard: Vec<NodeId>,
    locks: Vec<Relock>,
    /// Messages of nodes that were ready before others.
    deferred: Vec<(NodeId, ToDirectory)>,
}

impl Directory {
    /// Creates a directory in place of one that ended. `epoch` must be larger than that of any
    /// earlier one. `shares` are the nodes of that time (see [`Directory::shares`]). Each living
    /// node must send the messages of [`crate::node::Node::rejoin`] or be declared dead. When no
    /// node is missing any more ([`Directory::awaited`]), the caller must call
    /// [`Directory::recovered`].
    ///
    /// # Errors
    /// As for [`Directory::new`].
    ///
    /// # Panics
    /// If a share reaches beyond the budget.
    pub fn recover(config: Config, epoch: u64, shares: &[Share]) -> Result<Self> {
        let mut directory = Self::new(config)?;
        directory.last_generation = epoch << EPOCH_SHIFT;
        let mut recovery = Recovery::default();
        for share in shares {
            assert!(
                share.first_frame + share.frames <= config.budget_pages,
                "a share beyond the budget: {share:?}"
            );
            directory.take_share(*share);
            if share.alive {
                recovery.awaited |= share.node.bit();
            }
        }
        directory.recovery = Some(recovery);
        Ok(directory)
    }

    /// Returns the set of nodes that a restarted directory waits for, or `None` after
    /// [`Directory::recovered`].
    #[must_use]
    pub fn awaited(&self) -> Option<u32> {
        self.recovery.as_ref().map(|missing| missing.awaited)
    }

    pub(super) fn receive_recovering(&mut self, from: NodeId, message: ToDirectory) -> Result<()> {
        let share = self.share(from);
        let Some(recovery) = &mut self.recovery else {
            return Ok(());
        };
        let bit = from.bit();
        let (awaited, begun) = (recovery.awaited & bit != 0, recovery.begun & bit != 0);
        match message {
            ToDirectory::Alive { .. }
            | ToDirectory::Dirty { .. }
            | ToDirectory::NotFlushed { .. }
            | ToDirectory::FlushedAll { .. }
                if share.is_some() => {}
            ToDirectory::Join { .. } if awaited && !begun => {
                recovery.unheard.push(from);
                recovery.awaited &= !bit;
            }
            ToDirectory::Join { .. } if share.is_none() => recovery.deferred.push((from, message)),
            ToDirectory::Rejoin {
                first_frame,
                frames,
            } if awaited && !begun => {
                let same =
                    |share: &Share| (share.first_frame, share.frames) == (first_frame, frames);
                if !share.as_ref().is_some_and(same) {
                    return Err(refused(from, &message, "these are not its frames"));
                }
                recovery.begun |= bit;
            }
            ToDirectory::Have {
                page,
                place,
                access,
            } if begun && awaited => {
                if !self.adopt(page, place, bit, access == Access::Write) {
                    let why = "the page is elsewhere, or another is there";
                    return Err(refused(from, &message, why));
                }
            }
            ToDirectory::Filling {
                page,
                place,
                access,
            } if begun && awaited => {
                if !self.adopt_fill(page, place, from, access) {
                    let why = "the page is elsewhere, or another is there";
                    return Err(refused(from, &message, why));
                }
            }
            ToDirectory::Relock {
                ticket,
                range,
                held,
            } if begun && awaited => recovery.locks.push(Relock {
                node: from,
                ticket,
                range,
                held,
            }),
            ToDirectory::HadAll {} if begun && awaited => recovery.awaited &= !bit,
            ToDirectory::Hello { .. }
            | ToDirectory::Join { .. }
            | ToDirectory::Rejoin { .. }
            | ToDirectory::Have { .. }
            | ToDirectory::Filling { .. }
            | ToDirectory::Relock { .. }
            | ToDirectory::HadAll {} => {
                return Err(refused(from, &message, "this is not the time for it"));
            }
            _ if awaited || !share.is_none_or(|share| share.alive) => {
                return Err(refused(from, &message, "its report is incomplete"));
            }
            // The join of a new node is deferred, too; a node without a join is refused later.
            _ => recovery.deferred.push((from, message)),
        }
        Ok(())
    }

    pub(super) fn died_recovering(&mut self, node: NodeId) {
        if let Some(recovery) = &mut self.recovery {
            recovery.awaited &= !node.bit();
            recovery.unheard.retain(|unheard| *unheard != node);
            recovery.locks.retain(|lock| lock.node != node);
            recovery.deferred.retain(|(from, _)| *from != node);
        }
    }

    /// Adopts a page at a place. Returns false if that contradicts the known state.
    fn adopt(&mut self, page: PageId, place: Place, sharers: u32, written: bool) -> bool {
        match self.find(page) {
            None if !self.take_place(page, place) => return false,
            None => self.link_warmest(place.frame),
            Some(frame) if frame != place.frame => return false,
            Some(_) => {}
        }
        let entry = &mut self.entries[place.frame as usize];
        if entry.generation != place.generation || entry.state == State::Exclusive {
            return false;
        }
        entry.sharers |= sharers;
        entry.flags |= if written { WRITTEN | STORABLE } else { 0 };
        entry.state = entry.published();
        true
    }

    /// Adopts a fill in progress. Returns false if that contradicts the known state.
    fn adopt_fill(&mut self, page: PageId, place: Place, holder: NodeId, access: Access) -> bool {
        if self.find(page).is_some() || !self.take_place(page, place) {
            return false;
        }
        let entry = &mut self.entries[place.frame as usize];
        (entry.state, entry.holder, entry.sharers) = (State::Exclusive, holder, holder.bit());
        entry.flags = flags_of(access);
        true
    }

    /// Gives a page a frame that has none. Returns false if it has one, or is in no share.
    fn take_place(&mut self, page: PageId, place: Place) -> bool {
        let is_known = place.generation <= self.last_generation;
        let is_inside = self.shares().any(|share| {
            (share.first_frame..share.first_frame + share.frames).contains(&place.frame)
        });
        if !is_known || !is_inside || self.entries[place.frame as usize].state != State::Invalid {
            return false;
        }
        let entry = &mut self.entries[place.frame as usize];
        *entry = Entry {
            page,
            generation: place.generation,
            ..Entry::free(entry.host)
        };
        let host = entry.host;
        self.members[host.index()].used += 1;
        let entries = &self.entries;
        let hasher = |frame: &u32| entries[*frame as usize].page.hash64();
        self.pages.insert_unique(page.hash64(), place.frame, hasher);
        true
    }

    /// Completes the recovery, after every earlier node has reported or is dead. `unsaved` is the
    /// current result of [`crate::segment::Segment::unsaved`] for all frames, after the stores of
    /// the dead were ended. `given_up` is that of [`crate::segment::Segment::given_up`], with the
    /// frames.
    ///
    /// # Panics
    /// If a node is missing, or no recovery is in progress.
    pub fn recovered(
        &mut self,
        mut unsaved: Vec<(PageId, Place)>,
        given_up: &[(PageId, u32)],
        out: &mut Outbox,
    ) {
        let recovery = self.recovery.take().expect("it was restarted");
        assert_eq!(recovery.awaited, 0, "a node is missing");
        if self.has(Fault::UnsavedForgotten) {
            unsaved.clear();
        }
        // The newest copy of a page first: any other was given up.
        unsaved.sort_by_key(|(_, place)| std::cmp::Reverse(place.generation));
        for (page, place) in unsaved.iter().copied() {
            let host = self
                .entries
                .get(place.frame as usize)
                .map(|entry| entry.host);
            let alive = host.is_some_and(|host| self.members[host.index()].life == Life::Alive);
            if self.at(place).is_some() {
                // The writer may be dead, and the other nodes only read it.
                self.entries[place.frame as usize].flags |= WRITTEN;
                continue;
            }
            let survives = alive || (host.is_some() && self.pooled());
            if !survives && self.find(page).is_none() {
                out.lost.push(page);
            }
            if !survives || !self.adopt(page, place, 0, true) {
                out.discarded.push(place.frame);
            }
        }
        let shares: Vec<Share> = self.shares().collect();
        for share in shares.iter().filter(|share| share.alive) {
            self.free_frames(share.node);
        }
        for node in recovery.unheard {
            if let Some(share) = self.share(node) {
                out.send(
                    node,
                    ToNode::Joined {
                        first_frame: share.first_frame,
                        frames: share.frames,
                        unpublished_pages: share.unpublished_pages,
                    },
                );
            }
        }
        self.recover_given_up(given_up, out);
        let in_frame = |frame: u32| {
            let mut unsaved = unsaved.iter().copied();
            unsaved.find(|(_, place)| place.frame == frame)
        };
        for share in shares.iter().filter(|share| !share.alive) {
            self.announce_death(share.node, &in_frame, out);
        }
        for lock in recovery.locks {
            self.locks
                .restore(lock.node, lock.ticket, lock.range, lock.held);
        }
        let granted = &mut |node, ticket| out.send(node, ToNode::Locked { ticket });
        self.locks.grant_all(granted);
        for (from, message) in recovery.deferred {
            if let Err(error) = self.receive(from, message, out) {
                out.refused.push((from, error));
            }
        }
        self.make_room(out);
    }

    /// Restores the pages that the directory before had given up in unforgotten memory: some nodes
    /// may not be notified of it.
    fn recover_given_up(&mut self, given_up: &[(PageId, u32)], out: &mut Outbox) {
        let holds = |share: &Share, frame: u32| {
            (share.first_frame..share.first_frame + share.frames).contains(&frame)
        };
        let dead: Vec<Share> = self.shares().filter(|share| !share.alive).collect();
        let of_dead = |frame: u32| dead.iter().any(|share| holds(share, frame));
        let given_up = given_up.iter().filter(|(_, frame)| of_dead(*frame));
        let (pages, mut frames): (Vec<PageId>, Vec<u32>) = given_up.copied().unzip();
        out.lost.extend(pages);
        frames.sort_unstable();
        // Without a pool, all nodes are notified of the death of the whole memory.
        if self.pooled() && !self.has(Fault::GivenUpForgotten) {
            self.announce_given_up(&frames, out);
        }
    }
}
