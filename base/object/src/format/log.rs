//! Objects of the log: a head, the text of a claim, records, a table of chunks, and the chunks.

use std::time::Duration;

use forebay_block::Result;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::superblock::to_ms;
use super::{
    CHUNK_SECTORS, Id, SECTOR_BYTES, VERSION, check_magic, check_numbers, chunk_bytes, chunks_of,
    corrupt, crc32c,
};

const MAGIC: [u8; 8] = *b"FBOBJLOG";
/// Maximum number of records of an object.
pub(crate) const MAX_RECORDS: usize = 1 << 16;
/// Maximum payload of an object, sectors: an extent of the map has 16 bits for the place in it.
pub(crate) const MAX_PAYLOAD_SECTORS: u32 = 1 << 16;
/// Maximum length of the text of a claim, bytes.
pub(crate) const MAX_TEXT_BYTES: usize = 1024;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct Layout {
    magic: [u8; 8],
    version: U16,
    kind: U16,
    table_crc: U32,
    volume: Id,
    writer: Id,
    epoch: U64,
    seq: U64,
    claim: U64,
    size_bytes: U64,
    time_ms: U64,
    records: U32,
    chunks: U32,
    payload_sectors: U32,
    text_bytes: U32,
    snapshot: Id,
    /// Distance to `durable_to`; 0 if that is not known.
    behind: U32,
    crc: U32,
}

/// Length of the head, bytes.
pub(crate) const HEAD_BYTES: usize = size_of::<Layout>();

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct RecordLayout {
    first: U64,
    sectors: U32,
    kind: u8,
    zero: [u8; 3],
}

/// Stored length and checksum of a chunk. It is compressed if it is shorter than its raw length.
#[derive(
    FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy, Debug, PartialEq, Eq,
)]
#[repr(C)]
pub(crate) struct Chunk {
    stored_bytes: U16,
    crc: U32,
}

impl Chunk {
    /// Describes a stored chunk.
    ///
    /// # Panics
    /// If it is longer than a raw chunk.
    pub(crate) fn of(stored: &[u8]) -> Self {
        let len = u16::try_from(stored.len()).expect("a chunk is short");
        Self {
            stored_bytes: len.into(),
            crc: crc32c(stored).into(),
        }
    }

    /// Returns the stored length, bytes.
    pub(crate) fn stored_bytes(&self) -> usize {
        self.stored_bytes.get().into()
    }

    /// Returns whether these are the stored bytes.
    pub(crate) fn verifies(&self, stored: &[u8]) -> bool {
        stored.len() == self.stored_bytes() && crc32c(stored) == self.crc.get()
    }
}

/// Checks a table of chunks. Returns their stored length, bytes.
pub(super) fn check_chunks(payload_sectors: u32, chunks: &[Chunk]) -> Result<u64> {
    let mut bytes = 0;
    for (index, chunk) in chunks.iter().enumerate() {
        let len = chunk.stored_bytes();
        if len == 0 || len > chunk_bytes(payload_sectors, index) {
            return Err(corrupt("the length of a chunk is impossible"));
        }
        bytes += len as u64;
    }
    Ok(bytes)
}

/// Kind of an object of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(crate) enum Kind {
    /// A writer begins here.
    Claim = 1,
    /// Occupies a place that an object of an earlier writer could take late.
    Barrier = 2,
    /// Writes.
    Data = 3,
}

/// A change of the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    /// First sector.
    pub(crate) first: u64,
    /// Number of sectors.
    pub(crate) sectors: u32,
    /// Whether the sectors are next in the payload. Otherwise they read as zeroes.
    pub(crate) is_data: bool,
}

/// Description of an object of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) kind: Kind,
    /// Identity of the volume.
    pub(crate) volume: Id,
    /// Identity of the writer.
    pub(crate) writer: Id,
    /// Number of the writer. Each claim has a higher one.
    pub(crate) epoch: u64,
    /// Place in the log.
    pub(crate) seq: u64,
    /// Place of the writer's claim.
    pub(crate) claim: u64,
    /// Size of the volume, bytes.
    pub(crate) size_bytes: u64,
    /// Time of its creation, since 1970.
    pub(crate) time: Duration,
    /// Snapshot that is complete, or zeroes.
    pub(crate) snapshot: Id,
    /// Last place up to which all objects were durable when this one was made. `None` in objects of
    /// earlier versions.
    pub(crate) durable_to: Option<u64>,
    /// Host and process of the writer, in a claim.
    pub(crate) text: String,
    pub(crate) records: Vec<Record>,
    /// Raw length of the payload, sectors.
    pub(crate) payload_sectors: u32,
    pub(crate) chunks: Vec<Chunk>,
    /// CRC32C of the head, which covers those of all other parts.
    pub(crate) crc: u32,
}

impl Header {
    /// Returns the length of head and tables, bytes.
    pub(crate) fn bytes(&self) -> usize {
        let records = self.records.len() * size_of::<RecordLayout>();
        HEAD_BYTES + self.text.len() + records + self.chunks.len() * size_of::<Chunk>()
    }

    /// Returns the length of the whole object, bytes.
    pub(crate) fn object_bytes(&self) -> u64 {
        let chunks: usize = self.chunks.iter().map(Chunk::stored_bytes).sum();
        (self.bytes() + chunks) as u64
    }

    /// Appends head and tables.
    pub(crate) fn encode_to(&self, out: &mut Vec<u8>) {
        let mut tables = Vec::with_capacity(self.bytes() - HEAD_BYTES);
        tables.extend_from_slice(self.text.as_bytes());
        for record in &self.records {
            let layout = RecordLayout {
                first: record.first.into(),
                sectors: record.sectors.into(),
                kind: if record.is_data { 1 } else { 2 },
                zero: [0; 3],
            };
            tables.extend_from_slice(layout.as_bytes());
        }
        tables.extend_from_slice(self.chunks.as_bytes());
        let count_of = |count: u64| u32::try_from(count).expect("bounded");
        let count = |len: usize| U32::from(count_of(len as u64));
        let mut layout = Layout {
            magic: MAGIC,
            version: VERSION.into(),
            kind: (self.kind as u16).into(),
            table_crc: crc32c(&tables).into(),
            volume: self.volume,
            writer: self.writer,
            epoch: self.epoch.into(),
            seq: self.seq.into(),
            claim: self.claim.into(),
            size_bytes: self.size_bytes.into(),
            time_ms: to_ms(self.time).into(),
            records: count(self.records.len()),
            chunks: count(self.chunks.len()),
            payload_sectors: self.payload_sectors.into(),
            text_bytes: count(self.text.len()),
            snapshot: self.snapshot,
            behind: self
                .durable_to
                .map_or(0, |to| count_of(self.seq - to))
                .into(),
            crc: 0.into(),
        };
        layout.crc = head_crc(layout.as_bytes()).into();
        out.extend_from_slice(layout.as_bytes());
        out.append(&mut tables);
    }

    /// Decodes head and tables. `bytes` may end behind them.
    ///
    /// # Errors
    /// `Corrupt` if they do not verify, or if `bytes` ends within them. `Unsupported` for another
    /// version.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        let layout = head(bytes)?;
        let kind = match layout.kind.get() {
            1 => Kind::Claim,
            2 => Kind::Barrier,
            3 => Kind::Data,
            _ => return Err(corrupt("its kind is unknown")),
        };
        let end = header_bytes(bytes)?;
        let tables = bytes.get(HEAD_BYTES..end);
        let tables = tables.ok_or_else(|| corrupt("it ends within its header"))?;
        if crc32c(tables) != layout.table_crc.get() {
            return Err(corrupt("the checksum of its tables does not match"));
        }
        let (text, tables) = tables.split_at(layout.text_bytes.get() as usize);
        let records_end = layout.records.get() as usize * size_of::<RecordLayout>();
        let (records, chunks) = tables.split_at(records_end);
        let text = str::from_utf8(text).map_err(|_| corrupt("its text is no text"))?;
        let records = <[RecordLayout]>::ref_from_bytes(records);
        let records = records.map_err(|_| corrupt("its records are cut"))?;
        let chunks = <[Chunk]>::ref_from_bytes(chunks);
        let chunks = chunks.map_err(|_| corrupt("its chunks are cut"))?;
        let seq = layout.seq.get();
        let durable_to = match u64::from(layout.behind.get()) {
            0 => None,
            behind => {
                let to = seq.checked_sub(behind);
                Some(to.ok_or_else(|| corrupt("its numbers are impossible"))?)
            }
        };
        let header = Self {
            kind,
            volume: layout.volume,
            writer: layout.writer,
            epoch: layout.epoch.get(),
            seq,
            claim: layout.claim.get(),
            size_bytes: layout.size_bytes.get(),
            time: Duration::from_millis(layout.time_ms.get()),
            snapshot: layout.snapshot,
            durable_to,
            text: text.to_owned(),
            records: records.iter().map(decode_record).collect::<Result<_>>()?,
            payload_sectors: layout.payload_sectors.get(),
            chunks: chunks.to_vec(),
            crc: layout.crc.get(),
        };
        header.check()?;
        Ok(header)
    }

    /// Checks that the parts agree.
    fn check(&self) -> Result<()> {
        check_numbers([self.epoch, self.seq, self.claim], self.size_bytes)?;
        let size = self.size_bytes / SECTOR_BYTES;
        let mut payload = 0_u64;
        for record in &self.records {
            let end = record.first.checked_add(record.sectors.into());
            if record.sectors == 0 || end.is_none_or(|end| end > size) {
                return Err(corrupt("a record is not within the volume"));
            }
            if record.is_data {
                payload += u64::from(record.sectors);
            }
        }
        if payload != u64::from(self.payload_sectors) {
            return Err(corrupt("its records differ from its payload"));
        }
        check_chunks(self.payload_sectors, &self.chunks)?;
        Ok(())
    }
}

fn decode_record(layout: &RecordLayout) -> Result<Record> {
    let is_data = match layout.kind {
        1 => true,
        2 => false,
        _ => return Err(corrupt("the kind of a record is unknown")),
    };
    Ok(Record {
        first: layout.first.get(),
        sectors: layout.sectors.get(),
        is_data,
    })
}

fn head_crc(head: &[u8]) -> u32 {
    crc32c(&head[..HEAD_BYTES - 4])
}

/// Returns the head, whose checksum matches and whose lengths are possible.
fn head(bytes: &[u8]) -> Result<Layout> {
    let (layout, _) =
        Layout::read_from_prefix(bytes).map_err(|_| corrupt("it ends within its head"))?;
    check_magic(layout.magic, MAGIC, layout.version.get())?;
    if head_crc(bytes) != layout.crc.get() {
        return Err(corrupt("the checksum of its head does not match"));
    }
    let is_possible = layout.records.get() as usize <= MAX_RECORDS
        && layout.payload_sectors.get() <= MAX_PAYLOAD_SECTORS
        && layout.chunks.get() == chunks_of(layout.payload_sectors.get())
        && layout.text_bytes.get() as usize <= MAX_TEXT_BYTES;
    match is_possible {
        true => Ok(layout),
        false => Err(corrupt("the lengths of its parts are impossible")),
    }
}

/// Returns the length of head and tables from the head, bytes.
///
/// # Errors
/// As [`Header::decode`].
pub(crate) fn header_bytes(bytes: &[u8]) -> Result<usize> {
    let layout = head(bytes)?;
    let records = layout.records.get() as usize * size_of::<RecordLayout>();
    let chunks = layout.chunks.get() as usize * size_of::<Chunk>();
    Ok(HEAD_BYTES + layout.text_bytes.get() as usize + records + chunks)
}

const _: () = assert!(HEAD_BYTES == 128 && size_of::<RecordLayout>() == 16);
const _: () = assert!(size_of::<Chunk>() == 6 && CHUNK_SECTORS as u64 * SECTOR_BYTES == 32768);
