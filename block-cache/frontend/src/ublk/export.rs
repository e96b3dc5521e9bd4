//! Properties of a block device, and its identification by the next process.

use forebay_block::{Error, ErrorKind, Persistence, Result};
use forebay_volume::VolumeHandle;
use forebay_wire::ublk::{Info, Params, SECTOR_BYTES, attribute, feature, state};

use super::queue::BUDGET_BYTES;
use crate::succession::note;

/// Maximum number of queues of a device.
const MAX_QUEUES: usize = 16;
/// Requests of a queue at a time.
const DEPTH: u16 = 128;
/// Maximum length of a read or write, bytes.
const MAX_BYTES: u32 = 512 << 10;
/// Maximum length of a discard or write-zeroes, sectors: 2 GiB.
const MAX_RANGE_SECTORS: u32 = 4 << 20;
/// Required driver features: those of Linux 6.5.
pub(super) const NEEDED: u64 =
    feature::USER_COPY | feature::USER_RECOVERY | feature::USER_RECOVERY_REISSUE;
const RECOVERY: u64 = feature::USER_RECOVERY | feature::USER_RECOVERY_REISSUE;

/// A volume as a block device of this machine.
pub(super) struct Export {
    pub(super) volume: VolumeHandle,
    /// Distinguishes the device from those of other volumes and programs.
    pub(super) note: u64,
    /// Reason why this process may lack writes that an earlier one acknowledged, if there is one.
    pub(super) gap: Option<String>,
}

impl Export {
    pub(super) fn new(volume: VolumeHandle, origin: &[u8], gap: Option<String>) -> Self {
        let note = note(origin, volume.name());
        let volatile = volume.info().persistence == Persistence::Process;
        let volatile = volatile.then(|| "its contents end with the process".to_owned());
        Self {
            volume,
            note,
            gap: volatile.or(gap),
        }
    }

    /// Returns whether the device outlives this process. It may only if no acknowledged write is
    /// lost with the process, since the kernel continues without noticing.
    pub(super) fn recovers(&self) -> bool {
        self.volume.info().persistence != Persistence::Process
    }

    /// Returns the device properties for the driver.
    pub(super) fn info(&self, device: u32, reactors: usize) -> Info {
        let recovery = if self.recovers() { RECOVERY } else { 0 };
        Info {
            queues: u16::try_from(reactors.clamp(1, MAX_QUEUES)).unwrap_or(1),
            depth: DEPTH,
            state: state::DEAD,
            max_bytes: MAX_BYTES,
            device,
            server: 0,
            features: feature::USER_COPY | feature::IOCTL_ENCODE | recovery,
            note: self.note,
        }
    }

    pub(super) fn params(&self) -> Params {
        let info = self.volume.info();
        let mut attributes = 0;
        if self.volume.read_only() {
            attributes |= attribute::READ_ONLY;
        }
        if info.volatile_cache {
            attributes |= attribute::VOLATILE_CACHE;
            if info.fua {
                attributes |= attribute::FUA;
            }
        }
        let shift = |bytes: u32| u8::try_from(bytes.ilog2()).unwrap_or(u8::MAX);
        Params {
            attributes,
            logical_shift: shift(info.logical_block_bytes),
            physical_shift: shift(info.physical_block_bytes.max(info.logical_block_bytes)),
            max_sectors: MAX_BYTES / SECTOR_BYTES as u32,
            sectors: info.size_bytes / SECTOR_BYTES,
            discard_unit_bytes: info.logical_block_bytes,
            max_discard_sectors: if info.discard { MAX_RANGE_SECTORS } else { 0 },
            max_zeroes_sectors: MAX_RANGE_SECTORS,
        }
    }

    /// Checks whether this volume can continue as the device that an earlier process created for
    /// it.
    ///
    /// # Errors
    /// `InvalidInput` with the difference.
    pub(super) fn check_resume(&self, info: &Info, made: &Params) -> Result<()> {
        let own = self.params();
        let volatile = |params: &Params| params.attributes & attribute::VOLATILE_CACHE != 0;
        let read_only = |params: &Params| params.attributes & attribute::READ_ONLY != 0;
        let wrong = if let Some(gap) = &self.gap {
            format!("ACKNOWLEDGED WRITES MAY BE MISSING: {gap}")
        } else if info.features & (RECOVERY | feature::USER_COPY) != RECOVERY | feature::USER_COPY {
            "it was created with parameters that this version does not use".to_owned()
        } else if u64::from(info.max_bytes) > BUDGET_BYTES {
            format!("its requests have up to {} bytes", info.max_bytes)
        } else if own.sectors < made.sectors {
            let (own, made) = (own.sectors * SECTOR_BYTES, made.sectors * SECTOR_BYTES);
            format!("the volume has {own} bytes, the device {made}")
        } else if own.logical_shift > made.logical_shift {
            let (own, made) = (1_u64 << own.logical_shift, 1_u64 << made.logical_shift);
            format!("the volume's blocks have {own} bytes, the device's {made}")
        } else if volatile(&own) && !volatile(made) {
            "the volume has a volatile cache now, and the device would not flush it".to_owned()
        } else if read_only(&own) != read_only(made) {
            "one of volume and device is read-only".to_owned()
        } else {
            return Ok(());
        };
        Err(Error::new(ErrorKind::InvalidInput, wrong))
    }
}
