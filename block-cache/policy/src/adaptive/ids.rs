//! Numbers of blocks and of slots, as distinct types.

use std::ops::Range;

use super::list::NONE;

/// Number of a cached block in memory. Numbers are dense and reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct BlockId(u32);

impl BlockId {
    /// No block.
    pub(super) const NONE: Self = Self(NONE);

    /// The block of this number.
    #[must_use]
    #[inline]
    pub const fn new(number: u32) -> Self {
        Self(number)
    }

    /// The blocks of these numbers, in order.
    #[inline]
    pub fn range(numbers: Range<u32>) -> impl DoubleEndedIterator<Item = Self> + Clone {
        numbers.map(Self)
    }

    /// The number.
    #[must_use]
    #[inline]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The number as an index.
    #[must_use]
    #[inline]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Number of a slot on the cache device, in units from the start of the data. A larger block takes
/// several, of which this is the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Slot(u32);

impl Slot {
    /// The slot of this number.
    #[must_use]
    #[inline]
    pub const fn new(unit: u32) -> Self {
        Self(unit)
    }

    /// The number.
    #[must_use]
    #[inline]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The number as an index.
    #[must_use]
    #[inline]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}
