//! Queue of replies, and their encoding.

use std::cell::{Cell, RefCell};

use forebay_block::Buf;
use forebay_wire::nbd::extended::{
    EXTENDED_CHUNK_BYTES, EXTENDED_DATA_BYTES, EXTENDED_ERROR_BYTES, ExtendedChunk,
};
use forebay_wire::nbd::transmission::{
    CHUNK_BYTES, Chunk, DATA_CHUNK_BYTES, ERROR_CHUNK_BYTES, SIMPLE_REPLY_BYTES, SimpleReply, chunk,
};

use super::headers::Headers;

/// Maximum bytes of a reply before its data.
const HEADER_BYTES: usize = EXTENDED_DATA_BYTES;
const _: () = assert!(
    HEADER_BYTES >= SIMPLE_REPLY_BYTES
        && HEADER_BYTES >= ERROR_CHUNK_BYTES
        && HEADER_BYTES >= CHUNK_BYTES
        && HEADER_BYTES >= DATA_CHUNK_BYTES
        && HEADER_BYTES >= EXTENDED_CHUNK_BYTES
        && HEADER_BYTES >= EXTENDED_ERROR_BYTES
);
/// Maximum number of replies in one send.
const BATCH: usize = 128;
/// Amount of data at which a send is full, bytes. Without the limit, the first reply would wait
/// until the last is copied.
const BATCH_BYTES: usize = 256 << 10;

/// Bytes after the header of a successful reply.
pub(super) enum Payload {
    None,
    /// Data of a read.
    Data(Buf),
    /// Status of blocks.
    Status(Buf),
}

pub(super) struct Reply {
    pub(super) cookie: u64,
    /// Offset of the request.
    pub(super) offset: u64,
    /// Payload, or an error number.
    pub(super) outcome: Result<Payload, u32>,
    /// Cost of the request in the connection's budget, bytes.
    pub(super) cost: u64,
}

impl Reply {
    fn data_bytes(&self) -> usize {
        match &self.outcome {
            Ok(Payload::Data(data) | Payload::Status(data)) => data.len(),
            Ok(Payload::None) | Err(_) => 0,
        }
    }
}

/// Replies of one send.
pub(super) struct Batch {
    pub(super) replies: u64,
    pub(super) cost: u64,
}

/// Replies that wait for the sending task.
pub(super) struct Outbox {
    waiting: RefCell<Vec<Reply>>,
    sending: Cell<bool>,
    /// Memory for the headers of one send.
    headers: Buf,
}

impl Outbox {
    pub(super) fn new() -> Self {
        Self {
            waiting: RefCell::default(),
            sending: Cell::new(false),
            headers: Buf::scratch(BATCH * HEADER_BYTES),
        }
    }

    /// Adds a reply. Returns true if no task sends: then the caller must send until
    /// [`Outbox::gather`] returns `None`.
    pub(super) fn push(&self, reply: Reply) -> bool {
        self.waiting.borrow_mut().push(reply);
        !self.sending.replace(true)
    }

    /// Puts the next replies into `parts`, after the previous send has ended. Returns `None` if
    /// there are none: then the caller stops sending.
    pub(super) fn gather(&self, headers: Headers, parts: &mut Vec<Buf>) -> Option<Batch> {
        let mut waiting = self.waiting.borrow_mut();
        if waiting.is_empty() {
            self.sending.set(false);
            return None;
        }
        let mut batch = Batch {
            replies: 0,
            cost: 0,
        };
        let (mut replies, mut data_bytes) = (0, 0);
        for reply in waiting.iter().take(BATCH) {
            replies += 1;
            data_bytes += reply.data_bytes();
            if data_bytes >= BATCH_BYTES {
                break;
            }
        }
        // Adjacent headers without data between them form one part.
        let (mut from, mut to) = (0, 0);
        for reply in waiting.drain(..replies) {
            batch.replies += 1;
            batch.cost += reply.cost;
            to += self.put_header(to, &reply, headers);
            if let Ok(Payload::Data(data) | Payload::Status(data)) = reply.outcome {
                parts.push(self.headers.slice(from..to));
                parts.push(data);
                from = to;
            }
        }
        if from < to {
            parts.push(self.headers.slice(from..to));
        }
        Some(batch)
    }

    /// Writes the bytes before the data. Returns their length.
    fn put_header(&self, at: usize, reply: &Reply, headers: Headers) -> usize {
        let (cookie, offset) = (reply.cookie, reply.offset);
        let length = u32::try_from(reply.data_bytes()).expect("a payload of at most 32 MiB");
        let simple = |error| SimpleReply { error, cookie }.encode();
        match (&reply.outcome, headers) {
            (Err(error), Headers::Simple) => self.put(at, &simple(*error)),
            (Err(error), Headers::Structured) => self.put(at, &Chunk::encode_error(cookie, *error)),
            (Err(error), Headers::Extended) => {
                self.put(at, &ExtendedChunk::encode_error(cookie, offset, *error))
            }
            (Ok(Payload::Data(_)), Headers::Structured) => {
                self.put(at, &Chunk::encode_data(cookie, offset, length))
            }
            (Ok(Payload::Data(_)), Headers::Extended) => {
                self.put(at, &ExtendedChunk::encode_data(cookie, offset, length))
            }
            (Ok(payload), Headers::Extended) => {
                let kind = match payload {
                    Payload::Status(_) => chunk::BLOCK_STATUS_EXT,
                    Payload::None | Payload::Data(_) => chunk::NONE,
                };
                let header = ExtendedChunk {
                    flags: chunk::FLAG_DONE,
                    kind,
                    cookie,
                    offset,
                    length: length.into(),
                };
                self.put(at, &header.encode())
            }
            // Only connections with chunks have this.
            (Ok(Payload::Status(_)), _) => {
                let header = Chunk {
                    flags: chunk::FLAG_DONE,
                    kind: chunk::BLOCK_STATUS,
                    cookie,
                    length,
                };
                self.put(at, &header.encode())
            }
            (Ok(Payload::Data(_) | Payload::None), _) => self.put(at, &simple(0)),
        }
    }

    fn put(&self, at: usize, header: &[u8]) -> usize {
        self.headers.copy_from(at, header);
        header.len()
    }
}
