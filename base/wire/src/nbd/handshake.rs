//! The handshake phase: greeting, client flags, options and their replies.

use forebay_block::Error;
use zerocopy::network_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{MAX_STRING_BYTES, malformed, prefix};

/// ASCII `NBDMAGIC`, the first 8 bytes of a server ("Newstyle negotiation").
pub const NBD_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// ASCII `IHAVEOPT`, after [`NBD_MAGIC`] and before each option ("Newstyle negotiation").
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// Precedes each reply to an option ("Fixed newstyle negotiation").
pub const REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;

/// Bytes of a [`Greeting`].
pub const GREETING_BYTES: usize = 18;
/// Bytes of the client flags.
pub const CLIENT_FLAGS_BYTES: usize = 4;
/// Bytes of an [`OptionHeader`].
pub const OPTION_HEADER_BYTES: usize = 16;
/// Bytes of an [`OptionReply`].
pub const OPTION_REPLY_BYTES: usize = 20;
/// Zero bytes after the reply to `EXPORT_NAME`, unless the client disabled them.
const RESERVED_BYTES: usize = 124;

/// Handshake and client flags ("Handshake flags", "Client flags"): the same bits in both
/// directions.
pub mod flags {
    /// Fixed newstyle.
    pub const FIXED_NEWSTYLE: u16 = 1 << 0;
    /// No 124 zero bytes after the reply to `EXPORT_NAME`.
    pub const NO_ZEROES: u16 = 1 << 1;
}

/// Transmission flags: features of an export ("Transmission flags").
pub mod export {
    /// Always set.
    pub const HAS_FLAGS: u16 = 1 << 0;
    /// Writes are refused.
    pub const READ_ONLY: u16 = 1 << 1;
    /// FLUSH is offered.
    pub const SEND_FLUSH: u16 = 1 << 2;
    /// FUA is offered.
    pub const SEND_FUA: u16 = 1 << 3;
    /// Seeks are slow.
    pub const ROTATIONAL: u16 = 1 << 4;
    /// TRIM is offered.
    pub const SEND_TRIM: u16 = 1 << 5;
    /// WRITE_ZEROES is offered.
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    /// The DF flag is offered; only with structured replies.
    pub const SEND_DF: u16 = 1 << 7;
    /// A flush or FUA covers all connections.
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    /// CACHE is offered.
    pub const SEND_CACHE: u16 = 1 << 10;
    /// FAST_ZERO is offered.
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// Option types ("Option types").
pub mod option {
    /// Selects an export and starts transmission, without an error path.
    pub const EXPORT_NAME: u32 = 1;
    /// Ends the session.
    pub const ABORT: u32 = 2;
    /// Lists the exports.
    pub const LIST: u32 = 3;
    /// Starts TLS.
    pub const STARTTLS: u32 = 5;
    /// Describes an export.
    pub const INFO: u32 = 6;
    /// Describes an export and starts transmission.
    pub const GO: u32 = 7;
    /// Enables structured replies.
    pub const STRUCTURED_REPLY: u32 = 8;
    /// Lists metadata contexts.
    pub const LIST_META_CONTEXT: u32 = 9;
    /// Selects metadata contexts.
    pub const SET_META_CONTEXT: u32 = 10;
    /// Enables extended headers.
    pub const EXTENDED_HEADERS: u32 = 11;
}

/// Option reply types ("Option reply types"). Errors have bit 31.
pub mod reply {
    /// Done.
    pub const ACK: u32 = 1;
    /// An export's name.
    pub const SERVER: u32 = 2;
    /// A property of an export.
    pub const INFO: u32 = 3;
    /// A metadata context.
    pub const META_CONTEXT: u32 = 4;
    /// Bit of every error.
    pub const ERROR: u32 = 1 << 31;
    /// Unknown option.
    pub const ERR_UNSUP: u32 = ERROR + 1;
    /// Forbidden by the server's policy.
    pub const ERR_POLICY: u32 = ERROR + 2;
    /// The option's data is invalid.
    pub const ERR_INVALID: u32 = ERROR + 3;
    /// TLS is required.
    pub const ERR_TLS_REQD: u32 = ERROR + 5;
    /// No such export.
    pub const ERR_UNKNOWN: u32 = ERROR + 6;
    /// The server is shutting down.
    pub const ERR_SHUTDOWN: u32 = ERROR + 7;
    /// The option's data is larger than the server accepts.
    pub const ERR_TOO_BIG: u32 = ERROR + 9;
    /// Extended headers were enabled before, and the option does not go with them.
    pub const ERR_EXT_HEADER_REQD: u32 = ERROR + 10;
}

/// Information types ("`NBD_OPT_INFO` and `NBD_OPT_GO`").
pub mod info {
    /// Size and transmission flags.
    pub const EXPORT: u16 = 0;
    /// The export's canonical name.
    pub const NAME: u16 = 1;
    /// A description for users.
    pub const DESCRIPTION: u16 = 2;
    /// Block size constraints.
    pub const BLOCK_SIZE: u16 = 3;
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct GreetingLayout {
    magic: U64,
    option_magic: U64,
    flags: U16,
}

/// First message of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Greeting {
    /// See [`flags`].
    pub flags: u16,
}

impl Greeting {
    /// Encodes the greeting.
    #[must_use]
    pub fn encode(self) -> [u8; GREETING_BYTES] {
        zerocopy::transmute!(GreetingLayout {
            magic: NBD_MAGIC.into(),
            option_magic: OPTION_MAGIC.into(),
            flags: self.flags.into(),
        })
    }

    /// Decodes a server's greeting.
    ///
    /// # Errors
    /// `InvalidInput` for another magic number (an oldstyle server, or not an NBD server).
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let layout: GreetingLayout = prefix(bytes, "a greeting")?;
        if layout.magic != NBD_MAGIC || layout.option_magic != OPTION_MAGIC {
            return Err(malformed("the greeting is not one of a newstyle server"));
        }
        Ok(Self {
            flags: layout.flags.get(),
        })
    }
}

/// Decodes the client flags.
///
/// # Errors
/// `InvalidInput` for a flag that the server did not offer; the server must close the connection.
pub fn decode_client_flags(bytes: [u8; CLIENT_FLAGS_BYTES]) -> Result<u16, Error> {
    let all = u32::from_be_bytes(bytes);
    match u16::try_from(all) {
        Ok(known) if known & !(flags::FIXED_NEWSTYLE | flags::NO_ZEROES) == 0 => Ok(known),
        _ => Err(malformed(format!("unknown client flags {all:#x}"))),
    }
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct OptionLayout {
    magic: U64,
    option: U32,
    length: U32,
}

/// Header of an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionHeader {
    /// See [`option`].
    pub option: u32,
    /// Length of the data, bytes.
    pub length: u32,
}

impl OptionHeader {
    /// Encodes the header.
    #[must_use]
    pub fn encode(self) -> [u8; OPTION_HEADER_BYTES] {
        zerocopy::transmute!(OptionLayout {
            magic: OPTION_MAGIC.into(),
            option: self.option.into(),
            length: self.length.into(),
        })
    }

    /// Decodes a client's option.
    ///
    /// # Errors
    /// `InvalidInput` for another magic number.
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let layout: OptionLayout = prefix(bytes, "an option")?;
        if layout.magic != OPTION_MAGIC {
            return Err(malformed(format!(
                "option with magic {:#018x}",
                layout.magic.get()
            )));
        }
        Ok(Self {
            option: layout.option.get(),
            length: layout.length.get(),
        })
    }
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct OptionReplyLayout {
    magic: U64,
    option: U32,
    kind: U32,
    length: U32,
}

/// Header of a reply to an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionReply {
    /// Option of the reply.
    pub option: u32,
    /// See [`reply`].
    pub kind: u32,
    /// Length of the data, bytes.
    pub length: u32,
}

impl OptionReply {
    /// Encodes the header.
    #[must_use]
    pub fn encode(self) -> [u8; OPTION_REPLY_BYTES] {
        zerocopy::transmute!(OptionReplyLayout {
            magic: REPLY_MAGIC.into(),
            option: self.option.into(),
            kind: self.kind.into(),
            length: self.length.into(),
        })
    }

    /// Decodes a server's reply.
    ///
    /// # Errors
    /// `InvalidInput` for another magic number.
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let layout: OptionReplyLayout = prefix(bytes, "an option reply")?;
        if layout.magic != REPLY_MAGIC {
            return Err(malformed("option reply with another magic number"));
        }
        Ok(Self {
            option: layout.option.get(),
            kind: layout.kind.get(),
            length: layout.length.get(),
        })
    }

    /// Appends a whole reply, header and data, to `out`.
    ///
    /// # Panics
    /// If `data` is longer than 4 GiB.
    pub fn append(out: &mut Vec<u8>, option: u32, kind: u32, data: &[u8]) {
        let header = Self {
            option,
            kind,
            length: u32::try_from(data.len()).expect("a reply below 4 GiB"),
        };
        out.extend_from_slice(&header.encode());
        out.extend_from_slice(data);
    }
}

/// Encodes the data of a `reply::SERVER`: an export's name, then its description.
#[must_use]
pub fn encode_server(name: &str, description: &str) -> Vec<u8> {
    let mut out = (u32::try_from(name.len()).unwrap_or(u32::MAX))
        .to_be_bytes()
        .to_vec();
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(description.as_bytes());
    out
}

/// Encodes the reply to `EXPORT_NAME`: size, transmission flags and, unless the client disabled
/// them, zeroes.
#[must_use]
pub fn encode_export_name_reply(size_bytes: u64, flags: u16, no_zeroes: bool) -> Vec<u8> {
    let mut out = size_bytes.to_be_bytes().to_vec();
    out.extend_from_slice(&flags.to_be_bytes());
    if !no_zeroes {
        out.resize(out.len() + RESERVED_BYTES, 0);
    }
    out
}

/// Decodes an export's name.
///
/// # Errors
/// `InvalidInput` if it is too long, not UTF-8, or contains a NUL.
pub fn decode_name(bytes: &[u8]) -> Result<&str, Error> {
    if bytes.len() > MAX_STRING_BYTES {
        return Err(malformed(format!("a name of {} bytes", bytes.len())));
    }
    match std::str::from_utf8(bytes) {
        Ok(name) if !name.contains('\0') => Ok(name),
        _ => Err(malformed("a name that is not UTF-8 without NUL")),
    }
}

/// Data of `option::INFO` and `option::GO`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InfoRequest {
    /// Name of the export; empty for the default export.
    pub name: String,
    /// Requested information types; see [`info`].
    pub wanted: Vec<u16>,
}

impl InfoRequest {
    /// Encodes the request.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = (u32::try_from(self.name.len()).unwrap_or(u32::MAX))
            .to_be_bytes()
            .to_vec();
        out.extend_from_slice(self.name.as_bytes());
        out.extend_from_slice(
            &u16::try_from(self.wanted.len())
                .unwrap_or(u16::MAX)
                .to_be_bytes(),
        );
        for kind in &self.wanted {
            out.extend_from_slice(&kind.to_be_bytes());
        }
        out
    }

    /// Decodes a client's request.
    ///
    /// # Errors
    /// `InvalidInput` if the lengths in it do not match the length of `bytes`, or the name is
    /// invalid.
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let wrong = || malformed("INFO or GO with inconsistent lengths");
        let (length, rest) = bytes.split_first_chunk::<4>().ok_or_else(wrong)?;
        let length = u32::from_be_bytes(*length) as usize;
        let (name, rest) = rest.split_at_checked(length).ok_or_else(wrong)?;
        let (count, rest) = rest.split_first_chunk::<2>().ok_or_else(wrong)?;
        let (wanted, tail) = rest.as_chunks::<2>();
        if wanted.len() != usize::from(u16::from_be_bytes(*count)) || !tail.is_empty() {
            return Err(wrong());
        }
        Ok(Self {
            name: decode_name(name)?.to_owned(),
            wanted: wanted
                .iter()
                .map(|kind| u16::from_be_bytes(*kind))
                .collect(),
        })
    }
}

/// A property of an export: the data of a `reply::INFO`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Info {
    /// Size and transmission flags (see [`export`]).
    Export {
        /// Size, bytes.
        size_bytes: u64,
        /// Transmission flags.
        flags: u16,
    },
    /// Canonical name.
    Name(String),
    /// Description for users.
    Description(String),
    /// Block size constraints, bytes.
    BlockSize {
        /// Offsets and lengths are multiples of it.
        minimum: u32,
        /// Preferred size, below which requests are slow.
        preferred: u32,
        /// Maximum payload.
        maximum: u32,
    },
    /// An unknown type; clients skip it.
    Other(u16),
}

impl Info {
    /// Encodes the property.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(16);
        match self {
            Self::Export { size_bytes, flags } => {
                out.extend_from_slice(&info::EXPORT.to_be_bytes());
                out.extend_from_slice(&size_bytes.to_be_bytes());
                out.extend_from_slice(&flags.to_be_bytes());
            }
            Self::Name(name) => {
                out.extend_from_slice(&info::NAME.to_be_bytes());
                out.extend_from_slice(name.as_bytes());
            }
            Self::Description(words) => {
                out.extend_from_slice(&info::DESCRIPTION.to_be_bytes());
                out.extend_from_slice(words.as_bytes());
            }
            Self::BlockSize {
                minimum,
                preferred,
                maximum,
            } => {
                out.extend_from_slice(&info::BLOCK_SIZE.to_be_bytes());
                for size in [minimum, preferred, maximum] {
                    out.extend_from_slice(&size.to_be_bytes());
                }
            }
            Self::Other(kind) => out.extend_from_slice(&kind.to_be_bytes()),
        }
        out
    }

    /// Decodes a server's property.
    ///
    /// # Errors
    /// `InvalidInput` for a length that does not match the type, or an invalid string.
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let wrong = || malformed("an export property of the wrong length");
        let (kind, rest) = bytes.split_first_chunk::<2>().ok_or_else(wrong)?;
        match u16::from_be_bytes(*kind) {
            info::EXPORT => {
                let (size, flags) = rest.split_first_chunk::<8>().ok_or_else(wrong)?;
                Ok(Self::Export {
                    size_bytes: u64::from_be_bytes(*size),
                    flags: u16::from_be_bytes(flags.try_into().map_err(|_| wrong())?),
                })
            }
            info::NAME => Ok(Self::Name(decode_name(rest)?.to_owned())),
            info::DESCRIPTION => Ok(Self::Description(decode_name(rest)?.to_owned())),
            info::BLOCK_SIZE => {
                let (sizes, tail) = rest.as_chunks::<4>();
                let [minimum, preferred, maximum] = *sizes else {
                    return Err(wrong());
                };
                if !tail.is_empty() {
                    return Err(wrong());
                }
                Ok(Self::BlockSize {
                    minimum: u32::from_be_bytes(minimum),
                    preferred: u32::from_be_bytes(preferred),
                    maximum: u32::from_be_bytes(maximum),
                })
            }
            other => Ok(Self::Other(other)),
        }
    }
}
