//! Checksums of cached data: the function, and the table on media.
//!
//! A *cell* is 4 KiB of cached data, numbered from the first. Each has a 32-bit checksum in a flat
//! table on the device that holds the log. The table has no checksums of its own and is written in
//! place. The record of a block has a [`digest`] of the block's checksums. Entries of the table
//! that do not match the digest of their block's record are not used.
//! docs/internals/format/checksums.md says for which faults that is enough.

mod hash;

pub use hash::DataHash;

use forebay_block::{BlockDevice, BlockDeviceExt, Buf, ErrorKind, Result};

use crate::Seed;
use crate::codec::{get_u32, put_u32};
use crate::order;

/// Number of bytes that one checksum covers.
pub const CELL_BYTES: usize = 4096;
/// No checksum is known, and the content of the cell is trusted.
pub const UNKNOWN: u32 = 0;
/// The cell is known to hold something else than what was written there.
pub const BAD: u32 = 1;

const CHECKSUM_BYTES: usize = size_of::<u32>();
/// Bytes read at a time.
const CHUNK_BYTES: u64 = 1 << 20;

/// Where the table lies on the device that holds the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChecksumTable {
    /// Its first byte.
    pub offset: u64,
    /// Commit unit, bytes.
    pub unit_bytes: u32,
    /// Cells of the data.
    pub cells: u64,
}

impl ChecksumTable {
    /// Bytes that it takes: whole units.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        (self.cells * CHECKSUM_BYTES as u64).next_multiple_of(self.unit_bytes as u64)
    }

    /// Checksums in a unit.
    #[must_use]
    pub const fn unit_cells(&self) -> usize {
        self.unit_bytes as usize / CHECKSUM_BYTES
    }

    /// Units of the table.
    #[must_use]
    pub const fn units(&self) -> u64 {
        self.bytes() / self.unit_bytes as u64
    }

    /// Units `first` up to as many as `sums` fill, as they go to media, and where they go.
    ///
    /// # Panics
    /// If `sums` begin or end within a unit and not at the table's end.
    #[must_use]
    pub fn encode(&self, first: u64, sums: &[u32]) -> (u64, Buf) {
        let unit = self.unit_bytes as usize;
        let mut out = vec![0; (sums.len() * CHECKSUM_BYTES).next_multiple_of(unit)];
        let end = first as usize * self.unit_cells() + sums.len();
        assert!(sums.len().is_multiple_of(self.unit_cells()) || end as u64 == self.cells);
        for (at, sum) in sums.iter().enumerate() {
            put_u32(&mut out, at * CHECKSUM_BYTES, *sum);
        }
        let offset = self.offset + first * u64::from(self.unit_bytes);
        (offset, Buf::copied(&out))
    }
}

/// Returns the digest that ties a block's checksums to its record. The checksums are those of its
/// valid granules, in order.
///
/// The slot comes last. A record has the slot, 8 bytes, and the digest, under a checksum of the
/// same polynomial. If the slot came first, two checksums would be arranged like those 8 bytes. The
/// record's checksum could then not distinguish this slot and digest from another slot and its
/// digest. A torn line would count as a record.
#[must_use]
pub fn digest(seed: Seed, slot: u32, sums: impl Iterator<Item = u32>) -> u32 {
    let mut bytes = Vec::with_capacity(64);
    sums.for_each(|sum| bytes.extend(sum.to_le_bytes()));
    bytes.extend(slot.to_le_bytes());
    seed.checksum(&bytes)
}

/// Returns whether these checksums have the digest that a record has. Earlier versions put the
/// slot first.
#[must_use]
pub fn fits(seed: Seed, slot: u32, sums: impl Iterator<Item = u32> + Clone, wanted: u32) -> bool {
    digest(seed, slot, sums.clone()) == wanted || earlier_digest(seed, slot, sums) == wanted
}

fn earlier_digest(seed: Seed, slot: u32, sums: impl Iterator<Item = u32>) -> u32 {
    let mut bytes = Vec::with_capacity(64);
    bytes.extend(slot.to_le_bytes());
    sums.for_each(|sum| bytes.extend(sum.to_le_bytes()));
    seed.checksum(&bytes)
}

/// Makes a table that knows nothing, and flushes it.
///
/// # Errors
/// The device's own.
pub async fn format(device: &dyn BlockDevice, table: ChecksumTable) -> Result<()> {
    let mut at = 0;
    while at < table.bytes() {
        let len = CHUNK_BYTES.min(table.bytes() - at);
        let zeroes = Buf::zeroed(usize::try_from(len).expect("a chunk"));
        order::write(device, table.offset + at, zeroes).await?;
        at += len;
    }
    order::flush(device).await
}

/// Reads the table, and says how many of its units could not be read; of these nothing is known.
///
/// # Errors
/// Only if the device is shutting down.
pub async fn read(device: &dyn BlockDevice, table: ChecksumTable) -> Result<(Vec<u32>, u64)> {
    let cells = usize::try_from(table.cells).expect("a table fits memory");
    let mut sums = Vec::with_capacity(cells);
    let mut unreadable = 0;
    let mut at = 0;
    let mut take = |buf: Option<&Buf>, len: usize| {
        let bytes = buf.map_or_else(|| vec![0; len], Buf::to_vec);
        let count = (cells - sums.len()).min(len / CHECKSUM_BYTES);
        sums.extend((0..count).map(|nth| get_u32(&bytes, nth * CHECKSUM_BYTES)));
    };
    while at < table.bytes() {
        let len = usize::try_from(CHUNK_BYTES.min(table.bytes() - at)).expect("a chunk");
        let buf = Buf::scratch(len);
        match device.read(table.offset + at, buf.clone()).await {
            Ok(()) => take(Some(&buf), len),
            Err(error) if error.kind() == ErrorKind::ShuttingDown => return Err(error),
            Err(_) => {
                let unit = table.unit_bytes as usize;
                for part_at in (0..len).step_by(unit) {
                    let part = buf.slice(part_at..part_at + unit);
                    let offset = table.offset + at + part_at as u64;
                    let read = device.read(offset, part.clone()).await;
                    unreadable += u64::from(read.is_err());
                    take(read.is_ok().then_some(&part), unit);
                }
            }
        }
        at += len as u64;
    }
    Ok((sums, unreadable))
}
