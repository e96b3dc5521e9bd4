//! Replay: from a ring of records back to the map.
//!
//! The end of the log (`end`) is found first, and with it the tail. The records between the
//! two count. They are read from the newest back to the oldest. So the first record of a slot (or
//! region) is the one that counts, and the others need only a look at a bit. The process journal's
//! entries are merged at their places.

mod end;
mod mend;
mod ring;

use std::cell::Cell;
use std::collections::HashMap;
use std::ops::Range;
use std::rc::Rc;

use forebay_block::{BlockDevice, Buf, Error, ErrorKind, Result};

use crate::Seed;
use crate::log::LogGeometry;
use crate::record::{BlockRecord, Body, MarkState, Position, RECORD_BYTES, decode};
use ring::{Order, Ring};

pub use mend::rewrite_last_batch;

/// Bytes that are looked at together; blocks are found in groups of as many as there are records in
/// them.
const GROUP_BYTES: usize = 4096;

/// Knowledge of the log from outside it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Elsewhere<'a> {
    /// The process journal's entries, oldest first.
    pub journal: &'a [(u64, BlockRecord)],
    /// The records before this one were durable, whatever the ring says; zero if nothing says so.
    pub reached: u64,
}

/// A live slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundBlock {
    /// The record.
    pub block: BlockRecord,
    /// Position of the record in the log. `None` for an entry of the process journal.
    pub lsn: Option<u64>,
}

/// A marked region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundMark {
    /// The volume's number.
    pub volume: u16,
    /// The region's number within the volume.
    pub region: u64,
    /// Its state.
    pub state: MarkState,
    /// The record's number in the log.
    pub lsn: u64,
}

/// Content of a ring other than its blocks.
#[derive(Debug, Default)]
pub struct Replayed {
    /// Regions whose state is not `None`, in the order of their records.
    pub marks: Vec<FoundMark>,
    /// Slots that the process journal names, and the positions of their earlier records of the same
    /// block.
    pub shadowed: Vec<(u32, u64)>,
    /// The number at which the log goes on: the first of a unit.
    pub next: u64,
    /// The oldest record that counts.
    pub tail: u64,
    /// The last record is a clean shutdown's.
    pub clean: bool,
    /// Boot in which the cache was last opened, and whether it had a process journal.
    pub last_open: Option<([u8; 16], bool)>,
    /// Records that verify and count.
    pub records: u64,
    /// Number of records between the tail and the last batch that do not verify: damage. With
    /// damage, no record's clean data can be trusted, since a lost record may have been an *intent*
    /// mark for it.
    pub damaged_records: u64,
    /// Units, of those that count, that could not be read; if there is no record at all, of all.
    pub unreadable_units: u64,
    /// The last batch's first record.
    pub last_batch: u64,
    /// First records of those of its units that the crash left torn or empty.
    pub torn_units: Vec<u64>,
    /// Of those, the ones of which no record was found.
    pub empty_units: Vec<u64>,
    /// Positions past the next record whose places must be erased before the log continues. Their
    /// records are lost, but a later replay might read them and take them for newer than the new
    /// records.
    pub lost: Range<u64>,
}

/// A bit a slot.
struct Slots(Vec<u64>);

impl Slots {
    fn new(slots: u32) -> Self {
        Self(vec![0; (slots as usize).div_ceil(64)])
    }

    fn has(&self, slot: u32) -> bool {
        self.0[slot as usize / 64] >> (slot % 64) & 1 == 1
    }

    /// Adds one. Returns whether it was not there.
    fn insert(&mut self, slot: u32) -> bool {
        let word = &mut self.0[slot as usize / 64];
        let new = *word >> (slot % 64) & 1 == 0;
        *word |= 1 << (slot % 64);
        new
    }

    fn remove(&mut self, slot: u32) {
        self.0[slot as usize / 64] &= !(1 << (slot % 64));
    }
}

/// The log while it is read, from its end backwards.
struct Reader<'a> {
    ring: Ring<'a>,
    slots: u32,
    /// From here on a crash may have taken records: the last batch, where nothing says that it was
    /// durable.
    batch: u64,
    tail: u64,
    /// Where a clean shutdown's record stands, if that is the last: in the batch of the newest
    /// record.
    newest: Range<u64>,
    /// Slots of which something newer was found.
    newer: Slots,
    /// Slots that the process journal names and that have no record so far, with their blocks.
    owed: Slots,
    journaled: HashMap<u32, BlockRecord>,
    /// Entries of the process journal that stand before what was read, oldest first.
    journal: &'a [(u64, BlockRecord)],
    marks: HashMap<(u16, u64), (u64, MarkState)>,
    last_open: Option<(u64, [u8; 16], bool)>,
    last_close: Option<u64>,
    replayed: Replayed,
    /// Of the unit being read of the last batch: records that are there.
    held_of_unit: u64,
    /// The number behind the newest unit that was read when the end was looked for,
    seen: u64,
    /// and that it cannot be now.
    lost_newest: bool,
    /// Blocks that were found and not reported yet.
    found: Vec<FoundBlock>,
}

impl Reader<'_> {
    /// A piece of whole units, the last of which has the record before `end`. Returns the number of
    /// its first.
    fn piece(&mut self, end: u64, buf: Option<&Buf>, tell: &mut impl FnMut(&[FoundBlock])) -> u64 {
        let Some(buf) = buf else {
            let first = end - self.ring.geometry.unit_records();
            self.replayed.unreadable_units += 1;
            self.lost_newest |= end == self.seen;
            (first..end).rev().for_each(|lsn| self.missing(lsn));
            return first;
        };
        let (mut lsn, mut at) = (end, buf.len());
        let mut bytes = [0; GROUP_BYTES];
        while at > 0 {
            let len = (at - 1) % GROUP_BYTES + 1;
            at -= len;
            buf.copy_to(at, &mut bytes[..len]);
            for record in bytes[..len].as_chunks().0.iter().rev() {
                lsn -= 1;
                self.record(lsn, record);
            }
            if !self.found.is_empty() {
                tell(&self.found);
                self.found.clear();
            }
        }
        lsn
    }

    /// Handles the content of the place of record `lsn`.
    fn record(&mut self, lsn: u64, bytes: &[u8; RECORD_BYTES]) {
        // An entry with stamp s stands between the records s - 1 and s.
        while let Some((&(stamp, block), older)) = self.journal.split_last()
            && stamp > lsn
        {
            self.journal = older;
            self.entry(block);
        }
        // Empty places do not start with a valid byte.
        let there = match bytes[4] {
            0 => None,
            _ => decode(bytes, self.ring.seed).filter(|(position, _)| position.lsn == lsn),
        };
        let Some((_, body)) = there else {
            return self.missing(lsn);
        };
        self.held(lsn, true);
        // Records before the tail are dead, but may be newer than an entry of the journal.
        let counts = lsn >= self.tail;
        match body {
            Body::Pad => {}
            Body::Block(block) if block.slot < self.slots => {
                if self.newer.insert(block.slot) {
                    if counts {
                        self.found.push(FoundBlock {
                            block,
                            lsn: Some(lsn),
                        });
                    }
                } else if self.owed.has(block.slot) {
                    self.owed.remove(block.slot);
                    let newer = &self.journaled[&block.slot];
                    if counts && (newer.volume, newer.block) == (block.volume, block.block) {
                        // This record must stay in the ring until the journal's entry has been
                        // logged.
                        self.replayed.shadowed.push((block.slot, lsn));
                    }
                }
            }
            Body::Block(_) => {}
            Body::Kill { slots, count } => {
                let dead = slots[..usize::from(count)].iter();
                for slot in dead.filter(|slot| **slot < self.slots) {
                    self.newer.insert(*slot);
                    self.owed.remove(*slot);
                }
            }
            Body::Mark {
                volume,
                region,
                state,
            } => {
                self.marks.entry((volume, region)).or_insert((lsn, state));
            }
            Body::Open { boot_id, journal } => {
                self.last_open.get_or_insert((lsn, boot_id, journal));
            }
            Body::Close => {
                self.last_close.get_or_insert(lsn);
            }
        }
    }

    /// The next older entry of the process journal.
    fn entry(&mut self, block: BlockRecord) {
        if block.slot < self.slots && self.newer.insert(block.slot) {
            self.owed.insert(block.slot);
            self.journaled.insert(block.slot, block);
            self.found.push(FoundBlock { block, lsn: None });
        }
    }

    /// The place of a record does not hold it.
    fn missing(&mut self, lsn: u64) {
        self.held(lsn, false);
        if (self.tail..self.batch).contains(&lsn) {
            self.replayed.damaged_records += 1;
        }
    }

    /// Notes which units of the last batch are whole.
    fn held(&mut self, lsn: u64, held: bool) {
        if lsn < self.batch {
            return;
        }
        self.held_of_unit += u64::from(held);
        let unit = self.ring.geometry.unit_records();
        if lsn.is_multiple_of(unit) {
            let held = std::mem::take(&mut self.held_of_unit);
            if held < unit {
                self.replayed.torn_units.push(lsn);
            }
            if held == 0 {
                self.replayed.empty_units.push(lsn);
            }
        }
    }

    /// When all is read.
    fn finish(mut self, tell: &mut impl FnMut(&[FoundBlock])) -> Replayed {
        while let Some((&(_, block), older)) = self.journal.split_last() {
            self.journal = older;
            self.entry(block);
        }
        tell(&self.found);
        let tail = self.tail;
        let last_close = self.last_close.filter(|&lsn| lsn >= tail);
        let clean = last_close.is_some_and(|close| {
            self.last_open.is_none_or(|(open, ..)| open < close) && self.newest.contains(&close)
        });
        let void_below = last_close.unwrap_or(0).max(tail);
        let mut marks: Vec<FoundMark> = (self.marks.into_iter())
            .filter(|(_, (lsn, state))| *lsn >= void_below && *state != MarkState::None)
            .map(|((volume, region), (lsn, state))| FoundMark {
                volume,
                region,
                state,
                lsn,
            })
            .collect();
        marks.sort_unstable_by_key(|mark| mark.lsn);
        let mut replayed = self.replayed;
        replayed.torn_units.reverse();
        replayed.empty_units.reverse();
        Replayed {
            marks,
            clean,
            last_open: (self.last_open).map(|(_, boot_id, journal)| (boot_id, journal)),
            records: (replayed.next - tail).saturating_sub(replayed.damaged_records),
            ..replayed
        }
    }
}

/// Progress of a replay, shared by its clones.
#[derive(Clone, Debug, Default)]
pub struct Progress(Rc<(Cell<u64>, Cell<u64>)>);

impl Progress {
    /// Bytes of records that were read, and bytes that are to be read; both zero before it is known
    /// where the log ends.
    #[must_use]
    pub fn bytes(&self) -> (u64, u64) {
        (self.0.0.get(), self.0.1.get())
    }

    fn set(&self, done_records: u64, records: u64) {
        self.0.0.set(done_records * RECORD_BYTES as u64);
        self.0.1.set(records * RECORD_BYTES as u64);
    }
}

/// Reads the ring of a cache with `slots` slots and merges the process journal's entries. Passes
/// live slots to `tell`, newest first, several at a time. Records that are missing from the ring
/// count as damaged.
///
/// # Errors
/// Never for damage or unreadable units, which are counted. Only if the device does not answer at
/// all, or stops answering during the replay.
pub async fn replay(
    device: &dyn BlockDevice,
    geometry: LogGeometry,
    seed: Seed,
    slots: u32,
    elsewhere: Elsewhere<'_>,
    tell: impl FnMut(&[FoundBlock]),
) -> Result<Replayed> {
    let progress = Progress::default();
    replay_with(device, geometry, seed, slots, elsewhere, &progress, tell).await
}

/// As [`replay`], and says how far it is.
///
/// # Errors
/// As [`replay`].
pub async fn replay_with(
    device: &dyn BlockDevice,
    geometry: LogGeometry,
    seed: Seed,
    slots: u32,
    elsewhere: Elsewhere<'_>,
    progress: &Progress,
    mut tell: impl FnMut(&[FoundBlock]),
) -> Result<Replayed> {
    let ring = Ring {
        device,
        geometry,
        seed,
    };
    let unit = geometry.unit_records();
    let reached = elsewhere.reached.next_multiple_of(unit);
    let is_there = |newest: &Position| newest.lsn + 1 > reached.saturating_sub(unit);
    let mut everything = None;
    let newest = match end::nearly(&ring).await?.filter(is_there) {
        Some(newest) => Some(newest),
        None => everything.insert(end::everything(&ring).await?).newest,
    };
    let Elsewhere { journal, .. } = elsewhere;
    let mut reader = match newest {
        Some(newest) => Reader::new(ring, newest, reached, slots, journal),
        None if reached > 0 => {
            let mut reader = Reader::nothing(ring, reached, slots, journal);
            reader.replayed.unreadable_units = everything
                .as_ref()
                .map_or(0, |search| search.unreadable_units);
            reader
        }
        None => {
            return Ok(Replayed {
                unreadable_units: everything.map_or(0, |search| search.unreadable_units),
                ..Replayed::default()
            });
        }
    };
    // Records below the tail are dead, but tell whether an entry of the journal is.
    let oldest_entry = journal.iter().map(|(stamp, _)| *stamp).min();
    let next = reader.replayed.next;
    let from = oldest_entry.map_or(reader.tail, |stamp| stamp.min(reader.tail));
    let from = from.max(next.saturating_sub(geometry.records));
    let (mut end, first) = (next, from - from % unit);
    let pieces = ring.backwards(first..next);
    progress.set(0, next - first);
    ring.read(pieces, Order::Backwards, |(_, buf)| {
        end = reader.piece(end, buf, &mut tell);
        progress.set(next - end, next - first);
        true
    })
    .await?;
    if reader.lost_newest {
        // The unit must not be taken for empty, or it would be overwritten.
        let (first, length_bytes) = (reader.seen - unit, geometry.unit_bytes);
        let offset = geometry.offset + first % geometry.records * RECORD_BYTES as u64;
        let what = format!(
            "the newest records of the log, {length_bytes} bytes at {offset}, could be read a moment ago and cannot be now: look after the device, and start again"
        );
        return Err(Error::new(ErrorKind::Io, what));
    }
    // The last opening counts wherever it is: an earlier version's record of it may lie before the
    // tail.
    if reader.last_open.is_none() && reader.last_close.is_none() {
        let search = match everything {
            Some(search) => search,
            None => end::everything(&ring).await?,
        };
        reader.last_open = search.last_open;
    }
    Ok(reader.finish(&mut tell))
}

impl<'a> Reader<'a> {
    /// For a ring whose newest record lies before `reached`. The missing records are damage, and
    /// not the remains of a last batch. The log continues after them, or after the newest record if
    /// that would leave it no room.
    fn new(
        ring: Ring<'a>,
        newest: Position,
        reached: u64,
        slots: u32,
        journal: &'a [(u64, BlockRecord)],
    ) -> Self {
        let LogGeometry { records, .. } = ring.geometry;
        let unit = ring.geometry.unit_records();
        let seen = (newest.lsn + 1).next_multiple_of(unit);
        let tail = newest.tail.max(reached.saturating_sub(records));
        if tail > newest.lsn {
            // All that is there was written over, or should have been.
            return Self::nothing(ring, reached, slots, journal);
        }
        let unit_start = newest.lsn - newest.lsn % unit;
        let batch = unit_start.saturating_sub(u64::from(newest.units_back) * unit);
        let tail = tail.max(seen.saturating_sub(records));
        let has_room = reached + unit.max(records / 8) <= tail + records;
        let next = if has_room { seen.max(reached) } else { seen };
        let mut reader = Self {
            seen,
            // Something was behind it, or nothing was.
            newest: batch..if seen < reached { batch } else { next },
            ..Self::between(ring, tail..next, batch.max(reached), slots, journal)
        };
        if next < reached {
            reader.replayed.lost = next..reached;
            reader.replayed.damaged_records = reached - next;
        }
        reader
    }

    /// Of a ring in which nothing is left of what was durable up to `reached`.
    fn nothing(
        ring: Ring<'a>,
        reached: u64,
        slots: u32,
        journal: &'a [(u64, BlockRecord)],
    ) -> Self {
        let records = ring.geometry.records;
        let mut reader = Self::between(ring, reached..reached, reached, slots, journal);
        reader.replayed.damaged_records = reached.min(records);
        reader
    }

    /// Of a ring in which these records count, and those from `batch` on are the last batch's.
    fn between(
        ring: Ring<'a>,
        counts: Range<u64>,
        batch: u64,
        slots: u32,
        journal: &'a [(u64, BlockRecord)],
    ) -> Self {
        let Range {
            start: tail,
            end: next,
        } = counts;
        Self {
            ring,
            slots,
            batch,
            tail,
            newer: Slots::new(slots),
            owed: Slots::new(slots),
            journaled: HashMap::new(),
            journal,
            marks: HashMap::new(),
            last_open: None,
            last_close: None,
            replayed: Replayed {
                next,
                tail,
                last_batch: batch,
                ..Replayed::default()
            },
            held_of_unit: 0,
            newest: next..next,
            seen: 0,
            lost_newest: false,
            found: Vec::with_capacity(GROUP_BYTES / RECORD_BYTES),
        }
    }
}

#[cfg(test)]
mod tests;
