//! Data written by a replay. Each sector of 512 bytes has its number, its target and the number of
//! the write, and is filled with numbers derived from these.

use forebay_block::Buf;

/// Size of a sector, bytes.
pub const SECTOR_BYTES: usize = 512;
const WORDS: usize = SECTOR_BYTES / 8;
/// In the first word of every sector: "replay", read as a number.
const MAGIC: u64 = 0x7961_6c70_6572_0000;
/// Odd, so that all words of a sector differ.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Place of a sector, and the number of its write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Number of the target.
    pub target: u16,
    /// Number of the sector on the target.
    pub sector: u64,
    /// Number of the write, from one.
    pub number: u32,
}

impl Stamp {
    fn words(self) -> impl Iterator<Item = u64> {
        let head = [
            MAGIC | u64::from(self.target),
            self.sector,
            u64::from(self.number),
        ];
        let seed = head.iter().fold(0, |seed: u64, word| {
            let mixed = (seed ^ word).wrapping_mul(STEP);
            mixed ^ mixed >> 29
        });
        let fill = (1..).map(move |at: u64| seed.wrapping_add(at.wrapping_mul(STEP)));
        head.into_iter().chain(fill).take(WORDS)
    }

    /// Writes the sector.
    ///
    /// # Panics
    /// If `bytes` is not a sector.
    pub fn put(self, bytes: &mut [u8]) {
        assert_eq!(bytes.len(), SECTOR_BYTES);
        for (field, word) in bytes.chunks_exact_mut(8).zip(self.words()) {
            field.copy_from_slice(&word.to_le_bytes());
        }
    }

    /// Returns the stamp of a complete sector written by a replay; `None` for any other.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Option<Self> {
        let word = |at: usize| {
            let bytes = bytes.get(at * 8..at * 8 + 8)?;
            Some(u64::from_le_bytes(bytes.try_into().ok()?))
        };
        let stamp = Self {
            target: u16::try_from(word(0)? ^ MAGIC).ok()?,
            sector: word(1)?,
            number: u32::try_from(word(2)?).ok()?,
        };
        let whole = bytes.len() == SECTOR_BYTES && (0..WORDS).map(word).eq(stamp.words().map(Some));
        whole.then_some(stamp)
    }
}

/// Returns the data of a write.
pub(super) fn buffer(target: usize, offset_bytes: u64, len: usize, number: u32) -> Buf {
    let buf = Buf::scratch(len);
    let mut bytes = [0; SECTOR_BYTES];
    for at in (0..len).step_by(SECTOR_BYTES) {
        let stamp = Stamp {
            target: target as u16,
            sector: (offset_bytes + at as u64) / SECTOR_BYTES as u64,
            number,
        };
        stamp.put(&mut bytes);
        buf.copy_from(at, &bytes);
    }
    buf
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_comes_back_and_damage_is_seen() {
        let stamp = Stamp {
            target: 3,
            sector: 1 << 40,
            number: 77,
        };
        let mut bytes = [0; SECTOR_BYTES];
        stamp.put(&mut bytes);
        assert_eq!(Stamp::of(&bytes), Some(stamp));
        for at in 0..SECTOR_BYTES {
            bytes[at] ^= 1;
            assert_eq!(Stamp::of(&bytes), None, "byte {at}");
            bytes[at] ^= 1;
        }
        assert_eq!(Stamp::of(&[0; SECTOR_BYTES]), None);
        assert_eq!(Stamp::of(&bytes[..256]), None);
    }
}
