//! Reads from the backing device that a request needs.

use forebay_policy::BlockId;

/// Granules of a block that are to be read from the backing device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fetch {
    /// Their first byte on the volume.
    pub(super) start: u64,
    pub(super) bytes: u64,
    /// The block, and the granules of its region.
    pub(super) id: BlockId,
    pub(super) mask: u64,
}

impl Fetch {
    /// Drops the granules of a block that left the cache.
    pub(super) fn forget(&mut self, id: BlockId) {
        if self.id == id {
            self.mask = 0;
        }
    }
}
