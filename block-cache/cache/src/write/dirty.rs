//! Writes that leave dirty data. Hits go to the cache. Misses go to a new block, if one can be
//! allocated.
//!
//! A write that misses bypasses the cache if it belongs to a long sequential stream or if promotion
//! refuses it. It also does if too much is dirty or nothing can be evicted.

use std::rc::Rc;

use forebay_block::Result;
use forebay_policy::BlockId;

use super::slot_write::{self, Use};
use crate::bypass;
use crate::engine::Engine;
use crate::geometry::{Extent, Piece};
use crate::job::Job;
use crate::volume::AttachedVolume;

/// Writes a part into the cache, dirty, or bypasses it. The part is locked exclusively.
pub(super) async fn write(
    engine: &Rc<Engine>,
    volume: &Rc<AttachedVolume>,
    job: Job<Extent>,
    using: Use,
) -> Result<()> {
    if job.bypass || engine.cleaner.above_dirty_limit() {
        let present = move |engine, volume, id, job| async move {
            write_present(&engine, &volume, id, &job, using).await
        };
        return engine
            .each_block(volume, job, present, bypass::write_missed)
            .await;
    }
    engine
        .each_piece(volume, job, move |engine, volume, found, job| async move {
            match found {
                Some(id) => write_present(&engine, &volume, id, &job, using).await,
                None => write_missed(&engine, &volume, &job).await,
            }
        })
        .await
}

async fn write_present(
    engine: &Rc<Engine>,
    volume: &Rc<AttachedVolume>,
    id: BlockId,
    job: &Job<Piece>,
    using: Use,
) -> Result<()> {
    if using == Use::New {
        volume.counters.write_hits.add(1);
    }
    slot_write::write(engine, volume, id, job, using).await
}

/// Writes a piece that lies in no block: into a new one, if one may be had.
async fn write_missed(
    engine: &Rc<Engine>,
    volume: &Rc<AttachedVolume>,
    job: &Job<Piece>,
) -> Result<()> {
    volume.counters.write_misses.add(1);
    let block = job.part.block;
    let admitted = !engine.cleaner.above_dirty_limit() && volume.promotes(volume.key(block));
    if admitted && let Some(id) = engine.reclaimer.allocate(volume.id, block).await {
        let result = slot_write::write(engine, volume, id, job, Use::New).await;
        if result.is_err() {
            engine.slots.forget_if_empty(id);
        }
        // A cache device may take no writes, for example because the file system under it is full.
        // That is no reason to refuse a write that the backing device can take. The attempt must
        // leave no trace.
        let found = engine.map.borrow().find(volume.key(block));
        if result.is_ok() || found.is_some() || !engine.committer.is_alive() {
            return result;
        }
    }
    bypass::write_absent(engine, volume, job).await
}
