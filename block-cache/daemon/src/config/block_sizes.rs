//! Sizes of cache blocks: the possible ones, and their notation.

use forebay_cache::BlockSizes;
use forebay_terminal::size::{Size, human_bytes};

/// Returns the sizes in bytes, if a cache can have blocks of them.
///
/// # Errors
/// A description of the problem, with the remedy.
pub(crate) fn block_sizes(sizes: &[Size]) -> std::result::Result<Vec<u64>, String> {
    let bytes: Vec<u64> = sizes.iter().map(|size| size.0).collect();
    let good = |block: &u64| block.is_power_of_two() && (4 << 10..=1 << 20).contains(block);
    if let Some(bad) = bytes.iter().find(|block| !good(block)) {
        return Err(format!(
            "{} is not possible: choose a power of two from 4K to 1M",
            human_bytes(*bad)
        ));
    }
    match BlockSizes::new(&bytes) {
        Ok(_) => Ok(bytes),
        Err(what) => Err(format!("{what}: choose sizes such as 32K,64K,128K,256K")),
    }
}

/// Returns cache block sizes in words: `32 KiB`, or, for several, `32K..256K`.
#[must_use]
pub(crate) fn block_sizes_in_words(smallest_bytes: u64, all: &str) -> String {
    match all.contains(['.', ',']) {
        true => all.to_owned(),
        false => human_bytes(smallest_bytes),
    }
}
