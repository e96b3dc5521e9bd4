//! Encoding of the messages as a stream of versioned packets. All numbers are little-endian.
//!
//! A packet has a header of ten bytes:
//!
//! - length of the rest, `u32`;
//! - version, `u8`;
//! - direction, `u8`: 1 to the directory, 2 to a node;
//! - sending or receiving node, `u8`;
//! - zero, `u8`;
//! - number of messages, `u16`.
//!
//! The messages follow, each as a tag and its fields in the order of their declaration. A packet is
//! a batch: all messages to a peer at one time share one.
//!
//! Decoding borrows from the caller's bytes and allocates nothing. Encoding appends to a buffer of
//! the caller.

use std::fmt;
use std::marker::PhantomData;

use forebay_block::{Error, ErrorKind};

use crate::message::{Access, LockRange, NodeId, PageId, Place, Refusal, ToDirectory, ToNode};

/// Version of this codec. Any other is refused.
pub const VERSION: u8 = 7;

/// Maximum number of messages in a packet.
pub const MESSAGES_MAX: usize = 1024;

const LENGTH_BYTES: usize = 4;
const HEADER_BYTES: usize = 10;

/// Maximum length of a message, bytes.
const MESSAGE_BYTES_MAX: usize = 36;

/// Maximum length of a packet, bytes.
pub const PACKET_BYTES_MAX: usize = HEADER_BYTES + MESSAGES_MAX * MESSAGE_BYTES_MAX;

/// Reason why bytes are not a valid packet. The end of the packet is unknown, so the connection
/// must be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeError {
    /// The length is smaller than a header, or larger than any packet.
    Length(u32),
    /// The peer speaks another version.
    Version(u8),
    /// The packet is for the other side.
    Direction(u8),
    /// The node number is too large.
    Node(u8),
    /// A byte or flag has an undefined value.
    Value(u8),
    /// The tag is undefined.
    Tag(u8),
    /// There are too many messages.
    Count(u16),
    /// The messages do not end with the packet.
    Size,
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length(length) => write!(f, "a packet of {length} bytes"),
            Self::Version(version) => write!(
                f,
                "version {version} of the page cache's protocol where {VERSION} is spoken: run one \
                 version everywhere"
            ),
            Self::Direction(direction) => write!(f, "a packet in direction {direction}"),
            Self::Node(node) => write!(f, "node {node}"),
            Self::Value(value) => write!(f, "the value {value} where it has no meaning"),
            Self::Tag(tag) => write!(f, "message {tag}"),
            Self::Count(count) => write!(f, "{count} messages in a packet"),
            Self::Size => f.write_str("messages that do not end where their packet ends"),
        }
    }
}

impl std::error::Error for DecodeError {}

impl From<DecodeError> for Error {
    fn from(error: DecodeError) -> Self {
        let context = "page cache protocol: not a packet that this side takes";
        Self::with_source(ErrorKind::InvalidInput, context, error)
    }
}

/// A message of one direction.
pub trait Message: Copy {
    /// The direction's number in a packet's header.
    const DIRECTION: u8;

    /// Appends the message.
    fn put(&self, to: &mut Vec<u8>);

    /// Decodes a message from the front of `from`.
    ///
    /// # Errors
    /// If there is no valid message.
    fn take(from: &mut &[u8]) -> Result<Self, DecodeError>;
}

/// Appends `messages` as packets of `node`: none if there are none, and several above
/// [`MESSAGES_MAX`].
pub fn encode<M: Message>(node: NodeId, messages: &[M], to: &mut Vec<u8>) {
    for batch in messages.chunks(MESSAGES_MAX) {
        encode_packet(node, batch, to);
    }
}

/// Appends a packet without a message, which reports that `node` is there.
pub fn encode_empty<M: Message>(node: NodeId, to: &mut Vec<u8>) {
    encode_packet::<M>(node, &[], to);
}

fn encode_packet<M: Message>(node: NodeId, batch: &[M], to: &mut Vec<u8>) {
    let start = to.len();
    let count = u16::try_from(batch.len()).expect("a batch is at most 1,024");
    to.extend_from_slice(&[0; LENGTH_BYTES]);
    to.extend_from_slice(&[VERSION, M::DIRECTION, node.number(), 0]);
    to.extend_from_slice(&count.to_le_bytes());
    for message in batch {
        message.put(to);
    }
    let length = to.len() - start - LENGTH_BYTES;
    let length = u32::try_from(length).expect("a packet is below 64 KiB");
    to[start..start + LENGTH_BYTES].copy_from_slice(&length.to_le_bytes());
}

/// A packet in the bytes of a stream.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a, M> {
    /// Sending or receiving node.
    pub node: NodeId,
    /// Length of the packet, bytes.
    pub size_bytes: usize,
    count: u16,
    body: &'a [u8],
    direction: PhantomData<M>,
}

impl<'a, M: Message> Packet<'a, M> {
    /// Decodes the packet at the start of `bytes`. Returns `None` if its end has not arrived yet.
    /// Errors in the header are reported as soon as the byte is there.
    ///
    /// # Errors
    /// If no packet of this direction starts like that.
    pub fn decode(bytes: &'a [u8]) -> Result<Option<Self>, DecodeError> {
        let mut rest = bytes;
        let Ok(length) = u32::take(&mut rest) else {
            return Ok(None);
        };
        let body_bytes = usize::try_from(length).unwrap_or(usize::MAX);
        if !(HEADER_BYTES - LENGTH_BYTES..=PACKET_BYTES_MAX - LENGTH_BYTES).contains(&body_bytes) {
            return Err(DecodeError::Length(length));
        }
        let Some((&[version, direction, node, zero, low, high], _)) = rest.split_first_chunk()
        else {
            return Ok(None);
        };
        if version != VERSION {
            return Err(DecodeError::Version(version));
        }
        if direction != M::DIRECTION {
            return Err(DecodeError::Direction(direction));
        }
        if zero != 0 {
            return Err(DecodeError::Value(zero));
        }
        let node = NodeId::new(node).ok_or(DecodeError::Node(node))?;
        let count = u16::from_le_bytes([low, high]);
        if usize::from(count) > MESSAGES_MAX {
            return Err(DecodeError::Count(count));
        }
        let size_bytes = LENGTH_BYTES + body_bytes;
        let body = bytes.get(HEADER_BYTES..size_bytes);
        Ok(body.map(|body| Self {
            node,
            size_bytes,
            count,
            body,
            direction: PhantomData,
        }))
    }

    /// Returns the messages. The iterator ends after an error or a missing message.
    pub const fn messages(&self) -> Messages<'a, M> {
        Messages {
            left: self.count,
            rest: self.body,
            direction: PhantomData,
        }
    }
}

/// Iterator over the messages of a packet.
#[derive(Clone, Debug)]
pub struct Messages<'a, M> {
    left: u16,
    rest: &'a [u8],
    direction: PhantomData<M>,
}

impl<M: Message> Iterator for Messages<'_, M> {
    type Item = Result<M, DecodeError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.left == 0 {
            // Bytes after the last message are an error, too, which is reported once.
            let behind = !std::mem::take(&mut self.rest).is_empty();
            return behind.then_some(Err(DecodeError::Size));
        }
        self.left -= 1;
        let message = M::take(&mut self.rest);
        if message.is_err() {
            (self.left, self.rest) = (0, &[]);
        }
        Some(message)
    }
}

/// A field of a message.
trait Field: Sized {
    fn put(&self, to: &mut Vec<u8>);
    fn take(from: &mut &[u8]) -> Result<Self, DecodeError>;
}

macro_rules! number_fields {
    ($($number:ty),*) => {$(
        impl Field for $number {
            fn put(&self, to: &mut Vec<u8>) {
                to.extend_from_slice(&self.to_le_bytes());
            }

            fn take(from: &mut &[u8]) -> Result<Self, DecodeError> {
                let (bytes, rest) = from.split_first_chunk().ok_or(DecodeError::Size)?;
                *from = rest;
                Ok(Self::from_le_bytes(*bytes))
            }
        }
    )*};
}
number_fields!(u8, u32, u64);

impl Field for bool {
    fn put(&self, to: &mut Vec<u8>) {
        to.push(u8::from(*self));
    }

    fn take(from: &mut &[u8]) -> Result<Self, DecodeError> {
        match u8::take(from)? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(DecodeError::Value(other)),
        }
    }
}

impl Field for Access {
    fn put(&self, to: &mut Vec<u8>) {
        (*self == Self::Write).put(to);
    }

    fn take(from: &mut &[u8]) -> Result<Self, DecodeError> {
        Ok(if bool::take(from)? {
            Self::Write
        } else {
            Self::Read
        })
    }
}

impl Field for Refusal {
    fn put(&self, to: &mut Vec<u8>) {
        to.push(match self {
            Self::NumberInUse => 1,
            Self::Unknown => 2,
            Self::Unseen => 3,
        });
    }

    fn take(from: &mut &[u8]) -> Result<Self, DecodeError> {
        match u8::take(from)? {
            1 => Ok(Self::NumberInUse),
            2 => Ok(Self::Unknown),
            3 => Ok(Self::Unseen),
            other => Err(DecodeError::Value(other)),
        }
    }
}

impl Field for NodeId {
    fn put(&self, to: &mut Vec<u8>) {
        to.push(self.number());
    }

    fn take(from: &mut &[u8]) -> Result<Self, DecodeError> {
        let number = u8::take(from)?;
        Self::new(number).ok_or(DecodeError::Node(number))
    }
}

macro_rules! struct_fields {
    ($($name:ident { $($field:ident),* })*) => {$(
        impl Field for $name {
            fn put(&self, to: &mut Vec<u8>) {
                $(self.$field.put(to);)*
            }

            fn take(from: &mut &[u8]) -> Result<Self, DecodeError> {
                Ok(Self { $($field: Field::take(from)?),* })
            }
        }
    )*};
}
struct_fields! {
    PageId { inode, index }
    Place { frame, generation }
    LockRange { inode, start, end, exclusive }
}

macro_rules! messages {
    ($name:ident in direction $direction:literal {
        $($tag:literal => $message:ident { $($field:ident),* },)*
    }) => {
        impl Message for $name {
            const DIRECTION: u8 = $direction;

            fn put(&self, to: &mut Vec<u8>) {
                match self {
                    $(Self::$message { $($field),* } => {
                        to.push($tag);
                        $($field.put(to);)*
                    })*
                }
            }

            fn take(from: &mut &[u8]) -> Result<Self, DecodeError> {
                match u8::take(from)? {
                    $($tag => Ok(Self::$message { $($field: Field::take(from)?),* }),)*
                    other => Err(DecodeError::Tag(other)),
                }
            }
        }
    };
}
messages! {
    ToDirectory in direction 1 {
        1 => Join { frames, unpublished_pages },
        2 => Lookup { page, access },
        3 => Publish { place },
        4 => Abandon { place },
        5 => Invalidated { place },
        6 => WrittenBack { place, ok },
        7 => Flush { page, place },
        8 => Used { place },
        9 => Lock { ticket, range },
        10 => Unlock { ticket },
        11 => Hello { nonce, session },
        12 => Alive { hits_local, hits_remote, misses, read_ahead },
        13 => Leave {},
        14 => Forgotten { node },
        15 => Rejoin { first_frame, frames },
        16 => Have { page, place, access },
        17 => Relock { ticket, range, held },
        18 => HadAll {},
        19 => Dirty { pages, oldest_ms, write_back_failures, lost_pages },
        20 => NotFlushed { ticket, inode },
        21 => FlushedAll { ticket, pages, failed },
        22 => Filling { page, place, access },
        23 => Replicate { place },
        24 => Dropped { place },
        25 => PublishAll { ticket, inode },
        26 => PublishedFile { request },
        27 => Protected { place, ok },
    }
}
messages! {
    ToNode in direction 2 {
        1 => Joined { first_frame, frames, unpublished_pages },
        2 => Fill { page, place, access },
        3 => Map { page, place, access },
        4 => Invalidate { page, place },
        5 => WriteBack { page, place },
        6 => Flushed { page, place, ok },
        7 => Locked { ticket },
        8 => Died { node, first_frame, frames },
        9 => Hello { nonce },
        10 => Forget { node },
        11 => Left {},
        12 => Refused { why },
        13 => FlushAll { ticket },
        14 => Replica { page, place, copy },
        15 => DropReplica { page, place },
        16 => PublishFile { request, inode },
        17 => PublishedAll { ticket },
        18 => Protect { page, place },
    }
}
