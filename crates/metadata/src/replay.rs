//! From a ring of records back to the map.
//!
//! The ring is read once, front to back, and records are applied in whatever order they stand: of the
//! records that speak of one slot (or region) the one with the highest number wins. Afterwards, what
//! lies below the tail of the newest batch is dropped, and the process journal's entries are put in
//! their places.

use std::collections::VecDeque;

use forebay_block::{BlockDevice, BlockDeviceExt, Buf, ErrorKind, Result};

use crate::Seed;
use crate::log::LogGeometry;
use crate::order;
use crate::record::{BlockRecord, Body, MarkState, Position, RECORD_BYTES, decode, encode};

/// Bytes read at a time.
const CHUNK_BYTES: u64 = 2 << 20;
/// Chunks that are being read while one is looked at.
const READ_AHEAD: usize = 4;

/// A live slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundBlock {
    /// The record.
    pub block: BlockRecord,
    /// Number of the record in the log; of a block that the process journal tells more about, the
    /// record before that, if there is one.
    pub lsn: Option<u64>,
    /// Whether the process journal told it.
    pub journaled: bool,
    /// Whether a newer record may have been damaged, so that what this one calls clean is not believed.
    pub reduced: bool,
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

/// What a ring says.
#[derive(Debug, Default)]
pub struct Replayed {
    /// Live slots, in the order of their records, oldest first.
    pub blocks: Vec<FoundBlock>,
    /// Regions whose state is not `None`.
    pub marks: Vec<FoundMark>,
    /// The number at which the log goes on: the first of a unit.
    pub next: u64,
    /// The oldest record that counts.
    pub tail: u64,
    /// The last record is a clean shutdown's.
    pub clean: bool,
    /// The boot under which the cache was last opened, and whether it kept a process journal.
    pub last_open: Option<([u8; 16], bool)>,
    /// Records that verify and count.
    pub records: u64,
    /// Records between the tail and the last batch that do not verify: damage. What older records
    /// said of clean data was dropped for it.
    pub damaged_records: u64,
    /// Units that could not be read.
    pub unreadable_units: u64,
    /// The last batch's first record.
    pub last_batch: u64,
    /// First records of those of its units that the crash left torn or empty.
    pub torn_units: Vec<u64>,
    /// Of those, the ones of which no record was found.
    pub empty_units: Vec<u64>,
}

#[derive(Clone, Copy, Default)]
struct SlotHistory {
    /// One more than the number of the newest record; zero without one.
    newest: u64,
    /// What it said: none for a kill.
    block: Option<BlockRecord>,
}

/// The ring while it is being read.
struct Reader {
    geometry: LogGeometry,
    seed: Seed,
    slots: Vec<SlotHistory>,
    marks: std::collections::HashMap<(u16, u64), (u64, MarkState)>,
    /// By position: one more than the lap in which its record was written.
    laps: Vec<u32>,
    newest: Option<Position>,
    last_open: Option<(u64, [u8; 16], bool)>,
    last_close: Option<u64>,
    unreadable_units: u64,
}

impl Reader {
    fn apply(&mut self, place: u64, bytes: &[u8; RECORD_BYTES]) {
        let Some((position, body)) = decode(bytes, self.seed) else {
            return;
        };
        let lsn = position.lsn;
        if lsn % self.geometry.records != place {
            return;
        }
        let lap = u32::try_from(lsn / self.geometry.records).unwrap_or(u32::MAX - 1);
        self.laps[usize::try_from(place).expect("fits memory")] = lap + 1;
        if self.newest.is_none_or(|newest| newest.lsn < lsn) {
            self.newest = Some(position);
        }
        match body {
            Body::Pad => {}
            Body::Block(block) => self.slot(lsn, block.slot, Some(block)),
            Body::Kill { slots, count } => {
                for slot in &slots[..usize::from(count)] {
                    self.slot(lsn, *slot, None);
                }
            }
            Body::Mark {
                volume,
                region,
                state,
            } => {
                let mark = self.marks.entry((volume, region)).or_insert((lsn, state));
                if mark.0 <= lsn {
                    *mark = (lsn, state);
                }
            }
            Body::Open { boot_id, journal } => {
                if self.last_open.is_none_or(|(old, ..)| old < lsn) {
                    self.last_open = Some((lsn, boot_id, journal));
                }
            }
            Body::Close => self.last_close = self.last_close.max(Some(lsn)),
        }
    }

    fn slot(&mut self, lsn: u64, slot: u32, block: Option<BlockRecord>) {
        let Some(history) = self.slots.get_mut(slot as usize) else {
            return;
        };
        if history.newest <= lsn {
            *history = SlotHistory {
                newest: lsn + 1,
                block,
            };
        }
    }

    /// Records from `tail` up to the last batch that are missing, and the number of the newest.
    fn damage(&self, tail: u64, batch: u64) -> (u64, Option<u64>) {
        let mut missing = 0;
        let mut last = None;
        for lsn in tail..batch {
            if !self.holds(lsn) {
                missing += 1;
                last = Some(lsn);
            }
        }
        (missing, last)
    }

    /// Whether the place of `lsn` holds that record.
    fn holds(&self, lsn: u64) -> bool {
        let place = usize::try_from(lsn % self.geometry.records).expect("fits memory");
        let lap = u32::try_from(lsn / self.geometry.records).unwrap_or(u32::MAX - 1);
        self.laps[place] == lap + 1
    }

    /// Units of the last batch that lack a record.
    fn torn_units(&self, batch: u64, next: u64) -> Vec<u64> {
        let unit = self.geometry.unit_records();
        (batch..next)
            .step_by(usize::try_from(unit).expect("small"))
            .filter(|&first| !(first..first + unit).all(|lsn| self.holds(lsn)))
            .collect()
    }

    fn finish(mut self, journal: &[(u64, BlockRecord)]) -> Replayed {
        let unit = self.geometry.unit_records();
        let Some(newest) = self.newest else {
            return Replayed {
                unreadable_units: self.unreadable_units,
                ..Replayed::default()
            };
        };
        let next = (newest.lsn + 1).next_multiple_of(unit);
        let tail = newest.tail.max(next.saturating_sub(self.geometry.records));
        let unit_start = newest.lsn - newest.lsn % unit;
        let batch = unit_start.saturating_sub(u64::from(newest.units_back) * unit);
        let (damaged_records, last_damage) = self.damage(tail, batch.max(tail));
        let last_close = self.last_close.filter(|&lsn| lsn >= tail);
        let torn_units = self.torn_units(batch, next);
        let empty_units = (torn_units.iter().copied())
            .filter(|&first| !(first..first + unit).any(|lsn| self.holds(lsn)))
            .collect();
        let clean = last_close.is_some_and(|close| {
            self.last_open.is_none_or(|(open, ..)| open < close) && close >= batch
        });

        let mut blocks: Vec<(u64, FoundBlock)> = Vec::new();
        for history in &mut self.slots {
            let Some(block) = history.block else {
                continue;
            };
            let lsn = history.newest - 1;
            if lsn < tail {
                history.block = None;
                continue;
            }
            let reduced =
                last_damage.is_some_and(|damage| lsn < damage) && block.valid != block.dirty;
            history.block = Some(block);
            blocks.push((
                2 * lsn + 1,
                FoundBlock {
                    block,
                    lsn: Some(lsn),
                    journaled: false,
                    reduced,
                },
            ));
        }
        // A journal entry with stamp s stands between the records s - 1 and s.
        let mut later = std::collections::HashMap::new();
        for &(stamp, block) in journal {
            let known = self.slots.get(block.slot as usize);
            if known.is_some_and(|history| history.newest <= stamp) {
                later.insert(block.slot, (2 * stamp, block));
            }
        }
        blocks.retain(|(_, found)| !later.contains_key(&found.block.slot));
        for (order, block) in later.into_values() {
            // What the log said before must not leave the ring until this stands there.
            let history = self.slots[block.slot as usize];
            let shadowed = history
                .block
                .filter(|old| (old.volume, old.block) == (block.volume, block.block))
                .map(|_| history.newest - 1);
            let found = FoundBlock {
                block,
                lsn: shadowed,
                journaled: true,
                reduced: false,
            };
            blocks.push((order, found));
        }
        blocks.sort_unstable_by_key(|(order, found)| (*order, found.block.slot));

        let void_below = last_close.unwrap_or(0).max(tail);
        let mut marks: Vec<FoundMark> = self
            .marks
            .into_iter()
            .filter(|(_, (lsn, state))| *lsn >= void_below && *state != MarkState::None)
            .map(|((volume, region), (lsn, state))| FoundMark {
                volume,
                region,
                state,
                lsn,
            })
            .collect();
        marks.sort_unstable_by_key(|mark| mark.lsn);
        Replayed {
            blocks: blocks.into_iter().map(|(_, found)| found).collect(),
            marks,
            next,
            tail,
            clean,
            last_open: self
                .last_open
                .map(|(_, boot_id, journal)| (boot_id, journal)),
            records: next - tail - damaged_records,
            damaged_records,
            unreadable_units: self.unreadable_units,
            last_batch: batch,
            torn_units,
            empty_units,
        }
    }
}

/// Reads the ring of a cache with `slots` slots and merges the process journal's entries.
///
/// # Errors
/// Never for damage or unreadable units, which are counted; only if the device does not answer at all.
pub async fn replay(
    device: &dyn BlockDevice,
    geometry: LogGeometry,
    seed: Seed,
    slots: u32,
    journal: &[(u64, BlockRecord)],
) -> Result<Replayed> {
    let mut reader = Reader {
        geometry,
        seed,
        slots: vec![SlotHistory::default(); slots as usize],
        marks: std::collections::HashMap::new(),
        laps: vec![0; usize::try_from(geometry.records).expect("fits memory")],
        newest: None,
        last_open: None,
        last_close: None,
        unreadable_units: 0,
    };
    let end = geometry.records * RECORD_BYTES as u64;
    let mut begun = 0;
    let mut ahead = VecDeque::with_capacity(READ_AHEAD);
    loop {
        while begun < end && ahead.len() < READ_AHEAD {
            let len = CHUNK_BYTES.min(end - begun);
            let buf = Buf::scratch(usize::try_from(len).expect("a chunk"));
            let read = device.read(geometry.offset + begun, buf.clone());
            ahead.push_back((begun, buf, read));
            begun += len;
        }
        let Some((at, buf, read)) = ahead.pop_front() else {
            break;
        };
        match read.await {
            Ok(()) => apply_all(&mut reader, at, &buf),
            Err(error) if error.kind() == ErrorKind::ShuttingDown => return Err(error),
            // Find out which units cannot be read; the others count.
            Err(_) => {
                let unit = geometry.unit_bytes as usize;
                for unit_at in (0..buf.len()).step_by(unit) {
                    let part = buf.slice(unit_at..unit_at + unit);
                    let offset = at + unit_at as u64;
                    match device.read(geometry.offset + offset, part.clone()).await {
                        Ok(()) => apply_all(&mut reader, offset, &part),
                        Err(_) => reader.unreadable_units += 1,
                    }
                }
            }
        }
    }
    Ok(reader.finish(journal))
}

/// Writes the last batch again, with padding where a crash left it torn or empty. The caller flushes the device, and
/// knows what else it may have lost if that fails. Without the padding, the next crash would find the gaps behind a newer batch and take them for damage.
/// What is there is written again, as it is, because the flush that should have made it durable may have
/// failed, and a failed flush that is tried again covers nothing. All older batches were durable before
/// this one was begun.
///
/// The places filled lie below the tail that the batch declares, so nothing there counts; records of
/// the batch that did arrive are written again as they are. Nobody was told yet that they are there.
///
/// # Errors
/// The device's own.
pub async fn rewrite_last_batch(
    device: &dyn BlockDevice,
    geometry: LogGeometry,
    seed: Seed,
    replayed: &Replayed,
) -> Result<()> {
    let unit = geometry.unit_records();
    let volatile = device.info().volatile_cache;
    let mut mended = Vec::new();
    let units = (replayed.last_batch..replayed.next)
        .step_by(usize::try_from(unit).expect("small"))
        .filter(|first| volatile || replayed.torn_units.contains(first));
    for first in units {
        let offset = geometry.offset + first % geometry.records * RECORD_BYTES as u64;
        let buf = Buf::scratch(geometry.unit_bytes as usize);
        let read = device.read(offset, buf.clone()).await;
        let readable = read.is_ok();
        // What was found there must not be written over because it cannot be read now.
        if !replayed.empty_units.contains(&first) {
            read?;
        }
        for (index, lsn) in (first..first + unit).enumerate() {
            let mut record = [0; RECORD_BYTES];
            buf.copy_to(index * RECORD_BYTES, &mut record);
            let held = decode(&record, seed).is_some_and(|(position, _)| position.lsn == lsn);
            if !(readable && held) {
                let units_back = (lsn - replayed.last_batch) / unit;
                let position = Position {
                    lsn,
                    tail: replayed.tail,
                    units_back: u16::try_from(units_back).unwrap_or(u16::MAX),
                };
                encode(&mut record, seed, position, &Body::Pad);
                buf.copy_from(index * RECORD_BYTES, &record);
            }
        }
        mended.push((offset, buf));
    }
    order::write_all(device, mended).await
}

fn apply_all(reader: &mut Reader, at: u64, buf: &Buf) {
    let first = at / RECORD_BYTES as u64;
    let mut record = [0; RECORD_BYTES];
    for index in 0..buf.len() / RECORD_BYTES {
        buf.copy_to(index * RECORD_BYTES, &mut record);
        if record[4] != 0 {
            reader.apply(first + index as u64, &record);
        }
    }
}

#[cfg(test)]
mod tests;
