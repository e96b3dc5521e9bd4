//! Reads: from the cache, from the backing device, or from both; with or without promotion.

use std::ops::Range;
use std::rc::Rc;

use forebay_block::{BlockDeviceExt, Buf, Result};
use forebay_policy::BlockId;

use crate::engine::{Attached, Engine, Job};
use crate::geometry::Piece;

/// What of the cache a read may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// Whatever is valid.
    AllValid,
    /// What is dirty: the backing device has the rest.
    DirtyOnly,
}

/// Serves a read from the cache; what it misses is promoted, if the policy admits it.
pub(super) async fn promoting(engine: &Rc<Engine>, volume: &Rc<Attached>, job: Job) -> Result<()> {
    let key = volume.key(job.piece.block);
    let needed = engine.geometry.touched(&job.piece);
    {
        let _lock = engine.locks.shared(key).await;
        if let Some(slot) = hit(engine, volume, key, needed) {
            return from_cache(engine, volume, slot, &job).await;
        }
    }
    // Promotion changes the block, and a read of the backing device must not race with a write to it.
    let _lock = engine.locks.exclusive(key).await;
    if let Some(slot) = hit(engine, volume, key, needed) {
        return from_cache(engine, volume, slot, &job).await;
    }
    volume.counters.read_misses.add(1);
    let found = engine.map.borrow().find(key);
    let slot = match found {
        Some(slot) => Some(slot),
        None if job.sequential || engine.commit.failure().is_some() || !volume.promotes(key) => {
            None
        }
        None => engine.allocate(key).await,
    };
    let Some(slot) = slot else {
        volume.counters.bypassed_reads.add(1);
        return from_backing(engine, volume, &job, job.piece.start..job.piece.end).await;
    };
    let result = fill(engine, volume, slot, &job).await;
    let empty = {
        let map = engine.map.borrow();
        let entry = map.slot(slot);
        entry.valid == 0 && !entry.has(crate::map::TRACED)
    };
    if empty {
        engine.forget_slot(slot);
    }
    result
}

/// Serves a read from wherever the data is, and leaves the cache as it is.
pub(super) async fn without_promotion(
    engine: &Rc<Engine>,
    volume: &Rc<Attached>,
    job: Job,
    usable: Use,
) -> Result<()> {
    let key = volume.key(job.piece.block);
    let _lock = engine.locks.shared(key).await;
    let needed = engine.geometry.touched(&job.piece);
    let found = engine.map.borrow().find(key);
    let (slot, mask) = match found {
        None => (0, 0),
        Some(slot) => {
            let map = engine.map.borrow();
            let entry = map.slot(slot);
            match usable {
                Use::AllValid => (slot, entry.valid),
                Use::DirtyOnly => (slot, entry.dirty),
            }
        }
    };
    if needed & !mask == 0 {
        volume.counters.read_hits.add(1);
        engine.map.borrow_mut().touch(slot);
        return from_cache(engine, volume, slot, &job).await;
    }
    volume.counters.read_misses.add(1);
    volume.counters.bypassed_reads.add(1);
    mixed(engine, volume, slot, mask & needed, &job).await
}

fn hit(
    engine: &Engine,
    volume: &Attached,
    key: forebay_policy::BlockKey,
    needed: u64,
) -> Option<BlockId> {
    let mut map = engine.map.borrow_mut();
    let slot = map.find(key)?;
    if needed & !map.slot(slot).valid != 0 {
        return None;
    }
    map.touch(slot);
    volume.counters.read_hits.add(1);
    Some(slot)
}

/// Reads a piece whose granules are all valid.
async fn from_cache(
    engine: &Rc<Engine>,
    volume: &Rc<Attached>,
    slot: BlockId,
    job: &Job,
) -> Result<()> {
    from_slot(engine, volume, slot, job, job.piece.start..job.piece.end).await
}

/// Reads a run of valid granules, bytes within the block. Clean ones can be had from the backing
/// device if the cache device fails; dirty ones are nowhere else, and the error is the client's.
async fn from_slot(
    engine: &Rc<Engine>,
    volume: &Rc<Attached>,
    slot: BlockId,
    job: &Job,
    run: Range<u32>,
) -> Result<()> {
    let part = job.buf.slice(relative(job, &run));
    let Err(error) = engine.read_slot(slot, run.start, part).await else {
        return Ok(());
    };
    engine.stats.cache_read_errors.add(1);
    let dirty = engine.map.borrow().slot(slot).dirty;
    let piece = Piece {
        block: job.piece.block,
        start: run.start,
        end: run.end,
    };
    if engine.geometry.touched(&piece) & dirty != 0 {
        let at = engine.geometry.backing_offset(piece.block, run.start);
        return Err(error.context(format!(
            "volume {}: {} bytes at {at} are dirty in the cache and cannot be read",
            volume.name,
            piece.len(),
        )));
    }
    from_backing(engine, volume, job, run).await
}

/// Reads a run, bytes within the block, from the backing device.
async fn from_backing(
    engine: &Engine,
    volume: &Attached,
    job: &Job,
    run: Range<u32>,
) -> Result<()> {
    let offset = engine.geometry.backing_offset(job.piece.block, run.start);
    let buf = job.buf.slice(relative(job, &run));
    volume.backing.device.read(offset, buf).await
}

/// Reads the granules in `mask` from the slot and the others from the backing device.
async fn mixed(
    engine: &Rc<Engine>,
    volume: &Rc<Attached>,
    slot: BlockId,
    mask: u64,
    job: &Job,
) -> Result<()> {
    let within = job.piece.start..job.piece.end;
    let geometry = engine.geometry;
    for run in geometry.runs(mask, within.clone()) {
        from_slot(engine, volume, slot, job, run).await?;
    }
    for run in geometry.runs(!mask, within) {
        from_backing(engine, volume, job, run).await?;
    }
    Ok(())
}

fn relative(job: &Job, run: &Range<u32>) -> Range<usize> {
    (run.start - job.piece.start) as usize..(run.end - job.piece.start) as usize
}

/// Reads a piece that is not wholly in its slot, and takes in the granules that it misses: those of the
/// request, no more. The answer does not depend on whether the cache device takes them.
async fn fill(engine: &Rc<Engine>, volume: &Rc<Attached>, slot: BlockId, job: &Job) -> Result<()> {
    let geometry = engine.geometry;
    let valid = engine.map.borrow().slot(slot).valid;
    let touched = geometry.touched(&job.piece);
    for run in geometry.runs(valid & touched, job.piece.start..job.piece.end) {
        from_slot(engine, volume, slot, job, run).await?;
    }
    let limit = volume.limit(geometry, job.piece.block);
    let mut filled = 0;
    let mut promoted = true;
    for run in geometry.runs(touched & !valid, 0..limit) {
        let inside = run.start >= job.piece.start && run.end <= job.piece.end;
        let buf = if inside {
            job.buf.slice(relative(job, &run))
        } else {
            Buf::scratch((run.end - run.start) as usize)
        };
        let offset = geometry.backing_offset(job.piece.block, run.start);
        volume.backing.device.read(offset, buf.clone()).await?;
        if !inside {
            let start = run.start.max(job.piece.start);
            let end = run.end.min(job.piece.end);
            let source = buf.slice((start - run.start) as usize..(end - run.start) as usize);
            job.buf
                .slice(relative(job, &(start..end)))
                .copy_from_buf(&source);
        }
        if promoted && engine.write_slot(slot, run.start, buf).await.is_ok() {
            filled |= geometry.touched(&Piece {
                block: job.piece.block,
                start: run.start,
                end: run.end,
            });
        } else {
            promoted = false;
        }
    }
    if filled != 0 {
        let mut map = engine.map.borrow_mut();
        let entry = map.slot(slot);
        map.set(slot, entry.valid | filled, entry.dirty);
        map.touch(slot);
        drop(map);
        engine.stats.promotions.add(1);
        engine.queue_later(slot);
    }
    Ok(())
}
