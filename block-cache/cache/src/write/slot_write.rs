//! Writes into the cache.

use std::rc::Rc;

use forebay_block::{BlockDeviceExt, Buf, Result};
use forebay_metadata::order::{Part, Site};
use forebay_metadata::record::MarkState;
use forebay_policy::BlockId;
use forebay_policy::cleaning::{Cleaning, IoDevice};

use crate::engine::Engine;
use crate::failpoints::{Fault, planted};
use crate::geometry::Piece;
use crate::job::Job;
use crate::map::{PENDING, REWRITTEN};
use crate::volume::AttachedVolume;

/// Whether the replacement policy must still count this access to a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// The access is not counted yet.
    New,
    /// The access is counted.
    Noted,
}

/// Writes a piece into its slot, dirty. The caller holds an exclusive lock on the touched granules.
///
/// The order depends on the granule (rule 3). If the slot is empty there, the data is written first
/// and the record follows. If it is dirty already, the data is written in place. If it is clean,
/// the region's mark is durable before the first byte.
pub(super) async fn write(
    engine: &Rc<Engine>,
    volume: &Rc<AttachedVolume>,
    id: BlockId,
    job: &Job<Piece>,
    using: Use,
) -> Result<()> {
    if using == Use::New {
        let touched = engine.geometry.touched(&job.part);
        (engine.map.borrow_mut()).used(id, job.part.block.class, touched);
    }
    let fresh = write_data(engine, volume, id, job).await?;
    if job.durable {
        return engine.committer.commit().await;
    }
    // The device failed meanwhile, so it is unknown whether the data is there.
    engine.committer.check_alive()?;
    if fresh && !Site::here().lacks(Part::Step) {
        return record_acknowledged(engine, id).await;
    }
    Ok(())
}

/// Puts an acknowledged write into the process journal, while the block still waits for its record
/// in the log. An entry after that record would hold less than the record, and replay would prefer
/// the entry.
async fn record_acknowledged(engine: &Engine, id: BlockId) -> Result<()> {
    debug_assert!(engine.map.borrow().state(id).has(PENDING));
    if !engine.committer.journal_dirty(id) {
        // Without a journal, or with a full one, the log is the only place that outlives the
        // process.
        return engine.committer.commit().await;
    }
    Ok(())
}

/// Writes the data and notes it in the map. Returns whether a record must follow: granules are new,
/// or no durable record knows of them.
async fn write_data(
    engine: &Rc<Engine>,
    volume: &Rc<AttachedVolume>,
    id: BlockId,
    job: &Job<Piece>,
) -> Result<bool> {
    let geometry = engine.geometry;
    let touched = geometry.touched(&job.part);
    let before = engine.map.borrow().state(id);
    // From here on the cleaner does not call the block clean, so dirty data stays dirty.
    engine.map.borrow_mut().add_flags(id, REWRITTEN);

    let limit = volume.limit(geometry, job.part.block);
    let ragged = touched & !geometry.covered(&job.part, limit) & !before.valid;
    let (start, buf) = if ragged == 0 {
        (job.part.start, job.buf.clone())
    } else {
        let whole = complete(engine, volume, &job.part, &job.buf, ragged, limit).await?;
        (whole.0.start, whole.1)
    };

    // The next process may read the backing device directly where no zone bit is set. So the bit
    // must be durable before the first byte.
    let _zone = match touched & !before.dirty {
        0 => None,
        _ => Some(engine.zones.enter(before.key).await?),
    };
    let clean = touched & before.valid & !before.dirty;
    let mark = if clean != 0 {
        engine
            .regions
            .enter_region(before.key, MarkState::MaybeDirty)
            .await?
    } else if touched & before.valid != 0 {
        engine.regions.open_for_overwriting(before.key).await?
    } else {
        None
    };
    if mark.is_some() {
        engine.tracker.announce(id).await?;
    }
    // A failure from here on may leave a mixture of old and new data in the slot.
    engine.committer.check_alive()?;
    let writing = engine.slots.write(volume, id, start, buf);
    let written = volume.timed(IoDevice::Cache, writing).await;
    if let Err(failed) = &written
        && !failed.has_begun
        && !planted(Fault::DirtyUnwritten)
    {
        // The slot is unchanged. Its clean granules stay clean, since one of them may be corrupt.
        // The mark of the region is removed when the region is idle.
        engine.tracker.note_unwritten(id);
        return Ok(written.map(|()| false)?);
    }
    if written.is_err() && clean != 0 && !engine.committer.record_is_durable(id) {
        // The medium may hold any mixture of old and new data, and no durable record covers these
        // granules. So they are dropped.
        engine.slots.drop_clean(id, clean);
        // The drop must be durable now: a retry would not find the granules, nor drop them.
        if let Err(error) = engine.committer.commit().await {
            engine.committer.leave_in_doubt(id, clean);
            return Err(error);
        }
    } else {
        // After an error the clean granules turn dirty, too: the medium may hold a mixture. The
        // durable mark makes the next process take them for dirty. Granules that were dropped as
        // corrupt stay dropped. Granules that a failed flush dropped turn dirty: no read may return
        // older data than the next process finds.
        let turned = match written.is_ok() {
            true => touched,
            false if engine.committer.is_in_doubt(id) => clean,
            false => clean & engine.map.borrow().state(id).valid,
        };
        let mut map = engine.map.borrow_mut();
        let now = map.state(id);
        map.set(id, now.valid | turned, now.dirty | turned);
        drop(map);
        if mark.is_some() {
            engine.committer.note_unrecorded(id);
        }
    }
    written?;
    // The mark speaks for clean granules only if a durable record calls them valid.
    let fresh =
        touched & !before.valid != 0 || (clean != 0 && !engine.committer.record_is_durable(id));
    if fresh {
        engine.marks.says_more(id);
        engine.committer.queue_record(id);
    }
    if engine.cleaner.above_dirty_limit() || engine.cleaner.policy() == Cleaning::Acp {
        engine.signals.kick_cleaners();
    }
    Ok(fresh)
}

/// Fills a write up to whole granules where the slot holds nothing yet: the rest of those granules
/// comes from the backing device.
async fn complete(
    engine: &Engine,
    volume: &AttachedVolume,
    piece: &Piece,
    data: &Buf,
    ragged: u64,
    limit: u32,
) -> Result<(Piece, Buf)> {
    let geometry = engine.geometry;
    let mut whole = *piece;
    for run in geometry.runs(piece.block.class, ragged, 0..limit) {
        whole.start = whole.start.min(run.start);
        whole.end = whole.end.max(run.end);
    }
    let buf = Buf::scratch(whole.len());
    for run in geometry.runs(piece.block.class, ragged, 0..limit) {
        let part = buf.slice((run.start - whole.start) as usize..(run.end - whole.start) as usize);
        let offset = geometry.backing_offset(piece.block, run.start);
        volume.backing.device().read(offset, part).await?;
    }
    let at = (piece.start - whole.start) as usize;
    buf.slice(at..at + data.len()).copy_from_buf(data);
    Ok((whole, buf))
}
