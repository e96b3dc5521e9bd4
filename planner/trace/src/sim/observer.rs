//! Observation of a simulated cache, for a caller that has state of its own for each block.

use std::ops::Range;

use forebay_policy::BlockId;

use super::changes::{Change, Changed};
use super::model::Simulated;

impl Simulated {
    /// Records changes from now on, until they are taken.
    pub fn watch(&mut self) {
        self.changes.get_or_insert_default();
    }

    /// Appends the changes since the last call to `changes`, in order.
    pub fn take_changes(&mut self, changes: &mut Vec<Changed>) {
        if let Some(recorded) = &mut self.changes {
            changes.append(recorded);
        }
    }

    /// The part of its volume that a block holds, in blocks of the smallest size.
    #[must_use]
    pub fn units_of(&self, id: BlockId) -> (u16, Range<u64>) {
        let (volume, region, span) = self.table.address(id);
        let first = region * u64::from(self.model.sizes.region_units()) + u64::from(span.first);
        (volume, first..first + u64::from(span.units()))
    }

    /// The slots that a block takes, of the smallest size.
    #[must_use]
    pub fn slots_of(&self, id: BlockId) -> Range<u64> {
        let (_, _, span) = self.table.address(id);
        let first = u64::from(self.table.slot(id).get());
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
        let slots = self.slots_of(id);
        if let Some(changes) = &mut self.changes {
            changes.push(Changed {
                change,
                id,
                volume,
                units,
                slots,
            });
        }
    }
}
