//! Checksums of cached data, where the cache was formatted to have them.
//!
//! A *cell* is 4 KiB on the data device. Its checksum is in memory, and in a table on media that each round of
//! commits brings up to date for the blocks that it records. Data and checksum are two writes, and nothing orders
//! them: before the first overwrite of what is valid the block's region has a mark ([`region`](crate::region)),
//! which goes when a record was written behind the last overwrite; and a record has a digest of the checksums
//! that it goes with. What is under a mark after a crash, or does not fit its record, has no checksum that is known:
//! it is believed, and gets one when it is next seen ([`read`]). docs/internals/checksums.md argues it.
//!
//! [`mod@write`] keeps them, [`mod@read`] verifies, [`mod@restore`] reads the table back, [`mod@scrub`]
//! looks at everything, [`mod@alone`] where no volume is served.

mod alone;
mod read;
mod restore;
mod scrub;
mod write;

pub use alone::DataReport;
pub(crate) use read::Verdict;
pub(crate) use restore::LoadedSums;
pub use scrub::ScrubProgress;
pub(crate) use scrub::Scrubber;

use std::cell::{Cell, RefCell};
use std::ops::Range;

use forebay_block::{Buf, Error, ErrorKind};
use forebay_metadata::Seed;
use forebay_metadata::log::LogExtent;
use forebay_metadata::record::BlockRecord;
use forebay_metadata::sums::{CELL_BYTES, DataHash, SumsPlace, UNKNOWN, digest};
use forebay_policy::BlockId;

use crate::engine::{Attached, Engine};
use crate::geometry::{Block, Geometry};
use crate::stats::{ChecksumStats, Counter};

/// What one checksum covers, bytes.
pub(crate) const CELL: u32 = CELL_BYTES as u32;

/// The checksums of a cache.
#[derive(Debug)]
pub(crate) struct Sums {
    hash: DataHash,
    seed: Seed,
    place: SumsPlace,
    geometry: Geometry,
    /// By cell.
    values: RefCell<Vec<u32>>,
    /// Units of the table, a bit each, that media does not have as they are here.
    changed: RefCell<Vec<u64>>,
    /// Units that the batch which is being built goes with.
    due: RefCell<Vec<u64>>,
    /// Cells that are known to be bad, a bit each. What the table says of them stays as it was, so that a round which is
    /// cut off leaves it fitting the record that calls them bad, or the one before.
    bad_cells: RefCell<Vec<u64>>,
    /// How many these are.
    bad: Cell<u64>,
    pub(crate) stats: SumsStats,
}

/// What was found, in cells.
#[derive(Debug, Default)]
pub(crate) struct SumsStats {
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
enum Look {
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
pub(crate) fn sum_of(hash: &DataHash, buf: &Buf) -> u32 {
    // SAFETY: the buffer belongs to a request whose I/O has completed, or has not begun, and which has not
    // been answered: nobody writes to it.
    hash.of(unsafe { cell_bytes(buf) })
}

impl Sums {
    /// The cell that a byte of what lies at `place` is in.
    #[inline]
    const fn cell(&self, place: u32, start: u32) -> usize {
        let byte = ((place as u64) << self.geometry.sizes().unit_shift()) + start as u64;
        byte as usize / CELL_BYTES
    }

    /// The cells of granules of a block at `place`.
    fn cells_of(&self, place: u32, class: u8, granules: u64) -> impl Iterator<Item = usize> {
        let each = self.geometry.granule_bytes(class) as usize / CELL_BYTES;
        let first = self.cell(place, 0);
        (0..u64::BITS as usize)
            .filter(move |granule| granules >> granule & 1 != 0)
            .flat_map(move |granule| first + granule * each..first + (granule + 1) * each)
    }

    #[inline]
    fn sum_of(&self, buf: &Buf) -> u32 {
        sum_of(&self.hash, buf)
    }

    #[inline]
    fn look(&self, cell: usize, buf: &Buf) -> Look {
        if self.is_bad(cell) {
            return Look::Corrupt;
        }
        match self.values.borrow()[cell] {
            UNKNOWN => Look::Unknown,
            sum if sum == self.sum_of(buf) => Look::Sound,
            _ => Look::Corrupt,
        }
    }

    fn set(&self, cell: usize, sum: u32) {
        let before = std::mem::replace(&mut self.values.borrow_mut()[cell], sum);
        if before != sum {
            let unit = cell / self.place.unit_cells();
            self.changed.borrow_mut()[unit / 64] |= 1 << (unit % 64);
        }
        if self.is_bad(cell) {
            self.bad_cells.borrow_mut()[cell / 64] &= !(1 << (cell % 64));
            self.bad.set(self.bad.get() - 1);
        }
    }

    fn set_bad(&self, cell: usize) {
        if !self.is_bad(cell) {
            self.bad_cells.borrow_mut()[cell / 64] |= 1 << (cell % 64);
            self.bad.set(self.bad.get() + 1);
        }
    }

    #[inline]
    fn is_bad(&self, cell: usize) -> bool {
        self.bad.get() != 0 && self.bad_cells.borrow()[cell / 64] >> (cell % 64) & 1 != 0
    }

    /// Granules of a block at `place`, of these, that are known to be bad.
    pub(crate) fn bad_granules(&self, place: u32, class: u8, among: u64) -> u64 {
        if self.bad.get() == 0 {
            return 0;
        }
        let is_bad = |granule: &u32| {
            let mut cells = self.cells_of(place, class, 1 << granule);
            among >> granule & 1 != 0 && cells.any(|cell| self.is_bad(cell))
        };
        let bad = (0..u64::BITS).filter(is_bad);
        bad.fold(0, |bad, granule| bad | 1 << granule)
    }

    /// Granules of a block at `place`, of these, whose checksums are known and are those of zeroes.
    pub(crate) fn zero_granules(&self, place: u32, class: u8, among: u64) -> u64 {
        if among == 0 {
            return 0;
        }
        let is_zero = |granule: &u32| self.are_zeroes(self.cells_of(place, class, 1 << granule));
        (0..u64::BITS)
            .filter(|granule| among >> granule & 1 != 0)
            .filter(is_zero)
            .fold(0, |found, granule| found | 1 << granule)
    }

    /// Whether the checksums of cells are known, and are those of zeroes.
    fn are_zeroes(&self, cells: impl IntoIterator<Item = usize>) -> bool {
        let zeroes = self.hash.of(&[0; CELL_BYTES]);
        let values = self.values.borrow();
        let is_zero = |cell: usize| values[cell] == zeroes && !self.is_bad(cell);
        cells.into_iter().all(is_zero)
    }

    fn digest(&self, place: u32, class: u8, valid: u64) -> u32 {
        let values = self.values.borrow();
        let sums = self.cells_of(place, class, valid).map(|cell| values[cell]);
        digest(self.seed, place, sums)
    }

    /// A record of a block joins the batch: what is known of its checksums goes with it.
    fn joins(&self, place: u32, class: u8) {
        let each = self.place.unit_cells();
        let (first, last) = (
            self.cell(place, 0) / each,
            (self.cell(place, self.geometry.block_bytes(class) as u32) - 1) / each,
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
        let each = self.place.unit_cells();
        due.chunk_by(|one, next| one + 1 == *next)
            .map(|run| {
                let first = run[0] as usize * each;
                let end = (first + run.len() * each).min(values.len());
                let (offset, buf) = self.place.encode(run[0], &values[first..end]);
                self.stats.table_bytes.add(buf.len() as u64);
                LogExtent { offset, buf }
            })
            .collect()
    }

    /// Nothing is known any more of what a block's place holds.
    fn forget(&self, place: u32, class: u8) {
        if self.bad.get() != 0 {
            let cells = self.cells_of(
                place,
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
}

impl Engine {
    pub(crate) fn checksum_stats(&self) -> Option<ChecksumStats> {
        let sums = self.sums.as_ref()?;
        let stats = &sums.stats;
        Some(ChecksumStats {
            unverified: stats.unverified.get(),
            refetched: stats.refetched.get(),
            condemned: stats.condemned.get(),
            corrupt_bytes: sums.bad.get() * u64::from(CELL),
            table_bytes: stats.table_bytes.get(),
        })
    }

    /// What a record says of a slot with these granules.
    pub(crate) fn block_record(&self, slot: BlockId, valid: u64, dirty: u64) -> BlockRecord {
        let record = self.map.borrow().record(slot, valid, dirty);
        match &self.sums {
            None => record,
            Some(sums) => BlockRecord {
                bad: sums.bad_granules(record.slot, record.class, dirty),
                sums: sums.digest(record.slot, record.class, valid),
                ..record
            },
        }
    }

    /// The record of what only this slot has: clean granules are worth nothing after a crash that their
    /// record did not survive.
    pub(crate) fn dirty_record(&self, slot: BlockId) -> BlockRecord {
        let dirty = self.map.borrow().slot(slot).dirty;
        self.block_record(slot, dirty, dirty)
    }

    /// A record of a block was put into the batch.
    pub(crate) fn record_joins(&self, block: &BlockRecord) {
        if let Some(sums) = &self.sums {
            sums.joins(block.slot, block.class);
        }
    }

    /// A block leaves its slot.
    pub(crate) fn forget_sums(&self, slot: BlockId) {
        if let Some(sums) = &self.sums {
            let map = self.map.borrow();
            sums.forget(map.place(slot), map.slot(slot).class);
        }
    }

    /// Dirty granules of a slot that are known to be bad: nothing but a whole rewrite ends that.
    pub(crate) fn bad_granules(&self, slot: BlockId) -> u64 {
        let Some(sums) = &self.sums else { return 0 };
        let map = self.map.borrow();
        let entry = map.slot(slot);
        sums.bad_granules(map.place(slot), entry.class, entry.dirty)
    }

    /// Notes that a dirty granule is bad, and names it. From the next round of commits on it is so for all
    /// processes to come.
    fn condemn(&self, volume: &Attached, slot: BlockId, granule: u32) -> Error {
        let Some(sums) = &self.sums else {
            return ErrorKind::Corrupt.into();
        };
        let (entry, place) = {
            let map = self.map.borrow();
            (map.slot(slot), map.place(slot))
        };
        let bytes = self.geometry.granule_bytes(entry.class) as u32;
        let error = self.corrupt(
            volume,
            entry.block(),
            granule * bytes..(granule + 1) * bytes,
        );
        if sums.bad_granules(place, entry.class, 1 << granule) == 0 {
            let cells = sums.cells_of(place, entry.class, 1 << granule);
            cells.for_each(|cell| sums.set_bad(cell));
            sums.stats.condemned.add(1);
            tracing::error!(volume = volume.name, error = %error, "dirty data is corrupt on the cache device");
            self.queue_record(slot);
            self.request_commit();
        }
        error
    }

    /// The error of who asks for dirty data that is corrupt.
    fn corrupt(&self, volume: &Attached, block: Block, bytes: Range<u32>) -> Error {
        let end = bytes.end.min(volume.limit(self.geometry, block));
        let at = self.geometry.backing_offset(block, bytes.start);
        Error::new(
            ErrorKind::Corrupt,
            format!(
                "volume {}: {} bytes at {at} are dirty in the cache, and what its device holds is not what was written: \
                 they are lost; write them anew, whole, from a backup",
                volume.name,
                end - bytes.start,
            ),
        )
    }

    /// The error of a write-back, if something is left in a volume that cannot be written back because it is bad.
    pub(crate) fn bad_left(&self, volume: u16) -> Option<Error> {
        self.sums.as_ref().filter(|sums| sums.bad.get() != 0)?;
        let attached = self.volume_by_id(volume)?;
        let slots: Vec<BlockId> = self.map.borrow().of_volume(volume).collect();
        slots.into_iter().find_map(|slot| {
            let found = self.map.borrow().slot(slot);
            let bad = self.bad_granules(slot);
            let bytes = self.geometry.granule_bytes(found.class) as u32;
            let first = bad.trailing_zeros();
            (bad != 0)
                .then(|| self.corrupt(&attached, found.block(), first * bytes..(first + 1) * bytes))
        })
    }
}
