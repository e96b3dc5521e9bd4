//! Sectors that name the write which they came from: stamped throughout with the write's version.

/// Bytes of a sector, the unit of a stamp.
pub const SECTOR_BYTES: usize = 512;
const MAGIC: u64 = 0x464f_5245_4241_5921;

/// Number of a write, never zero.
pub type Version = u64;
/// The version of a sector of zeroes.
pub const ZEROES: Version = 0;

/// Returns the next number of a well-mixed sequence.
#[must_use]
pub const fn mix(state: u64) -> u64 {
    let mut x = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Stamps `bytes`, the content of the sectors from `first`, with `version`.
pub fn stamp(bytes: &mut [u8], first: u64, version: Version) {
    for (sector, bytes) in (first..).zip(bytes.chunks_exact_mut(SECTOR_BYTES)) {
        let mut seed = mix(version ^ mix(sector));
        for (index, word) in bytes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let value = match index {
                0 => MAGIC,
                1 => version,
                _ => {
                    seed = mix(seed);
                    seed
                }
            };
            *word = value.to_le_bytes();
        }
    }
}

/// Returns the version that `bytes` carry throughout, if they are one sector's stamp or all zero.
#[must_use]
pub fn read_stamp(bytes: &[u8], sector: u64) -> Option<Version> {
    if bytes.iter().all(|byte| *byte == 0) {
        return Some(ZEROES);
    }
    let version = u64::from_le_bytes(*bytes[8..].first_chunk()?);
    let mut expected = [0; SECTOR_BYTES];
    stamp(&mut expected, sector, version);
    (bytes == expected && version != ZEROES).then_some(version)
}

/// Returns the version that a stamp names, whichever sector it was for. `None` where there is no
/// stamp.
#[must_use]
pub fn claimed_version(bytes: &[u8]) -> Option<Version> {
    let magic = u64::from_le_bytes(*bytes.first_chunk()?);
    let version = u64::from_le_bytes(*bytes.get(8..)?.first_chunk()?);
    (magic == MAGIC).then_some(version)
}
