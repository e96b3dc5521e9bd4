//! Rewrites a damaged copy from the other one.

use forebay_block::{BlockDevice, Buf, Result};

use super::{COPY_STRIDE_BYTES, Superblock};
use crate::order::{self, Part, Site};

impl Superblock {
    /// Rewrites a damaged copy on `device` if the other one is sound. Returns whether there was a
    /// damaged copy. The sound copy is durable before the rewrite begins: a process that was killed
    /// may have left it in the device's cache. The rewrite is durable before anything may be
    /// written over the sound copy. Calls `flush_failed` if the first flush fails, after which the
    /// device may lack data of that process.
    ///
    /// # Errors
    /// As [`Superblock::read`], or the device's own.
    pub async fn repair(device: &dyn BlockDevice, flush_failed: impl FnOnce()) -> Result<bool> {
        if Self::sound_copies(device).await != 1 {
            return Ok(false);
        }
        order::flush(device).await.inspect_err(|_| flush_failed())?;
        let mut repaired = Self::read(device).await?;
        // The next one goes where the sound one is not.
        repaired.sequence += 1 + u64::from(Site::here().lacks(Part::Step));
        let at = (repaired.sequence % 2) * COPY_STRIDE_BYTES;
        order::write(device, at, Buf::copied(&repaired.encode())).await?;
        order::flush(device).await?;
        Ok(true)
    }
}
