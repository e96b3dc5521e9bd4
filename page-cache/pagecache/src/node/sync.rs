//! Publication, flush and close of a file: unpublished pages are published first, then a flush has
//! this node's writes put into the store.

use std::collections::{BTreeMap, BTreeSet};

use super::unflushed::{Written, pages_of};
use super::{Consistency, Effect, Fault, Node, PageId, Place, Ticket};
use crate::message::{NodeId, ToDirectory};

/// Losses of a node's writes.
#[derive(Clone, Debug, Default)]
pub struct KnownLosses {
    /// Files with losses that no flush has reported.
    unreported: BTreeSet<u64>,
    /// Number of losses of each file.
    counts: BTreeMap<u64, u64>,
}

impl KnownLosses {
    /// Returns the files with unreported losses, and those with more losses than `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> BTreeSet<u64> {
        let grown = self.counts.iter();
        let grown = grown.filter(|(inode, count)| before.counts.get(inode) != Some(count));
        let unreported = before.unreported.union(&self.unreported);
        unreported
            .chain(grown.map(|(inode, _)| inode))
            .copied()
            .collect()
    }
}

/// Purpose of a [`Sync`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Other nodes see the pages.
    Publish,
    /// The store has the pages. It reports losses.
    Flush,
    /// The store has the pages. Losses stay for the next flush.
    WriteBack,
}

/// Waiter for the end of a [`Sync`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waiter {
    /// An operation of a program.
    Operation(Ticket),
    /// The directory, which has this number for its request.
    Directory(u64),
    /// None: it has given up, or is gone.
    Gone,
}

/// A publication, flush or write-back in progress.
#[derive(Debug)]
pub(super) struct Sync {
    waiter: Waiter,
    inode: u64,
    kind: Kind,
    /// Whether the flushes were requested.
    asked: bool,
    publishing: BTreeSet<PageId>,
    /// Requested flushes, by the page and the last store that each covers.
    flushing: BTreeMap<(PageId, u64), Place>,
    ok: bool,
}

impl Sync {
    /// Returns the number of pages that it waits for, if it is the sync of this operation.
    pub(super) fn awaited_by(&self, ticket: Ticket) -> Option<usize> {
        let is_awaited = self.waiter == Waiter::Operation(ticket);
        is_awaited.then_some(self.publishing.len() + self.flushing.len())
    }
}

impl Node {
    /// Starts a flush of this node's writes to the file. [`Effect::Done`] reports its end, or that
    /// a write was lost or refused since the last report.
    pub fn fsync(&mut self, inode: u64, ticket: Ticket, out: &mut Vec<Effect>) {
        self.sync(inode, Waiter::Operation(ticket), Kind::Flush, out);
    }

    /// Starts the write-back of the file, which no program has requested. As [`Node::fsync`], but a
    /// loss stays for the next flush to report.
    pub fn write_back(&mut self, inode: u64, ticket: Ticket, out: &mut Vec<Effect>) {
        self.sync(inode, Waiter::Operation(ticket), Kind::WriteBack, out);
    }

    /// Returns whether the directory has requested a flush of all files.
    #[must_use]
    pub fn flush_is_requested(&self) -> bool {
        !self.flush_requests.is_empty()
    }

    /// Takes the oldest request of the directory to flush all files.
    pub fn take_flush_request(&mut self) -> Option<u64> {
        self.flush_requests.pop_front()
    }

    /// Returns the files with losses that no flush has reported, and the number of losses of each
    /// file so far.
    pub fn known_losses(&mut self) -> KnownLosses {
        self.lose_unflushed();
        KnownLosses {
            unreported: self.lost.clone(),
            counts: self.losses.clone(),
        }
    }

    /// Notes that a sync of the store failed.
    pub const fn sync_failed(&mut self) {
        self.counts.write_back_failures += 1;
    }

    /// Returns whether its writes may stay unpublished.
    #[must_use]
    pub fn is_relaxed(&self) -> bool {
        self.config.consistency == Consistency::Relaxed
    }

    /// Returns whether other nodes do not see some of this node's completed writes to the file.
    /// Only with [`Consistency::Relaxed`].
    #[must_use]
    pub fn has_unpublished(&self, inode: u64) -> bool {
        self.is_relaxed() && self.unpublished.range(pages_of(inode)).next().is_some()
    }

    /// Starts the publication of a file: this node's unpublished pages become visible to other
    /// nodes.
    pub fn publish(&mut self, inode: u64, ticket: Ticket, out: &mut Vec<Effect>) {
        self.sync(inode, Waiter::Operation(ticket), Kind::Publish, out);
    }

    /// Starts the close of a file: its unpublished pages are published, and its read-ahead ends.
    pub fn close(&mut self, inode: u64, ticket: Ticket, out: &mut Vec<Effect>) {
        self.files.remove(&inode);
        self.publish(inode, ticket, out);
    }

    /// Starts the publication of a file for the directory, and answers at its end.
    pub(super) fn publish_file(&mut self, inode: u64, request: u64, out: &mut Vec<Effect>) {
        if self.faults.has(Fault::AnswerUnpublished) {
            out.push(Effect::Send(ToDirectory::PublishedFile { request }));
            return;
        }
        self.sync(inode, Waiter::Directory(request), Kind::Publish, out);
    }

    /// Starts the publication of a file by all nodes. [`Effect::Done`] reports that no other node
    /// has a page unpublished that it had at the start.
    pub fn publish_all(&mut self, inode: u64, ticket: Ticket, out: &mut Vec<Effect>) {
        self.publications.insert(ticket, inode);
        out.push(Effect::Send(ToDirectory::PublishAll { ticket, inode }));
    }

    /// Notes that all other nodes have published. The operation may have been cancelled.
    pub(super) fn published_all(&mut self, ticket: Ticket, out: &mut Vec<Effect>) {
        let done = Effect::Done { ticket, ok: true };
        out.extend(self.publications.remove(&ticket).map(|_| done));
    }

    fn sync(&mut self, inode: u64, waiter: Waiter, kind: Kind, out: &mut Vec<Effect>) {
        let publishing: BTreeSet<PageId> = self
            .unpublished
            .range(pages_of(inode))
            .map(|(page, _)| *page)
            .collect();
        for page in &publishing {
            self.begin_publish(*page, out);
        }
        self.lose_unflushed();
        let is_left = |sync: &&mut Sync| {
            sync.inode == inode && sync.kind == Kind::WriteBack && sync.waiter == Waiter::Gone
        };
        if kind == Kind::WriteBack
            && let Some(left) = self.syncs.iter_mut().find(is_left)
        {
            // While a store stalls, a file has one write-back, however often it is begun.
            (left.waiter, left.asked, left.ok) = (waiter, false, true);
            left.publishing.extend(publishing);
            self.go_on(out);
            return;
        }
        let ok = !(kind == Kind::Flush && self.lost.contains(&inode));
        self.syncs.push(Sync {
            waiter,
            inode,
            kind,
            asked: false,
            publishing,
            flushing: BTreeMap::new(),
            ok,
        });
        self.go_on(out);
    }

    /// Continues syncs that have published all pages, and ends those that have flushed all.
    fn go_on(&mut self, out: &mut Vec<Effect>) {
        self.lose_unflushed();
        let mut requested = self.requested_flushes();
        let (unflushed, lost, faults) = (&self.unflushed, &mut self.lost, self.faults);
        self.syncs.retain_mut(|sync| {
            if !sync.publishing.is_empty() {
                return true;
            }
            if sync.kind != Kind::Publish && !std::mem::replace(&mut sync.asked, true) {
                for (page, written) in unflushed.of_file(sync.inode) {
                    let place = written.place;
                    sync.flushing.insert((*page, written.store), place);
                    // One answer serves all syncs that wait for the same store.
                    if requested.insert((*page, written.store)) {
                        out.push(Effect::Send(ToDirectory::Flush { page: *page, place }));
                    }
                }
            }
            let over = sync.flushing.is_empty();
            if over {
                let reports = sync.kind == Kind::Flush && !sync.ok;
                if reports || faults.has(Fault::WriteBackReports) {
                    lost.remove(&sync.inode);
                }
                let ok = sync.ok;
                out.extend(match sync.waiter {
                    Waiter::Operation(ticket) => Some(Effect::Done { ticket, ok }),
                    Waiter::Directory(request) => {
                        Some(Effect::Send(ToDirectory::PublishedFile { request }))
                    }
                    Waiter::Gone => None,
                });
            }
            !over
        });
    }

    /// Returns the unanswered requests, as pages with their last stores. Empty if no sync is about
    /// to request any.
    fn requested_flushes(&self) -> BTreeSet<(PageId, u64)> {
        if self
            .syncs
            .iter()
            .all(|sync| sync.asked || sync.kind == Kind::Publish)
        {
            return BTreeSet::new();
        }
        let requested = self.syncs.iter().flat_map(|sync| &sync.flushing);
        requested.map(|(request, _)| *request).collect()
    }

    /// Repeats the requests that the former directory did not answer.
    pub(super) fn repeat_requests(&self, out: &mut Vec<Effect>) {
        // In the order of the stores, as they were requested.
        let mut repeated = BTreeSet::new();
        for sync in &self.syncs {
            let requests = sync.flushing.iter();
            repeated.extend(requests.map(|((page, store), place)| (*store, *page, *place)));
        }
        for (_, page, place) in repeated {
            out.push(Effect::Send(ToDirectory::Flush { page, place }));
        }
        for (ticket, inode) in &self.publications {
            let (ticket, inode) = (*ticket, *inode);
            out.push(Effect::Send(ToDirectory::PublishAll { ticket, inode }));
        }
    }

    pub(super) fn sync_published(&mut self, page: PageId, out: &mut Vec<Effect>) {
        for sync in &mut self.syncs {
            sync.publishing.remove(&page);
        }
        self.go_on(out);
    }

    /// Handles the answer to one flush of a page. Answers arrive in the order of the requests.
    pub(super) fn sync_flushed(
        &mut self,
        page: PageId,
        place: Place,
        ok: bool,
        out: &mut Vec<Effect>,
    ) {
        // Before the answer can report that nothing is left to flush.
        self.lose_unflushed();
        let requests = self.syncs.iter().flat_map(|sync| {
            let requests = sync.flushing.range((page, 0)..=(page, u64::MAX));
            requests.filter(|(_, asked)| **asked == place)
        });
        let Some(request) = requests.map(|(request, _)| *request).min() else {
            return;
        };
        for sync in &mut self.syncs {
            if sync.flushing.remove(&request).is_some() {
                sync.ok &= ok;
            }
        }
        let (_, store) = request;
        let covered = |written: &Written| written.store == store && written.place == place;
        match self.unflushed.get(page).copied() {
            Some(written) if ok && covered(&written) => self.unflushed.remove(page),
            // Only the stores since the request are not in the store.
            Some(written) if ok => {
                let since = self.time;
                self.unflushed.insert(page, Written { since, ..written });
            }
            _ => {}
        }
        self.go_on(out);
    }

    /// Lets no operation wait for the sync. A flush becomes a write-back, which leaves the report
    /// of a loss to the next flush.
    pub(super) fn cancel_sync(&mut self, ticket: Ticket) {
        self.publications.remove(&ticket);
        let is_cancelled = |sync: &&mut Sync| sync.waiter == Waiter::Operation(ticket);
        let Some(sync) = self.syncs.iter_mut().find(is_cancelled) else {
            return;
        };
        sync.waiter = Waiter::Gone;
        if sync.kind == Kind::Flush && !self.faults.has(Fault::CancelledReports) {
            sync.kind = Kind::WriteBack;
        }
    }

    pub(super) fn is_lost(&self, place: Place) -> bool {
        is_dead(&self.dead, place)
    }

    /// Notes the loss of one of this node's writes to the file. Every flush reports it that is in
    /// progress, or that begins before the first report.
    pub fn lose(&mut self, inode: u64) {
        self.lost.insert(inode);
        *self.losses.entry(inode).or_default() += 1;
        let flushes = |sync: &&mut Sync| sync.inode == inode && sync.kind == Kind::Flush;
        for sync in self.syncs.iter_mut().filter(flushes) {
            sync.ok = false;
        }
    }

    /// Returns the number of losses of this node's writes to the file. Each user of the file can
    /// compare it with an earlier value: a flush reports a loss only to the operations that wait
    /// then.
    pub fn losses(&mut self, inode: u64) -> u64 {
        self.lose_unflushed();
        self.losses.get(&inode).copied().unwrap_or_default()
    }

    /// Returns the number of losses that a new user of the file need not be notified of. All losses
    /// count except those that no flush has reported yet.
    pub fn reported_losses(&mut self, inode: u64) -> u64 {
        let losses = self.losses(inode);
        losses - u64::from(self.lost.contains(&inode))
    }

    /// Declares the unflushed writes in dead memory lost, and notes their files. This runs before
    /// each query, not after each message: there may be thousands of messages for one frame each.
    pub(super) fn lose_unflushed(&mut self) {
        if !std::mem::take(&mut self.unsettled) {
            return;
        }
        let dead = std::mem::take(&mut self.dead);
        let lost = self.take_unflushed(|place| is_dead(&dead, place));
        self.dead = dead;
        self.counts.lost_pages += lost.len() as u64;
        let inodes: BTreeSet<u64> = lost.iter().map(|page| page.inode).collect();
        for inode in inodes {
            self.lose(inode);
        }
    }
}

fn is_dead(dead: &BTreeMap<u32, (u32, NodeId)>, place: Place) -> bool {
    let run = dead.range(..=place.frame).next_back();
    run.is_some_and(|(_, (end, _))| place.frame < *end)
}
