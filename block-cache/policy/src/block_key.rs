//! The address of a cache block.

/// A cache block's address: volume (16 bits) and block number within the volume (48 bits).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockKey(u64);

impl BlockKey {
    /// Block numbers are below this.
    pub const MAX_BLOCKS: u64 = 1 << 48;

    /// The key of block `block` of volume `volume`.
    ///
    /// # Panics
    /// In debug builds, if the block number needs more than 48 bits.
    #[must_use]
    pub const fn new(volume: u16, block: u64) -> Self {
        debug_assert!(block < Self::MAX_BLOCKS);
        Self(((volume as u64) << 48) | block)
    }

    /// The volume.
    #[must_use]
    pub const fn volume(self) -> u16 {
        (self.0 >> 48) as u16
    }

    /// The block number within the volume.
    #[must_use]
    pub const fn block(self) -> u64 {
        self.0 & (Self::MAX_BLOCKS - 1)
    }

    /// A well-mixed hash (the finalizer of MurmurHash3).
    #[must_use]
    pub const fn hash(self) -> u64 {
        let mut z = self.0;
        z = (z ^ (z >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        z = (z ^ (z >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        z ^ (z >> 33)
    }
}
