//! Replay: from a ring of records back to the map.
//!
//! The end of the log (`end`) is found first, and with it the tail. The records between the
//! two count. They are read from the newest back to the oldest. So the first record of a slot (or
//! region) is the one that counts, and the others need only a look at a bit. The process journal's
//! entries are merged at their positions.

mod end;
mod found;
mod last_batch;
mod reader;
mod ring;

use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;

use forebay_block::{BlockDevice, Error, ErrorKind, Result};

use crate::Seed;
use crate::log::LogGeometry;
use crate::record::{Position, RECORD_BYTES};
use reader::Reader;
use ring::{Order, Ring};

pub use found::{Elsewhere, FoundBlock, FoundMark, Opening, Replayed};
pub use last_batch::rewrite_last_batch;

/// Progress of a replay, shared by its clones.
#[derive(Clone, Debug, Default)]
pub struct Progress(Rc<ProgressBytes>);

/// State that the clones of a progress share, bytes.
#[derive(Debug, Default)]
struct ProgressBytes {
    done: Cell<u64>,
    all: Cell<u64>,
}

impl Progress {
    /// Returns the bytes of records that were read, and those that are to be read. Both are zero
    /// before it is known where the log ends.
    #[must_use]
    pub fn bytes(&self) -> (u64, u64) {
        (self.0.done.get(), self.0.all.get())
    }

    fn set(&self, done_records: u64, records: u64) {
        self.0.done.set(done_records * RECORD_BYTES as u64);
        self.0.all.set(records * RECORD_BYTES as u64);
    }
}

/// Reads the ring of a cache with `slots` slots and merges the process journal's entries. Passes
/// live slots to `report`, newest first, several at a time. Records that are missing from the ring
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
    report: impl FnMut(&[FoundBlock]),
) -> Result<Replayed> {
    let progress = Progress::default();
    replay_with(device, geometry, seed, slots, elsewhere, &progress, report).await
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
    mut report: impl FnMut(&[FoundBlock]),
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
    let newest = match end::search(&ring).await?.filter(is_there) {
        Some(newest) => Some(newest),
        None => everything.insert(end::read_all(&ring).await?).newest,
    };
    let Elsewhere { journal, .. } = elsewhere;
    let mut reader = match newest {
        Some(newest) => Reader::new(ring, newest, reached, slots, journal),
        None if reached > 0 => {
            let mut reader = Reader::nothing(ring, reached, slots, journal);
            let unreadable = everything.as_ref();
            reader.set_unreadable_units(unreadable.map_or(0, |search| search.unreadable_units));
            reader
        }
        None => {
            return Ok(Replayed {
                unreadable_units: everything.map_or(0, |search| search.unreadable_units),
                ..Replayed::default()
            });
        }
    };
    // Records below the tail are dead, but show whether an entry of the journal is.
    let oldest_entry = journal.iter().map(|(stamp, _)| *stamp).min();
    let Range {
        start: tail,
        end: next,
    } = reader.counted();
    let from = oldest_entry.map_or(tail, |stamp| stamp.min(tail));
    let from = from.max(next.saturating_sub(geometry.records));
    let (mut end, first) = (next, from - from % unit);
    let pieces = ring.backwards(first..next);
    progress.set(0, next - first);
    ring.read(pieces, Order::Backwards, |(_, buf)| {
        end = reader.piece(end, buf, &mut report);
        progress.set(next - end, next - first);
        true
    })
    .await?;
    if let Some(first) = reader.lost_newest() {
        // The unit must not be taken for empty, or it would be overwritten.
        let length_bytes = geometry.unit_bytes;
        let offset = geometry.offset + first % geometry.records * RECORD_BYTES as u64;
        let what = format!(
            "the newest records of the log, {length_bytes} bytes at {offset}, became unreadable \
             during the replay\n\
             help: check the device, and start again"
        );
        return Err(Error::new(ErrorKind::Io, what));
    }
    // The last opening counts wherever it is: an earlier version's record of it may lie before the
    // tail.
    if reader.lacks_opening() {
        let search = match everything {
            Some(search) => search,
            None => end::read_all(&ring).await?,
        };
        reader.set_last_open(search.last_open);
    }
    Ok(reader.finish(&mut report))
}

#[cfg(test)]
mod tests;
