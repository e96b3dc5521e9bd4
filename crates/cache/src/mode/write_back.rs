//! Write-back. Reads: served from the cache, promoted on a miss. Writes: to the cache, and to the
//! backing device later. A write that misses goes to the backing device when it belongs to a long
//! sequential stream, when promotion refuses it, or when too much is dirty or nothing can be evicted.

use std::rc::Rc;

use forebay_block::Result;
use forebay_metadata::order::Site;
use forebay_policy::BlockId;

use super::{around, cached, fetch};
use crate::engine::{Attached, Engine, Job};
use crate::geometry::{Piece, Stretch};

pub(super) async fn write(
    engine: &Rc<Engine>,
    volume: &Rc<Attached>,
    job: Job<Stretch>,
) -> Result<()> {
    let _lock = engine.lock_blocks(Site::here(), volume, &job.part).await;
    engine
        .each_piece(volume, job, |engine, volume, found, job| async move {
            write_piece(&engine, &volume, found, &job).await
        })
        .await
}

async fn write_piece(
    engine: &Rc<Engine>,
    volume: &Rc<Attached>,
    found: Option<BlockId>,
    job: &Job<Piece>,
) -> Result<()> {
    if let Some(slot) = found {
        volume.counters.write_hits.add(1);
        return cached::write(engine, volume, slot, job).await;
    }
    volume.counters.write_misses.add(1);
    let block = job.part.block;
    let admitted =
        !job.sequential && !engine.above_dirty_limit() && volume.promotes(volume.key(block));
    if admitted && let Some(slot) = engine.allocate(volume.id, block).await {
        let result = cached::write(engine, volume, slot, job).await;
        if result.is_err() {
            cached::forget_if_empty(engine, slot);
        }
        // A cache device that takes nothing (a full file system under it, say) is no reason to refuse
        // what the backing device can take, as long as no trace of the attempt is left.
        let found = engine.map.borrow().find(volume.key(block));
        if result.is_ok() || found.is_some() || !engine.commit.is_alive() {
            return result;
        }
    }
    around::write_absent(engine, volume, job).await
}

pub(super) async fn read(
    engine: &Rc<Engine>,
    volume: &Rc<Attached>,
    job: Job<Stretch>,
    wide: Stretch,
) -> Result<()> {
    fetch::promoting(engine, volume, job, wide).await
}
