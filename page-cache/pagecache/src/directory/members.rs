//! Membership: joining, leaving, and the reuse of node numbers and frames.

use super::entry::Entry;
use super::outbox::Share;
use super::{Directory, Fault, NONE, Outbox, State};
use crate::message::{NODES_MAX, NodeId, ToNode, nodes};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    Unknown,
    Alive,
    Dead,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Member {
    pub(super) life: Life,
    /// Whether it has asked to leave: its frames get no more pages.
    pub(super) leaving: bool,
    pub(super) first_frame: u32,
    pub(super) frames: u32,
    pub(super) unpublished_pages: u32,
    /// First free frame; a list through [`Entry::after`].
    pub(super) free_head: u32,
    pub(super) free: u32,
    /// Number of its frames that hold a page or are about to.
    pub(super) used: u32,
    /// Nodes that were notified of its death and have not forgotten it.
    pub(super) notified: u32,
    /// Whether they were asked to forget it.
    pub(super) asked: bool,
}

impl Member {
    pub(super) const NOBODY: Self = Self {
        life: Life::Unknown,
        leaving: false,
        first_frame: 0,
        frames: 0,
        unpublished_pages: 0,
        free_head: NONE,
        free: 0,
        used: 0,
        notified: 0,
        asked: false,
    };
}

/// Number of pages in each state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Being filled.
    pub exclusive: u32,
    /// Mapped only by their own node.
    pub owner: u32,
    /// Mapped by other nodes.
    pub shared: u32,
    /// Being evicted.
    pub to_be_invalidated: u32,
    /// Replicas of other nodes' pages.
    pub replicas: u32,
}

impl Directory {
    /// Returns all nodes that are alive, or dead and not forgotten.
    pub fn shares(&self) -> impl Iterator<Item = Share> + '_ {
        nodes(u32::MAX).filter_map(|node| self.share(node))
    }

    /// Returns the share of a node, or `None` if the number is unused.
    #[must_use]
    pub fn share(&self, node: NodeId) -> Option<Share> {
        let member = self.members[node.index()];
        (member.life != Life::Unknown).then_some(Share {
            node,
            first_frame: member.first_frame,
            frames: member.frames,
            unpublished_pages: member.unpublished_pages,
            alive: member.life == Life::Alive,
        })
    }

    /// Returns the number of pages in a node's memory in each state.
    #[must_use]
    pub fn held(&self, node: NodeId) -> Held {
        let Member {
            first_frame,
            frames,
            ..
        } = self.members[node.index()];
        let mut held = Held::default();
        let range = first_frame as usize..(first_frame + frames) as usize;
        for entry in self.entries.get(range).unwrap_or_default() {
            match entry.state {
                State::Invalid => {}
                State::Exclusive => held.exclusive += 1,
                State::Owner => held.owner += 1,
                State::Shared => held.shared += 1,
                State::ToBeInvalidated => held.to_be_invalidated += 1,
                State::Replica => held.replicas += 1,
            }
        }
        held
    }

    /// Returns the pages of the budget in use, in frames and unpublished. Those of dead nodes count
    /// until they are forgotten.
    #[must_use]
    pub fn taken_pages(&self) -> u32 {
        self.shares()
            .map(|share| match share.alive {
                true => share.frames + share.unpublished_pages,
                false => share.frames,
            })
            .sum()
    }

    pub(super) fn join(
        &mut self,
        node: NodeId,
        frames: u32,
        unpublished_pages: u32,
        out: &mut Outbox,
    ) {
        let left = self.config.budget_pages - self.taken_pages();
        let unpublished_pages = unpublished_pages.min(left);
        let (first_frame, gap) = self.gap(frames.min(left - unpublished_pages));
        let frames = frames.min(left - unpublished_pages).min(gap);
        self.take_share(Share {
            node,
            first_frame,
            frames,
            unpublished_pages,
            alive: true,
        });
        self.free_frames(node);
        out.send(
            node,
            ToNode::Joined {
                first_frame,
                frames,
                unpublished_pages,
            },
        );
        self.serve_room(out);
    }

    /// Returns the first run of `frames` unowned frames, or the longest run.
    fn gap(&self, frames: u32) -> (u32, u32) {
        let mut taken: Vec<(u32, u32)> = self
            .shares()
            .map(|share| (share.first_frame, share.frames))
            .collect();
        taken.sort_unstable();
        taken.push((self.config.budget_pages, 0));
        let (mut best, mut free_from) = ((0, 0), 0);
        for (first, count) in taken {
            let gap = first.saturating_sub(free_from);
            if gap > best.1 {
                best = (free_from, gap);
            }
            if best.1 >= frames {
                break;
            }
            free_from = free_from.max(first + count);
        }
        best
    }

    /// Assigns a node its number and frames.
    pub(super) fn take_share(&mut self, share: Share) {
        let end = (share.first_frame + share.frames) as usize;
        if self.entries.len() < end {
            self.entries.resize(end, Entry::free(share.node));
        }
        self.entries[share.first_frame as usize..end].fill(Entry::free(share.node));
        self.members[share.node.index()] = Member {
            life: match share.alive {
                true => Life::Alive,
                false => Life::Dead,
            },
            first_frame: share.first_frame,
            frames: share.frames,
            unpublished_pages: share.unpublished_pages,
            ..Member::NOBODY
        };
    }

    /// Puts a node's empty frames into its free list, in rising order.
    pub(super) fn free_frames(&mut self, node: NodeId) {
        let member = &mut self.members[node.index()];
        let range = member.first_frame..member.first_frame + member.frames;
        (member.free_head, member.free, member.used) = (NONE, 0, 0);
        for frame in range.rev() {
            let entry = &mut self.entries[frame as usize];
            if entry.state == State::Invalid {
                entry.after = std::mem::replace(&mut member.free_head, frame);
                member.free += 1;
            } else {
                member.used += 1;
            }
        }
    }

    /// Handles a request to leave: the node's memory gets no more pages, and its pages are evicted.
    /// A repeated request evicts those that the store has refused since.
    pub(super) fn leave(&mut self, node: NodeId, out: &mut Outbox) {
        let member = &mut self.members[node.index()];
        member.leaving = true;
        (member.free, member.free_head) = (0, NONE);
        let range = member.first_frame..member.first_frame + member.frames;
        for frame in range {
            match self.entries[frame as usize].state {
                State::Owner | State::Shared => {
                    self.leaving += 1;
                    self.invalidate(frame, out);
                }
                State::Replica => self.reclaim_replica(frame, out),
                State::Invalid | State::Exclusive | State::ToBeInvalidated => {}
            }
        }
        self.vacated(node, out);
    }

    /// Notes that a frame of a node that left or died is empty.
    pub(super) fn vacated(&mut self, node: NodeId, out: &mut Outbox) {
        let is_premature = self.has(Fault::ForgetMapped);
        let member = &mut self.members[node.index()];
        if member.used > 0 && !is_premature {
            return;
        }
        match member.life {
            Life::Alive if member.leaving => out.send(node, ToNode::Left {}),
            Life::Dead if !std::mem::replace(&mut member.asked, true) => {
                // The other nodes were never notified of it.
                for notified in nodes(member.notified) {
                    out.send(notified, ToNode::Forget { node });
                }
            }
            Life::Alive | Life::Dead | Life::Unknown => {}
        }
    }

    pub(super) fn forgotten(&mut self, from: NodeId, node: NodeId, out: &mut Outbox) {
        self.members[node.index()].notified &= !from.bit();
        self.forget_dead(out);
    }

    /// Releases numbers and frames that all nodes have forgotten.
    pub(super) fn forget_dead(&mut self, out: &mut Outbox) {
        let living = self.living();
        for node in (0..NODES_MAX).filter_map(NodeId::new) {
            let share = self.share(node);
            let member = &mut self.members[node.index()];
            member.notified &= living;
            if member.life == Life::Dead && member.asked && member.notified == 0 {
                *member = Member::NOBODY;
                out.forgotten.extend(share);
            }
        }
    }
}
