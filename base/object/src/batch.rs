//! Batches of writes, each of which becomes an object of the log.

use std::cell::RefCell;
use std::rc::Rc;

use bytes::Bytes;
use forebay_io::rt;
use zstd::bulk::Compressor;

use crate::format::log::{Chunk, Header, Record};
use crate::format::{CHUNK_SECTORS, Id, chunks_of};
use crate::objects::bytes_of;

/// Number of chunks that are compressed before other tasks run (512 KiB).
const CHUNKS_A_TURN: usize = 16;
/// The fastest level.
const LEVEL: i32 = 1;

thread_local! {
    /// A compressor has memory that is worth reuse.
    static COMPRESSOR: RefCell<Compressor<'static>> =
        RefCell::new(Compressor::new(LEVEL).expect("a level of zstd"));
}

/// The batch that takes writes.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    /// Number of the batch. The first of a writer has 0.
    pub(crate) number: u64,
    /// Object in the table, if the batch has data.
    pub(crate) object: Option<u32>,
    pub(crate) payload: Vec<u8>,
    pub(crate) records: Vec<Record>,
    /// Snapshot that is complete, or zeroes.
    pub(crate) snapshot: Id,
}

impl Batch {
    /// Returns whether it has nothing to create an object for.
    pub(crate) fn is_empty(&self) -> bool {
        self.records.is_empty() && self.snapshot == Id::default()
    }

    /// Appends a record. Neighbouring records are one.
    pub(crate) fn push(&mut self, record: Record) {
        if let Some(last) = self.records.last_mut() {
            let end = last.first + u64::from(last.sectors);
            let sectors = last.sectors.checked_add(record.sectors);
            if let Some(sectors) = sectors
                && end == record.first
                && last.is_data == record.is_data
            {
                last.sectors = sectors;
                return;
            }
        }
        self.records.push(record);
    }
}

/// A batch that takes no more writes.
#[derive(Debug)]
pub(crate) struct Closed {
    pub(crate) number: u64,
    pub(crate) seq: u64,
    pub(crate) object: u32,
    pub(crate) payload: Bytes,
    pub(crate) records: Vec<Record>,
    pub(crate) snapshot: Id,
}

/// Content of an object of the log.
#[derive(Clone, Debug)]
pub(crate) struct Sealed {
    pub(crate) content: Bytes,
    pub(crate) header_bytes: u32,
    pub(crate) chunks: Rc<[Chunk]>,
}

/// Compresses the payload and creates the content of the object. Other tasks run meanwhile.
pub(crate) async fn seal(mut header: Header, payload: &[u8]) -> Sealed {
    let chunk_bytes = bytes_of(CHUNK_SECTORS);
    header.payload_sectors = u32::try_from(payload.len() / bytes_of(1)).expect("bounded");
    let count = chunks_of(header.payload_sectors) as usize;
    header.chunks = vec![Chunk::of(&[]); count];
    let begin = header.bytes();
    let mut content = vec![0; begin];
    content.reserve(payload.len());
    let mut scratch = vec![0; chunk_bytes];
    for (index, raw) in payload.chunks(chunk_bytes).enumerate() {
        if index > 0 && index.is_multiple_of(CHUNKS_A_TURN) {
            rt::next_turn().await;
        }
        // Compression fails if the result is not shorter.
        let shorter = &mut scratch[..raw.len() - 1];
        let len = COMPRESSOR.with_borrow_mut(|it| it.compress_to_buffer(raw, shorter));
        let stored = len.map_or(raw, |len| &scratch[..len]);
        header.chunks[index] = Chunk::of(stored);
        content.extend_from_slice(stored);
    }
    let mut head = Vec::with_capacity(begin);
    header.encode_to(&mut head);
    content[..begin].copy_from_slice(&head);
    Sealed {
        content: content.into(),
        header_bytes: u32::try_from(begin).expect("bounded"),
        chunks: header.chunks.into(),
    }
}

/// Returns the raw bytes of a stored chunk. Returns `None` if it does not verify.
pub(crate) fn unpack(chunk: Chunk, stored: &Bytes, raw_bytes: usize) -> Option<Bytes> {
    if !chunk.verifies(stored) {
        return None;
    }
    if stored.len() == raw_bytes {
        return Some(stored.clone());
    }
    let raw = zstd::bulk::decompress(stored, raw_bytes).ok()?;
    (raw.len() == raw_bytes).then(|| raw.into())
}
