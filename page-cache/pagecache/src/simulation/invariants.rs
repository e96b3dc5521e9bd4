//! Invariants of a cluster, which hold after every step.

use std::collections::BTreeMap;

use super::world::World;
use crate::message::{PageId, Place};

impl World {
    /// Checks the invariants.
    ///
    /// # Errors
    /// The violated invariant.
    pub(super) fn check(&mut self) -> Result<(), String> {
        let mut homes: BTreeMap<PageId, Place> = BTreeMap::new();
        let mut copies: BTreeMap<PageId, u64> = BTreeMap::new();
        for peer in self.peers.iter().filter(|peer| peer.alive) {
            for (page, place) in peer.node.mappings() {
                let home = *homes.entry(page).or_insert(place);
                let owner = self.directory.page(page).map(|(_, place)| place);
                let unknown = owner.is_none() && self.directory.awaited().is_some();
                if home != place || (owner != Some(place) && !unknown) {
                    return Err(format!(
                        "{page} is mapped at {home:?} and at {place:?}; its owner has {owner:?}"
                    ));
                }
                copies.insert(page, 1);
            }
        }
        for work in &self.work {
            if let Some(page) = work.fills()
                && let Some(home) = homes.get(&page)
            {
                return Err(format!("{page} is being filled and mapped at {home:?}"));
            }
        }
        for (index, peer) in self.peers.iter().enumerate().filter(|(_, peer)| peer.alive) {
            let unpublished = peer.node.unpublished_pages();
            if unpublished.len() > peer.node.unpublished_max() {
                return Err(format!(
                    "node {index} holds {} pages unpublished",
                    unpublished.len()
                ));
            }
            // A page that is being published is in transition.
            for (page, _) in unpublished.filter(|(_, publishing)| !publishing) {
                *copies.entry(page).or_default() += 1;
            }
        }
        if self.directory.taken_pages() > self.config.budget_pages {
            return Err(format!(
                "{} pages of {} taken",
                self.directory.taken_pages(),
                self.config.budget_pages
            ));
        }
        self.check_replicas()?;
        let peak = copies.values().copied().max().unwrap_or(0);
        self.summary.copies_peak = self.summary.copies_peak.max(peak);
        Ok(())
    }
}
