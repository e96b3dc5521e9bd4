//! A table as it was before: blocks are put back where they lie.

use super::{BlockId, BlockTable};
use crate::adaptive::sizes::Span;

/// Why a block cannot be put back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misplaced {
    /// There is no such place, or no block of this size begins there.
    NoSuchPlace,
    /// The place is taken, or its group holds blocks of another size: this one, among others.
    Taken(BlockId),
    /// The place, or its group with blocks of another size, is waiting to be free.
    Held,
}

impl BlockTable {
    /// Puts a block back where it lies, as the most recent.
    ///
    /// # Errors
    /// Why that cannot be; nothing is changed then. The caller makes sure that no block overlaps it in
    /// its region.
    pub fn restore(
        &mut self,
        volume: u16,
        region: u64,
        span: Span,
        place: u32,
    ) -> Result<BlockId, Misplaced> {
        if !self.sizes.has(span.class) || !self.groups.fits(place, span.class) {
            return Err(Misplaced::NoSuchPlace);
        }
        if !self.groups.claim(place, span.class) {
            let group = self.groups.of(place);
            let same = self.groups.class(group) == span.class;
            let mut blocks = self.blocks_of(group);
            let other = blocks.find(|id| !same || self.place(*id) == place);
            return Err(other.map_or(Misplaced::Held, Misplaced::Taken));
        }
        Ok(self.fill(volume, region, span, place))
    }

    /// Keeps a place from being given out until [`BlockTable::free_place`]. Returns whether that was
    /// necessary and possible: it is not where something lies already.
    pub fn hold(&mut self, place: u32, class: u8) -> bool {
        // A block that is put there and retired leaves just that.
        match self.restore(0, 0, Span { first: 0, class }, place) {
            Ok(id) => {
                self.retire(id);
                true
            }
            Err(_) => false,
        }
    }
}
