//! Bits of the zones that may be dirty, known before the log is read.
//!
//! A *zone* is an aligned range of a volume. Each has a bit, and shares it with others if there
//! are more zones than bits. The bit is durably set before the first byte of the zone turns dirty
//! in the cache. So if it is clear, the backing device has all of the zone's data. The bits lie in
//! the superblock, whose copies alternate and which is read first. An earlier version does not know
//! them and writes zeroes in their place before it serves anything. Zeroes mean that nothing is
//! known.

use std::fmt;
use std::ops::Range;

use super::COPY_BYTES;

/// Bits that all volumes of a cache share.
pub const ZONE_BITS: usize = 1 << 15;
/// Bytes of a zone, as a power of two, unless the format says otherwise: 64 MiB.
pub const ZONE_SHIFT: u8 = 26;
/// Sizes that a zone may have: from the smallest block to 1 TiB, as powers of two.
const SHIFTS: Range<u8> = 12..41;
/// Byte of the superblock that holds the size of a zone; zero if nothing is known.
const AT_SHIFT: usize = 128;
/// Where the bits are, at the end of the superblock.
const AT_BITS: usize = COPY_BYTES - ZONE_BITS / 8;
/// Volumes begin so many bits apart (a prime), so that small ones mostly have bits of their own.
const APART: usize = 509;

/// Bits of zones.
#[derive(Clone, PartialEq, Eq)]
pub struct DirtyZones {
    shift: u8,
    bits: Box<[u64; ZONE_BITS / 64]>,
}

impl fmt::Debug for DirtyZones {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let set = self.bits.iter().map(|word| word.count_ones()).sum::<u32>();
        write!(f, "{set} zones of 2^{} bytes", self.shift)
    }
}

impl DirtyZones {
    /// None that may be dirty, each of `2^shift` bytes.
    ///
    /// # Panics
    /// For zones of less than 4 KiB or more than 1 TiB.
    #[must_use]
    pub fn new(shift: u8) -> Self {
        assert!(SHIFTS.contains(&shift), "zones of 2^{shift} bytes");
        Self {
            shift,
            bits: Box::new([0; ZONE_BITS / 64]),
        }
    }

    /// Bytes of a zone, as a power of two.
    #[must_use]
    pub const fn shift(&self) -> u8 {
        self.shift
    }

    /// The bit of the zone in which byte `offset` of a volume lies.
    #[must_use]
    #[inline]
    pub const fn bit(shift: u8, volume: u16, offset: u64) -> usize {
        let zone = (offset >> shift) as usize;
        zone.wrapping_add(volume as usize * APART) % ZONE_BITS
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
        let zones = (bytes.start >> self.shift)..=(last >> self.shift);
        let mut offsets = zones.map(|zone| zone << self.shift);
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

    pub(super) fn encode(zones: Option<&Self>, out: &mut [u8]) {
        let Some(zones) = zones else { return };
        out[AT_SHIFT] = zones.shift;
        let words = out[AT_BITS..].as_chunks_mut().0;
        for (to, word) in words.iter_mut().zip(&*zones.bits) {
            *to = word.to_le_bytes();
        }
    }

    /// None if nothing is known.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let shift = bytes[AT_SHIFT];
        if !SHIFTS.contains(&shift) {
            return None;
        }
        let mut zones = Self::new(shift);
        let words = bytes[AT_BITS..].as_chunks().0;
        for (to, word) in zones.bits.iter_mut().zip(words) {
            *to = u64::from_le_bytes(*word);
        }
        Some(zones)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bit_speaks_for_its_zone_and_for_those_that_share_it() {
        let mut zones = DirtyZones::new(ZONE_SHIFT);
        let zone = 1_u64 << ZONE_SHIFT;
        zones.set(DirtyZones::bit(ZONE_SHIFT, 3, 5 * zone), true);
        let dirty = |zones: &DirtyZones, bytes: Range<u64>| zones.may_be_dirty(3, bytes);
        assert!(dirty(&zones, 5 * zone..5 * zone + 512));
        assert!(dirty(&zones, 6 * zone - 512..6 * zone));
        assert!(dirty(&zones, 4 * zone..9 * zone));
        assert!(!dirty(&zones, 0..5 * zone));
        assert!(!dirty(&zones, 6 * zone..ZONE_BITS as u64 * zone));
        let wrapped = (5 + ZONE_BITS as u64) * zone;
        assert!(
            dirty(&zones, wrapped..wrapped + 512),
            "there is no bit of its own"
        );
        assert!(!zones.may_be_dirty(4, 5 * zone..6 * zone));
        assert_eq!(zones.dirty().collect::<Vec<_>>(), [3 * APART + 5]);
        zones.set(3 * APART + 5, false);
        assert_eq!(zones, DirtyZones::new(ZONE_SHIFT));
    }
}
