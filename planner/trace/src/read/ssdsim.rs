//! The five columns of SSDSim and MQSim, `time device LBA size operation`, and similar formats with
//! other units of time and size.

use super::field::{self, Fields as _, MS, SECTOR_BYTES, Words};
use super::{Bad, LineFormat, named};
use crate::{Request, Volumes};

pub(super) struct Ssdsim {
    time_unit_ns: u64,
    size_unit_bytes: u64,
}

impl Ssdsim {
    /// SSDSim and MQSim: nanoseconds and sectors.
    pub(super) const NANOSECONDS: Self = Self {
        time_unit_ns: 1,
        size_unit_bytes: SECTOR_BYTES,
    };
    /// Replayer: milliseconds and sectors.
    pub(super) const REPLAYER: Self = Self {
        time_unit_ns: MS,
        size_unit_bytes: SECTOR_BYTES,
    };
    /// flashsim: milliseconds and pages.
    pub(super) const FLASHSIM: Self = Self {
        time_unit_ns: MS,
        size_unit_bytes: 4096,
    };
}

impl LineFormat for Ssdsim {
    fn line(&mut self, line: &[u8], volumes: &mut Volumes) -> Result<Option<Request>, Bad> {
        let mut words = Words(line);
        let time = words.field("time")?;
        let time_ns = match self.time_unit_ns {
            1 => field::number(time, "time")?,
            unit_ns => field::time_ns(time, unit_ns)?,
        };
        let device = words.field("device")?;
        field::number(device, "device")?;
        let offset_bytes = words.sectors("LBA")?;
        let len_bytes = words.number("size")?;
        let len_bytes = len_bytes
            .checked_mul(self.size_unit_bytes)
            .ok_or(Bad::new("size", "is 4 GiB or more"))?;
        let op = field::read_is_one(words.field("operation")?)?;
        words.end()?;
        let volume = named(device, volumes)?;
        field::data(time_ns, op, offset_bytes, len_bytes, volume).map(Some)
    }
}
