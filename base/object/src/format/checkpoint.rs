//! Checkpoints and snapshots: a head, tables, and the map.

use std::time::Duration;

use bytes::Bytes;
use forebay_block::Result;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::log::{Chunk, MAX_PAYLOAD_SECTORS, check_chunks};
use super::superblock::to_ms;
use super::{Id, SECTOR_BYTES, VERSION, check_magic, check_numbers, chunks_of, corrupt, crc32c};
use crate::map::{Extent, Map, REGION_SECTORS};

const MAGIC: [u8; 8] = *b"FBOBJMAP";
/// Maximum length of the name of a snapshot, bytes.
pub(crate) const MAX_NAME_BYTES: usize = 64;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct Layout {
    magic: [u8; 8],
    version: U16,
    zero: [u8; 2],
    table_crc: U32,
    volume: Id,
    id: Id,
    epoch: U64,
    seq: U64,
    claim: U64,
    size_bytes: U64,
    time_ms: U64,
    objects: U32,
    claims: U32,
    snapshots: U32,
    name_bytes: U32,
    chunks: U64,
    regions: U64,
    extents: U64,
    map_crc: U32,
    zeroes: [u8; 24],
    crc: U32,
}

/// Length of the head, bytes.
pub(crate) const HEAD_BYTES: usize = size_of::<Layout>();

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct EntryLayout {
    seq: U64,
    stored_bytes: U32,
    header_bytes: U32,
    payload_sectors: U32,
    zero: [u8; 4],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct RegionLayout {
    index: U64,
    extents: U32,
}

/// An object that the map names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) seq: u64,
    /// Length of the object, bytes.
    pub(crate) stored_bytes: u32,
    /// Length of its header, bytes.
    pub(crate) header_bytes: u32,
    pub(crate) payload_sectors: u32,
    pub(crate) chunks: Vec<Chunk>,
}

/// All of a checkpoint but its map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tables {
    /// Identity of the volume.
    pub(crate) volume: Id,
    /// Identity of a snapshot, and of the writer of a checkpoint.
    pub(crate) id: Id,
    /// Number of the last writer.
    pub(crate) epoch: u64,
    /// Last place in the log that has its effect here.
    pub(crate) seq: u64,
    /// Place of the last claim.
    pub(crate) claim: u64,
    /// Size of the volume, bytes.
    pub(crate) size_bytes: u64,
    /// Time of the checkpoint, since 1970.
    pub(crate) time: Duration,
    /// Name of a snapshot. Empty in a checkpoint.
    pub(crate) name: String,
    /// Places of all claims.
    pub(crate) claims: Vec<u64>,
    /// Identities of complete snapshots.
    pub(crate) snapshots: Vec<Id>,
    /// Objects that the map names, by their index here.
    pub(crate) entries: Vec<Entry>,
}

/// An encoder of a checkpoint.
pub(crate) struct Encoder {
    layout: Layout,
    tables: Vec<u8>,
    map: Vec<u8>,
}

impl Encoder {
    /// Begins with all but the map.
    ///
    /// # Panics
    /// If a table has 2^32 entries.
    pub(crate) fn new(tables: &Tables) -> Self {
        let mut out = Vec::new();
        out.extend_from_slice(tables.name.as_bytes());
        for claim in &tables.claims {
            out.extend_from_slice(&claim.to_le_bytes());
        }
        out.extend_from_slice(tables.snapshots.as_bytes());
        for entry in &tables.entries {
            let layout = EntryLayout {
                seq: entry.seq.into(),
                stored_bytes: entry.stored_bytes.into(),
                header_bytes: entry.header_bytes.into(),
                payload_sectors: entry.payload_sectors.into(),
                zero: [0; 4],
            };
            out.extend_from_slice(layout.as_bytes());
        }
        let mut chunks = 0;
        for entry in &tables.entries {
            out.extend_from_slice(entry.chunks.as_bytes());
            chunks += entry.chunks.len() as u64;
        }
        let count = |len: usize| U32::from(u32::try_from(len).expect("a table is short"));
        let layout = Layout {
            magic: MAGIC,
            version: VERSION.into(),
            zero: [0; 2],
            table_crc: crc32c(&out).into(),
            volume: tables.volume,
            id: tables.id,
            epoch: tables.epoch.into(),
            seq: tables.seq.into(),
            claim: tables.claim.into(),
            size_bytes: tables.size_bytes.into(),
            time_ms: to_ms(tables.time).into(),
            objects: count(tables.entries.len()),
            claims: count(tables.claims.len()),
            snapshots: count(tables.snapshots.len()),
            name_bytes: count(tables.name.len()),
            chunks: chunks.into(),
            regions: 0.into(),
            extents: 0.into(),
            map_crc: 0.into(),
            zeroes: [0; 24],
            crc: 0.into(),
        };
        Self {
            layout,
            tables: out,
            map: Vec::new(),
        }
    }

    /// Appends a region. Its extents name objects by their index in the tables.
    pub(crate) fn push(&mut self, index: u64, extents: impl ExactSizeIterator<Item = Extent>) {
        let count = extents.len();
        let layout = RegionLayout {
            index: index.into(),
            extents: u32::try_from(count).expect("a region is short").into(),
        };
        self.map.extend_from_slice(layout.as_bytes());
        for extent in extents {
            self.map.extend_from_slice(extent.as_bytes());
        }
        self.layout.regions += 1;
        self.layout.extents += count as u64;
    }

    /// Returns the content of the object.
    pub(crate) fn finish(mut self) -> Bytes {
        self.layout.map_crc = crc32c(&self.map).into();
        self.layout.crc = head_crc(self.layout.as_bytes()).into();
        let len = HEAD_BYTES + self.tables.len() + self.map.len();
        let mut out = Vec::with_capacity(len);
        out.extend_from_slice(self.layout.as_bytes());
        out.append(&mut self.tables);
        out.append(&mut self.map);
        out.into()
    }
}

fn head_crc(head: &[u8]) -> u32 {
    crc32c(&head[..HEAD_BYTES - 4])
}

/// Returns the head, whose checksum matches.
fn head(bytes: &[u8]) -> Result<Layout> {
    let (layout, _) =
        Layout::read_from_prefix(bytes).map_err(|_| corrupt("it ends within its head"))?;
    check_magic(layout.magic, MAGIC, layout.version.get())?;
    if head_crc(bytes) != layout.crc.get() {
        return Err(corrupt("the checksum of its head does not match"));
    }
    let counters = [&layout.epoch, &layout.seq, &layout.claim].map(|it| it.get());
    check_numbers(counters, layout.size_bytes.get())?;
    if layout.name_bytes.get() as usize > MAX_NAME_BYTES {
        return Err(corrupt("its name is too long"));
    }
    Ok(layout)
}

/// Returns the length of head and tables from the head, bytes.
///
/// # Errors
/// `Corrupt` if the head does not verify. `Unsupported` for another version.
pub(crate) fn tables_bytes(bytes: &[u8]) -> Result<u64> {
    let layout = head(bytes)?;
    let fixed = HEAD_BYTES as u64
        + u64::from(layout.name_bytes.get())
        + u64::from(layout.claims.get()) * 8
        + u64::from(layout.snapshots.get()) * size_of::<Id>() as u64
        + u64::from(layout.objects.get()) * size_of::<EntryLayout>() as u64;
    let chunks = layout.chunks.get().checked_mul(size_of::<Chunk>() as u64);
    let all = chunks.and_then(|chunks| chunks.checked_add(fixed));
    all.ok_or_else(|| corrupt("the lengths of its parts are impossible"))
}

/// Decodes all but the map. `bytes` may end behind the tables.
///
/// # Errors
/// `Corrupt` if they do not verify, or if `bytes` ends within them. `Unsupported` for another
/// version.
pub(crate) fn decode_tables(bytes: &[u8]) -> Result<Tables> {
    let layout = head(bytes)?;
    let end = usize::try_from(tables_bytes(bytes)?).ok();
    let tables = end.and_then(|end| bytes.get(HEAD_BYTES..end));
    let tables = tables.ok_or_else(|| corrupt("it ends within its tables"))?;
    if crc32c(tables) != layout.table_crc.get() {
        return Err(corrupt("the checksum of its tables does not match"));
    }
    let flaw = || corrupt("the lengths of its parts are impossible");
    let (name, rest) = tables.split_at(layout.name_bytes.get() as usize);
    let (claims, rest) = <[U64]>::ref_from_prefix_with_elems(rest, layout.claims.get() as usize)
        .map_err(|_| flaw())?;
    let (ids, rest) = <[Id]>::ref_from_prefix_with_elems(rest, layout.snapshots.get() as usize)
        .map_err(|_| flaw())?;
    let objects = layout.objects.get() as usize;
    let (entries, rest) =
        <[EntryLayout]>::ref_from_prefix_with_elems(rest, objects).map_err(|_| flaw())?;
    let mut chunks = <[Chunk]>::ref_from_bytes(rest).map_err(|_| flaw())?;
    let mut decoded = Vec::with_capacity(entries.len());
    for entry in entries {
        let entry = decode_entry(entry, &mut chunks)?;
        if entry.seq > layout.seq.get() {
            return Err(corrupt("it names an object that is newer"));
        }
        decoded.push(entry);
    }
    if !chunks.is_empty() {
        return Err(flaw());
    }
    let name = str::from_utf8(name).map_err(|_| corrupt("its name is no text"))?;
    Ok(Tables {
        volume: layout.volume,
        id: layout.id,
        epoch: layout.epoch.get(),
        seq: layout.seq.get(),
        claim: layout.claim.get(),
        size_bytes: layout.size_bytes.get(),
        time: Duration::from_millis(layout.time_ms.get()),
        name: name.to_owned(),
        claims: claims.iter().map(|it| it.get()).collect(),
        snapshots: ids.to_vec(),
        entries: decoded,
    })
}

/// Decodes an entry with its chunks, which are next in `chunks`.
fn decode_entry(layout: &EntryLayout, chunks: &mut &[Chunk]) -> Result<Entry> {
    let payload_sectors = layout.payload_sectors.get();
    let count = chunks_of(payload_sectors) as usize;
    if payload_sectors > MAX_PAYLOAD_SECTORS || count > chunks.len() {
        return Err(corrupt("the length of an object is impossible"));
    }
    let (own, rest) = chunks.split_at(count);
    *chunks = rest;
    let stored = check_chunks(payload_sectors, own)?;
    let header_bytes = layout.header_bytes.get();
    if u64::from(header_bytes) + stored != u64::from(layout.stored_bytes.get()) {
        return Err(corrupt("the length of an object is impossible"));
    }
    Ok(Entry {
        seq: layout.seq.get(),
        stored_bytes: layout.stored_bytes.get(),
        header_bytes,
        payload_sectors,
        chunks: own.to_vec(),
    })
}

/// Decodes the whole object. The map names objects by their index in the tables.
///
/// # Errors
/// As [`decode_tables`].
pub(crate) fn decode(bytes: &[u8]) -> Result<(Tables, Map)> {
    let tables = decode_tables(bytes)?;
    let layout = head(bytes)?;
    let begin = usize::try_from(tables_bytes(bytes)?).unwrap_or(usize::MAX);
    let mut rest = bytes.get(begin..).unwrap_or_default();
    if crc32c(rest) != layout.map_crc.get() {
        return Err(corrupt("the checksum of its map does not match"));
    }
    let mut map = Map::default();
    let mut live = vec![0; tables.entries.len()];
    let mut next = 0;
    while !rest.is_empty() {
        let (region, behind) =
            RegionLayout::read_from_prefix(rest).map_err(|_| corrupt("its map is cut"))?;
        let count = region.extents.get() as usize;
        let (extents, behind) = <[Extent]>::ref_from_prefix_with_elems(behind, count)
            .map_err(|_| corrupt("its map is cut"))?;
        let index = region.index.get();
        if index < next || index == u64::MAX || extents.is_empty() {
            return Err(corrupt("its regions do not ascend"));
        }
        next = index + 1;
        check_region(index, extents, &tables, &mut live)?;
        map.insert_region(index, extents.to_vec());
        rest = behind;
    }
    if (map.regions().len() as u64, map.extents()) != (layout.regions.get(), layout.extents.get()) {
        return Err(corrupt("its map is not complete"));
    }
    Ok((tables, map))
}

/// Checks that the extents of a region ascend, and lie within the volume and within their objects.
/// `live` has the mapped sectors of each object.
fn check_region(index: u64, extents: &[Extent], tables: &Tables, live: &mut [u32]) -> Result<()> {
    let size = tables.size_bytes / SECTOR_BYTES;
    let mut at = 0;
    for extent in extents {
        let end = extent.end();
        let end_of_all = index
            .checked_mul(REGION_SECTORS)
            .and_then(|it| it.checked_add(end));
        let is_within = end <= REGION_SECTORS && end_of_all.is_some_and(|it| it <= size);
        if extent.first() < at || extent.sectors() == 0 || !is_within {
            return Err(corrupt("an extent is not within the volume"));
        }
        at = end;
        let place = extent.place();
        let object = place.object as usize;
        let flaw = || corrupt("an extent is not within its object");
        let entry = tables.entries.get(object).ok_or_else(flaw)?;
        live[object] += extent.sectors();
        let is_within = place.offset + extent.sectors() <= entry.payload_sectors;
        // Each sector of an object is mapped once.
        if !is_within || live[object] > entry.payload_sectors {
            return Err(flaw());
        }
    }
    Ok(())
}

const _: () = assert!(HEAD_BYTES == 160 && size_of::<EntryLayout>() == 24);
