//! Input and result of a replay.

use std::ops::Range;

use crate::record::{BlockRecord, MarkState};

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

/// An opening of the cache, as its log records it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opening {
    /// Boot of the machine in which it took place.
    pub boot_id: [u8; 16],
    /// Whether the cache had a process journal.
    pub had_journal: bool,
}

/// Content of a ring other than its blocks.
#[derive(Debug, Default)]
pub struct Replayed {
    /// Regions whose state is not `None`, in the order of their records.
    pub marks: Vec<FoundMark>,
    /// Slots that the process journal names, and the positions of their earlier records of the same
    /// block.
    pub shadowed: Vec<(u32, u64)>,
    /// The number at which the log continues: the first of a unit.
    pub next: u64,
    /// The oldest record that counts.
    pub tail: u64,
    /// The last record is a clean shutdown's.
    pub clean: bool,
    /// The newest opening of the cache.
    pub last_open: Option<Opening>,
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
    /// Positions past the next record that must be erased before the log continues. Their records
    /// are lost, but a later replay might read them and take them for newer than the new records.
    pub lost: Range<u64>,
}
