//! Metadata contexts: the options that list and select them, and the status of blocks ("Metadata
//! querying").

use forebay_block::Error;

use super::handshake::decode_name;
use super::malformed;

/// Context of the allocation of blocks ("`base:` metadata context").
pub const BASE_ALLOCATION: &str = "base:allocation";
/// Bytes of a [`Descriptor`].
pub const DESCRIPTOR_BYTES: usize = 8;
/// Bytes of the identifier of a context.
pub const CONTEXT_ID_BYTES: usize = 4;

/// Status flags of [`BASE_ALLOCATION`]. None of them means data.
pub mod state {
    /// Not allocated.
    pub const HOLE: u32 = 1 << 0;
    /// Reads as zeroes.
    pub const ZERO: u32 = 1 << 1;
}

/// Data of `option::LIST_META_CONTEXT` and `option::SET_META_CONTEXT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContextRequest {
    /// Name of the export; empty for the default export.
    pub name: String,
    /// Queries, each a name of a context, or of a namespace with a colon.
    pub queries: Vec<String>,
}

impl ContextRequest {
    /// Encodes the request.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let count = u32::try_from(self.queries.len()).unwrap_or(u32::MAX);
        let mut out = Vec::new();
        append_string(&mut out, &self.name);
        out.extend_from_slice(&count.to_be_bytes());
        for query in &self.queries {
            append_string(&mut out, query);
        }
        out
    }

    /// Decodes a client's request.
    ///
    /// # Errors
    /// `InvalidInput` if the lengths in it do not match the length of `bytes`, or a string is
    /// invalid.
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let (name, rest) = take_string(bytes)?;
        let (count, mut rest) = rest.split_first_chunk::<4>().ok_or_else(inconsistent)?;
        // The number is untrusted. Each query takes bytes, so that it cannot make this long.
        let mut queries = Vec::new();
        for _ in 0..u32::from_be_bytes(*count) {
            let (query, after) = take_string(rest)?;
            queries.push(query);
            rest = after;
        }
        match rest {
            [] => Ok(Self { name, queries }),
            _ => Err(inconsistent()),
        }
    }
}

/// Data of a `reply::META_CONTEXT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Context {
    /// Identifier in chunks; zero where contexts are listed.
    pub id: u32,
    /// Name of the context.
    pub name: String,
}

impl Context {
    /// Encodes the context.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        [&self.id.to_be_bytes(), self.name.as_bytes()].concat()
    }

    /// Decodes a server's context.
    ///
    /// # Errors
    /// `InvalidInput` if it is too short, or the name is invalid.
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let too_short = || malformed("a metadata context without an identifier");
        let (id, name) = bytes.split_first_chunk::<4>().ok_or_else(too_short)?;
        Ok(Self {
            id: u32::from_be_bytes(*id),
            name: decode_name(name)?.to_owned(),
        })
    }
}

/// Status of successive blocks, in the payload of a `chunk::BLOCK_STATUS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// Length, bytes.
    pub length: u32,
    /// Status flags; for [`BASE_ALLOCATION`] see [`state`].
    pub flags: u32,
}

/// Payload of a `chunk::BLOCK_STATUS`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockStatus {
    /// Identifier of the context.
    pub context: u32,
    /// Descriptors from the offset of the request on, without gaps.
    pub descriptors: Vec<Descriptor>,
}

impl BlockStatus {
    /// Encodes the payload.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let bytes = CONTEXT_ID_BYTES + self.descriptors.len() * DESCRIPTOR_BYTES;
        let mut out = Vec::with_capacity(bytes);
        out.extend_from_slice(&self.context.to_be_bytes());
        for Descriptor { length, flags } in &self.descriptors {
            out.extend_from_slice(&length.to_be_bytes());
            out.extend_from_slice(&flags.to_be_bytes());
        }
        out
    }

    /// Decodes a server's payload.
    ///
    /// # Errors
    /// `InvalidInput` for a length that fits no descriptors, for no descriptor, or for one without
    /// a length.
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let wrong = || malformed("a block status without whole descriptors");
        let (context, rest) = bytes.split_first_chunk::<4>().ok_or_else(wrong)?;
        let (words, tail) = rest.as_chunks::<4>();
        let (pairs, odd) = words.as_chunks::<2>();
        if pairs.is_empty() || !odd.is_empty() || !tail.is_empty() {
            return Err(wrong());
        }
        let descriptors: Vec<_> = pairs
            .iter()
            .map(|[length, flags]| Descriptor {
                length: u32::from_be_bytes(*length),
                flags: u32::from_be_bytes(*flags),
            })
            .collect();
        if descriptors.iter().any(|it| it.length == 0) {
            return Err(malformed("a block status with an empty descriptor"));
        }
        Ok(Self {
            context: u32::from_be_bytes(*context),
            descriptors,
        })
    }
}

/// Payload of a `chunk::BLOCK_STATUS_EXT`: lengths and flags of 64 bits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtendedStatus {
    /// Identifier of the context.
    pub context: u32,
    /// Lengths, bytes, and flags of blocks from the offset of the request on, without gaps.
    pub descriptors: Vec<(u64, u64)>,
}

impl ExtendedStatus {
    /// Encodes the payload.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let count = u32::try_from(self.descriptors.len()).unwrap_or(u32::MAX);
        let mut out = Vec::with_capacity(8 + 16 * self.descriptors.len());
        out.extend_from_slice(&self.context.to_be_bytes());
        out.extend_from_slice(&count.to_be_bytes());
        for (length, flags) in &self.descriptors {
            out.extend_from_slice(&length.to_be_bytes());
            out.extend_from_slice(&flags.to_be_bytes());
        }
        out
    }

    /// Decodes a server's payload.
    ///
    /// # Errors
    /// `InvalidInput` for a length that does not fit the number of descriptors, for no descriptor,
    /// or for one without a length.
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let wrong = || malformed("an extended block status without whole descriptors");
        let (words, tail) = bytes.as_chunks::<8>();
        let (head, words) = words.split_first().ok_or_else(wrong)?;
        let (context, count) = head.split_at(4);
        let word = |bytes: &[u8]| {
            bytes
                .try_into()
                .map(u32::from_be_bytes)
                .expect("four bytes")
        };
        let (pairs, odd) = words.as_chunks::<2>();
        let is_whole = tail.is_empty() && odd.is_empty() && !pairs.is_empty();
        if !is_whole || word(count) as usize != pairs.len() {
            return Err(wrong());
        }
        let pair = |[length, flags]: &[[u8; 8]; 2]| {
            (u64::from_be_bytes(*length), u64::from_be_bytes(*flags))
        };
        let descriptors: Vec<_> = pairs.iter().map(pair).collect();
        if descriptors.iter().any(|(length, _)| *length == 0) {
            return Err(malformed("a block status with an empty descriptor"));
        }
        Ok(Self {
            context: word(context),
            descriptors,
        })
    }
}

fn inconsistent() -> Error {
    malformed("metadata contexts with inconsistent lengths")
}

fn append_string(out: &mut Vec<u8>, text: &str) {
    let length = u32::try_from(text.len()).unwrap_or(u32::MAX);
    out.extend_from_slice(&length.to_be_bytes());
    out.extend_from_slice(text.as_bytes());
}

/// Returns the string at the start of `bytes`, and the bytes after it.
fn take_string(bytes: &[u8]) -> Result<(String, &[u8]), Error> {
    let (length, rest) = bytes.split_first_chunk::<4>().ok_or_else(inconsistent)?;
    let length = u32::from_be_bytes(*length) as usize;
    let (text, rest) = rest.split_at_checked(length).ok_or_else(inconsistent)?;
    Ok((decode_name(text)?.to_owned(), rest))
}
