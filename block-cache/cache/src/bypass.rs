//! Writes to the backing device, with or without a copy in the cache (rule 5).
//!
//! If the index holds nothing of the block under the block's lock, the log has no live record of it
//! either. Then the write is simply sent. If the cache holds something of the block, the region's
//! `Intent` mark becomes durable first. After a crash, clean copies in a marked region are not
//! trusted.
//!
//! Dirty granules are newer than the backing device and win over it after a crash. A write that
//! touches them also goes to the cache, in place, and they stay dirty.

use std::rc::Rc;

use forebay_block::Result;
use forebay_metadata::record::MarkState;
use forebay_policy::BlockId;
use forebay_policy::cleaning::IoDevice;

use crate::engine::Engine;
use crate::geometry::{Extent, Piece};
use crate::job::Job;
use crate::map::{BlockState, REWRITTEN};
use crate::mode::CopyRule;
use crate::volume::AttachedVolume;

/// Writes a part to the backing device. No block is added to the cache. The part is locked
/// exclusively.
pub(crate) async fn write(
    engine: &Rc<Engine>,
    volume: &Rc<AttachedVolume>,
    job: Job<Extent>,
    copy: CopyRule,
) -> Result<()> {
    let present = move |engine, volume: Rc<AttachedVolume>, id, job| async move {
        volume.counters.write_hits.add(1);
        write_present(&engine, &volume, id, &job, copy).await
    };
    engine.each_block(volume, job, present, write_missed).await
}

/// Writes data outside of cached blocks, which stays out of the cache.
pub(crate) async fn write_missed(
    engine: Rc<Engine>,
    volume: Rc<AttachedVolume>,
    job: Job<Extent>,
) -> Result<()> {
    volume.counters.write_misses.add(1);
    volume.counters.bypassed_writes.add(1);
    let offset = engine.geometry.region_offset(&job.part);
    let writing = volume.backing.write(offset, job.buf, job.durable);
    volume.timed(IoDevice::Backing, writing).await
}

/// Writes a piece of a block that is not in the cache and stays out of it.
pub(crate) async fn write_absent(
    engine: &Rc<Engine>,
    volume: &Rc<AttachedVolume>,
    job: &Job<Piece>,
) -> Result<()> {
    volume.counters.bypassed_writes.add(1);
    to_backing(engine, volume, job).await
}

async fn to_backing(engine: &Engine, volume: &AttachedVolume, job: &Job<Piece>) -> Result<()> {
    let offset = engine
        .geometry
        .backing_offset(job.part.block, job.part.start);
    let writing = volume.backing.write(offset, job.buf.clone(), job.durable);
    volume.timed(IoDevice::Backing, writing).await
}

/// Writes a piece of a block that was just given a slot. No record of it exists, so that no mark is
/// needed: its first record waits for a flush of the backing device.
pub(crate) async fn write_and_insert(
    engine: &Rc<Engine>,
    volume: &Rc<AttachedVolume>,
    id: BlockId,
    job: &Job<Piece>,
) -> Result<()> {
    let result = to_backing(engine, volume, job).await;
    if result.is_ok() {
        refresh(engine, volume, id, job, CopyRule::Extend).await;
    }
    engine.slots.forget_if_empty(id);
    result
}

/// Writes a piece of a block that the cache holds a part of.
pub(crate) async fn write_present(
    engine: &Rc<Engine>,
    volume: &Rc<AttachedVolume>,
    id: BlockId,
    job: &Job<Piece>,
    copy: CopyRule,
) -> Result<()> {
    let touched = engine.geometry.touched(&job.part);
    let before = engine.map.borrow().state(id);
    // The cleaner will not call dirty granules clean while this continues: see `clean`.
    engine.map.borrow_mut().add_flags(id, REWRITTEN);
    let _mark = engine
        .regions
        .enter_region(before.key, MarkState::Intent)
        .await?;
    engine.committer.settle(id).await?;
    let dirty = touched & before.dirty;
    for run in engine
        .geometry
        .runs(job.part.block.class, dirty, job.part.start..job.part.end)
    {
        let part = job
            .buf
            .slice((run.start - job.part.start) as usize..(run.end - job.part.start) as usize);
        engine.slots.write(volume, id, run.start, part).await?;
    }
    let result = to_backing(engine, volume, job).await;
    if result.is_err() || copy == CopyRule::Drop {
        // After an error it is unknown whether the backing device holds the old data or the new.
        engine.slots.drop_clean(id, touched);
    } else {
        refresh(engine, volume, id, job, copy).await;
    }
    result?;
    match dirty != 0 {
        true if job.durable => engine.committer.commit().await,
        // The device failed meanwhile, so it is unknown whether the data is there.
        true => engine.committer.check_alive(),
        false => Ok(()),
    }
}

/// Updates the clean copy with the data that the backing device was given. A failure drops the copy
/// and does not fail the write.
async fn refresh(
    engine: &Rc<Engine>,
    volume: &AttachedVolume,
    id: BlockId,
    job: &Job<Piece>,
    copy: CopyRule,
) {
    let geometry = engine.geometry;
    let limit = volume.limit(geometry, job.part.block);
    let touched = geometry.touched(&job.part);
    (engine.map.borrow_mut()).used(id, job.part.block.class, touched);
    let BlockState { valid, dirty, .. } = engine.map.borrow().state(id);
    let held = touched & valid & !dirty;
    let new = match copy {
        CopyRule::Extend => geometry.covered(&job.part, limit) & !valid,
        CopyRule::Refresh | CopyRule::Drop => 0,
    };
    let mut failed = false;
    for run in geometry.runs(
        job.part.block.class,
        held | new,
        job.part.start..job.part.end,
    ) {
        let part = job
            .buf
            .slice((run.start - job.part.start) as usize..(run.end - job.part.start) as usize);
        let written = engine.slots.write(volume, id, run.start, part).await;
        failed |= written.is_err();
    }
    if failed || engine.committer.is_in_doubt(id) {
        engine.slots.drop_clean(id, held);
    } else if new != 0 {
        engine.map.borrow_mut().fill(id, new, touched);
        engine.committer.queue_later(id);
    }
}
