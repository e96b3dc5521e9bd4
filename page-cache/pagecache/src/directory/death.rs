//! Death of a node: its pages, its locks, its acknowledgements.

use super::entry::{FINAL, WRITING, WRITTEN};
use super::{Directory, Fault, Life, NONE, Outbox, State};
use crate::message::{NodeId, PageId, Place, ToNode, nodes};

/// Pages by frame that the store may not have: [`crate::segment::Segment::unsaved`].
pub type Unsaved<'a> = dyn Fn(u32) -> Option<(PageId, Place)> + 'a;

impl Directory {
    /// Declares a node dead. It must be fenced before this call. Then the store refuses its
    /// requests, its processors cannot store into other nodes' memory, and
    /// [`crate::segment::Segment::end_stores`] has ended its unfinished stores. Later messages of
    /// it are refused.
    ///
    /// `unsaved` is [`crate::segment::Segment::unsaved`] after that. A page in it, which
    /// the node has filled and written, counts as published. A program may have ended its write,
    /// although the node's message did not arrive.
    ///
    /// With [`Placement::Pool`](super::Placement::Pool) pages in its memory stay until they are
    /// written back ([`Outbox::rescues`]), and no node is notified. With the other placement they
    /// are lost, and written ones are named in [`Outbox::written`] once no node maps them. A lost
    /// page is filled again only when no living node maps the dead memory any more. Otherwise a
    /// node could read data there that others no longer see.
    pub fn died(&mut self, node: NodeId, unsaved: &Unsaved<'_>, out: &mut Outbox) {
        let member = &mut self.members[node.index()];
        if member.life != Life::Alive {
            // It may have asked to join before a restarted directory admits nodes.
            self.died_recovering(node);
            return;
        }
        member.life = Life::Dead;
        (member.free, member.free_head) = (0, NONE);
        if self.recovery.is_some() {
            self.died_recovering(node);
        } else {
            self.forget_requests(node, out);
            self.announce_death(node, unsaved, out);
            self.make_room(out);
        }
    }

    /// Notifies the living nodes, and revokes the dead node's pages from them. After this is done
    /// for all dead nodes, the caller makes room. A page in the memory of a dead node that was
    /// evicted earlier would leave no room.
    pub(super) fn announce_death(&mut self, node: NodeId, unsaved: &Unsaved<'_>, out: &mut Outbox) {
        let (living, pooled) = (self.living(), self.pooled());
        let member = &mut self.members[node.index()];
        // A node that asked to leave, and waited until no page was in its memory, loses no page.
        let left = member.leaving && member.used == 0;
        let living = if left || pooled { 0 } else { living };
        // Some nodes may already be notified of pages that the directory before had given up there.
        member.notified |= living;
        let (first_frame, frames) = (member.first_frame, member.frames);
        for living in nodes(living) {
            let message = ToNode::Died {
                node,
                first_frame,
                frames,
            };
            out.send(living, message);
        }
        // No lookup is served before all dead memory is unreachable.
        self.serves = false;
        for frame in 0..self.entries.len() {
            let frame = u32::try_from(frame).expect("frames are counted in 32 bits");
            self.forget_mapping(node, frame, unsaved, out);
        }
        self.serves = true;
        self.vacated(node, out);
        self.serve_room(out);
        // The removal of other dead or leaving nodes may have waited for this one.
        self.forget_dead(out);
    }

    pub(super) fn living(&self) -> u32 {
        let alive = |node: &NodeId| self.members[node.index()].life == Life::Alive;
        nodes(u32::MAX)
            .filter(alive)
            .fold(0, |set, node| set | node.bit())
    }

    fn forget_requests(&mut self, node: NodeId, out: &mut Outbox) {
        self.room.retain(|waiter| waiter.node != node);
        self.waiting.retain(|_, waiters| {
            waiters.retain(|waiter| waiter.node != node);
            !waiters.is_empty()
        });
        for flushes in self.flushes.values_mut() {
            flushes.forget(node);
        }
        let granted = &mut |node, ticket| out.send(node, ToNode::Locked { ticket });
        self.locks.release(|holder, _| holder == node, granted);
        self.forget_publications(node, out);
        self.forget_protections(node);
    }

    /// Applies the death of `node` to one frame.
    fn forget_mapping(
        &mut self,
        node: NodeId,
        frame: u32,
        unsaved: &Unsaved<'_>,
        out: &mut Outbox,
    ) {
        let keeps_bit = self.has(Fault::KeepDeadSharer);
        let forgets_filled = self.has(Fault::FilledForgotten);
        let entry = &mut self.entries[frame as usize];
        let shared = entry.sharers & node.bit() != 0;
        if !keeps_bit {
            entry.sharers &= !node.bit();
        }
        let (state, hosted) = (entry.state, entry.host == node);
        let content = (entry.page, entry.place(frame));
        if hosted {
            // Its answer will not arrive any more.
            entry.flags &= !(WRITING | FINAL);
        }
        match state {
            State::Invalid => {}
            // It had filled the page, and its publication was in flight.
            State::Exclusive
                if entry.holder == node && unsaved(frame) == Some(content) && !forgets_filled =>
            {
                self.publish(frame, out);
            }
            // The page that it was filling is discarded, wherever the frame is. A page that another
            // node fills in the dead memory is discarded when that node publishes or abandons it.
            State::Exclusive if entry.holder == node => {
                // Its write was in progress.
                if entry.flags & WRITTEN != 0 {
                    out.lost.push(entry.page);
                }
                self.release(frame, false, out);
            }
            State::Exclusive => {}
            State::Owner | State::Shared if hosted => self.invalidate(frame, out),
            State::Owner | State::Shared => entry.state = entry.published(),
            State::ToBeInvalidated if hosted => {
                self.leaving -= 1;
                self.emptied(frame, out);
            }
            State::ToBeInvalidated if shared => self.emptied(frame, out),
            State::ToBeInvalidated => {}
            State::Replica if hosted => self.release_replica(frame, out),
            State::Replica => {}
        }
    }
}
