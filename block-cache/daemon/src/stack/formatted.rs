//! Compares the format of a cache with the configuration.

use forebay_block::{Error, ErrorKind, Result};
use forebay_cache::{BlockSizes, DirtyTracking};

use crate::config::{self, Config};
use forebay_terminal::size::{human_bytes, human_count};

/// Below this number of blocks a cache is hardly useful: eviction and write-back work on many
/// blocks at a time.
const FEW_BLOCKS: u64 = 256;

/// Returns a warning for a cache with few blocks; `None` if it has enough.
pub(crate) fn warning_of_few(blocks: u32, block_bytes: u32) -> Option<String> {
    let (blocks, block_bytes) = (u64::from(blocks), u64::from(block_bytes));
    (blocks < FEW_BLOCKS).then(|| {
        format!(
            "the cache has room for {} of {} only, {} in all\n    \
             help: use a device of {} or more, or smaller blocks (`forebay format --block-size`)",
            human_count(blocks, "block"),
            human_bytes(block_bytes),
            human_bytes(blocks * block_bytes),
            human_bytes(FEW_BLOCKS * block_bytes * 5 / 4),
        )
    })
}

/// Checks that the block sizes in the configuration match those of the cache.
///
/// # Errors
/// `InvalidInput` with file, line and remedy.
pub(crate) fn check_block_sizes(config: &Config, cache: &config::Cache, there: &str) -> Result<()> {
    let Some((wanted, line)) = &cache.block_sizes else {
        return Ok(());
    };
    let wanted = BlockSizes::new(wanted).expect("checked when the configuration was read");
    if wanted.to_string() == there {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::InvalidInput,
        format!(
            "{}: the cache was formatted with blocks of {there}, not {wanted}\n\
             help: correct or remove `block_sizes`, or `forebay detach` its volumes and format it \
             with --block-size {}",
            config.place(*line),
            sizes_for_format(wanted),
        ),
    ))
}

/// Checks that dirty tracking in the configuration matches that of the cache.
///
/// # Errors
/// `InvalidInput` with file, line and remedy.
pub(crate) fn check_dirty_tracking(
    config: &Config,
    cache: &config::Cache,
    there: DirtyTracking,
) -> Result<()> {
    match cache.dirty_tracking {
        Some((wanted, line)) if wanted != there => Err(Error::new(
            ErrorKind::InvalidInput,
            format!(
                "{}: the cache was formatted with dirty tracking {there}, not {wanted}\n\
                 help: correct or remove `dirty_tracking`, or `forebay detach` its volumes and \
                 format it with --dirty-tracking {wanted}",
                config.place(line),
            ),
        )),
        _ => Ok(()),
    }
}

/// Checks that `checksums` in the configuration matches the format of the cache.
///
/// # Errors
/// `InvalidInput` with file, line and remedy.
pub(crate) fn check_checksums(config: &Config, cache: &config::Cache, there: bool) -> Result<()> {
    let (found, remedy) = match there {
        true => ("with checksums", "without --checksums"),
        false => ("without checksums", "with --checksums"),
    };
    match cache.checksums {
        Some((wanted, line)) if wanted != there => Err(Error::new(
            ErrorKind::InvalidInput,
            format!(
                "{}: the cache was formatted {found}\n\
                 help: correct or remove `checksums`, or `forebay detach` its volumes and format \
                 it {remedy}",
                config.place(line),
            ),
        )),
        _ => Ok(()),
    }
}

/// Returns block sizes as an argument of `forebay format --block-size`.
fn sizes_for_format(sizes: BlockSizes) -> String {
    let kib = |class| format!("{}K", sizes.block_bytes(class) >> 10);
    sizes.classes().map(kib).collect::<Vec<_>>().join(",")
}
