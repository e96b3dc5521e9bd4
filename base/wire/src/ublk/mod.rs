//! Interface between the kernel's ublk driver and its server. The source is Linux:
//! `include/uapi/linux/ublk_cmd.h` for each number and layout, `Documentation/block/ublk.rst` for
//! their meaning.
//!
//! All data stays on one machine, so numbers have the machine's byte order.

mod device;
mod request;
#[cfg(test)]
mod tests;

pub use device::{Control, Info, Params};
pub use request::{Descriptor, Io};

/// Length of a sector, bytes, independent of the logical block size.
pub const SECTOR_BYTES: u64 = 512;
/// Maximum number of tags of a queue (`UBLK_MAX_QUEUE_DEPTH`), and the distance between the
/// descriptors of two queues.
pub const MAX_DEPTH: u16 = 4096;
/// Limit of device numbers (`UBLK_MINORS` of the driver, `drivers/block/ublk_drv.c`).
pub const NUMBERS: u32 = 1 << 20;

/// Returns the number of a command, which contains the length of its argument (`_IOC`,
/// `include/uapi/asm-generic/ioctl.h`).
const fn encode(direction: u32, number: u32, argument_bytes: usize) -> u32 {
    direction << 30 | (argument_bytes as u32) << 16 | (b'u' as u32) << 8 | number
}

const READS: u32 = 2;
const READS_AND_WRITES: u32 = 3;

/// Commands to the control device (`UBLK_U_CMD_*`).
pub mod control {
    use super::{CONTROL_BYTES, READS, READS_AND_WRITES, encode};

    /// Returns an [`Info`](super::Info).
    pub const GET_INFO: u32 = encode(READS, 0x02, CONTROL_BYTES);
    /// Creates a device from an [`Info`](super::Info), and returns the resulting one.
    pub const ADD: u32 = encode(READS_AND_WRITES, 0x04, CONTROL_BYTES);
    /// Removes a device, and returns when no process has its character device open any more.
    pub const DELETE: u32 = encode(READS_AND_WRITES, 0x05, CONTROL_BYTES);
    /// Creates the block device; returns when all queues fetch and partitions were scanned.
    pub const START: u32 = encode(READS_AND_WRITES, 0x06, CONTROL_BYTES);
    /// Ends the block device.
    pub const STOP: u32 = encode(READS_AND_WRITES, 0x07, CONTROL_BYTES);
    /// Sets [`Params`](super::Params), before the start.
    pub const SET_PARAMS: u32 = encode(READS_AND_WRITES, 0x08, CONTROL_BYTES);
    /// Returns the [`Params`](super::Params).
    pub const GET_PARAMS: u32 = encode(READS, 0x09, CONTROL_BYTES);
    /// Drops the queues of a dead server.
    pub const START_RECOVERY: u32 = encode(READS_AND_WRITES, 0x10, CONTROL_BYTES);
    /// Connects the block device to the queues that fetch now.
    pub const END_RECOVERY: u32 = encode(READS_AND_WRITES, 0x11, CONTROL_BYTES);
    /// Returns the features of the driver as eight bytes.
    pub const GET_FEATURES: u32 = encode(READS, 0x13, CONTROL_BYTES);
}

/// Commands to a queue (`UBLK_U_IO_*`).
pub mod io {
    use super::{IO_BYTES, READS_AND_WRITES, encode};

    /// Waits for the first request of a tag.
    pub const FETCH: u32 = encode(READS_AND_WRITES, 0x20, IO_BYTES);
    /// Reports the result of a tag's request, and waits for the next.
    pub const COMMIT_AND_FETCH: u32 = encode(READS_AND_WRITES, 0x21, IO_BYTES);
    /// Result of a command that returns a request (`UBLK_IO_RES_OK`).
    pub const RESULT_OK: i32 = 0;
    /// Result of a command when the device ends (`UBLK_IO_RES_ABORT`, which is `-ENODEV`).
    pub const RESULT_ABORT: i32 = -19;
}

/// Features (`UBLK_F_*`).
pub mod feature {
    /// The block device outlives its server, and waits for another one.
    pub const USER_RECOVERY: u64 = 1 << 3;
    /// The next server gets the requests that the dead one had not answered.
    pub const USER_RECOVERY_REISSUE: u64 = 1 << 4;
    /// Commands have the numbers of this module.
    pub const IOCTL_ENCODE: u64 = 1 << 6;
    /// The server copies data itself, by reads and writes of the character device.
    pub const USER_COPY: u64 = 1 << 7;
}

/// States of a device (`UBLK_S_DEV_*`).
pub mod state {
    /// There is no block device.
    pub const DEAD: u16 = 0;
    /// It is served.
    pub const LIVE: u16 = 1;
    /// It waits for a server.
    pub const QUIESCED: u16 = 2;
}

/// Attributes of a block device (`UBLK_ATTR_*`).
pub mod attribute {
    /// The device is read-only.
    pub const READ_ONLY: u32 = 1 << 0;
    /// It has a volatile cache: writes are durable after a flush.
    pub const VOLATILE_CACHE: u32 = 1 << 2;
    /// It supports FUA.
    pub const FUA: u32 = 1 << 3;
}

/// Operations of requests (`UBLK_IO_OP_*`).
pub mod op {
    /// Read.
    pub const READ: u8 = 0;
    /// Write.
    pub const WRITE: u8 = 1;
    /// Makes all completed writes durable.
    pub const FLUSH: u8 = 2;
    /// Discards a range.
    pub const DISCARD: u8 = 3;
    /// Makes a range read as zeroes.
    pub const WRITE_ZEROES: u8 = 5;
}

/// The write must be durable when it completes (`UBLK_IO_F_FUA`).
pub const FUA: u32 = 1 << 13;
/// The range's space must not be freed (`UBLK_IO_F_NOUNMAP`).
pub const NOUNMAP: u32 = 1 << 15;

/// Bytes of a [`Control`].
pub const CONTROL_BYTES: usize = 32;
/// Bytes of an [`Info`].
pub const INFO_BYTES: usize = 64;
/// Bytes of [`Params`].
pub const PARAMS_BYTES: usize = 60;
/// Bytes of a [`Descriptor`].
pub const DESCRIPTOR_BYTES: usize = 24;
/// Bytes of an [`Io`].
pub const IO_BYTES: usize = 16;

/// Returns the offset of a queue's descriptors in the character device (`UBLKSRV_CMD_BUF_OFFSET`).
#[must_use]
pub const fn descriptors_offset(queue: u16) -> u64 {
    queue as u64 * MAX_DEPTH as u64 * DESCRIPTOR_BYTES as u64
}

/// Returns the offset of the data of a tag's request in the character device
/// (`UBLKSRV_IO_BUF_OFFSET`, `UBLK_TAG_OFF`, `UBLK_QID_OFF`).
#[must_use]
pub const fn data_offset(queue: u16, tag: u16) -> u64 {
    0x8000_0000 + ((queue as u64) << 41 | (tag as u64) << 25)
}
