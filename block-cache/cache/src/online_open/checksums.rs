//! Checksums of what is read from slots before the map, and with it the table, is there: a few
//! entries at a time.

use std::rc::Rc;

use forebay_block::{BlockDevice, BlockDeviceExt, Buf};
use forebay_metadata::Seed;
use forebay_metadata::checksums::{CELL_BYTES, ChecksumTable, DataHash, UNKNOWN, fits};
use forebay_metadata::record::BlockRecord;
use forebay_metadata::superblock::Superblock;

use crate::checksum::checksum_of;
use crate::failpoints::{Fault, planted};
use crate::geometry::Geometry;

/// The table on media.
pub(super) struct Table {
    metadata: Rc<dyn BlockDevice>,
    table: ChecksumTable,
    seed: Seed,
    hash: DataHash,
    geometry: Geometry,
}

impl Table {
    /// None where the cache has none.
    pub(super) fn of(metadata: &Rc<dyn BlockDevice>, superblock: &Superblock) -> Option<Self> {
        Some(Self {
            metadata: Rc::clone(metadata),
            table: superblock.checksum_table()?,
            seed: superblock.seed(),
            hash: DataHash::new(&superblock.lineage),
            geometry: Geometry::of(superblock),
        })
    }

    /// The checksums of a block's cells, in order, as far as they fit its record. None if they
    /// cannot be read.
    pub(super) async fn read(&self, record: &BlockRecord) -> Option<Vec<u32>> {
        const CHECKSUM_BYTES: u64 = size_of::<u32>() as u64;
        let cells = |bytes: u64| bytes / CELL_BYTES as u64;
        let first = u64::from(record.slot) * cells(self.geometry.unit_bytes());
        let count = cells(self.geometry.block_bytes(record.class));
        let unit = u64::from(self.table.unit_bytes);
        let from = first * CHECKSUM_BYTES / unit * unit;
        let to = ((first + count) * CHECKSUM_BYTES).next_multiple_of(unit);
        let buf = Buf::scratch((to - from) as usize);
        let read = self.metadata.read(self.table.offset + from, buf.clone());
        read.await.ok()?;
        let begin = (first * CHECKSUM_BYTES - from) as usize;
        let mut sums: Vec<u32> = (0..count as usize)
            .map(|cell| {
                let mut bytes = [0; CHECKSUM_BYTES as usize];
                buf.copy_to(begin + cell * bytes.len(), &mut bytes);
                u32::from_le_bytes(bytes)
            })
            .collect();
        let each = cells(self.geometry.granule_bytes(record.class)) as usize;
        let valid = (sums.iter().enumerate())
            .filter(|(cell, _)| record.valid >> (cell / each) & 1 == 1)
            .map(|(_, sum)| *sum);
        if !fits(self.seed, record.slot, valid, record.sums) {
            sums.fill(UNKNOWN);
        }
        Some(sums)
    }

    /// Whether whole cells hold what these checksums say, one each.
    pub(super) fn agrees(&self, cells: &Buf, sums: &[u32]) -> bool {
        sums.iter().enumerate().all(|(nth, sum)| {
            let cell = cells.slice(nth * CELL_BYTES..(nth + 1) * CELL_BYTES);
            *sum == UNKNOWN || *sum == checksum_of(&self.hash, &cell) || planted(Fault::SkipVerify)
        })
    }
}
