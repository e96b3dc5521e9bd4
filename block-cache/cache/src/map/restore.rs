//! A map as it was before: blocks are put back where they lie.

use forebay_metadata::replay::FoundBlock;
use forebay_metadata::superblock::Superblock;
use forebay_policy::{BlockId, Misplaced, Slot};

use super::{Map, TRACED};
use crate::geometry::Block;

/// By number: whether there is such a volume.
pub(crate) fn known_volumes(superblock: &Superblock) -> Vec<bool> {
    let numbers = || {
        superblock
            .volumes
            .iter()
            .map(|volume| usize::from(volume.id))
    };
    let mut known = vec![false; numbers().max().map_or(0, |most| most + 1)];
    numbers().for_each(|number| known[number] = true);
    known
}

impl Map {
    /// At recovery: looks at the memory that [`Map::restore`] of these will change, at all of it at
    /// once.
    pub(crate) fn look_ahead(&self, coming: &[FoundBlock]) {
        let blocks = coming.iter().map(|found| &found.block);
        let possible = blocks.filter(|record| self.geometry.sizes().has(record.class));
        self.table.look_ahead(possible.map(|record| {
            let block = Block {
                unit: record.block,
                class: record.class,
            };
            let region = self.geometry.region_of(block.unit);
            (
                record.volume,
                region,
                self.geometry.span(block),
                Slot::new(record.slot),
            )
        }));
    }

    /// Restores, at recovery, a block in its slot. Blocks must be restored from the most recent one
    /// on.
    ///
    /// # Errors
    /// The reason why the block cannot be restored; the map is unchanged then.
    pub(crate) fn restore(
        &mut self,
        slot: Slot,
        volume: u16,
        block: Block,
        valid: u64,
        dirty: u64,
    ) -> Result<BlockId, Misplaced> {
        let region = self.geometry.region_of(block.unit);
        let span = self.geometry.span(block);
        if u32::from(span.first) % span.units() != 0 {
            return Err(Misplaced::NoSuchSlot);
        }
        let id = self.table.restore(volume, region, span, slot)?;
        self.entered(id, volume, block.class);
        self.set(id, valid, dirty);
        self.add_flags(id, TRACED);
        Ok(id)
    }

    /// At recovery: keeps a slot from being given out until [`Map::release`]. Returns whether that
    /// was necessary and possible: it is not where a block lies.
    pub(crate) fn hold(&mut self, slot: Slot, class: u8) -> bool {
        self.table.hold(slot, class)
    }

    /// At recovery: the death of what lay in a slot that was held is durable.
    pub(crate) fn release(&mut self, slot: Slot, class: u8) {
        self.table.free_slot(slot, class);
    }
}
