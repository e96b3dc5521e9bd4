//! Marks in the record of a dm-log-writes device, by the device mapper's message ioctl.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;

/// `struct dm_ioctl` of linux/dm-ioctl.h, then a `struct dm_target_msg` with its text.
const HEADER_BYTES: usize = 312;
const NAME_AT: usize = 48;
const NAME_BYTES: usize = 128;
/// `_IOWR(0xfd, 14, struct dm_ioctl)`.
const DM_TARGET_MSG: libc::c_ulong = 0xc138_fd0e;
/// Version 4.0.0 of the interface: every version 4 of the kernel's accepts it.
const VERSION: u32 = 4;

/// Puts marks into the record of one device.
#[derive(Debug)]
pub(crate) struct Marker {
    control: File,
    device: String,
}

impl Marker {
    /// Opens the device-mapper device of that name.
    pub(crate) fn new(device: &str) -> io::Result<Self> {
        assert!(device.len() < NAME_BYTES, "a short name");
        let control = File::options()
            .read(true)
            .write(true)
            .open("/dev/mapper/control")?;
        let device = device.to_owned();
        Ok(Self { control, device })
    }

    /// Puts mark `number` after the last entry of the record.
    pub(crate) fn mark(&self, number: u64) -> io::Result<()> {
        let text = format!("mark {number}\0");
        let mut message = vec![0; HEADER_BYTES + 8 + text.len()];
        message[..4].copy_from_slice(&VERSION.to_ne_bytes());
        let total = u32::try_from(message.len()).map_err(io::Error::other)?;
        message[12..16].copy_from_slice(&total.to_ne_bytes());
        message[16..20].copy_from_slice(&(HEADER_BYTES as u32).to_ne_bytes());
        message[NAME_AT..][..self.device.len()].copy_from_slice(self.device.as_bytes());
        message[HEADER_BYTES + 8..].copy_from_slice(text.as_bytes());
        // SAFETY: the kernel reads and writes at most `data_size` bytes, the vector's length, and
        // keeps no pointer to them.
        let done = unsafe {
            libc::ioctl(
                self.control.as_raw_fd(),
                DM_TARGET_MSG,
                message.as_mut_ptr(),
            )
        };
        if done < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }
}
