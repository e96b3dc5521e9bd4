//! The status.

use forebay_pagecache::directory::Held;
use forebay_pagecache::message::{NODES_MAX, NodeId};

use super::{PAGE_BYTES, Server, bytes_of};
use crate::status::{NodeStatus, Pages, Status};

impl From<Held> for Pages {
    fn from(held: Held) -> Self {
        Self {
            exclusive: held.exclusive,
            owner: held.owner,
            shared: held.shared,
            to_be_invalidated: held.to_be_invalidated,
            replicas: held.replicas,
        }
    }
}

impl Server {
    /// Returns the nodes that a restarted directory waits for.
    pub(super) fn awaited_nodes(&self) -> Vec<NodeId> {
        let awaited = self.directory.awaited().unwrap_or(0);
        let nodes = (0..NODES_MAX).filter_map(NodeId::new);
        nodes.filter(|node| awaited & node.bit() != 0).collect()
    }

    pub(super) fn status(&self) -> Status {
        let counts = self.directory.counts();
        let awaited = self.awaited_nodes().into_iter();
        let mut status = Status {
            source: self.nodes.source.clone(),
            pid: std::process::id(),
            epoch: self.nodes.epoch,
            capacity_bytes: bytes_of(self.options.pages),
            page_bytes: PAGE_BYTES as u64,
            awaited: awaited.map(NodeId::number).collect(),
            found: counts.found,
            filled: counts.filled,
            invalidations: counts.invalidations,
            evicted: counts.evicted,
            write_backs: counts.write_backs,
            messages_in: self.messages_in,
            messages_out: self.messages_out,
            lost_pages: self.lost_pages,
            rescued_pages: self.rescue.rescued,
            fenced: self.fenced,
            ..Status::default()
        };
        for share in self.directory.shares() {
            let pages = Pages::from(self.directory.held(share.node));
            status.pages.exclusive += pages.exclusive;
            status.pages.owner += pages.owner;
            status.pages.shared += pages.shared;
            status.pages.to_be_invalidated += pages.to_be_invalidated;
            status.pages.replicas += pages.replicas;
            let peer = self.peers.get(&share.node);
            let reported = peer.map(|peer| peer.reported.clone());
            let ending = peer.is_some_and(|peer| peer.end_at.is_some());
            let state = match (share.alive, ending) {
                (false, _) => "dead",
                (true, true) => "ending",
                (true, false) => "alive",
            };
            status.nodes.push(NodeStatus {
                id: share.node.number(),
                pid: self.known(share).pid,
                state: state.into(),
                frames: share.frames,
                pages,
                ..reported.unwrap_or_default()
            });
        }
        status
    }
}
