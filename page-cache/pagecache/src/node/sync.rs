//! Flushes and closes: publish what is unpublished, then have what this node wrote put into the store.

use std::collections::{BTreeMap, BTreeSet};

use super::{Effect, Node, PageId, Place, Ticket};
use crate::message::{NodeId, ToDirectory};

/// A page that this node wrote and that may not be in the store.
#[derive(Clone, Copy, Debug)]
pub(super) struct Written {
    /// The node's number of its last store: a flush does not cover what was stored after it began.
    pub(super) store: u64,
    /// Where it was stored last.
    pub(super) place: Place,
}

/// One flush or close in progress.
#[derive(Debug)]
pub(super) struct Sync {
    ticket: Ticket,
    inode: u64,
    /// Whether the store is to have it: a flush, not a close.
    durable: bool,
    /// Whether the flushes were asked for.
    asked: bool,
    publishing: BTreeSet<PageId>,
    /// Flushes that were asked for, and the last store that each covers.
    flushing: BTreeMap<PageId, (Place, u64)>,
    ok: bool,
}

impl Node {
    /// What this node wrote to the file so far is to be in the store: [`Effect::Done`] says when, or that
    /// something of it was lost or refused since it was last said.
    pub fn fsync(&mut self, inode: u64, ticket: Ticket, out: &mut Vec<Effect>) {
        self.sync(inode, ticket, true, out);
    }

    /// A program closes the file: what this node holds unpublished is to be seen by others.
    pub fn close(&mut self, inode: u64, ticket: Ticket, out: &mut Vec<Effect>) {
        self.files.remove(&inode);
        self.sync(inode, ticket, false, out);
    }

    fn sync(&mut self, inode: u64, ticket: Ticket, durable: bool, out: &mut Vec<Effect>) {
        let publishing: BTreeSet<PageId> = self
            .unpublished
            .range(pages_of(inode))
            .map(|(page, _)| *page)
            .collect();
        for page in &publishing {
            self.begin_publish(*page, out);
        }
        self.lose_unflushed();
        let ok = !(durable && self.lost.contains(&inode));
        self.syncs.push(Sync {
            ticket,
            inode,
            durable,
            asked: false,
            publishing,
            flushing: BTreeMap::new(),
            ok,
        });
        self.go_on(out);
    }

    /// Goes on with syncs that have published all, and ends those that have flushed all.
    fn go_on(&mut self, out: &mut Vec<Effect>) {
        self.lose_unflushed();
        let (unflushed, lost) = (&self.unflushed, &mut self.lost);
        self.syncs.retain_mut(|sync| {
            if !sync.publishing.is_empty() {
                return true;
            }
            if sync.durable && !std::mem::replace(&mut sync.asked, true) {
                for (page, written) in unflushed.range(pages_of(sync.inode)) {
                    let place = written.place;
                    sync.flushing.insert(*page, (place, written.store));
                    out.push(Effect::Send(ToDirectory::Flush { page: *page, place }));
                }
            }
            let over = sync.flushing.is_empty();
            if over {
                if !sync.ok {
                    lost.remove(&sync.inode);
                }
                let (ticket, ok) = (sync.ticket, sync.ok);
                out.push(Effect::Done { ticket, ok });
            }
            !over
        });
    }

    /// Asks again for what was asked of a directory that is no more.
    pub(super) fn ask_again(&self, out: &mut Vec<Effect>) {
        for sync in &self.syncs {
            for (page, (place, _)) in &sync.flushing {
                let (page, place) = (*page, *place);
                out.push(Effect::Send(ToDirectory::Flush { page, place }));
            }
        }
    }

    pub(super) fn sync_published(&mut self, page: PageId, out: &mut Vec<Effect>) {
        for sync in &mut self.syncs {
            sync.publishing.remove(&page);
        }
        self.go_on(out);
    }

    /// The answer to one flush of a page. Answers come in the order of the questions.
    pub(super) fn sync_flushed(
        &mut self,
        page: PageId,
        place: Place,
        ok: bool,
        out: &mut Vec<Effect>,
    ) {
        // Before the answer can say that nothing is to be flushed any more.
        self.lose_unflushed();
        let asked = |sync: &&mut Sync| {
            sync.flushing
                .get(&page)
                .is_some_and(|(asked, _)| *asked == place)
        };
        let Some(sync) = self.syncs.iter_mut().find(asked) else {
            return;
        };
        let (_, store) = sync.flushing.remove(&page).unwrap_or((place, 0));
        sync.ok &= ok;
        let covered = |written: &Written| written.store == store && written.place == place;
        if ok && self.unflushed.get(&page).is_some_and(covered) {
            self.unflushed.remove(&page);
        }
        self.go_on(out);
    }

    pub(super) fn is_lost(&self, place: Place) -> bool {
        is_dead(&self.dead, place)
    }

    /// Something that this node wrote to the file is lost. Every flush says so that is in progress or begins before
    /// the first of them has said it.
    pub(super) fn lose(&mut self, inode: u64) {
        self.lost.insert(inode);
        *self.losses.entry(inode).or_default() += 1;
        let flushes = |sync: &&mut Sync| sync.inode == inode && sync.durable;
        for sync in self.syncs.iter_mut().filter(flushes) {
            sync.ok = false;
        }
    }

    /// How often something that this node wrote to the file was lost. Each who has the file open may compare it with
    /// what it was before: a flush says a loss to those alone who wait then.
    pub fn losses(&mut self, inode: u64) -> u64 {
        self.lose_unflushed();
        self.losses.get(&inode).copied().unwrap_or_default()
    }

    /// Of those, what who opens the file now need not hear: all but what no flush has said yet.
    pub fn losses_said(&mut self, inode: u64) -> u64 {
        let losses = self.losses(inode);
        losses - u64::from(self.lost.contains(&inode))
    }

    /// Forgets what was written into dead memory, and remembers of which files. Done before anything asks what is
    /// unflushed or lost, and not for each message: thousands may come at once, each of one frame.
    pub(super) fn lose_unflushed(&mut self) {
        if !std::mem::take(&mut self.unsettled) {
            return;
        }
        let mut inodes = BTreeSet::new();
        let dead = &self.dead;
        self.unflushed.retain(|page, written| {
            let lost = is_dead(dead, written.place);
            if lost {
                inodes.insert(page.inode);
            }
            !lost
        });
        for inode in inodes {
            self.lose(inode);
        }
    }
}

fn is_dead(dead: &BTreeMap<u32, (u32, NodeId)>, place: Place) -> bool {
    let run = dead.range(..=place.frame).next_back();
    run.is_some_and(|(_, (end, _))| place.frame < *end)
}

fn pages_of(inode: u64) -> std::ops::RangeInclusive<PageId> {
    let first = PageId { inode, index: 0 };
    let last = PageId {
        inode,
        index: u64::MAX,
    };
    first..=last
}
