//! Arguments of control commands: a device and its parameters.
//!
//! Each type has a `Raw` twin with the layout and the names of the kernel's `ublk_cmd.h`.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{CONTROL_BYTES, INFO_BYTES, PARAMS_BYTES};

/// Argument of a control command (`struct ublksrv_ctrl_cmd`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Control {
    /// Number of the device.
    pub device: u32,
    /// Address of the command's buffer in the caller's memory.
    pub address: u64,
    /// Length of the buffer, bytes.
    pub len: u16,
    /// Immediate value, for commands that take one.
    pub data: u64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawControl {
    dev_id: u32,
    queue_id: u16,
    len: u16,
    addr: u64,
    data: u64,
    dev_path_len: u16,
    pad: u16,
    reserved: u32,
}

impl Control {
    /// Decodes an argument.
    #[must_use]
    pub fn decode(bytes: [u8; CONTROL_BYTES]) -> Self {
        let raw: RawControl = zerocopy::transmute!(bytes);
        Self {
            device: raw.dev_id,
            address: raw.addr,
            len: raw.len,
            data: raw.data,
        }
    }

    /// Encodes the argument of a command that concerns no queue.
    #[must_use]
    pub fn encode(self) -> [u8; CONTROL_BYTES] {
        zerocopy::transmute!(RawControl {
            dev_id: self.device,
            queue_id: u16::MAX,
            len: self.len,
            addr: self.address,
            data: self.data,
            dev_path_len: 0,
            pad: 0,
            reserved: 0,
        })
    }
}

/// Device in the driver (`struct ublksrv_ctrl_dev_info`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Info {
    /// Number of queues.
    pub queues: u16,
    /// Number of tags of each queue.
    pub depth: u16,
    /// One of [`state`](super::state).
    pub state: u16,
    /// Maximum length of a request, bytes.
    pub max_bytes: u32,
    /// Number of the device.
    pub device: u32,
    /// Process that serves the device, or served it last.
    pub server: i32,
    /// Features of the device, some of [`feature`](super::feature).
    pub features: u64,
    /// Opaque data of the server that created the device, for later servers (`ublksrv_flags`).
    pub note: u64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawInfo {
    nr_hw_queues: u16,
    queue_depth: u16,
    state: u16,
    pad0: u16,
    max_io_buf_bytes: u32,
    dev_id: u32,
    ublksrv_pid: i32,
    pad1: u32,
    flags: u64,
    ublksrv_flags: u64,
    owner_uid: u32,
    owner_gid: u32,
    reserved1: u64,
    reserved2: u64,
}

impl Info {
    /// Decodes the info.
    #[must_use]
    pub fn decode(bytes: [u8; INFO_BYTES]) -> Self {
        let raw: RawInfo = zerocopy::transmute!(bytes);
        Self {
            queues: raw.nr_hw_queues,
            depth: raw.queue_depth,
            state: raw.state,
            max_bytes: raw.max_io_buf_bytes,
            device: raw.dev_id,
            server: raw.ublksrv_pid,
            features: raw.flags,
            note: raw.ublksrv_flags,
        }
    }

    /// Encodes the info.
    #[must_use]
    pub fn encode(self) -> [u8; INFO_BYTES] {
        zerocopy::transmute!(RawInfo {
            nr_hw_queues: self.queues,
            queue_depth: self.depth,
            state: self.state,
            pad0: 0,
            max_io_buf_bytes: self.max_bytes,
            dev_id: self.device,
            ublksrv_pid: self.server,
            pad1: 0,
            flags: self.features,
            ublksrv_flags: self.note,
            owner_uid: 0,
            owner_gid: 0,
            reserved1: 0,
            reserved2: 0,
        })
    }
}

/// Parameters of a block device (`struct ublk_params`: the parts for all devices, and for discard).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Params {
    /// Some of [`attribute`](super::attribute).
    pub attributes: u32,
    /// Logical block size as a power of two, bytes.
    pub logical_shift: u8,
    /// Physical block size as a power of two, bytes.
    pub physical_shift: u8,
    /// Maximum length of a read or write, sectors.
    pub max_sectors: u32,
    /// Size, sectors.
    pub sectors: u64,
    /// Unit of a discard, bytes.
    pub discard_unit_bytes: u32,
    /// Maximum length of a discard, sectors; zero disables discards.
    pub max_discard_sectors: u32,
    /// Maximum length of write-zeroes, sectors.
    pub max_zeroes_sectors: u32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawParams {
    len: u32,
    types: u32,
    attrs: u32,
    logical_bs_shift: u8,
    physical_bs_shift: u8,
    io_opt_shift: u8,
    io_min_shift: u8,
    max_sectors: u32,
    chunk_sectors: u32,
    // Two halves, here and below: with `u64` the structure would be padded to a multiple of eight
    // bytes.
    dev_sectors: [u32; 2],
    virt_boundary_mask: [u32; 2],
    discard_alignment: u32,
    discard_granularity: u32,
    max_discard_sectors: u32,
    max_write_zeroes_sectors: u32,
    max_discard_segments: u16,
    reserved0: u16,
}

/// `UBLK_PARAM_TYPE_BASIC` and `UBLK_PARAM_TYPE_DISCARD`.
const PARAM_TYPES: u32 = 1 << 0 | 1 << 1;

impl Params {
    /// Decodes the parameters. Returns `None` if the driver lacks one of the parts.
    #[must_use]
    pub fn decode(bytes: [u8; PARAMS_BYTES]) -> Option<Self> {
        let raw: RawParams = zerocopy::transmute!(bytes);
        (raw.types & PARAM_TYPES == PARAM_TYPES).then(|| Self {
            attributes: raw.attrs,
            logical_shift: raw.logical_bs_shift,
            physical_shift: raw.physical_bs_shift,
            max_sectors: raw.max_sectors,
            sectors: zerocopy::transmute!(raw.dev_sectors),
            discard_unit_bytes: raw.discard_granularity,
            max_discard_sectors: raw.max_discard_sectors,
            max_zeroes_sectors: raw.max_write_zeroes_sectors,
        })
    }

    /// Encodes the parameters.
    #[must_use]
    pub fn encode(self) -> [u8; PARAMS_BYTES] {
        zerocopy::transmute!(RawParams {
            len: PARAMS_BYTES as u32,
            types: PARAM_TYPES,
            attrs: self.attributes,
            logical_bs_shift: self.logical_shift,
            physical_bs_shift: self.physical_shift,
            io_opt_shift: self.physical_shift,
            io_min_shift: self.physical_shift,
            max_sectors: self.max_sectors,
            chunk_sectors: 0,
            dev_sectors: zerocopy::transmute!(self.sectors),
            virt_boundary_mask: [0; 2],
            discard_alignment: 0,
            discard_granularity: self.discard_unit_bytes,
            max_discard_sectors: self.max_discard_sectors,
            max_write_zeroes_sectors: self.max_zeroes_sectors,
            max_discard_segments: 1,
            reserved0: 0,
        })
    }
}
