//! End and restart of the directory, and nodes that take the numbers of dead ones.

use std::collections::VecDeque;

use super::world::{Peer, World};
use crate::directory::{Directory, Outbox, Share};
use crate::fault::Faults;
use crate::node::{self, Effect, Node};

impl World {
    /// Creates a node, with its first effects.
    pub(super) fn peer(&self, config: node::Config) -> (Peer, Vec<Effect>) {
        let mut effects = Vec::new();
        let mut node = Node::new(config, &mut effects);
        node.faults = Faults {
            planted: self.fault,
        };
        node.open(1, super::client::PAGES);
        let peer = Peer {
            node,
            alive: true,
            connected: true,
            up: VecDeque::new(),
            down: VecDeque::new(),
        };
        (peer, effects)
    }

    /// Ends the directory between two steps. Messages to it are lost; messages of it may still
    /// arrive. The new one knows only the shares of the nodes.
    pub(super) fn crash(&mut self) {
        self.summary.crashes += 1;
        self.epoch += 1;
        self.rescues.clear();
        let shares: Vec<Share> = self.directory.shares().collect();
        let counts = self.directory.counts();
        self.summary.fills += counts.filled;
        self.summary.evictions += counts.evicted;
        self.summary.protections += counts.protections;
        self.summary.replicas += counts.replicas;
        let directory = Directory::recover(self.config, self.epoch, &shares);
        self.directory = directory.expect("the same configuration");
        self.directory.faults = Faults {
            planted: self.fault,
        };
        for peer in &mut self.peers {
            peer.up.clear();
            peer.connected = false;
        }
    }

    pub(super) fn reconnect(&mut self, index: usize) {
        let peer = &mut self.peers[index];
        peer.connected = true;
        peer.down.clear();
        self.work
            .retain_mut(|work| work.node != index || work.outlives_directory());
        let mut effects = Vec::new();
        peer.node.rejoin(&mut effects);
        self.apply(index, effects);
    }

    pub(super) fn born(&mut self, index: usize) {
        self.summary.births += 1;
        let node = self.forgotten.swap_remove(index).index();
        let (peer, effects) = self.peer(self.configs[node]);
        self.peers[node] = peer;
        self.apply(node, effects);
    }

    /// Shows a restarted directory the frames, once it waits for no node any more.
    pub(super) fn go_on_if_all_are_there(&mut self, out: &mut Outbox) {
        if self.directory.awaited() == Some(0) {
            let unsaved =
                (0..self.segment.frames()).filter_map(|frame| self.segment.unsaved(frame));
            let unsaved = unsaved.collect();
            let given_up = (0..self.segment.frames())
                .filter_map(|frame| Some((self.segment.given_up(frame)?, frame)));
            let given_up: Vec<_> = given_up.collect();
            self.summary.reported_after_restart += given_up.len() as u64;
            self.directory.recovered(unsaved, &given_up, out);
        }
    }
}
