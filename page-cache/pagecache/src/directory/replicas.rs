//! Replicas: copies of pages in idle frames of nodes that read them often.
//!
//! Only the frame's own node reads a replica. The directory grants one while no node may store into
//! the page, and no store is permitted before all replicas are dropped. So a replica has the
//! content of its page at any time. Replicas are the first to leave when frames are needed.

use super::entry::{Entry, NONE, RECLAIMED, SETTLED, STORABLE};
use super::{Directory, Outbox, State};
#[cfg(test)]
use crate::message::PageId;
use crate::message::{NodeId, Place, ToNode, nodes};

/// List of the replicas, from the oldest to the newest, through [`Entry::before`] and
/// [`Entry::after`]. Reclaimed ones are not in it.
#[derive(Debug)]
pub(super) struct Replicas {
    oldest: u32,
    newest: u32,
}

impl Replicas {
    pub(super) const NONE: Self = Self {
        oldest: NONE,
        newest: NONE,
    };
}

impl Directory {
    /// Grants a node a replica in a frame of its own, if it has an idle one and no node may store
    /// into the page. If nodes may, but the page was written back since it was last written, they
    /// are asked to look it up before the next store. The replica is granted then.
    pub(super) fn replicate(&mut self, from: NodeId, place: Place, out: &mut Outbox) {
        let may_have = |entry: &&Entry| {
            entry.state.is_published()
                && (!entry.is(STORABLE) || entry.is(SETTLED))
                && entry.host != from
                && entry.sharers & from.bit() != 0
                && entry.replicas & from.bit() == 0
        };
        // The page may have been evicted, or written, meanwhile.
        let Some(Entry { page, flags, .. }) = self.at(place).filter(may_have).copied() else {
            return;
        };
        // A lookup that waits wants to store.
        if self.free() <= self.config.free_high || self.waiting.contains_key(&page) {
            return;
        }
        if flags & STORABLE != 0 {
            self.protect(place.frame, from, out);
            return;
        }
        let Some(frame) = self.take_frame_of(from.index()) else {
            return;
        };
        self.last_generation += 1;
        let entry = &mut self.entries[frame as usize];
        *entry = Entry {
            page,
            generation: self.last_generation,
            sharers: from.bit(),
            state: State::Replica,
            ..Entry::free(from)
        };
        let copy = entry.place(frame);
        self.link_newest(frame);
        self.entries[place.frame as usize].replicas |= from.bit();
        self.counts.replicas += 1;
        out.send(from, ToNode::Replica { page, place, copy });
    }

    /// Asks all nodes with a replica of the page in this frame to drop it. Lookups that wait for
    /// the page are retried when the last one is dropped.
    pub(super) fn revoke_replicas(&mut self, frame: u32, out: &mut Outbox) {
        let Entry { page, replicas, .. } = self.entries[frame as usize];
        if self.waiting.contains_key(&page) {
            // They have been asked.
            return;
        }
        let place = self.entries[frame as usize].place(frame);
        for node in nodes(replicas) {
            out.send(node, ToNode::DropReplica { page, place });
        }
    }

    /// Reclaims the oldest replicas. Returns the number of frames that this will free, at most
    /// `wanted`.
    pub(super) fn reclaim_replicas(&mut self, wanted: u32, out: &mut Outbox) -> u32 {
        let mut count = 0;
        while count < wanted && self.replicas.oldest != NONE {
            self.reclaim_replica(self.replicas.oldest, out);
            count += 1;
        }
        count
    }

    /// Asks the node of a replica to drop it, for the room that it leaves.
    pub(super) fn reclaim_replica(&mut self, frame: u32, out: &mut Outbox) {
        if self.entries[frame as usize].is(RECLAIMED) {
            return;
        }
        self.unlink_replica(frame);
        self.leaving += 1;
        let entry = &mut self.entries[frame as usize];
        entry.flags |= RECLAIMED;
        let (page, host) = (entry.page, entry.host);
        // The node ignores it if it has dropped the replica, since the page is being evicted.
        if let Some(original) = self.find(page) {
            let place = self.entries[original as usize].place(original);
            out.send(host, ToNode::DropReplica { page, place });
        }
    }

    /// Frees the frame of a replica that its node has dropped, or that died with its node.
    pub(super) fn release_replica(&mut self, frame: u32, out: &mut Outbox) {
        let entry = self.entries[frame as usize];
        if entry.is(RECLAIMED) {
            self.leaving -= 1;
        } else {
            self.unlink_replica(frame);
        }
        self.empty_frame(frame, out);
        if let Some(original) = self.find(entry.page) {
            let original = &mut self.entries[original as usize];
            original.replicas &= !entry.host.bit();
            if original.replicas == 0 && original.state.is_published() {
                self.wake(entry.page, out);
            }
        }
        self.serve_room(out);
    }

    /// Returns whether a node has this replica.
    #[cfg(test)]
    pub(crate) fn has_replica(&self, node: NodeId, page: PageId, copy: Place) -> bool {
        let same = |entry: &Entry| {
            entry.state == State::Replica && entry.host == node && entry.page == page
        };
        self.at(copy).is_some_and(same)
    }

    fn link_newest(&mut self, frame: u32) {
        let before = std::mem::replace(&mut self.replicas.newest, frame);
        let entry = &mut self.entries[frame as usize];
        (entry.before, entry.after) = (before, NONE);
        match before {
            NONE => self.replicas.oldest = frame,
            before => self.entries[before as usize].after = frame,
        }
    }

    fn unlink_replica(&mut self, frame: u32) {
        let Entry { before, after, .. } = self.entries[frame as usize];
        match before {
            NONE => self.replicas.oldest = after,
            before => self.entries[before as usize].after = after,
        }
        match after {
            NONE => self.replicas.newest = before,
            after => self.entries[after as usize].before = before,
        }
    }
}
