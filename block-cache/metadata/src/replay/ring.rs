//! Reading the ring: pieces of it one after the other, some ahead of the one that is looked at.

use std::collections::VecDeque;
use std::ops::Range;

use forebay_block::{BlockDevice, BlockDeviceExt, Buf, ErrorKind, Result};

use crate::Seed;
use crate::log::LogGeometry;
use crate::record::RECORD_BYTES;

/// Records read at a time: 2 MiB of them.
pub(super) const CHUNK: u64 = (2 << 20) / RECORD_BYTES as u64;
/// Chunks that are being read while one is looked at.
const READ_AHEAD: usize = 4;

/// In which order units come where a range cannot be read at once.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    Forwards,
    Backwards,
}

/// A ring on a device.
#[derive(Clone, Copy)]
pub(super) struct Ring<'a> {
    pub(super) device: &'a dyn BlockDevice,
    pub(super) geometry: LogGeometry,
    pub(super) seed: Seed,
}

/// A piece that was read: the position of its first record, and its bytes, or `None` if a unit
/// cannot be read.
pub(super) type Piece<'a> = (u64, Option<&'a Buf>);

impl Ring<'_> {
    /// The position of a record in the ring.
    pub(super) const fn position(&self, lsn: u64) -> u64 {
        lsn % self.geometry.records
    }

    /// Reads these ranges of positions, all of whole units and none longer than [`CHUNK`], in their
    /// order. A range that cannot be read is looked at unit by unit. `look` says whether to
    /// continue.
    ///
    /// # Errors
    /// Only if the device does not answer at all.
    pub(super) async fn read(
        &self,
        mut ranges: impl Iterator<Item = Range<u64>>,
        order: Order,
        mut look: impl FnMut(Piece<'_>) -> bool,
    ) -> Result<()> {
        let offset = |position: u64| self.geometry.offset + position * RECORD_BYTES as u64;
        let unit = self.geometry.unit_records();
        let mut ahead = VecDeque::with_capacity(READ_AHEAD);
        loop {
            while ahead.len() < READ_AHEAD
                && let Some(range) = ranges.next()
            {
                let bytes = (range.end - range.start) * RECORD_BYTES as u64;
                let buf = Buf::scratch(usize::try_from(bytes).expect("a chunk"));
                let read = self.device.read(offset(range.start), buf.clone());
                ahead.push_back((range, buf, read));
            }
            let Some((range, buf, read)) = ahead.pop_front() else {
                return Ok(());
            };
            match read.await {
                Ok(()) => {
                    if !look((range.start, Some(&buf))) {
                        return Ok(());
                    }
                }
                Err(error) if error.kind() == ErrorKind::ShuttingDown => return Err(error),
                // Find out which units cannot be read; the others count.
                Err(_) => {
                    let units = (range.end - range.start) / unit;
                    for nth in 0..units {
                        let at = match order {
                            Order::Forwards => range.start + nth * unit,
                            Order::Backwards => range.end - (nth + 1) * unit,
                        };
                        let part = Buf::scratch(self.geometry.unit_bytes as usize);
                        let read = self.device.read(offset(at), part.clone()).await;
                        if !look((at, read.is_ok().then_some(&part))) {
                            return Ok(());
                        }
                    }
                }
            }
        }
    }

    /// All positions.
    pub(super) fn whole(&self) -> impl Iterator<Item = Range<u64>> + use<> {
        let records = self.geometry.records;
        (0..records.div_ceil(CHUNK)).map(move |nth| nth * CHUNK..records.min((nth + 1) * CHUNK))
    }

    /// The positions of these records, whole units of them, from the last to the first.
    pub(super) fn backwards(&self, lsns: Range<u64>) -> impl Iterator<Item = Range<u64>> + use<> {
        let (records, from, mut to) = (self.geometry.records, lsns.start, lsns.end);
        std::iter::from_fn(move || {
            if to <= from {
                return None;
            }
            // Not over the end of the ring.
            let len = (to - from).min(CHUNK).min((to - 1) % records + 1);
            to -= len;
            let first = to % records;
            Some(first..first + len)
        })
    }
}
