//! Extended headers: requests with lengths of 64 bits, and reply chunks of one fixed header (the
//! extension `EXTENDED_HEADERS` of the protocol document,
//! <https://github.com/NetworkBlockDevice/nbd/blob/extension-ext-header/doc/proto.md>).

use forebay_block::Error;
use zerocopy::network_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::transmission::{chunk, flag};
use super::{malformed, prefix};

/// Precedes each request ("Request message").
pub const EXTENDED_REQUEST_MAGIC: u32 = 0x21e4_1c71;
/// Precedes each chunk ("Extended reply chunk message").
pub const EXTENDED_REPLY_MAGIC: u32 = 0x6e8a_278c;

/// Bytes of an [`ExtendedRequest`].
pub const EXTENDED_REQUEST_BYTES: usize = 32;
/// Bytes of an [`ExtendedChunk`].
pub const EXTENDED_CHUNK_BYTES: usize = 32;
/// Bytes before the data of a read with one chunk.
pub const EXTENDED_DATA_BYTES: usize = EXTENDED_CHUNK_BYTES + 8;
/// Bytes of an error chunk without a message.
pub const EXTENDED_ERROR_BYTES: usize = EXTENDED_CHUNK_BYTES + 6;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RequestLayout {
    magic: U32,
    flags: U16,
    command: U16,
    cookie: U64,
    offset: U64,
    length: U64,
}

/// A client's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtendedRequest {
    /// See [`flag`].
    pub flags: u16,
    /// See [`command`](super::transmission::command); other values are possible.
    pub command: u16,
    /// Cookie of the client, returned in the reply.
    pub cookie: u64,
    /// First byte.
    pub offset: u64,
    /// Length of the payload with [`flag::PAYLOAD_LEN`], otherwise of the range, bytes.
    pub length: u64,
}

impl ExtendedRequest {
    /// Encodes the request.
    #[must_use]
    pub fn encode(self) -> [u8; EXTENDED_REQUEST_BYTES] {
        zerocopy::transmute!(RequestLayout {
            magic: EXTENDED_REQUEST_MAGIC.into(),
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
        let layout: RequestLayout = prefix(bytes, "an extended request")?;
        if layout.magic != EXTENDED_REQUEST_MAGIC {
            return Err(malformed(format!(
                "extended request with magic {:#010x}",
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
    pub const fn payload_bytes(&self) -> u64 {
        match self.flags & flag::PAYLOAD_LEN {
            0 => 0,
            _ => self.length,
        }
    }
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct ChunkLayout {
    magic: U32,
    flags: U16,
    kind: U16,
    cookie: U64,
    offset: U64,
    length: U64,
}

#[derive(IntoBytes, Immutable, Unaligned)]
#[repr(C)]
struct DataLayout {
    chunk: ChunkLayout,
    offset: U64,
}

#[derive(IntoBytes, Immutable, Unaligned)]
#[repr(C)]
struct ErrorLayout {
    chunk: ChunkLayout,
    error: U32,
    message_length: U16,
}

/// Header of a chunk of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtendedChunk {
    /// [`chunk::FLAG_DONE`] or none.
    pub flags: u16,
    /// See [`chunk`].
    pub kind: u16,
    /// Cookie of the request.
    pub cookie: u64,
    /// Offset of the request.
    pub offset: u64,
    /// Length of the payload, bytes.
    pub length: u64,
}

impl ExtendedChunk {
    fn layout(self) -> ChunkLayout {
        ChunkLayout {
            magic: EXTENDED_REPLY_MAGIC.into(),
            flags: self.flags.into(),
            kind: self.kind.into(),
            cookie: self.cookie.into(),
            offset: self.offset.into(),
            length: self.length.into(),
        }
    }

    /// Encodes the header.
    #[must_use]
    pub fn encode(self) -> [u8; EXTENDED_CHUNK_BYTES] {
        zerocopy::transmute!(self.layout())
    }

    /// Encodes the bytes before the `length` bytes of data of a read with one final chunk.
    #[must_use]
    pub fn encode_data(cookie: u64, offset: u64, length: u32) -> [u8; EXTENDED_DATA_BYTES] {
        let chunk = Self {
            flags: chunk::FLAG_DONE,
            kind: chunk::OFFSET_DATA,
            cookie,
            offset,
            length: u64::from(length) + 8,
        };
        zerocopy::transmute!(DataLayout {
            chunk: chunk.layout(),
            offset: offset.into(),
        })
    }

    /// Encodes a final chunk with `error`, without a message.
    #[must_use]
    pub fn encode_error(cookie: u64, offset: u64, error: u32) -> [u8; EXTENDED_ERROR_BYTES] {
        let chunk = Self {
            flags: chunk::FLAG_DONE,
            kind: chunk::ERROR,
            cookie,
            offset,
            length: 6,
        };
        zerocopy::transmute!(ErrorLayout {
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
        let layout: ChunkLayout = prefix(bytes, "an extended reply chunk")?;
        if layout.magic != EXTENDED_REPLY_MAGIC {
            return Err(malformed("extended reply chunk with another magic number"));
        }
        Ok(Self {
            flags: layout.flags.get(),
            kind: layout.kind.get(),
            cookie: layout.cookie.get(),
            offset: layout.offset.get(),
            length: layout.length.get(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::transmission::command;
    use super::*;

    /// Bytes of the protocol document's layouts, written by hand.
    #[test]
    fn layouts_are_those_of_the_document() {
        let request = ExtendedRequest {
            flags: flag::PAYLOAD_LEN | flag::FUA,
            command: command::WRITE,
            cookie: 0x0102_0304_0506_0708,
            offset: 0x1000,
            length: 0x1_0000_0200,
        };
        let mut expected = vec![0x21, 0xe4, 0x1c, 0x71, 0, 0x21, 0, 1];
        expected.extend([1, 2, 3, 4, 5, 6, 7, 8]);
        expected.extend([0, 0, 0, 0, 0, 0, 0x10, 0]);
        expected.extend([0, 0, 0, 1, 0, 0, 2, 0]);
        assert_eq!(request.encode()[..], expected);
        assert_eq!(request.payload_bytes(), 0x1_0000_0200);
        let mut effect = request;
        effect.flags = flag::FUA;
        assert_eq!(effect.payload_bytes(), 0);
        let mut expected = vec![0x6e, 0x8a, 0x27, 0x8c, 0, 1, 0, 1];
        expected.extend([0, 0, 0, 0, 0, 0, 0, 7]);
        expected.extend([0, 0, 0, 0, 0, 0, 0x10, 0]);
        expected.extend([0, 0, 0, 0, 0, 0, 2, 8]);
        expected.extend([0, 0, 0, 0, 0, 0, 0x10, 0]);
        assert_eq!(ExtendedChunk::encode_data(7, 0x1000, 0x200)[..], expected);
        let mut expected = vec![0x6e, 0x8a, 0x27, 0x8c, 0, 1, 0x80, 1];
        expected.extend([0, 0, 0, 0, 0, 0, 0, 7]);
        expected.extend([0, 0, 0, 0, 0, 0, 0x10, 0]);
        expected.extend([0, 0, 0, 0, 0, 0, 0, 6]);
        expected.extend([0, 0, 0, 22, 0, 0]);
        assert_eq!(ExtendedChunk::encode_error(7, 0x1000, 22)[..], expected);
    }
}
