//! How large a volume may be.

use forebay_block::{Error, ErrorKind, Result};
use forebay_policy::BlockSizes;

/// Checks that a cache with blocks of these sizes can number all blocks of a volume, whose size is
/// in bytes.
///
/// # Errors
/// `InvalidInput` with the size of the largest volume.
pub fn check_volume_size(sizes: BlockSizes, size_bytes: u64) -> Result<()> {
    let most = sizes.largest_volume_bytes();
    if size_bytes <= most {
        return Ok(());
    }
    let (kib, pib) = (sizes.unit_bytes() >> 10, most >> 50);
    Err(Error::new(
        ErrorKind::InvalidInput,
        format!(
            "{size_bytes} bytes are too large for blocks of {kib} KiB: at most {pib} PiB ({most} \
             bytes)\n\
             help: use a smaller backing device, or detach the cache's volumes and format it with \
             larger blocks"
        ),
    ))
}

/// Dirty data of a volume lies beyond the end of its backing device.
pub(crate) fn shrank(volume: &str, old_bytes: u64, bytes: u64) -> Error {
    Error::new(
        ErrorKind::InvalidInput,
        format!(
            "volume {volume:?}: its device shrank from {old_bytes} to {bytes} bytes; dirty data \
             lies beyond\n\
             help: make it as large as it was, and write the data back first"
        ),
    )
}

/// Returns a warning that a backing device is smaller than before and that no data is lost.
pub(crate) fn shrunk_clean(old_bytes: u64, bytes: u64) -> String {
    format!(
        "the backing device has shrunk from {old_bytes} to {bytes} bytes: data beyond its end IS \
         LOST, but no dirty data"
    )
}
