//! The transmission phase: requests, simple replies, structured reply chunks.

use forebay_block::Error;
use zerocopy::network_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{malformed, prefix};

/// Precedes each request ("Request message").
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// Precedes each simple reply ("Simple reply message").
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// Precedes each chunk ("Structured reply chunk message").
pub const CHUNK_MAGIC: u32 = 0x668e_33ef;

/// Bytes of a [`Request`].
pub const REQUEST_BYTES: usize = 28;
/// Bytes of a [`SimpleReply`].
pub const SIMPLE_REPLY_BYTES: usize = 16;
/// Bytes of a [`Chunk`].
pub const CHUNK_BYTES: usize = 20;
/// Bytes before the data of a read with one chunk.
pub const DATA_CHUNK_BYTES: usize = CHUNK_BYTES + 8;
/// Bytes of an error chunk without a message.
pub const ERROR_CHUNK_BYTES: usize = CHUNK_BYTES + 6;

/// Request types ("Request types").
pub mod command {
    /// Read.
    pub const READ: u16 = 0;
    /// Write; the payload follows the request.
    pub const WRITE: u16 = 1;
    /// Ends the session after all requests are answered. Has no reply.
    pub const DISC: u16 = 2;
    /// Makes all acknowledged writes durable.
    pub const FLUSH: u16 = 3;
    /// Discards a range.
    pub const TRIM: u16 = 4;
    /// Reads a range into caches.
    pub const CACHE: u16 = 5;
    /// Makes a range read as zeroes.
    pub const WRITE_ZEROES: u16 = 6;
    /// Queries metadata.
    pub const BLOCK_STATUS: u16 = 7;
}

/// Command flags ("Command flags").
pub mod flag {
    /// Durable before the reply.
    pub const FUA: u16 = 1 << 0;
    /// Zeroes are allocated, not punched.
    pub const NO_HOLE: u16 = 1 << 1;
    /// At most one content chunk.
    pub const DF: u16 = 1 << 2;
    /// At most one extent.
    pub const REQ_ONE: u16 = 1 << 3;
    /// Fail if zeroing is not fast.
    pub const FAST_ZERO: u16 = 1 << 4;
    /// The length is that of a payload, which follows ([extended
    /// headers](super::super::extended)).
    pub const PAYLOAD_LEN: u16 = 1 << 5;
}

/// Structured reply types ("Structured reply types"). Errors have bit 15.
pub mod chunk {
    /// No payload, the last chunk of a reply.
    pub const NONE: u16 = 0;
    /// Offset and data.
    pub const OFFSET_DATA: u16 = 1;
    /// Offset and length of zeroes.
    pub const OFFSET_HOLE: u16 = 2;
    /// Status of blocks; see [`BlockStatus`](super::super::context::BlockStatus).
    pub const BLOCK_STATUS: u16 = 5;
    /// Status of blocks with lengths of 64 bits, with extended headers only.
    pub const BLOCK_STATUS_EXT: u16 = 6;
    /// Error number and message.
    pub const ERROR: u16 = (1 << 15) + 1;
    /// Error number, message and offset.
    pub const ERROR_OFFSET: u16 = (1 << 15) + 2;
    /// Flag of the last chunk of a reply ("Structured reply flags").
    pub const FLAG_DONE: u16 = 1 << 0;
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RequestLayout {
    magic: U32,
    flags: U16,
    command: U16,
    cookie: U64,
    offset: U64,
    length: U32,
}

/// A client's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// See [`flag`].
    pub flags: u16,
    /// See [`command`]; other values are possible.
    pub command: u16,
    /// Cookie of the client, returned in the reply.
    pub cookie: u64,
    /// First byte.
    pub offset: u64,
    /// Length, bytes.
    pub length: u32,
}

impl Request {
    /// Encodes the request.
    #[must_use]
    pub fn encode(self) -> [u8; REQUEST_BYTES] {
        zerocopy::transmute!(RequestLayout {
            magic: REQUEST_MAGIC.into(),
            flags: self.flags.into(),
            command: self.command.into(),
            cookie: self.cookie.into(),
            offset: self.offset.into(),
            length: self.length.into(),
        })
    }

    /// Decodes a client's request.
    ///
    /// # Errors
    /// `InvalidInput` for another magic number: the stream is out of step and must be closed.
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let layout: RequestLayout = prefix(bytes, "a request")?;
        if layout.magic != REQUEST_MAGIC {
            return Err(malformed(format!(
                "request with magic {:#010x}",
                layout.magic.get()
            )));
        }
        Ok(Self {
            flags: layout.flags.get(),
            command: layout.command.get(),
            cookie: layout.cookie.get(),
            offset: layout.offset.get(),
            length: layout.length.get(),
        })
    }

    /// Returns the number of bytes that follow this request on the wire.
    #[must_use]
    pub const fn payload_bytes(&self) -> u32 {
        if self.command == command::WRITE {
            self.length
        } else {
            0
        }
    }
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct SimpleReplyLayout {
    magic: U32,
    error: U32,
    cookie: U64,
}

/// A simple reply; the data of a successful read follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SimpleReply {
    /// Zero or an error number; see [`mod@super::errno`].
    pub error: u32,
    /// Cookie of the request.
    pub cookie: u64,
}

impl SimpleReply {
    /// Encodes the reply.
    #[must_use]
    pub fn encode(self) -> [u8; SIMPLE_REPLY_BYTES] {
        zerocopy::transmute!(SimpleReplyLayout {
            magic: SIMPLE_REPLY_MAGIC.into(),
            error: self.error.into(),
            cookie: self.cookie.into(),
        })
    }

    /// Decodes a server's simple reply.
    ///
    /// # Errors
    /// `InvalidInput` for another magic number.
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let layout: SimpleReplyLayout = prefix(bytes, "a simple reply")?;
        if layout.magic != SIMPLE_REPLY_MAGIC {
            return Err(malformed("simple reply with another magic number"));
        }
        Ok(Self {
            error: layout.error.get(),
            cookie: layout.cookie.get(),
        })
    }
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct ChunkLayout {
    magic: U32,
    flags: U16,
    kind: U16,
    cookie: U64,
    length: U32,
}

/// Header of a chunk of a structured reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// [`chunk::FLAG_DONE`] or none.
    pub flags: u16,
    /// See [`chunk`].
    pub kind: u16,
    /// Cookie of the request.
    pub cookie: u64,
    /// Length of the payload, bytes.
    pub length: u32,
}

#[derive(IntoBytes, Immutable, Unaligned)]
#[repr(C)]
struct DataChunkLayout {
    chunk: ChunkLayout,
    offset: U64,
}

#[derive(IntoBytes, Immutable, Unaligned)]
#[repr(C)]
struct ErrorChunkLayout {
    chunk: ChunkLayout,
    error: U32,
    message_length: U16,
}

impl Chunk {
    fn layout(self) -> ChunkLayout {
        ChunkLayout {
            magic: CHUNK_MAGIC.into(),
            flags: self.flags.into(),
            kind: self.kind.into(),
            cookie: self.cookie.into(),
            length: self.length.into(),
        }
    }

    /// Encodes the header.
    #[must_use]
    pub fn encode(self) -> [u8; CHUNK_BYTES] {
        zerocopy::transmute!(self.layout())
    }

    /// Encodes the bytes before the `length` bytes of data of a read with one final chunk.
    ///
    /// # Panics
    /// If `length` is within 8 bytes of 4 GiB.
    #[must_use]
    pub fn encode_data(cookie: u64, offset: u64, length: u32) -> [u8; DATA_CHUNK_BYTES] {
        let chunk = Self {
            flags: chunk::FLAG_DONE,
            kind: chunk::OFFSET_DATA,
            cookie,
            length: length.checked_add(8).expect("a payload below 4 GiB"),
        };
        zerocopy::transmute!(DataChunkLayout {
            chunk: chunk.layout(),
            offset: offset.into(),
        })
    }

    /// Encodes a final chunk with `error`, without a message.
    #[must_use]
    pub fn encode_error(cookie: u64, error: u32) -> [u8; ERROR_CHUNK_BYTES] {
        let chunk = Self {
            flags: chunk::FLAG_DONE,
            kind: chunk::ERROR,
            cookie,
            length: 6,
        };
        zerocopy::transmute!(ErrorChunkLayout {
            chunk: chunk.layout(),
            error: error.into(),
            message_length: 0.into(),
        })
    }

    /// Decodes the header of a chunk.
    ///
    /// # Errors
    /// `InvalidInput` for another magic number.
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let layout: ChunkLayout = prefix(bytes, "a reply chunk")?;
        if layout.magic != CHUNK_MAGIC {
            return Err(malformed("reply chunk with another magic number"));
        }
        Ok(Self {
            flags: layout.flags.get(),
            kind: layout.kind.get(),
            cookie: layout.cookie.get(),
            length: layout.length.get(),
        })
    }
}
