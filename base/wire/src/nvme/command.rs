//! Submission and completion queue entries, and the location of a command's data.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::Status;

/// Bytes of a [`Command`] (Base 3.3.3.1).
pub const COMMAND_BYTES: usize = 64;
/// Bytes of a [`Completion`] (Base 3.3.3.2).
pub const COMPLETION_BYTES: usize = 16;

/// Fused operation (Base 3.3.3.1, "FUSE"): the two lowest bits of the flags.
const FUSE: u8 = 0b11;
/// PRP or SGL (Base 3.3.3.1, "PSDT"): the two highest bits of the flags.
const PSDT: u8 = 0b1100_0000;
/// One SGL descriptor in the command describes the data; there is no metadata.
pub const FLAG_SGL: u8 = 0b0100_0000;

/// Type and sub type of a descriptor (Base 4.1.2, "SGL Data Block descriptor") for data at an
/// offset in the capsule.
const TYPE_IN_CAPSULE: u8 = 0x01;
/// Type and sub type of a descriptor for data that the transport transfers (Base 4.1.2, "Transport
/// SGL Data Block descriptor"; TCP Transport Specification, "SGL support").
const TYPE_TRANSPORT: u8 = 0x5a;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct CommandLayout {
    opcode: u8,
    flags: u8,
    cid: U16,
    nsid: U32,
    cdw2: U32,
    cdw3: U32,
    metadata: U64,
    address: U64,
    length: U32,
    reserved: [u8; 3],
    sgl_type: u8,
    words: [U32; 6],
}

/// A submission queue entry (Base 3.3.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    /// Opcode; see [`io`](super::io), [`admin`](super::admin) and [`fabrics`](super::fabrics).
    pub opcode: u8,
    /// Fused operation, and kind of the data's descriptor.
    pub flags: u8,
    /// The host's identifier, returned in the completion.
    pub cid: u16,
    /// Namespace. In a Fabrics command, the lowest byte is the type.
    pub nsid: u32,
    /// Command dwords 2 and 3.
    pub reserved: [u32; 2],
    /// Location of metadata, which is not supported.
    pub metadata: u64,
    /// Address field of the data's descriptor; an offset for data in the capsule.
    pub sgl_address: u64,
    /// Length field of the data's descriptor, bytes.
    pub sgl_length: u32,
    /// Reserved bytes of the data's descriptor.
    pub sgl_reserved: [u8; 3],
    /// Type and sub type of the data's descriptor.
    pub sgl_type: u8,
    /// Command dwords 10 to 15.
    pub words: [u32; 6],
}

/// Location of a command's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data {
    /// In the command's capsule.
    InCapsule {
        /// First byte, counted from the end of the command.
        offset: u64,
        /// Length, bytes.
        length: u32,
    },
    /// Transferred by data PDUs.
    Transport {
        /// Length, bytes.
        length: u32,
    },
}

impl Data {
    /// Returns the length, bytes.
    #[must_use]
    pub const fn length(self) -> u32 {
        match self {
            Self::InCapsule { length, .. } | Self::Transport { length } => length,
        }
    }
}

impl Command {
    /// Encodes the command.
    #[must_use]
    pub fn encode(&self) -> [u8; COMMAND_BYTES] {
        zerocopy::transmute!(CommandLayout {
            opcode: self.opcode,
            flags: self.flags,
            cid: self.cid.into(),
            nsid: self.nsid.into(),
            cdw2: self.reserved[0].into(),
            cdw3: self.reserved[1].into(),
            metadata: self.metadata.into(),
            address: self.sgl_address.into(),
            length: self.sgl_length.into(),
            reserved: self.sgl_reserved,
            sgl_type: self.sgl_type,
            words: self.words.map(Into::into),
        })
    }

    /// Decodes a host's command. Any 64 bytes are valid; the meaning is checked later.
    #[must_use]
    pub fn decode(bytes: [u8; COMMAND_BYTES]) -> Self {
        let layout: CommandLayout = zerocopy::transmute!(bytes);
        Self {
            opcode: layout.opcode,
            flags: layout.flags,
            cid: layout.cid.get(),
            nsid: layout.nsid.get(),
            reserved: [layout.cdw2.get(), layout.cdw3.get()],
            metadata: layout.metadata.get(),
            sgl_address: layout.address.get(),
            sgl_length: layout.length.get(),
            sgl_reserved: layout.reserved,
            sgl_type: layout.sgl_type,
            words: layout.words.map(U32::get),
        }
    }

    /// Returns a command without data.
    #[must_use]
    pub const fn new(opcode: u8, nsid: u32, words: [u32; 6]) -> Self {
        Self {
            opcode,
            flags: FLAG_SGL,
            cid: 0,
            nsid,
            reserved: [0; 2],
            metadata: 0,
            sgl_address: 0,
            sgl_length: 0,
            sgl_reserved: [0; 3],
            sgl_type: TYPE_TRANSPORT,
            words,
        }
    }

    /// Adds data to the command.
    #[must_use]
    pub const fn with_data(mut self, data: Data) -> Self {
        let (kind, address, length) = match data {
            Data::InCapsule { offset, length } => (TYPE_IN_CAPSULE, offset, length),
            Data::Transport { length } => (TYPE_TRANSPORT, 0, length),
        };
        self.sgl_type = kind;
        self.sgl_address = address;
        self.sgl_length = length;
        self
    }

    /// Returns the location of the data.
    ///
    /// # Errors
    /// [`Status::INVALID_FIELD`] for fused commands and PRPs, [`Status::SGL_TYPE_INVALID`] for
    /// other descriptors than a transport has.
    pub const fn data(&self) -> Result<Data, Status> {
        if self.flags & FUSE != 0 || self.flags & PSDT != FLAG_SGL {
            return Err(Status::INVALID_FIELD);
        }
        let length = self.sgl_length;
        match self.sgl_type {
            TYPE_IN_CAPSULE => Ok(Data::InCapsule {
                offset: self.sgl_address,
                length,
            }),
            TYPE_TRANSPORT => Ok(Data::Transport { length }),
            _ => Err(Status::SGL_TYPE_INVALID),
        }
    }
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct CompletionLayout {
    result: U64,
    sq_head: U16,
    sq_id: U16,
    cid: U16,
    status: U16,
}

/// A completion queue entry (Base 3.3.3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Result of the command: dwords 0 and 1.
    pub result: u64,
    /// Submission queue head.
    pub sq_head: u16,
    /// Submission queue; reserved in Fabrics.
    pub sq_id: u16,
    /// Command identifier.
    pub cid: u16,
    /// Status.
    pub status: Status,
}

impl Completion {
    /// Encodes the completion.
    #[must_use]
    pub fn encode(self) -> [u8; COMPLETION_BYTES] {
        zerocopy::transmute!(CompletionLayout {
            result: self.result.into(),
            sq_head: self.sq_head.into(),
            sq_id: self.sq_id.into(),
            cid: self.cid.into(),
            status: self.status.to_wire().into(),
        })
    }

    /// Decodes a controller's completion; the phase tag is dropped.
    #[must_use]
    pub fn decode(bytes: [u8; COMPLETION_BYTES]) -> Self {
        let layout: CompletionLayout = zerocopy::transmute!(bytes);
        Self {
            result: layout.result.get(),
            sq_head: layout.sq_head.get(),
            sq_id: layout.sq_id.get(),
            cid: layout.cid.get(),
            status: Status::from_wire(layout.status.get()),
        }
    }
}
