//! Allocation of a device: which parts have data, and which read as zeroes.

use std::future::{Future, ready};
use std::ops::Range;
use std::pin::Pin;

use crate::Result;

/// Maximum number of extents in one answer.
pub const MAX_EXTENTS: usize = 512;

/// Allocation of a part of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Allocation {
    /// Any content. Everything that is in doubt is data.
    Data,
    /// Not allocated. Reads as zeroes.
    Hole,
    /// Allocated. Reads as zeroes.
    Zero,
}

/// Contiguous part of a device with one allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllocationExtent {
    /// Bytes of the device.
    pub bytes: Range<u64>,
    /// Allocation of all of them.
    pub allocation: Allocation,
}

/// Extents of a device in ascending order, without gaps. Neighbours differ in their allocation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extents(Vec<AllocationExtent>);

/// Answer of a device to a query for its extents.
pub type ExtentsFuture<'a> = Pin<Box<dyn Future<Output = Result<Extents>> + 'a>>;

impl Extents {
    /// Creates an answer that calls all of `range` data.
    #[must_use]
    pub fn data(range: Range<u64>) -> Self {
        let mut extents = Self::default();
        extents.push(range, Allocation::Data);
        extents
    }

    /// Appends `bytes`, which begin at the end of the last extent. Ignores an empty range.
    ///
    /// # Panics
    /// If there is a gap, or if the extents overlap.
    pub fn push(&mut self, bytes: Range<u64>, allocation: Allocation) {
        if bytes.is_empty() {
            return;
        }
        match self.0.last_mut() {
            None => self.0.push(AllocationExtent { bytes, allocation }),
            Some(last) => {
                assert_eq!(last.bytes.end, bytes.start, "extents have no gap");
                if last.allocation == allocation {
                    last.bytes.end = bytes.end;
                } else {
                    self.0.push(AllocationExtent { bytes, allocation });
                }
            }
        }
    }

    /// Returns the end of the last extent, bytes. Returns `None` without extents.
    #[must_use]
    pub fn end(&self) -> Option<u64> {
        self.0.last().map(|last| last.bytes.end)
    }

    /// Returns whether no extent fits any more.
    #[must_use]
    pub const fn is_full(&self) -> bool {
        self.0.len() >= MAX_EXTENTS
    }

    /// Returns the extents in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = &AllocationExtent> {
        self.0.iter()
    }

    /// Returns these extents with the ranges `data` as data, and with at most [`MAX_EXTENTS`]
    /// extents. The ranges ascend and do not overlap. Parts of them outside of the extents are
    /// ignored.
    #[must_use]
    pub fn with_data(&self, data: &[Range<u64>]) -> Self {
        let mut merged = Self::default();
        let mut data = data.iter().peekable();
        for AllocationExtent { bytes, allocation } in &self.0 {
            let mut at = bytes.start;
            while at < bytes.end {
                while data.next_if(|range| range.end <= at).is_some() {}
                let (end, allocation) = match data.peek() {
                    Some(range) if range.start <= at => (range.end, Allocation::Data),
                    Some(range) => (range.start, *allocation),
                    None => (bytes.end, *allocation),
                };
                let end = end.min(bytes.end);
                let is_new = merged.0.last().is_none_or(|it| it.allocation != allocation);
                if is_new && merged.is_full() {
                    return merged;
                }
                merged.push(at..end, allocation);
                at = end;
            }
        }
        merged
    }

    /// Returns these extents in whole blocks of `block_bytes`. A block that is not wholly a hole or
    /// zero is data. The first extent begins at a block.
    #[must_use]
    pub fn in_blocks(&self, block_bytes: u64) -> Self {
        let mut aligned = Self::default();
        // End of the last whole block of zeroes. From there on everything is data for now.
        let mut at = self.0.first().map_or(0, |first| first.bytes.start);
        for AllocationExtent { bytes, allocation } in &self.0 {
            let start = bytes.start.next_multiple_of(block_bytes).max(at);
            let end = bytes.end - bytes.end % block_bytes;
            if *allocation != Allocation::Data && start < end {
                aligned.push(at..start, Allocation::Data);
                aligned.push(start..end, *allocation);
                at = end;
            }
        }
        let end = self.end().unwrap_or(0).next_multiple_of(block_bytes);
        aligned.push(at..end, Allocation::Data);
        aligned
    }
}

/// Returns the answer of a device that calls everything data.
pub(crate) fn all_data(range: Range<u64>) -> ExtentsFuture<'static> {
    Box::pin(ready(Ok(Extents::data(range))))
}

#[cfg(test)]
mod tests {
    use super::Allocation::{Data, Hole, Zero};
    use super::*;

    fn extents(parts: &[(u64, Allocation)]) -> Extents {
        let mut made = Extents::default();
        for (end, allocation) in parts {
            let start = made.end().unwrap_or(0);
            made.push(start..*end, *allocation);
        }
        made
    }

    #[test]
    fn neighbours_of_one_allocation_are_one_extent() {
        let made = extents(&[(512, Hole), (1024, Hole), (1024, Zero), (2048, Data)]);
        assert_eq!(made, extents(&[(1024, Hole), (2048, Data)]));
        assert_eq!(made.end(), Some(2048));
        assert_eq!(Extents::default().end(), None);
    }

    #[test]
    fn data_wins_over_every_allocation() {
        // Each pattern of data in eight blocks over each pattern of allocations in them.
        let kinds = [Data, Hole, Zero];
        for pattern in 0..3_usize.pow(6) {
            let kind = |block: u32| kinds[pattern / 3_usize.pow(block) % 3];
            let parts: Vec<_> = (0..6).map(|it| (u64::from(it) + 1, kind(it))).collect();
            let below = extents(&parts);
            for dirty in 0..1_u64 << 8 {
                let runs: Vec<_> = (0..8).filter(|it| dirty >> it & 1 == 1).collect();
                let ranges: Vec<_> = runs.iter().map(|&it| it..it + 1).collect();
                let merged = below.with_data(&ranges);
                assert_eq!(merged.end(), Some(6));
                for extent in merged.iter() {
                    for at in extent.bytes.clone() {
                        let expected = match dirty >> at & 1 {
                            1 => Data,
                            _ => kind(u32::try_from(at).expect("small")),
                        };
                        assert_eq!(extent.allocation, expected, "{pattern} {dirty:#b} {at}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_merge_ends_at_the_limit() {
        let data: Vec<_> = (0..2 * MAX_EXTENTS as u64)
            .map(|it| 2 * it..2 * it + 1)
            .collect();
        let merged = extents(&[(1 << 20, Hole)]).with_data(&data);
        assert_eq!(merged.iter().count(), MAX_EXTENTS);
        assert_eq!(merged.end(), Some(MAX_EXTENTS as u64));
    }

    #[test]
    fn a_block_that_is_partly_data_is_data() {
        let ragged = extents(&[(1000, Hole), (1100, Data), (4196, Zero), (4300, Hole)]);
        let expected = [(512, Hole), (1536, Data), (4096, Zero), (4608, Data)];
        assert_eq!(ragged.in_blocks(512), extents(&expected));
        let inside = extents(&[(100, Hole), (200, Data), (300, Hole)]);
        assert_eq!(inside.in_blocks(512), extents(&[(512, Data)]));
        let aligned = extents(&[(512, Hole), (1024, Zero), (1536, Data)]);
        assert_eq!(aligned.in_blocks(512), aligned);
    }
}
