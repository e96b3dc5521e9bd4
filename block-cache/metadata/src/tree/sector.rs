//! A tree on media: units in two copies, each a run of sectors that verify by themselves.
//!
//! | byte | field |
//! |---|---|
//! | 0 | checksum of bytes 4 to 511 |
//! | 4 | volume (2); plane; degree, as a power of two |
//! | 8 | sequence |
//! | 16 | number of the sector in the tree (4); levels; log2 of the blocks of a leaf; zero (2) |
//! | 24 | 3,904 bits, one a node, nodes numbered from the root row by row |

use super::shape::Shape;
use crate::Seed;
use crate::codec::{get_u16, get_u32, get_u64, put_u16, put_u32, put_u64};
use crate::order::{Part, Site};

/// Smallest number of bytes that a device writes atomically.
pub(super) const SECTOR_BYTES: usize = 512;
const HEADER_BYTES: usize = 24;
/// Words of bits in a sector.
pub(super) const SECTOR_WORDS: usize = (SECTOR_BYTES - HEADER_BYTES) / 8;

/// Meaning of a set bit of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Plane {
    /// Cached copies may be newer than the backing device.
    Dirty,
    /// The backing device may be newer than cached copies.
    Intent,
}

/// Extent of a tree on its device, and its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreeExtent {
    /// First byte; a multiple of the unit.
    pub offset: u64,
    /// Commit unit, bytes: the larger of the device's logical and physical block, at least 512.
    pub unit_bytes: u32,
    /// The volume's number in the superblock.
    pub volume: u16,
    /// Meaning of a set bit.
    pub plane: Plane,
    /// Meaning of the tree's nodes.
    pub shape: Shape,
}

impl TreeExtent {
    /// Words of bits in a unit.
    #[must_use]
    pub const fn unit_words(&self) -> usize {
        self.unit_sectors() * SECTOR_WORDS
    }

    /// Units of the tree, of each of which there are two copies.
    #[must_use]
    pub fn units(&self) -> u32 {
        let words = (self.shape.nodes() as usize).div_ceil(64);
        words.div_ceil(self.unit_words()) as u32
    }

    /// Bytes that it takes on the device.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        u64::from(self.units()) * 2 * u64::from(self.unit_bytes)
    }

    pub(super) const fn unit_sectors(&self) -> usize {
        self.unit_bytes as usize / SECTOR_BYTES
    }

    /// First byte of a copy of a unit.
    pub(super) fn at(&self, unit: u32, copy: usize) -> u64 {
        self.offset + (u64::from(unit) * 2 + copy as u64) * u64::from(self.unit_bytes)
    }

    /// Writes a unit's sectors.
    pub(super) fn encode(
        &self,
        out: &mut [u8],
        seed: Seed,
        unit: u32,
        sequence: u64,
        words: &[u64],
    ) {
        let parts = out
            .chunks_exact_mut(SECTOR_BYTES)
            .zip(words.chunks_exact(SECTOR_WORDS));
        for (nth, (sector, words)) in parts.enumerate() {
            self.header(sector, unit, nth, sequence);
            for (nth, word) in words.iter().enumerate() {
                put_u64(sector, HEADER_BYTES + nth * 8, *word);
            }
            let checksum = seed.checksum(&sector[4..]);
            put_u32(sector, 0, checksum);
        }
    }

    fn header(&self, sector: &mut [u8], unit: u32, nth: usize, sequence: u64) {
        put_u16(sector, 4, self.volume);
        sector[6] = match self.plane {
            Plane::Dirty => 0,
            Plane::Intent => 1,
        };
        sector[7] = self.shape.degree_shift();
        put_u64(sector, 8, sequence);
        put_u32(sector, 16, unit * self.unit_sectors() as u32 + nth as u32);
        sector[20] = self.shape.levels();
        sector[21] = self.shape.leaf_shift();
        put_u16(sector, 22, 0);
    }

    /// Returns the sequences of a copy's sectors. A sector that is not one of this tree has `None`:
    /// it was never written, is damaged, or belongs to a tree of another shape.
    pub(super) fn sequences(&self, bytes: &[u8], seed: Seed, unit: u32) -> Vec<Option<u64>> {
        let sectors = bytes.chunks_exact(SECTOR_BYTES).enumerate();
        let sequence = |(nth, sector): (usize, &[u8])| {
            let sequence = get_u64(sector, 8);
            let mut expected = [0; HEADER_BYTES];
            self.header(&mut expected, unit, nth, sequence);
            let ours = expected[4..] == sector[4..HEADER_BYTES];
            let verifies = get_u32(sector, 0) == seed.checksum(&sector[4..]);
            debug_assert!(!ours || get_u16(sector, 4) == self.volume);
            (ours && verifies).then_some(sequence)
        };
        sectors.map(sequence).collect()
    }

    /// The bits of a copy that verifies.
    pub(super) fn words(&self, bytes: &[u8]) -> Vec<u64> {
        let sectors = bytes.chunks_exact(SECTOR_BYTES);
        sectors
            .flat_map(|sector| (0..SECTOR_WORDS).map(|nth| get_u64(sector, HEADER_BYTES + nth * 8)))
            .collect()
    }
}

/// Returns the copy of a unit that counts, or `None` if neither can be trusted.
///
/// A copy counts under two conditions. It is whole: all of its sectors verify and have one
/// sequence. And the other copy proves that it is not newer: one of its sectors verifies and has a
/// lower sequence. An acknowledged write leaves no sector of the former contents. So a copy that
/// has one is older, or was torn before its write was acknowledged. A copy without such a sector
/// may have been the newer one before it was corrupted. Then the whole copy is stale.
pub(super) fn choose(copies: [&[Option<u64>]; 2]) -> Option<usize> {
    let whole = |copy: &[Option<u64>]| -> Option<u64> {
        let first = copy.first().copied().flatten()?;
        copy.iter().all(|one| *one == Some(first)).then_some(first)
    };
    let proven = |nth: usize| {
        let sequence = whole(copies[nth])?;
        let mut others = copies[1 - nth].iter().flatten();
        others.any(|other| *other < sequence).then_some(nth)
    };
    if let Some(nth) = proven(0).or_else(|| proven(1)) {
        return Some(nth);
    }
    // Trusting what may be stale is what this is there to prevent.
    if Site::here().lacks(Part::Step) {
        return (0..2).find(|&nth| whole(copies[nth]).is_some());
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(unit_bytes: u32) -> TreeExtent {
        TreeExtent {
            offset: 0,
            unit_bytes,
            volume: 7,
            plane: Plane::Dirty,
            shape: Shape::covering(1 << 20, 4, 7).expect("valid"),
        }
    }

    #[test]
    fn the_papers_tree_takes_so_much() {
        assert_eq!((extent(512).units(), extent(512).bytes()), (6, 6144));
        assert_eq!((extent(4096).units(), extent(4096).bytes()), (1, 8192));
    }

    #[test]
    fn a_sector_survives_a_round_trip_and_no_flipped_bit_does() {
        let extent = extent(1024);
        let seed = Seed::new(&[3; 16]);
        let words: Vec<u64> = (0..extent.unit_words() as u64)
            .map(|word| word * 77)
            .collect();
        let mut bytes = vec![0; 1024];
        extent.encode(&mut bytes, seed, 2, 99, &words);
        assert_eq!(extent.sequences(&bytes, seed, 2), [Some(99); 2]);
        assert_eq!(extent.words(&bytes), words);
        for bit in 0..SECTOR_BYTES * 8 {
            let mut rotten = bytes.clone();
            rotten[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(extent.sequences(&rotten, seed, 2), [None, Some(99)]);
        }
        // Another extent, tree, or cache.
        assert_eq!(extent.sequences(&bytes, seed, 1), [None; 2]);
        let other = TreeExtent {
            plane: Plane::Intent,
            ..extent
        };
        assert_eq!(other.sequences(&bytes, seed, 2), [None; 2]);
        let other = Seed::new(&[4; 16]);
        assert_eq!(extent.sequences(&bytes, other, 2), [None; 2]);
    }

    #[test]
    fn the_layout_on_media_does_not_change() {
        let extent = extent(512);
        let mut words = vec![0; extent.unit_words()];
        words[0] = 0x0102_0304_0506_0708;
        let mut bytes = vec![0; 512];
        extent.encode(&mut bytes, Seed::new(&[0; 16]), 3, 0x1122_3344_5566, &words);
        let hex: String = bytes[4..36]
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        assert_eq!(
            hex,
            "07000002665544332211000003000000070600000807060504030201\
             00000000"
        );
    }

    #[test]
    fn a_copy_counts_only_if_the_other_proves_to_be_older() {
        let choose = |one: [u64; 2], other: [u64; 2]| {
            let copy = |copy: [u64; 2]| copy.map(|sequence| (sequence > 0).then_some(sequence));
            choose([&copy(one), &copy(other)])
        };
        assert_eq!(choose([4, 4], [5, 5]), Some(1));
        assert_eq!(choose([6, 6], [5, 5]), Some(0));
        // Torn while it was written.
        assert_eq!(choose([4, 4], [5, 3]), Some(0));
        // The older one is damaged, in part.
        assert_eq!(choose([0, 3], [4, 4]), Some(1));
        // The newer one is damaged, or it may have been that one.
        assert_eq!(choose([4, 4], [0, 5]), None);
        assert_eq!(choose([4, 4], [0, 0]), None);
        // No write leaves these.
        assert_eq!(choose([4, 4], [4, 4]), None);
        assert_eq!(choose([0, 0], [0, 0]), None);
        assert_eq!(choose([4, 5], [3, 3]), None);
    }
}
