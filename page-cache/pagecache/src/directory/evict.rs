//! How a page goes: mark, invalidate in batches, wait for every acknowledgement, write back, reuse. And flushes,
//! which are write-backs without the rest.

use super::entry::{Entry, FINAL, WRITING};
use super::{Directory, Fault, Life, NONE, Outbox, State};
use crate::message::{NodeId, PageId, Place, ToNode};

/// Who waits for a page to be in the store.
#[derive(Debug, Default)]
pub(super) struct Flushes {
    /// For the write-back in progress.
    now: Vec<NodeId>,
    /// For one that begins after they asked.
    next: Vec<NodeId>,
}

impl Flushes {
    /// Forgets a node that died.
    pub(super) fn forget(&mut self, node: NodeId) {
        self.now.retain(|waiter| *waiter != node);
        self.next.retain(|waiter| *waiter != node);
    }
}

impl Directory {
    /// Begins to empty frames if too few are free or on their way, after each message: a batch at a time, so that the messages of one
    /// node share a packet and the acknowledgements too.
    pub(super) fn make_room(&mut self, out: &mut Outbox) {
        let waiting = u32::try_from(self.room.len()).unwrap_or(u32::MAX);
        let coming = self.free() + self.leaving;
        if coming >= self.config.free_low.max(waiting) {
            return;
        }
        let wanted = self.config.free_high.max(waiting) - coming;
        for _ in 0..wanted.min(self.published) {
            self.take_away(self.coldest, out);
        }
    }

    /// Takes a page away for the room that it leaves; of a dead node's memory there is none.
    fn take_away(&mut self, frame: u32, out: &mut Outbox) {
        let host = self.entries[frame as usize].host;
        self.leaving += u32::from(self.members[host.index()].life == Life::Alive);
        self.invalidate(frame, out);
    }

    /// Takes a page away as if it were the coldest, for a caller who knows that nobody wants it any more. Whether it
    /// was there to be taken: a page that is being filled, or is going already, is not.
    pub fn evict(&mut self, page: PageId, out: &mut Outbox) -> bool {
        let published = |frame: &u32| self.entries[*frame as usize].state.is_published();
        let Some(frame) = self.find(page).filter(published) else {
            return false;
        };
        self.take_away(frame, out);
        true
    }

    /// Takes a published page away: from now on lookups wait.
    pub(super) fn invalidate(&mut self, frame: u32, out: &mut Outbox) {
        self.unlink(frame);
        self.counts.invalidations += 1;
        let entry = &mut self.entries[frame as usize];
        entry.state = State::ToBeInvalidated;
        let (page, place) = (entry.page, entry.place(frame));
        for node in nodes(entry.sharers) {
            out.send(node, ToNode::Invalidate { page, place });
        }
        self.emptied(frame, out);
    }

    /// `node` has no mapping of the page any more.
    pub(super) fn acknowledged(&mut self, node: NodeId, frame: u32, out: &mut Outbox) {
        let early = self.has(Fault::ReuseBeforeAcknowledged);
        let entry = &mut self.entries[frame as usize];
        entry.sharers &= !node.bit();
        if early {
            entry.sharers = 0;
        }
        self.emptied(frame, out);
    }

    /// If nobody maps the page any more: its last write-back, once no other is in progress.
    pub(super) fn emptied(&mut self, frame: u32, out: &mut Outbox) {
        let entry = self.entries[frame as usize];
        let dead = self.members[entry.host.index()].life == Life::Dead;
        if entry.sharers != 0 && !(dead && self.has(Fault::RefillMapped)) {
            return;
        }
        if dead && (!self.pooled() || self.has(Fault::PoolLost)) {
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
            // The store refuses it: the page stays, and another goes.
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

    /// The caller has written back one of [`Outbox::rescues`], whether it was dirty or not. If the store refuses it, the
    /// caller tries again, or gives it up ([`Directory::unrescued`]): until then the page is not to be had.
    pub fn rescued(&mut self, place: Place, out: &mut Outbox) {
        if self.is_rescued(place).is_none() {
            return;
        }
        self.counts.evicted += 1;
        self.release(place.frame, true, out);
        self.make_room(out);
        self.forget_dead(out);
    }

    /// The store refuses some of [`Outbox::rescues`], and the caller has given them up
    /// ([`crate::segment::Segment::give_up`], before this): they are lost with their nodes, whose death those who wrote
    /// them hear now, as far as these frames go.
    pub fn unrescued(&mut self, places: &[Place], out: &mut Outbox) {
        let going = |place: &&Place| self.is_rescued(**place).is_some();
        let mut frames: Vec<u32> = places.iter().filter(going).map(|at| at.frame).collect();
        frames.sort_unstable();
        frames.dedup();
        if !self.has(Fault::UntoldUnrescued) {
            self.tell_given_up(&frames, out);
        }
        for frame in frames {
            out.lost.push(self.entries[frame as usize].page);
            self.release(frame, false, out);
        }
        self.make_room(out);
        self.forget_dead(out);
    }

    /// Tells the living that these frames of dead nodes' memory are dead too, in order: a message for each run of them.
    pub(super) fn tell_given_up(&mut self, frames: &[u32], out: &mut Outbox) {
        let told = self.living();
        let host = |frame: &u32| self.entries[*frame as usize].host;
        let runs = frames.chunk_by(|one, next| one + 1 == *next && host(one) == host(next));
        for run in runs {
            let node = host(&run[0]);
            self.members[node.index()].told |= told;
            for living in nodes(told) {
                let message = ToNode::Died {
                    node,
                    first_frame: run[0],
                    frames: u32::try_from(run.len()).expect("frames are counted in 32 bits"),
                };
                out.send(living, message);
            }
        }
    }

    /// What is at a place, if it is a page that is being rescued.
    fn is_rescued(&self, place: Place) -> Option<Entry> {
        let going = |entry: &&Entry| entry.state == State::ToBeInvalidated && entry.is(FINAL);
        self.at(place).filter(going).copied()
    }

    /// A node wants what it wrote to be in the store.
    pub(super) fn flush(&mut self, from: NodeId, page: PageId, place: Place, out: &mut Outbox) {
        let Some(entry) = self.at(place).copied() else {
            // It has left since, and nothing leaves before it is written back. If it went with a node that died,
            // that was said before this answer, on the same link.
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
            // It is on its way to the store.
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

    /// The page is nowhere from now on. Its frame is free, unless it died.
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
        let member = &mut self.members[host.index()];
        let entry = &mut self.entries[frame as usize];
        *entry = Entry::free(host);
        member.used -= 1;
        if member.life == Life::Alive {
            self.leaving -= u32::from(state == State::ToBeInvalidated);
        }
        if member.life == Life::Alive && !member.leaving {
            entry.after = std::mem::replace(&mut member.free_head, frame);
            member.free += 1;
        } else {
            entry.after = NONE;
            self.vacated(host, out);
        }
        // First who waited longer for any frame, then who waits for this page.
        self.room
            .extend(self.waiting.remove(&page).unwrap_or_default());
        self.serve_room(out);
    }
}

/// The nodes of a set.
pub(super) fn nodes(set: u32) -> impl Iterator<Item = NodeId> {
    (0..crate::message::NODES_MAX)
        .filter_map(NodeId::new)
        .filter(move |node| set & node.bit() != 0)
}
