//! Checksums of cached data, if the cache was formatted with them.
//!
//! A *cell* is 4 KiB on the data device. Its checksum is in memory and in a table on media. Each
//! round of commits updates the table for the blocks that it records.
//!
//! Data and checksum are two writes without an order between them. Two things bridge this gap. The
//! region of a block gets a mark ([`regions`](crate::intent::regions)) before the first overwrite
//! of valid data. The mark goes when a record was written after the last overwrite. And each record
//! has a digest of the checksums that belong to it.
//!
//! After a crash, a cell that is under a mark or does not match its record has no known checksum.
//! It is trusted, and gets a checksum at its next read. docs/internals/checksums.md argues it.
//!
//! [`slots`](crate::slots) stores and verifies checksums, [`mod@restore`] reads the table at a
//! start.

mod restore;
pub(crate) mod scrubber;

pub(crate) use restore::LoadedChecksums;

use std::cell::{Cell, RefCell};

use forebay_block::Buf;
use forebay_metadata::Seed;
pub(crate) use forebay_metadata::checksums::UNKNOWN;
use forebay_metadata::checksums::{CELL_BYTES, ChecksumTable, DataHash, digest};
use forebay_metadata::log::LogExtent;
use forebay_metadata::record::BlockRecord;
use forebay_policy::Slot;

use crate::failpoints::{Fault, planted};
use crate::geometry::Geometry;
use crate::stats::{ChecksumStats, Counter};

/// Number of bytes that one checksum covers.
pub(crate) const CELL: u32 = CELL_BYTES as u32;

/// The checksums of a cache.
#[derive(Debug)]
pub(crate) struct Checksums {
    hash: DataHash,
    seed: Seed,
    table: ChecksumTable,
    geometry: Geometry,
    /// Checksums, by cell.
    values: RefCell<Vec<u32>>,
    /// Units of the table, a bit each, that media does not have as they are here.
    changed: RefCell<Vec<u64>>,
    /// Units that the batch which is being built goes with.
    due: RefCell<Vec<u64>>,
    /// Cells that are known to be bad, one bit each. Their entries in the table stay unchanged. So
    /// if a round is interrupted, the table matches the record that calls them bad, or the one
    /// before.
    bad_cells: RefCell<Vec<u64>>,
    /// Number of bad cells.
    bad: Cell<u64>,
    pub(crate) counters: ChecksumCounters,
}

/// Counters of findings, in cells.
#[derive(Debug, Default)]
pub(crate) struct ChecksumCounters {
    /// Seen without a checksum that is known, believed, and given one.
    pub(crate) unverified: Counter,
    /// Clean and corrupt: had from the backing device.
    pub(crate) refetched: Counter,
    /// Dirty granules found corrupt.
    pub(crate) condemned: Counter,
    /// Bytes of the table written.
    pub(crate) table_bytes: Counter,
}

/// How a cell looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CellState {
    Sound,
    Unknown,
    Corrupt,
}

/// The bytes of a cell.
///
/// # Safety
/// As for [`Buf::bytes`].
unsafe fn cell_bytes(buf: &Buf) -> &[u8; CELL_BYTES] {
    // SAFETY: the caller vouches.
    let bytes = unsafe { buf.bytes() };
    bytes.try_into().expect("a cell")
}

/// The checksum of 4 KiB that belong to a request of ours.
#[inline]
pub(crate) fn checksum_of(hash: &DataHash, buf: &Buf) -> u32 {
    // SAFETY: the buffer belongs to an unanswered request whose I/O has not begun or has completed,
    // so the buffer does not change.
    hash.of(unsafe { cell_bytes(buf) })
}

impl Checksums {
    /// Returns the cell of a byte of the block in `slot`.
    #[inline]
    pub(crate) const fn cell(&self, slot: Slot, start: u32) -> usize {
        let byte = ((slot.get() as u64) << self.geometry.sizes().unit_shift()) + start as u64;
        byte as usize / CELL_BYTES
    }

    /// The cells of granules of a block in `slot`.
    pub(crate) fn cells_of(
        &self,
        slot: Slot,
        class: u8,
        granules: u64,
    ) -> impl Iterator<Item = usize> {
        let each = self.geometry.granule_bytes(class) as usize / CELL_BYTES;
        let first = self.cell(slot, 0);
        (0..u64::BITS as usize)
            .filter(move |granule| granules >> granule & 1 != 0)
            .flat_map(move |granule| first + granule * each..first + (granule + 1) * each)
    }

    #[inline]
    pub(crate) fn checksum_of(&self, buf: &Buf) -> u32 {
        checksum_of(&self.hash, buf)
    }

    #[inline]
    pub(crate) fn check(&self, cell: usize, buf: &Buf) -> CellState {
        if self.is_bad(cell) {
            return CellState::Corrupt;
        }
        match self.values.borrow()[cell] {
            UNKNOWN => CellState::Unknown,
            sum if sum == self.checksum_of(buf) => CellState::Sound,
            _ => CellState::Corrupt,
        }
    }

    pub(crate) fn set(&self, cell: usize, sum: u32) {
        let before = std::mem::replace(&mut self.values.borrow_mut()[cell], sum);
        if before != sum {
            let unit = cell / self.table.unit_cells();
            self.changed.borrow_mut()[unit / 64] |= 1 << (unit % 64);
        }
        if self.is_bad(cell) {
            self.bad_cells.borrow_mut()[cell / 64] &= !(1 << (cell % 64));
            self.bad.set(self.bad.get() - 1);
        }
    }

    pub(crate) fn set_bad(&self, cell: usize) {
        if !self.is_bad(cell) {
            self.bad_cells.borrow_mut()[cell / 64] |= 1 << (cell % 64);
            self.bad.set(self.bad.get() + 1);
        }
    }

    #[inline]
    pub(crate) fn is_bad(&self, cell: usize) -> bool {
        self.bad.get() != 0 && self.bad_cells.borrow()[cell / 64] >> (cell % 64) & 1 != 0
    }

    /// Granules of a block in `slot`, of these, that are known to be bad.
    pub(crate) fn bad_granules(&self, slot: Slot, class: u8, among: u64) -> u64 {
        if self.bad.get() == 0 {
            return 0;
        }
        let is_bad = |granule: &u32| {
            let mut cells = self.cells_of(slot, class, 1 << granule);
            among >> granule & 1 != 0 && cells.any(|cell| self.is_bad(cell))
        };
        let bad = (0..u64::BITS).filter(is_bad);
        bad.fold(0, |bad, granule| bad | 1 << granule)
    }

    /// Granules of a block in `slot`, of these, whose checksums are known and are those of zeroes.
    pub(crate) fn zero_granules(&self, slot: Slot, class: u8, among: u64) -> u64 {
        if among == 0 {
            return 0;
        }
        let is_zero = |granule: &u32| self.are_zeroes(self.cells_of(slot, class, 1 << granule));
        (0..u64::BITS)
            .filter(|granule| among >> granule & 1 != 0)
            .filter(is_zero)
            .fold(0, |found, granule| found | 1 << granule)
    }

    /// Returns whether the checksums of cells are known, and are those of zeroes.
    fn are_zeroes(&self, cells: impl IntoIterator<Item = usize>) -> bool {
        let zeroes = self.hash.of(&[0; CELL_BYTES]);
        let values = self.values.borrow();
        let is_zero = |cell: usize| values[cell] == zeroes && !self.is_bad(cell);
        cells.into_iter().all(is_zero)
    }

    /// Returns whether the checksums of these bytes of what lies in `slot` are known, and are
    /// those of zeroes.
    pub(crate) fn holds_zeroes(&self, slot: Slot, start: u32, len: u64) -> bool {
        let len = u32::try_from(len).expect("at most a block");
        self.are_zeroes(self.cell(slot, start)..=self.cell(slot, start + len.max(1) - 1))
    }

    fn digest(&self, slot: Slot, class: u8, valid: u64) -> u32 {
        let values = self.values.borrow();
        let sums = self.cells_of(slot, class, valid).map(|cell| values[cell]);
        digest(self.seed, slot.get(), sums)
    }

    /// Returns a record with the bad granules and the digest of its block.
    pub(crate) fn complete(&self, record: BlockRecord) -> BlockRecord {
        BlockRecord {
            bad: self.bad_granules(Slot::new(record.slot), record.class, record.dirty),
            sums: self.digest(Slot::new(record.slot), record.class, record.valid),
            ..record
        }
    }

    /// Notes that media may lack any unit of the table: a unit goes with the next record of a block
    /// that has checksums in it.
    pub(crate) fn note_all_changed(&self) {
        self.changed.borrow_mut().fill(u64::MAX);
    }

    /// A record of a block joins the batch, together with the known checksums of the block.
    pub(crate) fn joins(&self, slot: Slot, class: u8) {
        let each = self.table.unit_cells();
        let (first, last) = (
            self.cell(slot, 0) / each,
            (self.cell(slot, self.geometry.block_bytes(class) as u32) - 1) / each,
        );
        let mut changed = self.changed.borrow_mut();
        for unit in first..=last {
            if changed[unit / 64] >> (unit % 64) & 1 != 0 {
                changed[unit / 64] &= !(1 << (unit % 64));
                self.due.borrow_mut().push(unit as u64);
            }
        }
    }

    /// The units of the table that go with the batch that was built.
    pub(crate) fn take_due(&self) -> Vec<LogExtent> {
        let mut due = self.due.take();
        due.sort_unstable();
        let values = self.values.borrow();
        let each = self.table.unit_cells();
        due.chunk_by(|one, next| one + 1 == *next)
            .map(|run| {
                let first = run[0] as usize * each;
                let end = (first + run.len() * each).min(values.len());
                let (offset, buf) = self.table.encode(run[0], &values[first..end]);
                self.counters.table_bytes.add(buf.len() as u64);
                LogExtent { offset, buf }
            })
            .collect()
    }

    /// Forgets the checksums of a block's slot.
    pub(crate) fn forget(&self, slot: Slot, class: u8) {
        if self.bad.get() != 0 {
            let cells = self.cells_of(
                slot,
                class,
                u64::MAX >> (64 - self.geometry.granules(class)),
            );
            cells.for_each(|cell| self.set(cell, UNKNOWN));
        }
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.values.borrow().capacity() * size_of::<u32>()
            + (self.changed.borrow().len() + self.bad_cells.borrow().len()) * 8
    }

    /// Returns whether the checksums of some cells are known.
    pub(crate) fn knows(&self, first: usize, cells: usize) -> bool {
        let values = self.values.borrow();
        let mut cells = first..first + cells;
        cells.all(|cell| values[cell] != UNKNOWN && !self.is_bad(cell))
    }

    /// Returns whether some cell is known to be bad.
    #[inline]
    pub(crate) fn has_bad(&self) -> bool {
        self.bad.get() != 0
    }

    /// Returns the counters, for status and metrics.
    pub(crate) fn stats(&self) -> ChecksumStats {
        let counters = &self.counters;
        ChecksumStats {
            unverified: counters.unverified.get(),
            refetched: counters.refetched.get(),
            condemned: counters.condemned.get(),
            corrupt_bytes: self.bad.get() * u64::from(CELL),
            table_bytes: counters.table_bytes.get(),
        }
    }

    /// Returns whether a buffer of whole cells has the data that was written there.
    #[inline]
    pub(crate) fn agree(&self, first: usize, buf: &Buf) -> bool {
        if planted(Fault::SkipVerify) {
            return true;
        }
        (0..buf.len() / CELL as usize).all(|nth| {
            let at = nth * CELL as usize;
            self.check(first + nth, &buf.slice(at..at + CELL as usize)) == CellState::Sound
        })
    }
}
