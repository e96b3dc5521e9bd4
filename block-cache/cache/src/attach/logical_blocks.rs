//! Logical blocks of backing devices that a cache can serve.

use forebay_block::{DeviceInfo, Error, ErrorKind, Persistence, Result};
use forebay_policy::BlockSizes;

use crate::cache::Cache;
use crate::format::check_whole;
use crate::format::inspect::Inspection;
use crate::geometry::granule_bytes;

/// Checks that a cache with blocks of these sizes on the device `data` can serve a volume on the
/// device `backing`.
///
/// # Errors
/// `InvalidInput` or `Unsupported`, with the remedy.
pub(crate) fn check_logical_blocks(
    sizes: BlockSizes,
    data: &DeviceInfo,
    backing: &DeviceInfo,
) -> Result<()> {
    let (name, bytes) = (&backing.name, backing.logical_block_bytes);
    let granule = granule_bytes(sizes, 0);
    if u64::from(bytes) > granule {
        let what = format!(
            "{name}: blocks of {bytes} bytes are larger than the cache's granule of {granule}\n\
             help: detach its volumes, and format the cache with larger blocks"
        );
        return Err(Error::new(ErrorKind::InvalidInput, what));
    }
    check_whole(backing)?;
    // Rule 8: blocks of the volume are overwritten in place on the cache device, which must write
    // each of them whole or not at all.
    let whole = data.physical_block_bytes.max(data.logical_block_bytes);
    if bytes <= whole || data.persistence == Persistence::Process {
        return Ok(());
    }
    let what = format!(
        "{name}: a power loss could tear its blocks of {bytes} bytes in the cache\n\
         help: use a cache device with physical blocks of {bytes} bytes: {} has {whole}",
        data.name
    );
    Err(Error::new(ErrorKind::InvalidInput, what))
}

impl Cache {
    /// Checks that the cache can serve a volume on this backing device.
    ///
    /// # Errors
    /// As [`Cache::attach`].
    pub fn check_logical_blocks(&self, backing: &DeviceInfo) -> Result<()> {
        let data = self.engine.devices.data().info();
        check_logical_blocks(self.engine.geometry.sizes(), &data, backing)
    }
}

impl Inspection {
    /// Checks that the cache, whose data is on the device `data`, can serve a volume on this
    /// backing device.
    ///
    /// # Errors
    /// As [`Cache::attach`].
    pub fn check_logical_blocks(&self, data: &DeviceInfo, backing: &DeviceInfo) -> Result<()> {
        check_logical_blocks(self.sizes, data, backing)
    }
}
