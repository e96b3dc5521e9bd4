//! The checksum of a cell: NH, then a multilinear hash of its 64 bits down to 32. NH (RFC 4418,
//! section 5.2) covers all of the 4 KiB at once.
//!
//! Over keys drawn at random, two different cells have the same checksum with a probability of at
//! most 2^-31. Of that, 2^-32 is for equal NH values, and as much for different NH values that the
//! second step makes equal. The key comes from the cache's UUID. CRC32C finds all bursts of up to
//! 32 bits for certain, but takes two to four times as long for 4 KiB. This checksum finds a change
//! of few bits only with the probability above, as any other.

use super::{BAD, CELL_BYTES, UNKNOWN};

/// Words of 8 bytes in a cell.
const WORDS: usize = CELL_BYTES / 8;

/// How the processor does it best. All give the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Method {
    Plain,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

/// Makes checksums under the key of one cache.
#[derive(Clone)]
pub struct DataHash {
    key: Box<[u64; WORDS]>,
    mix: [u64; 3],
    method: Method,
}

impl std::fmt::Debug for DataHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DataHash").finish_non_exhaustive()
    }
}

/// SplitMix64, from which the key is drawn.
fn draw(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut word = *state;
    word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

/// The sum of the products of the two halves of each word, after the key was added to each half.
#[inline(always)]
fn nh(cell: &[u8; CELL_BYTES], key: &[u64; WORDS]) -> u64 {
    let mut sum = 0_u64;
    let (words, _) = cell.as_chunks::<8>();
    for (word, key) in words.iter().zip(key) {
        let word = u64::from_le_bytes(*word);
        let low = u64::from((word as u32).wrapping_add(*key as u32));
        let high = u64::from(((word >> 32) as u32).wrapping_add((key >> 32) as u32));
        sum = sum.wrapping_add(low.wrapping_mul(high));
    }
    sum
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn nh_avx2(cell: &[u8; CELL_BYTES], key: &[u64; WORDS]) -> u64 {
    nh(cell, key)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn nh_avx512(cell: &[u8; CELL_BYTES], key: &[u64; WORDS]) -> u64 {
    nh(cell, key)
}

impl DataHash {
    /// For the cache with this UUID.
    #[must_use]
    pub fn new(uuid: &[u8; 16]) -> Self {
        let (halves, _) = uuid.as_chunks::<8>();
        let mut state = u64::from_le_bytes(halves[0]);
        state = draw(&mut state) ^ u64::from_le_bytes(halves[1]);
        let mut key = Box::new([0; WORDS]);
        key.iter_mut().for_each(|word| *word = draw(&mut state));
        Self {
            key,
            mix: [(); 3].map(|()| draw(&mut state)),
            method: Self::best(),
        }
    }

    #[cfg(target_arch = "x86_64")]
    fn best() -> Method {
        let avx512 = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl");
        match (avx512, is_x86_feature_detected!("avx2")) {
            (true, _) => Method::Avx512,
            (false, true) => Method::Avx2,
            (false, false) => Method::Plain,
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn best() -> Method {
        Method::Plain
    }

    /// The checksum of a cell; never [`UNKNOWN`] or [`BAD`].
    #[inline]
    #[must_use]
    pub fn of(&self, cell: &[u8; CELL_BYTES]) -> u32 {
        let sum = match self.method {
            Method::Plain => nh(cell, &self.key),
            // SAFETY: `best` found the features.
            #[cfg(target_arch = "x86_64")]
            Method::Avx2 => unsafe { nh_avx2(cell, &self.key) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Method::Avx512 => unsafe { nh_avx512(cell, &self.key) },
        };
        let [low, high, more] = self.mix;
        let mixed = low
            .wrapping_mul(sum & u64::from(u32::MAX))
            .wrapping_add(high.wrapping_mul(sum >> 32))
            .wrapping_add(more);
        match (mixed >> 32) as u32 {
            taken @ (UNKNOWN | BAD) => taken + 2,
            sum => sum,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(seed: u64) -> [u8; CELL_BYTES] {
        let mut state = seed;
        let mut cell = [0; CELL_BYTES];
        let (words, _) = cell.as_chunks_mut::<8>();
        words
            .iter_mut()
            .for_each(|word| *word = draw(&mut state).to_le_bytes());
        cell
    }

    #[test]
    fn it_is_on_media_and_does_not_change() {
        let hash = DataHash::new(b"0123456789abcdef");
        let found = [[0; CELL_BYTES], [0xff; CELL_BYTES], cell(1)].map(|cell| hash.of(&cell));
        assert_eq!(found, [152_499_282, 3_261_715_771, 1_943_777_183]);
    }

    #[test]
    fn every_method_gives_the_same() {
        let mut hash = DataHash::new(&[7; 16]);
        let best = hash.method;
        for seed in 0..100 {
            hash.method = best;
            let fast = hash.of(&cell(seed));
            hash.method = Method::Plain;
            assert_eq!(hash.of(&cell(seed)), fast);
            #[cfg(target_arch = "x86_64")]
            if is_x86_feature_detected!("avx2") {
                hash.method = Method::Avx2;
                assert_eq!(hash.of(&cell(seed)), fast);
            }
        }
    }

    #[test]
    fn every_flipped_bit_and_every_torn_sector_is_found() {
        let hash = DataHash::new(&[9; 16]);
        for (old, new) in [(cell(3), cell(4)), ([0; CELL_BYTES], cell(5))] {
            let sum = hash.of(&old);
            for bit in 0..CELL_BYTES * 8 {
                let mut rotten = old;
                rotten[bit / 8] ^= 1 << (bit % 8);
                assert_ne!(hash.of(&rotten), sum, "bit {bit}");
            }
            for sectors in 1..255_u32 {
                let mut torn = old;
                for sector in (0..8).filter(|sector| sectors >> sector & 1 != 0) {
                    let bytes = sector * 512..sector * 512 + 512;
                    torn[bytes.clone()].copy_from_slice(&new[bytes]);
                }
                assert_ne!(hash.of(&torn), sum);
                assert_ne!(hash.of(&torn), hash.of(&new));
            }
        }
    }
}
