//! Contents that name the write which they came from.
//!
//! A stamped sector names its volume, its sector and the number of its write. Every other byte
//! follows from those three. So a torn, misplaced or rotten sector differs from a stale one.

use forebay_block::Buf;

/// Bytes of a sector, the unit in which the model knows contents.
pub const SECTOR_BYTES: usize = 512;

const WORDS: usize = SECTOR_BYTES / 8;
const MAGIC: u64 = u64::from_le_bytes(*b"FOREBAY\0");

/// Content of a sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Zeroes.
    Zero,
    /// The write of this number.
    Write(u64),
}

fn words(volume: usize, sector: u64, number: u64) -> [u64; WORDS] {
    let mut all = [0; WORDS];
    all[..4].copy_from_slice(&[MAGIC, volume as u64, sector, number]);
    let mut state = (volume as u64) << 56 ^ sector << 28 ^ number;
    for word in &mut all[4..] {
        // xorshift-multiply. No two stamps of a test have the same seed.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ state >> 31).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        *word = mixed ^ mixed >> 29;
    }
    all
}

/// Fills `buf` with the stamps of write `number`, the first for `sector`.
pub fn fill(buf: &Buf, volume: usize, sector: u64, number: u64) {
    for index in 0..buf.len() / SECTOR_BYTES {
        let all = words(volume, sector + index as u64, number);
        let mut bytes = [0; SECTOR_BYTES];
        for (chunk, word) in bytes.chunks_exact_mut(8).zip(all) {
            chunk.copy_from_slice(&word.to_le_bytes());
        }
        buf.copy_from(index * SECTOR_BYTES, &bytes);
    }
}

/// Identifies the content of a sector that was read at (`volume`, `sector`).
///
/// # Errors
/// Returns a description of content that no single write left there.
pub fn identify(bytes: &[u8; SECTOR_BYTES], volume: usize, sector: u64) -> Result<Content, String> {
    let mut read = [0; WORDS];
    for (word, chunk) in read.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = u64::from_le_bytes(chunk.try_into().expect("eight bytes"));
    }
    if read == [0; WORDS] {
        return Ok(Content::Zero);
    }
    let [magic, at_volume, at_sector, number] = [read[0], read[1], read[2], read[3]];
    if magic != MAGIC {
        return Err(format!("garbage that starts {:02x?}", &bytes[..16]));
    }
    if (at_volume, at_sector) != (volume as u64, sector) {
        return Err(format!(
            "data of another place: volume {at_volume} sector {at_sector}, write {number}"
        ));
    }
    let expected = words(volume, sector, number);
    match read.iter().zip(expected).position(|(&a, b)| a != b) {
        None => Ok(Content::Write(number)),
        Some(word) => Err(format!(
            "a torn or rotten sector: write {number} up to byte {}",
            word * 8
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_differs_from_everything_else() {
        let buf = Buf::zeroed(1024);
        fill(&buf, 1, 7, 42);
        let bytes = buf.to_vec();
        let sector: [u8; SECTOR_BYTES] = bytes[512..].try_into().unwrap();
        assert_eq!(identify(&sector, 1, 8), Ok(Content::Write(42)));
        assert!(identify(&sector, 0, 8).is_err());
        assert!(identify(&sector, 1, 7).is_err());
        for byte in [40, 200, 511] {
            let mut torn = sector;
            torn[byte] ^= 1;
            assert!(identify(&torn, 1, 8).is_err());
        }
        assert_eq!(identify(&[0; SECTOR_BYTES], 1, 8), Ok(Content::Zero));
    }
}
