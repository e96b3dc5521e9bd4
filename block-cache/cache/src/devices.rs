//! The devices of a cache: data and metadata, which may be one device.

use std::rc::Rc;

use forebay_block::BlockDevice;

/// The devices of an open cache and their properties.
pub(crate) struct CacheDevices {
    data: Rc<dyn BlockDevice>,
    metadata: Rc<dyn BlockDevice>,
    data_is_volatile: bool,
    metadata_is_volatile: bool,
    metadata_has_fua: bool,
    data_block: u32,
}

impl std::fmt::Debug for CacheDevices {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CacheDevices")
            .field("data", &self.data.info().name)
            .field("metadata", &self.metadata.info().name)
            .finish_non_exhaustive()
    }
}

impl CacheDevices {
    /// Returns the devices, of which one may be both.
    pub(crate) fn new(data: Rc<dyn BlockDevice>, metadata: Rc<dyn BlockDevice>) -> Self {
        let (data_info, metadata_info) = (data.info(), metadata.info());
        Self {
            data,
            metadata,
            data_is_volatile: data_info.volatile_cache,
            metadata_is_volatile: metadata_info.volatile_cache,
            metadata_has_fua: metadata_info.fua,
            data_block: data_info.logical_block_bytes,
        }
    }

    /// Returns the device that holds cached data.
    #[inline]
    pub(crate) const fn data(&self) -> &Rc<dyn BlockDevice> {
        &self.data
    }

    /// Returns the device that holds the log and the superblock.
    #[inline]
    pub(crate) const fn metadata(&self) -> &Rc<dyn BlockDevice> {
        &self.metadata
    }

    /// Returns whether the data device has a volatile write cache.
    #[inline]
    pub(crate) const fn data_is_volatile(&self) -> bool {
        self.data_is_volatile
    }

    /// Returns whether the metadata device has a volatile write cache.
    pub(crate) const fn metadata_is_volatile(&self) -> bool {
        self.metadata_is_volatile
    }

    /// Returns whether the metadata device has FUA.
    pub(crate) const fn metadata_has_fua(&self) -> bool {
        self.metadata_has_fua
    }

    /// Returns the logical block of the data device in bytes.
    #[inline]
    pub(crate) const fn data_block(&self) -> u32 {
        self.data_block
    }

    /// Returns whether data and metadata lie on one device.
    pub(crate) fn is_one(&self) -> bool {
        Rc::ptr_eq(&self.metadata, &self.data)
    }
}
