//! Protection of pages that were written: all nodes are asked to look a page up before they store
//! into it. Then it may have replicas, as a page that was never written.

use std::collections::BTreeMap;

use super::entry::STORABLE;
use super::{Directory, Fault, Outbox};
use crate::message::{NodeId, Place, ToNode, nodes};

/// A page whose nodes were asked.
#[derive(Clone, Copy, Debug)]
struct Protection {
    /// Nodes that have not answered.
    awaited: u32,
    /// Node that wants a replica.
    reader: NodeId,
    /// Whether a node may store into the page after all.
    is_cancelled: bool,
}

/// Protections in progress, by frame. A page that is evicted has none.
#[derive(Debug, Default)]
pub(super) struct Protections {
    frames: BTreeMap<u32, Protection>,
}

impl Directory {
    /// Asks all nodes that map a page to look it up before the next store. Does nothing until all
    /// have answered an earlier request: an answer names no request.
    pub(super) fn protect(&mut self, frame: u32, reader: NodeId, out: &mut Outbox) {
        if self.protections.frames.contains_key(&frame) {
            return;
        }
        let entry = self.entries[frame as usize];
        let (page, place) = (entry.page, entry.place(frame));
        for node in nodes(entry.sharers) {
            out.send(node, ToNode::Protect { page, place });
        }
        let protection = Protection {
            awaited: entry.sharers,
            reader,
            is_cancelled: false,
        };
        self.protections.frames.insert(frame, protection);
    }

    /// Notes the answer of a node. The page may have been evicted since.
    pub(super) fn protected(&mut self, from: NodeId, place: Place, ok: bool, out: &mut Outbox) {
        let is_there = self.at(place).is_some();
        let found = self.protections.frames.get_mut(&place.frame);
        let Some(protection) = found.filter(|_| is_there) else {
            return;
        };
        protection.awaited &= !from.bit();
        protection.is_cancelled |= !ok;
        let Protection {
            awaited,
            reader,
            is_cancelled,
        } = *protection;
        if awaited != 0 {
            return;
        }
        self.protections.frames.remove(&place.frame);
        if !is_cancelled {
            self.counts.protections += 1;
            self.entries[place.frame as usize].flags &= !STORABLE;
            self.replicate(reader, place, out);
        }
    }

    /// Notes that a node is permitted to store into the page.
    pub(super) fn cancel_protection(&mut self, frame: u32) {
        let ignores = self.has(Fault::ProtectionNotCancelled);
        if let Some(protection) = self.protections.frames.get_mut(&frame) {
            protection.is_cancelled |= !ignores;
        }
    }

    /// Returns whether nodes may have answered that they look the page up before a store.
    pub(super) fn is_being_protected(&self, frame: u32) -> bool {
        let protection = self.protections.frames.get(&frame);
        protection.is_some_and(|protection| !protection.is_cancelled)
    }

    /// Ends the protection of a page that is evicted.
    pub(super) fn end_protection(&mut self, frame: u32) {
        self.protections.frames.remove(&frame);
    }

    /// Awaits no answer of a dead node. The pages stay unprotected.
    pub(super) fn forget_protections(&mut self, dead: NodeId) {
        self.protections.frames.retain(|_, protection| {
            let is_awaited = protection.awaited & dead.bit() != 0;
            protection.awaited &= !dead.bit();
            protection.is_cancelled |= is_awaited;
            protection.awaited != 0
        });
    }
}
