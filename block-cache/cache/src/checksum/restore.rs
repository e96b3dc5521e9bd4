//! Checksums at a start: entries of the table count where they match the records.

use std::cell::{Cell, RefCell};

use forebay_block::{BlockDevice, Result};
use forebay_metadata::checksums::{self, BAD, DataHash, UNKNOWN, fits};
use forebay_metadata::record::BlockRecord;
use forebay_metadata::superblock::Superblock;
use forebay_policy::Slot;

use super::{ChecksumCounters, Checksums};
use crate::failpoints::{Fault, planted};
use crate::geometry::Geometry;

/// The table as it was read, and which of its entries count.
#[derive(Debug)]
pub(crate) struct LoadedChecksums {
    sums: Checksums,
    found: Vec<u32>,
    /// Valid cells of which nothing is known.
    pub(crate) unknown: u64,
}

impl LoadedChecksums {
    /// Reads the table, if the cache has one.
    pub(crate) async fn open(
        metadata: &dyn BlockDevice,
        superblock: &Superblock,
    ) -> Result<Option<Self>> {
        let Some(table) = superblock.checksum_table() else {
            return Ok(None);
        };
        let (found, unreadable_units) = checksums::read(metadata, table).await?;
        if unreadable_units > 0 {
            tracing::warn!(
                units = unreadable_units,
                "a part of the checksum table cannot be read: its data is not verified, and gets \
                 new checksums"
            );
        }
        let units = usize::try_from(table.units()).expect("a table fits memory");
        Ok(Some(Self {
            sums: Checksums {
                hash: DataHash::new(&superblock.lineage),
                seed: superblock.seed(),
                table,
                geometry: Geometry::of(superblock),
                values: RefCell::new(vec![UNKNOWN; found.len()]),
                changed: RefCell::new(vec![0; units.div_ceil(64)]),
                due: RefCell::default(),
                bad_cells: RefCell::new(vec![0; found.len().div_ceil(64)]),
                bad: Cell::new(0),
                counters: ChecksumCounters::default(),
            },
            found,
            unknown: 0,
        }))
    }

    /// Takes over the known checksums of a block.
    pub(crate) fn restore(&mut self, record: &BlockRecord) {
        let (slot, class) = (Slot::new(record.slot), record.class);
        let sums = &self.sums;
        let cells: Vec<usize> = sums.cells_of(slot, class, record.valid).collect();
        let found = cells.iter().map(|&cell| self.found[cell]);
        if fits(sums.seed, record.slot, found, record.sums) {
            for &cell in &cells {
                sums.set(cell, self.found[cell]);
                if self.found[cell] == BAD {
                    sums.set_bad(cell);
                }
            }
        }
        let bad = sums.cells_of(slot, class, record.bad & record.dirty);
        bad.for_each(|cell| sums.set_bad(cell));
        let values = sums.values.borrow();
        let is_unknown = |cell: &&usize| values[**cell] == UNKNOWN && !sums.is_bad(**cell);
        let unknown = cells.iter().filter(is_unknown);
        self.unknown += unknown.count() as u64;
    }

    /// As [`Checksums::zero_granules`].
    pub(crate) fn zero_granules(&self, slot: Slot, class: u8, among: u64) -> u64 {
        self.sums.zero_granules(slot, class, among)
    }

    /// A block may have been overwritten since its record. That record must be logged once more
    /// before the mark that says so goes. Bad cells stay bad.
    pub(crate) fn doubt(&mut self, slot: Slot, class: u8, valid: u64) {
        if planted(Fault::TrustOpen) {
            return;
        }
        let sums = &self.sums;
        for cell in sums.cells_of(slot, class, valid) {
            let known = sums.values.borrow()[cell] != UNKNOWN;
            if known && !sums.is_bad(cell) {
                sums.set(cell, UNKNOWN);
                self.unknown += 1;
            }
        }
    }

    /// All blocks were restored.
    pub(crate) fn finish(self) -> Checksums {
        let Self { sums, found, .. } = self;
        let each = sums.table.unit_cells();
        {
            let (values, mut changed) = (sums.values.borrow(), sums.changed.borrow_mut());
            let units = values.chunks(each).zip(found.chunks(each)).enumerate();
            changed.fill(0);
            for (unit, (_, _)) in units.filter(|(_, (here, there))| here != there) {
                changed[unit / 64] |= 1 << (unit % 64);
            }
        }
        sums
    }
}
