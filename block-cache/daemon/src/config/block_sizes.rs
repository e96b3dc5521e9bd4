//! Sizes of cache blocks: which are possible, and how they are written.

use forebay_cache::BlockSizes;
use forebay_terminal::size::{Size, human_bytes};

/// The sizes in bytes, if a cache can have blocks of them.
///
/// # Errors
/// What is wrong, and the remedy, in words.
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

/// Cache block sizes: `32 KiB`, or, of several, `32K..256K`.
#[must_use]
pub(crate) fn block_sizes_in_words(smallest_bytes: u64, all: &str) -> String {
    match all.contains(['.', ',']) {
        true => all.to_owned(),
        false => human_bytes(smallest_bytes),
    }
}
