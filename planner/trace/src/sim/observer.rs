//! Observation of a simulated cache, for a caller that has state of its own for each block.

use std::ops::Range;

use forebay_policy::BlockId;

use super::changes::{Change, Changed};
use super::model::Simulated;

impl Simulated {
    /// From now on changes are kept until they are taken.
    pub fn watch(&mut self) {
        self.changes.get_or_insert_default();
    }

    /// Moves what happened since the last call, in order, behind what is in `changes`.
    pub fn take_changes(&mut self, changes: &mut Vec<Changed>) {
        if let Some(kept) = &mut self.changes {
            changes.append(kept);
        }
    }

    /// The part of its volume that a block holds, in blocks of the smallest size.
    #[must_use]
    pub fn units_of(&self, id: BlockId) -> (u16, Range<u64>) {
        let (volume, region, span) = self.table.address(id);
        let first = region * u64::from(self.model.sizes.region_units()) + u64::from(span.first);
        (volume, first..first + u64::from(span.units()))
    }

    /// Where a block lies in the cache, in blocks of the smallest size.
    #[must_use]
    pub fn places_of(&self, id: BlockId) -> Range<u64> {
        let (_, _, span) = self.table.address(id);
        let first = u64::from(self.table.place(id));
        first..first + u64::from(span.units())
    }

    /// Writes a block's dirty granules back, and what goes with them.
    pub fn clean(&mut self, id: BlockId) {
        self.write_back(id);
    }

    pub(super) fn note(&mut self, change: Change, id: BlockId) {
        if self.changes.is_none() {
            return;
        }
        let (volume, units) = self.units_of(id);
        let places = self.places_of(id);
        if let Some(changes) = &mut self.changes {
            changes.push(Changed {
                change,
                id,
                volume,
                units,
                places,
            });
        }
    }
}
