//! Replicas of a life.
//!
//! Their choices have a generator of their own, and half of the lives have none. So a seed without
//! them draws the same life as without this file.

use forebay_io::sim::Rng;

use super::PAGE_BYTES;
use super::world::World;
use crate::fault::Fault;
use crate::message::{PageId, Place};

/// Choices of one life.
pub(super) struct Replication {
    rng: Rng,
    replicates: bool,
}

impl Replication {
    pub(super) fn new(seed: u64, fault: Option<Fault>) -> Self {
        let rng = Rng::new(seed ^ (1 << 63));
        // Other faults are planted in lives without replicas, in which memory is scarcer.
        let replicates = match fault {
            None => rng.chance(1, 2),
            Some(fault) => matches!(
                fault,
                Fault::ReplicaNotRevoked
                    | Fault::ReplicaUsedAfterDrop
                    | Fault::ReplicaOutlivesDirectory
                    | Fault::ProtectPinned
                    | Fault::ProtectionNotCancelled
            ),
        };
        Self { rng, replicates }
    }

    /// Draws the number of a node's frames that only replicas need.
    pub(super) fn frames(&self) -> u32 {
        match self.replicates {
            true => u32::try_from(self.rng.below(6)).expect("few"),
            false => 0,
        }
    }

    /// Draws the number of copies after which a node wants a replica.
    pub(super) fn draw(&self) -> u32 {
        match self.replicates {
            true => u32::try_from(1 + self.rng.below(2)).expect("few"),
            false => 0,
        }
    }
}

impl World {
    /// Copies a page into its replica.
    pub(super) fn copy_replica(&mut self, index: usize, page: PageId, place: Place, copy: Place) {
        let mut bytes = [0; PAGE_BYTES];
        let ok = self.segment.read_once(place, &mut bytes).is_ok();
        let node = &mut self.peers[index].node;
        if ok {
            self.segment.fill(page, copy, node.id(), &bytes, true);
        }
        let mut effects = Vec::new();
        node.copied(page, copy, ok, &mut effects);
        self.apply(index, effects);
    }

    /// Checks that each replica is known to the directory, and has the content of its page.
    ///
    /// # Errors
    /// The violated invariant.
    pub(super) fn check_replicas(&self) -> Result<(), String> {
        let living = self.peers.iter().filter(|peer| peer.alive);
        for (peer, page, copy) in living.flat_map(|peer| {
            let replicas = peer.node.replicas();
            replicas.map(move |(page, copy)| (peer, page, copy))
        }) {
            let id = peer.node.id();
            let is_recovering = !peer.connected || self.directory.awaited().is_some();
            if !is_recovering && !self.directory.has_replica(id, page, copy) {
                return Err(format!(
                    "{id} reads an unknown replica of {page} at {copy:?}"
                ));
            }
            let mapped = peer.node.mappings().find(|(mapped, _)| *mapped == page);
            let (_, place) = mapped.ok_or(format!("{id} has a replica of {page}, unmapped"))?;
            let [mut original, mut replica] = [[0; PAGE_BYTES]; 2];
            self.segment.load(place.frame, 0, &mut original);
            self.segment.load(copy.frame, 0, &mut replica);
            if original != replica {
                return Err(format!("{id} reads an old replica of {page} at {copy:?}"));
            }
        }
        Ok(())
    }
}
