//! Completes the remains of the last batch after a crash and makes them durable.

use forebay_block::{BlockDevice, BlockDeviceExt, Buf, Result};

use super::found::Replayed;
use super::ring::Ring;
use crate::Seed;
use crate::log::LogGeometry;
use crate::order;
use crate::record::{Body, Position, RECORD_BYTES, decode, encode};

/// Rewrites the last batch, with padding in place of parts that a crash left torn or empty. The
/// caller flushes the device, and knows what a failure of that may have lost. Without the padding,
/// the next crash would find the gaps behind a newer batch and take them for damage.
///
/// Records that arrived are rewritten unchanged. The flush that should have made them durable may
/// have failed, and retrying a failed flush covers nothing. All older batches were durable before
/// this one began.
///
/// The padded positions lie before the tail that the batch declares, so no live record is
/// overwritten. None of the batch's records has been acknowledged yet.
///
/// The positions of lost records are zeroed.
///
/// In a log of lines, the remains of torn records after the newest whole one are zeroed, too.
/// Pieces of a record with the same number might complete such a record later.
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
    let mut completed = Vec::new();
    let units = (replayed.last_batch..replayed.next)
        .step_by(usize::try_from(unit).expect("small"))
        .filter(|first| volatile || replayed.torn_units.contains(first));
    for first in units {
        let offset = geometry.offset + first % geometry.records * RECORD_BYTES as u64;
        let buf = Buf::scratch(geometry.unit_bytes as usize);
        let read = device.read(offset, buf.clone()).await;
        let readable = read.is_ok();
        // Records that were found there must not be overwritten just because they cannot be read
        // now.
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
        completed.push((offset, buf));
    }
    if geometry.unit_records() == 1 {
        let torn = torn_lines(device, geometry, seed, replayed).await;
        completed.extend(
            torn.into_iter()
                .map(|offset| (offset, Buf::zeroed(RECORD_BYTES))),
        );
    }
    let ring = Ring {
        device,
        geometry,
        seed,
    };
    let emptied = ring.backwards(replayed.lost.clone()).map(|positions| {
        let bytes = (positions.end - positions.start) * RECORD_BYTES as u64;
        let offset = geometry.offset + positions.start * RECORD_BYTES as u64;
        (
            offset,
            Buf::zeroed(usize::try_from(bytes).expect("a chunk")),
        )
    });
    order::write_all(device, completed.into_iter().chain(emptied)).await
}

/// Returns the positions after the newest record whose lines hold no whole record. A lost batch may
/// have reached them. They lie before the tail, so nothing there counts.
async fn torn_lines(
    device: &dyn BlockDevice,
    geometry: LogGeometry,
    seed: Seed,
    replayed: &Replayed,
) -> Vec<u64> {
    let room = replayed.tail + geometry.records - replayed.next;
    let reach = replayed.next..replayed.next + geometry.batch_records_max().min(room);
    let mut torn = Vec::new();
    let buf = Buf::scratch(RECORD_BYTES);
    let mut record = [0; RECORD_BYTES];
    for lsn in reach {
        let offset = geometry.offset + lsn % geometry.records * RECORD_BYTES as u64;
        let read = device.read(offset, buf.clone()).await;
        buf.copy_to(0, &mut record);
        let never_written = record == [0; RECORD_BYTES];
        if read.is_err() || (!never_written && decode(&record, seed).is_none()) {
            torn.push(offset);
        }
    }
    torn
}
