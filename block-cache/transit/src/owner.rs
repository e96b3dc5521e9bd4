//! The device whose blocks slots hold.

use forebay_block::{Basis, Identity};

/// The owner of a memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    /// Identity of the device.
    pub(crate) device: Identity,
    /// Size of the device, bytes. Zero where it is not known: earlier versions did not record it.
    pub(crate) device_bytes: u64,
    /// The boot of the machine.
    pub(crate) boot_id: [u8; 16],
    /// Size of a block, bytes.
    pub(crate) block_bytes: u32,
}

/// State that a process of this boot left in a memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotsLeft {
    /// Device under the slots.
    pub device: Identity,
    /// Size of that device, bytes. Zero where it is not known: earlier versions did not record it.
    pub device_bytes: u64,
    /// Number of acknowledged blocks that the device does not have.
    pub blocks: u64,
}

impl SlotsLeft {
    /// Returns whether the device cannot be the one that is there `now`, of `now_bytes`.
    #[must_use]
    pub const fn is_replaced_by(&self, now: Identity, now_bytes: u64) -> bool {
        is_replaced(self.device, self.device_bytes, now, now_bytes)
    }

    /// Returns whether the device has bytes in common with another of `other_bytes`. Where its size
    /// is not known, it may reach to the end of its medium.
    #[must_use]
    pub const fn overlaps(&self, other: Identity, other_bytes: u64) -> bool {
        let own_bytes = match self.device_bytes {
            0 => u64::MAX,
            known => known,
        };
        self.device.overlaps(own_bytes, other, other_bytes)
    }
}

/// Whether a device that was recorded in this boot cannot be the one that is there `now`. An
/// instance distinguishes devices without names. Where none is known, one of another size is
/// another device.
pub(crate) const fn is_replaced(
    device: Identity,
    bytes: u64,
    now: Identity,
    now_bytes: u64,
) -> bool {
    let counted = device.instance != 0 && now.instance != 0;
    let unnamed = matches!(now.basis, Basis::Place) && !counted && bytes != 0;
    device.differs_from(now) || (device.is_known() && unnamed && bytes != now_bytes)
}
