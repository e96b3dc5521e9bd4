//! An index of the log: enough of the map to answer reads of possibly dirty data long before the
//! map is loaded.
//!
//! Reading the log takes a few nanoseconds a record in addition to the device's own time. Building
//! the map takes several times that. So the index has two fields for each block with a live record.
//! They are the position of that record, and a hash of the block's position in its volume. A read
//! of the block reads the record once more. The result is decided as in the map, by the same replay
//! and the same rule ([`after_crash`]). If certainty needs more than that, the index gives no
//! answer. docs/internals/online-open.md argues it.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::rc::Rc;

use forebay_block::{BlockDevice, BlockDeviceExt, Buf, Request};
use forebay_metadata::Seed;
use forebay_metadata::checksums::BAD;
use forebay_metadata::journal::Recovered;
use forebay_metadata::log::LogGeometry;
use forebay_metadata::record::{BlockRecord, Body, MarkState, RECORD_BYTES, decode};
use forebay_metadata::replay::{Elsewhere, FoundBlock, Replayed, replay};
use forebay_metadata::superblock::{DirtyTracking, DirtyZones, Superblock};
use forebay_metadata::tree::{self, Tree};
use forebay_policy::{BlockKey, Slot, Span};

use super::checksums::Table;
use crate::checksum::CELL;
use crate::failpoints::{Fault, planted};
use crate::geometry::slots;
use crate::geometry::{Block, Extent, Geometry};
use crate::map::marks::after_crash;
use crate::map::restore::known_volumes;
use crate::media::journal_trouble;
use crate::media::missing::MissingData;
use crate::options::Devices;

/// Lists that the records are spread over, by hash, so that finding one does not take looking at
/// all.
const LISTS: usize = 256;
/// Bits of the hash of a region that an entry has, in addition to those of its list.
const TAG_BITS: u32 = 23;

/// Position of a block's record.
#[derive(Clone, Copy, Debug)]
struct Entry {
    /// From the highest bit: of the hash of its region, its first unit there, its class.
    tag: u32,
    /// The record's position in the ring.
    position: u32,
}

impl Entry {
    fn new(hash: u64, span: Span, position: u32) -> Self {
        let tag = hash_tag(hash) << 9 | u32::from(span.first) << 3 | u32::from(span.class);
        Self { tag, position }
    }

    const fn may_be_of(self, hash: u64) -> bool {
        self.tag >> 9 == hash_tag(hash)
    }

    const fn span(self) -> Span {
        Span {
            first: (self.tag >> 3 & 63) as u8,
            class: (self.tag & 7) as u8,
        }
    }
}

const fn hash_tag(hash: u64) -> u32 {
    (hash & ((1 << TAG_BITS) - 1)) as u32
}

const fn list_of(hash: u64) -> usize {
    (hash >> 56) as usize
}

const _: () = assert!(LISTS == 1 << 8 && TAG_BITS + 9 == u32::BITS);

/// Possibly dirty blocks that a replay found.
struct Found {
    geometry: Geometry,
    log_records: u64,
    slots: u32,
    volumes: Vec<bool>,
    zones: DirtyZones,
    lists: Vec<Vec<Entry>>,
    /// Hashes of regions of which the process journal has something.
    journaled: HashSet<u64>,
    /// By group, where blocks have several sizes: one more than the class of what lies there.
    groups: Vec<u8>,
    /// All lies where it can.
    is_sound: bool,
}

impl Found {
    fn new(superblock: &Superblock, zones: DirtyZones) -> Self {
        let geometry = Geometry::of(superblock);
        let groups = match geometry.sizes().top() {
            0 => 0,
            top => (superblock.slots as usize >> top) + 1,
        };
        Self {
            geometry,
            log_records: superblock.log.records,
            slots: superblock.slots,
            volumes: known_volumes(superblock),
            zones,
            lists: vec![Vec::new(); LISTS],
            journaled: HashSet::new(),
            groups: vec![0; groups],
            is_sound: true,
        }
    }

    fn add(&mut self, found: &FoundBlock) {
        let (record, geometry) = (&found.block, self.geometry);
        let known = self.volumes.get(usize::from(record.volume));
        if known != Some(&true) || !geometry.sizes().has(record.class) {
            return;
        }
        let span = geometry.span(Block {
            unit: record.block,
            class: record.class,
        });
        let units = span.units();
        self.is_sound &= record.slot.is_multiple_of(units)
            && self.slots - record.slot >= units
            && u32::from(span.first).is_multiple_of(units);
        let group = (record.slot >> geometry.sizes().top()) as usize;
        if let Some(class) = self.groups.get_mut(group) {
            self.is_sound &= *class == 0 || *class == record.class + 1;
            *class = record.class + 1;
        }
        if !(self.zones).has(geometry.zone_bit(record.volume, record.block)) {
            return;
        }
        let region = geometry.region_of(record.block);
        let hash = BlockKey::new(record.volume, region).hash();
        match found.lsn {
            Some(lsn) => {
                let position = u32::try_from(lsn % self.log_records).expect("a ring position");
                self.lists[list_of(hash)].push(Entry::new(hash, span, position));
            }
            None => _ = self.journaled.insert(hash),
        }
    }
}

/// Blocks that may have been overwritten, though no mark says so.
enum Presumption {
    NoBlock,
    Tree(Box<Tree>),
    AllBlocks,
}

/// Adjacent dirty data of a part.
struct Dirty {
    /// Bytes of the region.
    bytes: Range<u32>,
    /// Where the first of them is on the data device.
    offset: u64,
    /// Of the cells, if they are to be verified.
    sums: Vec<u32>,
}

/// An index of the log, for reads while the cache is being opened.
pub(super) struct LogIndex {
    data: Rc<dyn BlockDevice>,
    /// Where nothing of the data is left.
    missing: MissingData,
    metadata: Rc<dyn BlockDevice>,
    log: LogGeometry,
    seed: Seed,
    tail: u64,
    geometry: Geometry,
    lists: Vec<Vec<Entry>>,
    journaled: HashSet<u64>,
    marks: HashMap<(u16, u64), MarkState>,
    /// Regions of a mark, as a power of two.
    mark_shift: u8,
    presumed: Presumption,
    table: Option<Table>,
}

impl LogIndex {
    /// Reads the log. Returns `None` if anything but a crash or a clean end shows in it: then only
    /// the full recovery may decide which records count.
    pub(super) async fn build(
        devices: &Devices,
        superblock: &Superblock,
        journal: Option<&Recovered>,
        boot_id: &[u8; 16],
    ) -> Option<Self> {
        let metadata = Rc::clone(devices.metadata.as_ref().unwrap_or(&devices.data));
        let mut found = Found::new(superblock, superblock.zones.clone()?);
        let entries = journal.map_or(&[][..], |journal| &journal.entries);
        let replayed = replay(
            metadata.as_ref(),
            superblock.log,
            superblock.seed(),
            superblock.slots,
            Elsewhere {
                journal: entries,
                reached: superblock.log_reached(journal),
            },
            |blocks| blocks.iter().for_each(|block| found.add(block)),
        )
        .await
        .ok()?;
        let is_damaged = replayed.damaged_records + replayed.unreadable_units > 0;
        let is_poisoned = journal.is_some_and(|journal| journal.poisoned);
        let trouble = journal_trouble(&replayed, journal, boot_id, superblock);
        if is_damaged || is_poisoned || trouble.is_some() || !found.is_sound {
            return None;
        }
        let presumed = read_presumption(&metadata, superblock, &replayed).await?;
        let marks = (replayed.marks.iter()).map(|mark| ((mark.volume, mark.region), mark.state));
        Some(Self {
            data: Rc::clone(&devices.data),
            missing: MissingData::find(devices, superblock).await,
            table: Table::of(&metadata, superblock),
            metadata,
            log: superblock.log,
            seed: superblock.seed(),
            tail: replayed.tail,
            geometry: found.geometry,
            lists: found.lists,
            journaled: found.journaled,
            marks: match planted(Fault::IndexWithoutMarks) {
                false => marks.collect(),
                true => HashMap::new(),
            },
            mark_shift: (superblock.region_shift).saturating_sub(found.geometry.sizes().top()),
            presumed,
        })
    }

    /// Reads the data of a volume that the map would have read. Returns `None` if that is not
    /// certain, or cannot be read.
    pub(super) async fn read(
        &self,
        volume: u16,
        request: &Request,
        backing: &Rc<dyn BlockDevice>,
    ) -> Option<()> {
        let buf = request.buf.as_ref()?;
        for part in self.geometry.parts(request.offset, request.len) {
            let from = (self.geometry.region_offset(&part) - request.offset) as usize;
            let buf = buf.slice(from..from + part.len());
            self.read_part(volume, &part, &buf, backing).await?;
        }
        Some(())
    }

    async fn read_part(
        &self,
        volume: u16,
        part: &Extent,
        buf: &Buf,
        backing: &Rc<dyn BlockDevice>,
    ) -> Option<()> {
        let dirty = self.dirty(volume, part).await?;
        let piece = |bytes: &Range<u32>| {
            buf.slice((bytes.start - part.start) as usize..(bytes.end - part.start) as usize)
        };
        let from_backing = |bytes: Range<u32>| {
            let from = self.geometry.region_offset(part) + u64::from(bytes.start - part.start);
            backing.read(from, piece(&bytes))
        };
        let mut reads = Vec::with_capacity(2 * dirty.len() + 1);
        let mut at = part.start;
        for run in &dirty {
            if at < run.bytes.start {
                reads.push(from_backing(at..run.bytes.start));
            }
            at = run.bytes.end;
            let len = u64::from(run.bytes.end - run.bytes.start);
            if self.missing.touches(&(run.offset..run.offset + len)) {
                // The map names what was lost.
                return None;
            }
            reads.push(self.data.read(run.offset, piece(&run.bytes)));
        }
        if at < part.end {
            reads.push(from_backing(at..part.end));
        }
        // Waits for all reads: one in flight may still write into the buffer, which others are
        // about to use.
        let mut all = true;
        for read in reads {
            all &= read.await.is_ok();
        }
        let agrees = |run: &Dirty| {
            let table = self.table.as_ref();
            table.is_none_or(|table| table.agrees(&piece(&run.bytes), &run.sums))
        };
        (all && dirty.iter().all(agrees)).then_some(())
    }

    /// Returns the dirty data of a part, or `None` if that is not certain.
    async fn dirty(&self, volume: u16, part: &Extent) -> Option<Vec<Dirty>> {
        let hash = BlockKey::new(volume, part.region).hash();
        if self.journaled.contains(&hash) && !planted(Fault::IndexWithoutJournal) {
            return None;
        }
        let asked = self.geometry.units(part);
        let (mut units, mut entries) = (0, Vec::new());
        for entry in self.lists[list_of(hash)]
            .iter()
            .filter(|it| it.may_be_of(hash))
        {
            let mask = entry.span().mask();
            if units & mask != 0 {
                return None;
            }
            units |= mask;
            if asked & mask != 0 {
                entries.push(*entry);
            }
        }
        // One look at the log for all that stand in one unit.
        let unit = u32::try_from(self.log.unit_records()).expect("a unit of records");
        entries.sort_unstable_by_key(|entry| entry.position);
        let looks = entries.chunk_by(|one, next| one.position / unit == next.position / unit);
        let looks: Vec<_> = (looks.map(|entries| {
            let first = u64::from(entries[0].position / unit * unit);
            let buf = Buf::scratch(self.log.unit_bytes as usize);
            let offset = self.log.offset + first * RECORD_BYTES as u64;
            (entries, buf.clone(), self.metadata.read(offset, buf))
        }))
        .collect();
        let mut dirty = Vec::new();
        for (entries, buf, look) in looks {
            look.await.ok()?;
            for entry in entries {
                let record = self.record(*entry, &buf, unit)?;
                let region = self.geometry.region_of(record.block);
                // Else it is another region's, of the same hash.
                if (record.volume, region) == (volume, part.region) {
                    self.add_dirty(part, entry.span(), &record, &mut dirty)
                        .await?;
                }
            }
        }
        dirty.sort_unstable_by_key(|run| run.bytes.start);
        Some(dirty)
    }

    /// The record that was seen there, if it is there still.
    fn record(&self, entry: Entry, unit: &Buf, unit_records: u32) -> Option<BlockRecord> {
        let mut bytes = [0; RECORD_BYTES];
        unit.copy_to(
            (entry.position % unit_records) as usize * RECORD_BYTES,
            &mut bytes,
        );
        let (position, body) = decode(&bytes, self.seed)?;
        let records = self.log.records;
        let behind_tail = (u64::from(entry.position) + records - self.tail % records) % records;
        match body {
            Body::Block(record) if position.lsn == self.tail + behind_tail => Some(record),
            _ => None,
        }
    }

    /// Adds what is dirty of a part in a block that it touches. None if that is bad.
    async fn add_dirty(
        &self,
        part: &Extent,
        span: Span,
        record: &BlockRecord,
        dirty: &mut Vec<Dirty>,
    ) -> Option<()> {
        let (volume, class, geometry) = (record.volume, record.class, self.geometry);
        let marked = self.marks.get(&(volume, part.region >> self.mark_shift));
        let is_presumed = || match &self.presumed {
            Presumption::NoBlock => false,
            Presumption::Tree(tree) => tree.may_be_dirty(slots(Slot::new(record.slot), class)),
            Presumption::AllBlocks => true,
        };
        let state = match marked {
            Some(state) => *state,
            None if is_presumed() => MarkState::MaybeDirty,
            None => MarkState::None,
        };
        let (_, granules) = after_crash(state, record.valid, record.dirty & record.valid);
        if record.bad & granules != 0 {
            return None;
        }
        let piece = geometry.piece(part, span);
        let (start, bytes) = (
            geometry.block_start(span),
            geometry.granule_bytes(class) as u32,
        );
        let touched = piece.start / bytes..=(piece.end - 1) / bytes;
        let is_dirty = |granule: &u32| granules >> granule & 1 == 1;
        let sums = match &self.table {
            Some(table) if touched.clone().any(|it| is_dirty(&it)) => {
                let known = table.read(record).await?;
                let cells = |granule: u32| {
                    (granule * bytes / CELL) as usize..((granule + 1) * bytes / CELL) as usize
                };
                // Bad cells stay bad in spite of later writes.
                let mut asked = touched.clone().filter(is_dirty);
                if asked.any(|it| known[cells(it)].contains(&BAD)) {
                    return None;
                }
                match state {
                    MarkState::None if (piece.start | piece.end) % CELL != 0 => return None,
                    MarkState::None => Some(known),
                    // Data that may have been overwritten since its record has no known checksum
                    // (docs/internals/format/checksums.md).
                    _ => None,
                }
            }
            _ => None,
        };
        let first = dirty.len();
        for granule in touched.filter(is_dirty) {
            let from = piece.start.max(granule * bytes);
            let to = piece.end.min((granule + 1) * bytes);
            let cells = sums.as_ref().map_or(&[][..], |sums| {
                &sums[(from / CELL) as usize..(to / CELL) as usize]
            });
            let offset = geometry.data_offset(Slot::new(record.slot), from);
            match dirty[first..].last_mut() {
                Some(run) if run.bytes.end == start + from => {
                    run.bytes.end = start + to;
                    run.sums.extend(cells);
                }
                _ => dirty.push(Dirty {
                    bytes: start + from..start + to,
                    offset,
                    sums: cells.to_vec(),
                }),
            }
        }
        Some(())
    }
}

/// Returns the blocks that may have been overwritten without a mark. Returns `None` if a part of
/// the bit-tree is damaged.
async fn read_presumption(
    metadata: &Rc<dyn BlockDevice>,
    superblock: &Superblock,
    replayed: &Replayed,
) -> Option<Presumption> {
    match superblock.dirty_tracking {
        // After a clean end the records are exact.
        _ if replayed.clean => Some(Presumption::NoBlock),
        DirtyTracking::Exact => Some(Presumption::NoBlock),
        DirtyTracking::None => Some(Presumption::AllBlocks),
        DirtyTracking::Abt => {
            let extent = superblock.tree()?;
            let looked = tree::look(metadata.as_ref(), extent, superblock.seed()).await;
            let (tree, report) = looked.ok()?;
            (report.lost_units == 0).then(|| Presumption::Tree(Box::new(tree)))
        }
    }
}
