//! The state of a replay: the records that were read, from the newest back to the oldest.

use std::collections::HashMap;
use std::ops::Range;

use forebay_block::Buf;

use super::found::{FoundBlock, FoundMark, Opening, Replayed};
use super::ring::Ring;
use crate::log::LogGeometry;
use crate::record::{BlockRecord, Body, MarkState, Position, RECORD_BYTES, decode};

/// Number of bytes that are decoded at a time. The blocks in them are reported together.
const GROUP_BYTES: usize = 4096;

/// A set of slots: one bit for each.
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
pub(super) struct Reader<'a> {
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
    last_open: Option<(u64, Opening)>,
    last_close: Option<u64>,
    replayed: Replayed,
    /// Of the unit being read of the last batch: records that are there.
    held_of_unit: u64,
    /// Number behind the newest unit that was read in the search for the end.
    seen: u64,
    /// Whether that unit cannot be read now.
    lost_newest: bool,
    /// Blocks that were found and not reported yet.
    found: Vec<FoundBlock>,
}

impl<'a> Reader<'a> {
    /// Returns a reader of a ring whose newest record may lie before `reached`. Missing records are
    /// damage then, and not the remains of a last batch. The log continues after them, or after the
    /// newest record if that would leave it no room.
    pub(super) fn new(
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

    /// Returns a reader of a ring that lost all records, which were durable up to `reached`.
    pub(super) fn nothing(
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

    /// Returns a reader of a ring in which the records `counts` count.  Those from `batch` on are
    /// the last batch's.
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

impl Reader<'_> {
    /// Returns the records that count: from the tail to the position where the log continues.
    pub(super) const fn counted(&self) -> Range<u64> {
        self.tail..self.replayed.next
    }

    /// Notes units that could not be read in the search for the end.
    pub(super) const fn set_unreadable_units(&mut self, units: u64) {
        self.replayed.unreadable_units = units;
    }

    /// Returns the first record of the newest unit if the search for the end read that unit, and it
    /// cannot be read now.
    pub(super) fn lost_newest(&self) -> Option<u64> {
        let unit = self.ring.geometry.unit_records();
        self.lost_newest.then(|| self.seen - unit)
    }

    /// Returns whether no record of an opening and none of a clean shutdown was read.
    pub(super) const fn lacks_opening(&self) -> bool {
        self.last_open.is_none() && self.last_close.is_none()
    }

    /// Sets the newest record of an opening, and its position.
    pub(super) const fn set_last_open(&mut self, last_open: Option<(u64, Opening)>) {
        self.last_open = last_open;
    }

    /// Reads a piece of whole units, the last of which has the record before `end`. Returns the
    /// number of its first record.
    pub(super) fn piece(
        &mut self,
        end: u64,
        buf: Option<&Buf>,
        report: &mut impl FnMut(&[FoundBlock]),
    ) -> u64 {
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
                report(&self.found);
                self.found.clear();
            }
        }
        lsn
    }

    /// Handles the content of the position of record `lsn`.
    fn record(&mut self, lsn: u64, bytes: &[u8; RECORD_BYTES]) {
        // An entry with stamp s stands between the records s - 1 and s.
        while let Some((&(stamp, block), older)) = self.journal.split_last()
            && stamp > lsn
        {
            self.journal = older;
            self.entry(block);
        }
        // Empty positions do not start with a valid byte.
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
                let opening = Opening {
                    boot_id,
                    had_journal: journal,
                };
                self.last_open.get_or_insert((lsn, opening));
            }
            Body::Close => {
                self.last_close.get_or_insert(lsn);
            }
        }
    }

    /// Handles the next older entry of the process journal.
    fn entry(&mut self, block: BlockRecord) {
        if block.slot < self.slots && self.newer.insert(block.slot) {
            self.owed.insert(block.slot);
            self.journaled.insert(block.slot, block);
            self.found.push(FoundBlock { block, lsn: None });
        }
    }

    /// Notes that the position of a record does not hold it.
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

    /// Returns the result, when all records were read.
    pub(super) fn finish(mut self, report: &mut impl FnMut(&[FoundBlock])) -> Replayed {
        while let Some((&(_, block), older)) = self.journal.split_last() {
            self.journal = older;
            self.entry(block);
        }
        report(&self.found);
        let tail = self.tail;
        let last_close = self.last_close.filter(|&lsn| lsn >= tail);
        let clean = last_close.is_some_and(|close| {
            self.last_open.is_none_or(|(open, ..)| open < close) && self.newest.contains(&close)
        });
        // A close voids all marks, also those that its own batch repeats after it.
        let void_below = match clean {
            true => u64::MAX,
            false => last_close.unwrap_or(0).max(tail),
        };
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
            last_open: self.last_open.map(|(_, opening)| opening),
            records: (replayed.next - tail).saturating_sub(replayed.damaged_records),
            ..replayed
        }
    }
}
