//! Replicas: copies of other nodes' pages in this node's memory, which only this node reads.

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

use super::{Access, Acquired, Effect, Fault, Node, PageId, Place, Ticket};
use crate::message::ToDirectory;

/// Number of requests for replicas that share a packet.
const BATCH: usize = 16;

/// Pages of other nodes' memory that this node copies.
#[derive(Debug, Default)]
pub(super) struct Replicas {
    pages: HashTable<Remote>,
    /// Pages of which a replica is wanted and was not requested yet.
    wanted: Vec<Place>,
}

impl Replicas {
    fn find(&mut self, page: PageId) -> Option<&mut Remote> {
        let same = |remote: &Remote| remote.page == page;
        self.pages.find_mut(page.hash64(), same)
    }

    fn find_or_insert(&mut self, page: PageId) -> &mut Remote {
        let same = |remote: &Remote| remote.page == page;
        let hasher = |remote: &Remote| remote.page.hash64();
        match self.pages.entry(page.hash64(), same, hasher) {
            Entry::Occupied(found) => found.into_mut(),
            Entry::Vacant(vacant) => vacant.insert(Remote::new(page)).into_mut(),
        }
    }

    fn remove(&mut self, page: PageId) -> Option<Remote> {
        let same = |remote: &Remote| remote.page == page;
        let found = self.pages.find_entry(page.hash64(), same);
        found.ok().map(|entry| entry.remove().0)
    }
}

/// A page in another node's memory.
#[derive(Clone, Copy, Debug)]
struct Remote {
    page: PageId,
    /// Number of copies from the other node's memory since it was mapped.
    copies: u32,
    /// Place of the replica, if the directory has granted one.
    replica: Option<Place>,
    /// Whether the replica has the content of the page.
    is_filled: bool,
}

impl Remote {
    const fn new(page: PageId) -> Self {
        Self {
            page,
            copies: 0,
            replica: None,
            is_filled: false,
        }
    }
}

impl Node {
    /// Returns the place from which to copy the page, as [`Node::acquire`] does. That is this
    /// node's replica, if it has one. Copy and check the generation, without a pin.
    ///
    /// A copy from a replica that was dropped meanwhile is correct. The read began before the drop,
    /// and so before the next store into the page ended.
    pub fn acquire_copy(
        &mut self,
        page: PageId,
        ticket: Ticket,
        out: &mut Vec<Effect>,
    ) -> Acquired {
        let acquired = self.find(page, Access::Read, ticket, out);
        let Acquired::Mapped(place) = acquired else {
            return acquired;
        };
        let nearest = match self.config.replicate_after == 0 || self.is_local(place) {
            true => place,
            false => self.nearest(page, place, out),
        };
        self.count_hit(nearest);
        Acquired::Mapped(nearest)
    }

    /// Returns the replica of a page in another node's memory, or the page. Requests a replica when
    /// the page is copied often.
    fn nearest(&mut self, page: PageId, place: Place, out: &mut Vec<Effect>) -> Place {
        let remote = self.replicas.find_or_insert(page);
        if let Some(replica) = remote.replica.filter(|_| remote.is_filled) {
            return replica;
        }
        remote.copies = remote.copies.saturating_add(1);
        // There may have been no idle frame at the last request. So it is repeated, less often each
        // time.
        let times = remote.copies / self.config.replicate_after;
        let is_due = remote.copies.is_multiple_of(self.config.replicate_after)
            && times.is_power_of_two()
            && times.ilog2().is_multiple_of(2);
        if is_due {
            self.replicas.wanted.push(place);
        }
        if self.replicas.wanted.len() >= BATCH {
            self.request_replicas(out);
        }
        place
    }

    /// Requests the replicas that are wanted. Call it now and then: requests wait until several can
    /// share a packet.
    pub fn request_replicas(&mut self, out: &mut Vec<Effect>) {
        let wanted = self.replicas.wanted.drain(..);
        out.extend(wanted.map(|place| Effect::Send(ToDirectory::Replicate { place })));
    }

    /// Begins the use of a granted replica.
    pub(super) fn begin_replica(
        &mut self,
        page: PageId,
        place: Place,
        copy: Place,
        out: &mut Vec<Effect>,
    ) {
        let remote = self.replicas.find_or_insert(page);
        (remote.replica, remote.is_filled) = (Some(copy), false);
        out.push(Effect::Copy { page, place, copy });
    }

    /// Notes the end of a copy into a replica. If it failed, the replica is dropped. It may have
    /// been dropped since the copy was requested.
    pub fn copied(&mut self, page: PageId, copy: Place, ok: bool, out: &mut Vec<Effect>) {
        let remote = self.replicas.find(page);
        match remote.filter(|remote| remote.replica == Some(copy)) {
            Some(remote) if ok => remote.is_filled = true,
            Some(_) => self.drop_replica(page, out),
            None => {}
        }
    }

    /// Stops the use of the replica of a page, if there is one, and reports that.
    pub(super) fn drop_replica(&mut self, page: PageId, out: &mut Vec<Effect>) {
        let is_used = self.faults.has(Fault::ReplicaUsedAfterDrop);
        let dropped = match is_used {
            true => self.replicas.find(page).copied(),
            false => self.replicas.remove(page),
        };
        if let Some(place) = dropped.and_then(|remote| remote.replica) {
            out.push(Effect::Send(ToDirectory::Dropped { place }));
        }
    }

    /// Returns the replicas that this node reads.
    pub fn replicas(&self) -> impl Iterator<Item = (PageId, Place)> + '_ {
        let filled = self.replicas.pages.iter();
        let filled = filled.filter(|remote| remote.is_filled);
        filled.filter_map(|remote| Some((remote.page, remote.replica?)))
    }
}
