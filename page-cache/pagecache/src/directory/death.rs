//! A node's death: its pages, its locks, its acknowledgements.

use super::entry::{FINAL, WRITING, WRITTEN};
use super::evict::nodes;
use super::{Directory, Fault, Life, NONE, Outbox, State};
use crate::message::{NodeId, ToNode};

impl Directory {
    /// A node is dead. It was fenced before this call: the store takes nothing from it any more, no store of its
    /// processors reaches another node's memory, and [`crate::segment::Segment::end_stores`] has ended those that it
    /// had begun. Messages of it are refused from now on.
    ///
    /// With [`Placement::Pool`](super::Placement::Pool) pages in its memory stay until they are written back
    /// ([`Outbox::rescues`]), and nobody is told. Else they are lost; those that may have been dirty are named in [`Outbox::lost`]. They can be
    /// filled again once no living node maps the dead memory any more, so that nobody reads what others no longer
    /// see.
    pub fn died(&mut self, node: NodeId, out: &mut Outbox) {
        let member = &mut self.members[node.index()];
        if member.life != Life::Alive {
            // It may have asked to join before a directory that was started anew takes anybody in.
            self.died_recovering(node);
            return;
        }
        member.life = Life::Dead;
        (member.free, member.free_head) = (0, NONE);
        if self.recovery.is_some() {
            self.died_recovering(node);
        } else {
            self.forget_requests(node, out);
            self.tell_death(node, out);
            self.make_room(out);
        }
    }

    /// Tells the living, and takes the pages of a dead node from them. The caller makes room when this is done for all who are
    /// dead: a page in the memory of one of them that is taken for room before that leaves none.
    pub(super) fn tell_death(&mut self, node: NodeId, out: &mut Outbox) {
        let (living, pooled) = (self.living(), self.pooled());
        let member = &mut self.members[node.index()];
        // Who asked to leave and waited until no page was there has taken nothing along.
        let left = member.leaving && member.used == 0;
        let living = if left || pooled { 0 } else { living };
        // Of what the directory before had given up in its memory, some have heard already.
        member.told |= living;
        let (first_frame, frames) = (member.first_frame, member.frames);
        for living in nodes(living) {
            let message = ToNode::Died {
                node,
                first_frame,
                frames,
            };
            out.send(living, message);
        }
        // Nobody is served before all of the dead memory is out of reach.
        self.serves = false;
        for frame in 0..self.entries.len() {
            let frame = u32::try_from(frame).expect("frames are counted in 32 bits");
            self.forget_mapping(node, frame, out);
        }
        self.serves = true;
        self.vacated(node, out);
        self.serve_room(out);
        // Others' deaths and farewells may have waited for this one.
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
    }

    /// What `node`'s death means for one frame.
    fn forget_mapping(&mut self, node: NodeId, frame: u32, out: &mut Outbox) {
        let keeps_bit = self.has(Fault::KeepDeadSharer);
        let pooled = self.pooled();
        let entry = &mut self.entries[frame as usize];
        let shared = entry.sharers & node.bit() != 0;
        if !keeps_bit {
            entry.sharers &= !node.bit();
        }
        let (state, hosted) = (entry.state, entry.host == node);
        if hosted {
            // It does not answer any more.
            entry.flags &= !(WRITING | FINAL);
        }
        match state {
            State::Invalid => {}
            // What it filled is discarded, wherever the frame is. What others fill in its memory goes when they
            // publish or abandon it.
            State::Exclusive if entry.holder == node => {
                // It may have stored into it already: its word that the fill had ended was on the way.
                if entry.flags & WRITTEN != 0 {
                    out.lost.push(entry.page);
                }
                self.release(frame, false, out);
            }
            State::Exclusive => {}
            State::Owner | State::Shared if hosted => self.bury(frame, out),
            State::Owner | State::Shared => entry.state = entry.published(),
            State::ToBeInvalidated if hosted => {
                self.leaving -= 1;
                if entry.flags & WRITTEN != 0 && !pooled {
                    out.lost.push(entry.page);
                }
                self.emptied(frame, out);
            }
            State::ToBeInvalidated if shared => self.emptied(frame, out),
            State::ToBeInvalidated => {}
        }
    }

    /// A published page in a dead node's memory: named if it may have been dirty, and taken from who maps it.
    pub(super) fn bury(&mut self, frame: u32, out: &mut Outbox) {
        let entry = self.entries[frame as usize];
        if entry.flags & WRITTEN != 0 && !self.pooled() {
            out.lost.push(entry.page);
        }
        self.invalidate(frame, out);
    }
}
