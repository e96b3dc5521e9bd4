//! Approximate index of a volume's blocks: a count for each chunk of regions. A search for cached
//! blocks in a long range skips the empty chunks.

use std::ops::Range;

use forebay_policy::BlockKey;

/// Number of regions of a chunk, as a power of two.
const CHUNK_SHIFT: u32 = 12;
/// Fewest and most counts. Chunks that share a count cost look-ups, and nothing else.
const COUNTS: Range<usize> = 1 << 10..1 << 20;

/// Number of blocks of each chunk.
#[derive(Debug)]
pub(super) struct Presence(Vec<u32>);

impl Presence {
    /// Counts for a cache of so many units: a sixteenth of a byte each, 4 MiB at most.
    pub(super) fn new(units: u32) -> Self {
        let wanted = (units as usize / 64).next_power_of_two();
        Self(vec![0; wanted.clamp(COUNTS.start, COUNTS.end)])
    }

    fn at(&self, volume: u16, region: u64) -> usize {
        let hash = BlockKey::new(volume, region >> CHUNK_SHIFT).hash();
        // The length is a power of two.
        hash as usize & (self.0.len() - 1)
    }

    pub(super) fn add(&mut self, volume: u16, region: u64) {
        let at = self.at(volume, region);
        self.0[at] += 1;
    }

    pub(super) fn remove(&mut self, volume: u16, region: u64) {
        let at = self.at(volume, region);
        self.0[at] -= 1;
    }

    /// Returns the first region from this one on, and before `end`, whose chunk may have a block.
    /// Each empty chunk takes one of `looks`. When none is left, returns the region that was
    /// reached.
    pub(super) fn skip(&self, volume: u16, mut region: u64, end: u64, looks: &mut u32) -> u64 {
        while region < end && *looks > 0 && self.0[self.at(volume, region)] == 0 {
            region = ((region >> CHUNK_SHIFT) + 1) << CHUNK_SHIFT;
            *looks -= 1;
        }
        region.min(end)
    }

    /// Regions that have to be looked at in this range.
    pub(super) fn looks(&self, volume: u16, regions: &Range<u64>) -> u64 {
        let (first, end) = (
            regions.start >> CHUNK_SHIFT,
            regions.end.div_ceil(1 << CHUNK_SHIFT),
        );
        let used = (first..end)
            .filter(|chunk| self.0[self.at(volume, chunk << CHUNK_SHIFT)] > 0)
            .count() as u64;
        used << CHUNK_SHIFT
    }

    pub(super) const fn memory_bytes(&self) -> usize {
        self.0.len() * size_of::<u32>()
    }
}
