//! Search for the end of the log, its newest record, without reading the whole ring.
//!
//! All batches but the last were durable before the next was built. So backwards from its newest
//! record the ring holds an unbroken lap, except for damage and for missing parts of the last
//! batch. A sample of units shows between which of them the end lies, and reading on from there
//! finds it. Past the end there is nothing newer for longer than a batch can be.

use forebay_block::{Buf, Result};

use super::Opening;
use super::ring::{CHUNK, Order, Ring};
use crate::record::{Body, Position, RECORD_BYTES, decode};

/// Units that are looked at here and there at most.
const PROBES: u64 = 256;

/// Findings of a search.
#[derive(Debug, Default)]
pub(super) struct Search {
    /// The newest record.
    pub(super) newest: Option<Position>,
    /// Newest record of an opening, and its position.
    pub(super) last_open: Option<(u64, Opening)>,
    /// Units that could not be read.
    pub(super) unreadable_units: u64,
}

impl Search {
    fn look(&mut self, ring: &Ring<'_>, (first, buf): (u64, Option<&Buf>)) {
        let Some(buf) = buf else {
            self.unreadable_units += 1;
            return;
        };
        let mut record = [0; RECORD_BYTES];
        for index in 0..buf.len() / RECORD_BYTES {
            buf.copy_to(index * RECORD_BYTES, &mut record);
            let Some((position, body)) = decode_there(ring, first + index as u64, &record) else {
                continue;
            };
            if self.newest.is_none_or(|newest| newest.lsn < position.lsn) {
                self.newest = Some(position);
            }
            if let Body::Open { boot_id, journal } = body
                && self.last_open.is_none_or(|(lsn, ..)| lsn < position.lsn)
            {
                let opening = Opening {
                    boot_id,
                    had_journal: journal,
                };
                self.last_open = Some((position.lsn, opening));
            }
        }
    }

    /// The number behind the newest record.
    fn end(&self) -> u64 {
        self.newest.map_or(0, |newest| newest.lsn + 1)
    }
}

/// The record at a position of the ring, if it is one of this position.
fn decode_there(ring: &Ring<'_>, at: u64, record: &[u8; RECORD_BYTES]) -> Option<(Position, Body)> {
    // Never written.
    if record[4] == 0 {
        return None;
    }
    let (position, body) = decode(record, ring.seed)?;
    (ring.position(position.lsn) == at).then_some((position, body))
}

/// Reads the whole ring.
pub(super) async fn read_all(ring: &Ring<'_>) -> Result<Search> {
    let mut search = Search::default();
    ring.read(ring.whole(), Order::Forwards, |piece| {
        search.look(ring, piece);
        true
    })
    .await?;
    Ok(search)
}

/// Finds the newest record with few reads. Returns `None` if the whole ring must be read: it is
/// short, a unit cannot be read, or nothing was found.
pub(super) async fn search(ring: &Ring<'_>) -> Result<Option<Position>> {
    let (records, unit) = (ring.geometry.records, ring.geometry.unit_records());
    // Twice what a batch may have, so that its half is nothing but damage.
    let window = 2 * ring.geometry.batch_records_max();
    let probes = (records / (2 * window)).min(PROBES);
    if probes < 4 {
        return Ok(None);
    }
    let apart = records / probes / unit * unit;
    let mut search = Search::default();
    let units = (0..probes).map(|nth| nth * apart..nth * apart + unit);
    ring.read(units, Order::Forwards, |piece| {
        search.look(ring, piece);
        search.unreadable_units == 0
    })
    .await?;
    if search.newest.is_none() {
        return Ok(None);
    }
    // From the unit of the newest one that was seen on. A unit may be read that is not needed.
    let from = search.end().next_multiple_of(unit);
    let chunk = CHUNK.min(window) / unit * unit;
    let mut at = from;
    let ahead = std::iter::from_fn(|| {
        let first = at;
        let len = chunk
            .min(records - first % records)
            .min(from + records - first);
        at += len;
        (len > 0).then(|| ring.position(first)..ring.position(first) + len)
    });
    let mut looked_to = from;
    ring.read(ahead, Order::Forwards, |(at, buf)| {
        search.look(ring, (at, buf));
        looked_to += buf.map_or(0, |buf| (buf.len() / RECORD_BYTES) as u64);
        search.unreadable_units == 0 && looked_to < search.end() + window
    })
    .await?;
    Ok(search.newest.filter(|_| search.unreadable_units == 0))
}
