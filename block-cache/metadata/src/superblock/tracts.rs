//! Bits for stretches of volumes that may be dirty, known before the log is read.
//!
//! A *tract* is an aligned stretch of a volume. Each has a bit, and shares it with others if there
//! are more tracts than bits. The bit is durably set before the first byte of the tract turns dirty
//! in the cache. So if it is clear, the backing device has all of the tract's data. The bits lie in
//! the superblock, whose copies alternate and which is read first. An earlier version does not know
//! them and writes zeroes in their place before it serves anything. Zeroes mean that nothing is
//! known.

use std::fmt;
use std::ops::Range;

use super::COPY_BYTES;

/// Bits that all volumes of a cache share.
pub const TRACT_BITS: usize = 1 << 15;
/// Bytes of a tract, as a power of two, unless the format says otherwise: 64 MiB.
pub const TRACT_SHIFT: u8 = 26;
/// Sizes that a tract may have: from the smallest block to 1 TiB, as powers of two.
const SHIFTS: Range<u8> = 12..41;
/// Byte of the superblock that holds the size of a tract; zero if nothing is known.
const AT_SHIFT: usize = 128;
/// Where the bits are, at the end of the superblock.
const AT_BITS: usize = COPY_BYTES - TRACT_BITS / 8;
/// Volumes begin so many bits apart (a prime), so that small ones mostly have bits of their own.
const APART: usize = 509;

/// Bits of tracts.
#[derive(Clone, PartialEq, Eq)]
pub struct Tracts {
    shift: u8,
    bits: Box<[u64; TRACT_BITS / 64]>,
}

impl fmt::Debug for Tracts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let set = self.bits.iter().map(|word| word.count_ones()).sum::<u32>();
        write!(f, "{set} tracts of 2^{} bytes", self.shift)
    }
}

impl Tracts {
    /// None that may be dirty, each of `2^shift` bytes.
    ///
    /// # Panics
    /// For tracts of less than 4 KiB or more than 1 TiB.
    #[must_use]
    pub fn new(shift: u8) -> Self {
        assert!(SHIFTS.contains(&shift), "tracts of 2^{shift} bytes");
        Self {
            shift,
            bits: Box::new([0; TRACT_BITS / 64]),
        }
    }

    /// Bytes of a tract, as a power of two.
    #[must_use]
    pub const fn shift(&self) -> u8 {
        self.shift
    }

    /// The bit of the tract in which byte `offset` of a volume lies.
    #[must_use]
    #[inline]
    pub const fn bit(shift: u8, volume: u16, offset: u64) -> usize {
        let tract = (offset >> shift) as usize;
        tract.wrapping_add(volume as usize * APART) % TRACT_BITS
    }

    /// Whether a bit is set.
    #[must_use]
    #[inline]
    pub fn has(&self, bit: usize) -> bool {
        self.bits[bit / 64] >> (bit % 64) & 1 == 1
    }

    /// Sets a bit, or clears it.
    pub fn set(&mut self, bit: usize, dirty: bool) {
        let mask = 1 << (bit % 64);
        match dirty {
            true => self.bits[bit / 64] |= mask,
            false => self.bits[bit / 64] &= !mask,
        }
    }

    /// Whether some of these bytes of a volume may be dirty.
    #[must_use]
    pub fn may_be_dirty(&self, volume: u16, bytes: Range<u64>) -> bool {
        let Some(last) = bytes.end.checked_sub(1) else {
            return false;
        };
        let tracts = (bytes.start >> self.shift)..=(last >> self.shift);
        let mut offsets = tracts.map(|tract| tract << self.shift);
        offsets.any(|offset| self.has(Self::bit(self.shift, volume, offset)))
    }

    /// The bits that are set.
    pub fn dirty(&self) -> impl Iterator<Item = usize> + '_ {
        let words = (0..).zip(&*self.bits).filter(|(_, word)| **word != 0);
        words.flat_map(|(at, word)| {
            (0..64)
                .filter(move |bit| word >> bit & 1 == 1)
                .map(move |bit| at * 64 + bit)
        })
    }

    pub(super) fn encode(tracts: Option<&Self>, out: &mut [u8]) {
        let Some(tracts) = tracts else { return };
        out[AT_SHIFT] = tracts.shift;
        let words = out[AT_BITS..].as_chunks_mut().0;
        for (to, word) in words.iter_mut().zip(&*tracts.bits) {
            *to = word.to_le_bytes();
        }
    }

    /// None if nothing is known.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let shift = bytes[AT_SHIFT];
        if !SHIFTS.contains(&shift) {
            return None;
        }
        let mut tracts = Self::new(shift);
        let words = bytes[AT_BITS..].as_chunks().0;
        for (to, word) in tracts.bits.iter_mut().zip(words) {
            *to = u64::from_le_bytes(*word);
        }
        Some(tracts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bit_speaks_for_its_tract_and_for_those_that_share_it() {
        let mut tracts = Tracts::new(TRACT_SHIFT);
        let tract = 1_u64 << TRACT_SHIFT;
        tracts.set(Tracts::bit(TRACT_SHIFT, 3, 5 * tract), true);
        let dirty = |tracts: &Tracts, bytes: Range<u64>| tracts.may_be_dirty(3, bytes);
        assert!(dirty(&tracts, 5 * tract..5 * tract + 512));
        assert!(dirty(&tracts, 6 * tract - 512..6 * tract));
        assert!(dirty(&tracts, 4 * tract..9 * tract));
        assert!(!dirty(&tracts, 0..5 * tract));
        assert!(!dirty(&tracts, 6 * tract..TRACT_BITS as u64 * tract));
        let around = (5 + TRACT_BITS as u64) * tract;
        assert!(
            dirty(&tracts, around..around + 512),
            "there is no bit of its own"
        );
        assert!(!tracts.may_be_dirty(4, 5 * tract..6 * tract));
        assert_eq!(tracts.dirty().collect::<Vec<_>>(), [3 * APART + 5]);
        tracts.set(3 * APART + 5, false);
        assert_eq!(tracts, Tracts::new(TRACT_SHIFT));
    }
}
