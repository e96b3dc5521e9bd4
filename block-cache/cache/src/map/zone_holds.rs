//! Counts of dirty blocks, and of writes in flight that may make blocks dirty, for each zone. A
//! zone with such a count must not be called clean.

use forebay_metadata::superblock::ZONE_BITS;

/// By the bit of their zones: dirty blocks, and writes under way that may make some.
#[derive(Debug)]
pub(super) struct ZoneHolds(Vec<u32>);

impl Default for ZoneHolds {
    fn default() -> Self {
        Self(vec![0; ZONE_BITS])
    }
}

impl ZoneHolds {
    /// A block was dirty (1) or not (0), and is now.
    #[inline]
    pub(super) fn turned(&mut self, bit: usize, was: u64, is: u64) {
        self.0[bit] += u32::from(is > was);
        self.0[bit] -= u32::from(is < was);
    }

    /// A write begins that may make a block dirty.
    pub(super) fn hold(&mut self, bit: usize) {
        self.0[bit] += 1;
    }

    /// Such a write has ended.
    pub(super) fn release(&mut self, bit: usize) {
        self.0[bit] -= 1;
    }

    /// Whether nothing in the zones with this bit is dirty, or about to turn so.
    pub(super) fn is_clean(&self, bit: usize) -> bool {
        self.0[bit] == 0
    }

    /// The others, in order.
    pub(super) fn held(&self) -> impl Iterator<Item = usize> + '_ {
        let counts = (0..).zip(&self.0).filter(|(_, count)| **count != 0);
        counts.map(|(bit, _)| bit)
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.0.len() * size_of::<u32>()
    }
}
