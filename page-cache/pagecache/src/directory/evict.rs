//! Eviction of a page: mark, invalidate in batches, wait for every acknowledgement, write back,
//! reuse. Also flushes, which are write-backs only.

use super::entry::{Entry, FINAL, SETTLED, WRITING, WRITTEN};
use super::{Directory, Fault, Life, NONE, Outbox, State};
use crate::message::{NodeId, PageId, Place, ToNode, nodes};

/// Nodes that wait until a page is in the store.
#[derive(Debug, Default)]
pub(super) struct Flushes {
    /// They wait for the current write-back.
    now: Vec<NodeId>,
    /// They wait for the next one, which starts after their request.
    next: Vec<NodeId>,
}

impl Flushes {
    /// Removes a node that died.
    pub(super) fn forget(&mut self, node: NodeId) {
        self.now.retain(|waiter| *waiter != node);
        self.next.retain(|waiter| *waiter != node);
    }
}

impl Directory {
    /// Evicts pages if too few frames are free or being freed. It runs after each message and
    /// evicts a batch, so that the messages of one node share a packet, as do the acknowledgements.
    pub(super) fn make_room(&mut self, out: &mut Outbox) {
        let waiting = u32::try_from(self.room.len()).unwrap_or(u32::MAX);
        let coming = self.free() + self.leaving;
        if coming >= self.config.free_low.max(waiting) {
            return;
        }
        let wanted = self.config.free_high.max(waiting) - coming;
        // Replicas first: nothing else needs their frames.
        let wanted = wanted - self.reclaim_replicas(wanted, out);
        for _ in 0..wanted.min(self.published) {
            self.take_away(self.coldest, out);
        }
    }

    /// Evicts a page for the room that it leaves. A frame in a dead node's memory leaves none.
    fn take_away(&mut self, frame: u32, out: &mut Outbox) {
        let host = self.entries[frame as usize].host;
        self.leaving += u32::from(self.members[host.index()].life == Life::Alive);
        self.invalidate(frame, out);
    }

    /// Evicts a page as if it were the coldest, for a caller that knows that it is not needed.
    /// Returns false if the page is not there, is being filled, or is already being evicted.
    pub fn evict(&mut self, page: PageId, out: &mut Outbox) -> bool {
        let published = |frame: &u32| self.entries[*frame as usize].state.is_published();
        let Some(frame) = self.find(page).filter(published) else {
            return false;
        };
        self.take_away(frame, out);
        true
    }

    /// Starts the eviction of a published page: lookups wait from now on.
    pub(super) fn invalidate(&mut self, frame: u32, out: &mut Outbox) {
        self.unlink(frame);
        self.end_protection(frame);
        self.counts.invalidations += 1;
        let entry = &mut self.entries[frame as usize];
        entry.state = State::ToBeInvalidated;
        let (page, place) = (entry.page, entry.place(frame));
        for node in nodes(entry.sharers) {
            out.send(node, ToNode::Invalidate { page, place });
        }
        self.emptied(frame, out);
    }

    /// Notes that `node` does not map the page any more.
    pub(super) fn acknowledged(&mut self, node: NodeId, frame: u32, out: &mut Outbox) {
        let is_premature = self.has(Fault::ReuseBeforeAcknowledged);
        let entry = &mut self.entries[frame as usize];
        entry.sharers &= !node.bit();
        if is_premature {
            entry.sharers = 0;
        }
        self.emptied(frame, out);
    }

    /// Requests the last write-back if no node maps the page any more and no other write-back is in
    /// progress.
    pub(super) fn emptied(&mut self, frame: u32, out: &mut Outbox) {
        let entry = self.entries[frame as usize];
        let dead = self.members[entry.host.index()].life == Life::Dead;
        if entry.sharers != 0 && !(dead && self.has(Fault::RefillMapped)) {
            return;
        }
        if dead && (!self.pooled() || self.has(Fault::PoolLost)) {
            // Other nodes could store into it until now.
            if entry.is(WRITTEN) && !self.pooled() {
                out.written.push((entry.page, entry.place(frame)));
            }
            self.release(frame, false, out);
        } else if dead {
            let entry = &mut self.entries[frame as usize];
            if !entry.is(FINAL) {
                entry.flags |= FINAL;
                out.rescues.push((entry.page, entry.place(frame)));
            }
        } else if !entry.is(WRITING) {
            self.write_back(frame, FINAL, out);
        }
    }

    fn write_back(&mut self, frame: u32, last: u8, out: &mut Outbox) {
        self.counts.write_backs += 1;
        if let Some(flushes) = self.flushes.get_mut(&frame) {
            flushes.now.append(&mut flushes.next);
        }
        let entry = &mut self.entries[frame as usize];
        entry.flags |= WRITING | last;
        let (page, place) = (entry.page, entry.place(frame));
        out.send(entry.host, ToNode::WriteBack { page, place });
    }

    pub(super) fn written_back(&mut self, frame: u32, ok: bool, out: &mut Outbox) {
        let entry = &mut self.entries[frame as usize];
        let last = entry.is(FINAL);
        entry.flags &= !(WRITING | FINAL);
        entry.flags |= if ok { SETTLED } else { 0 };
        let (page, place) = (entry.page, entry.place(frame));
        if let Some(flushes) = self.flushes.get_mut(&frame) {
            for node in std::mem::take(&mut flushes.now) {
                out.send(node, ToNode::Flushed { page, place, ok });
            }
            if flushes.next.is_empty() {
                self.flushes.remove(&frame);
            }
        }
        let emptied = entry.state == State::ToBeInvalidated && entry.sharers == 0;
        if last && ok {
            self.counts.evicted += 1;
            self.release(frame, true, out);
        } else if last {
            // The store refuses it: the page stays, and another one is evicted.
            self.leaving -= 1;
            entry.state = entry.published();
            self.link_warmest(frame);
            if self.flushes.contains_key(&frame) {
                self.write_back(frame, 0, out);
            }
            self.wake(page, out);
        } else if emptied {
            self.write_back(frame, FINAL, out);
        } else if self.flushes.contains_key(&frame) {
            self.write_back(frame, 0, out);
        }
    }

    /// Returns the pages in dead nodes' memory that must be in the store before they leave: those
    /// of [`Outbox::rescues`], and those that nodes still map.
    pub fn unrescued_pages(&self) -> impl Iterator<Item = (PageId, Place)> + '_ {
        let dead = self.shares().filter(|share| !share.alive && self.pooled());
        let frames = dead.flat_map(|share| share.first_frame..share.first_frame + share.frames);
        frames.filter_map(|frame| {
            let entry = &self.entries[frame as usize];
            let is_left = entry.state == State::ToBeInvalidated;
            is_left.then(|| (entry.page, entry.place(frame)))
        })
    }

    /// Notes that the caller has written back one of [`Outbox::rescues`], dirty or not. If the
    /// store refuses it, the caller tries again, or gives it up ([`Directory::unrescued`]). The
    /// page is not available until then.
    pub fn rescued(&mut self, place: Place, out: &mut Outbox) {
        if self.is_rescued(place).is_none() {
            return;
        }
        self.counts.evicted += 1;
        self.release(place.frame, true, out);
        self.make_room(out);
        self.forget_dead(out);
    }

    /// Notes that the store refuses some of [`Outbox::rescues`] and that the caller has given them
    /// up ([`crate::segment::Segment::give_up`], before this call). They are lost with their nodes.
    /// The nodes that wrote them are now notified of the death, limited to these frames.
    pub fn unrescued(&mut self, places: &[Place], out: &mut Outbox) {
        let going = |place: &&Place| self.is_rescued(**place).is_some();
        let mut frames: Vec<u32> = places.iter().filter(going).map(|at| at.frame).collect();
        frames.sort_unstable();
        frames.dedup();
        if !self.has(Fault::UnreportedLoss) {
            self.announce_given_up(&frames, out);
        }
        for frame in frames {
            out.lost.push(self.entries[frame as usize].page);
            self.release(frame, false, out);
        }
        self.make_room(out);
        self.forget_dead(out);
    }

    /// Notifies the living nodes that these frames of dead nodes' memory are dead too, in order,
    /// with one message for each run of frames.
    pub(super) fn announce_given_up(&mut self, frames: &[u32], out: &mut Outbox) {
        let notified = self.living();
        let host = |frame: &u32| self.entries[*frame as usize].host;
        let runs = frames.chunk_by(|one, next| one + 1 == *next && host(one) == host(next));
        for run in runs {
            let node = host(&run[0]);
            self.members[node.index()].notified |= notified;
            for living in nodes(notified) {
                let message = ToNode::Died {
                    node,
                    first_frame: run[0],
                    frames: u32::try_from(run.len()).expect("frames are counted in 32 bits"),
                };
                out.send(living, message);
            }
        }
    }

    /// Returns the entry of a place, if its page is being rescued.
    fn is_rescued(&self, place: Place) -> Option<Entry> {
        let going = |entry: &&Entry| entry.state == State::ToBeInvalidated && entry.is(FINAL);
        self.at(place).filter(going).copied()
    }

    /// Handles the request of a node that its writes to a page be in the store.
    pub(super) fn flush(&mut self, from: NodeId, page: PageId, place: Place, out: &mut Outbox) {
        let Some(entry) = self.at(place).copied() else {
            // The page has left since, and a page leaves only after its write-back. If it was lost
            // with a dead node, the node was notified of that before this answer, on the same link.
            out.send(
                from,
                ToNode::Flushed {
                    page,
                    place,
                    ok: true,
                },
            );
            return;
        };
        let dead = self.members[entry.host.index()].life == Life::Dead;
        if dead && self.pooled() {
            // A write-back is in progress.
            self.flushes.entry(place.frame).or_default().next.push(from);
            return;
        }
        if dead {
            out.send(
                from,
                ToNode::Flushed {
                    page,
                    place,
                    ok: false,
                },
            );
            return;
        }
        self.flushes.entry(place.frame).or_default().next.push(from);
        if !entry.is(WRITING) && (entry.state != State::ToBeInvalidated || entry.sharers != 0) {
            self.write_back(place.frame, 0, out);
        }
    }

    /// Removes the page. Its frame becomes free, unless its node died.
    pub(super) fn release(&mut self, frame: u32, flushed: bool, out: &mut Outbox) {
        let Entry {
            page, host, state, ..
        } = self.entries[frame as usize];
        let place = self.entries[frame as usize].place(frame);
        let slot = self
            .pages
            .find_entry(page.hash64(), |other| *other == frame);
        slot.expect("a frame in use is in the table").remove();
        if let Some(flushes) = self.flushes.remove(&frame) {
            for node in flushes.now.into_iter().chain(flushes.next) {
                out.send(
                    node,
                    ToNode::Flushed {
                        page,
                        place,
                        ok: flushed,
                    },
                );
            }
        }
        if !flushed {
            out.discarded.push(frame);
        }
        if self.members[host.index()].life == Life::Alive {
            self.leaving -= u32::from(state == State::ToBeInvalidated);
        }
        self.empty_frame(frame, out);
        // First the lookups that waited longer for any frame, then those for this page.
        self.room
            .extend(self.waiting.remove(&page).unwrap_or_default());
        self.serve_room(out);
    }

    /// Removes what is in a frame. It becomes free, unless its node died or leaves.
    pub(super) fn empty_frame(&mut self, frame: u32, out: &mut Outbox) {
        let entry = &mut self.entries[frame as usize];
        let host = entry.host;
        let member = &mut self.members[host.index()];
        *entry = Entry::free(host);
        member.used -= 1;
        if member.life == Life::Alive && !member.leaving {
            entry.after = std::mem::replace(&mut member.free_head, frame);
            member.free += 1;
        } else {
            entry.after = NONE;
            self.vacated(host, out);
        }
    }
}
