//! Write-through: writes go to the backing device and to the cache. A promoted miss creates a
//! block.

use std::rc::Rc;

use forebay_block::Result;
use forebay_policy::BlockId;

use crate::bypass;
use crate::engine::Engine;
use crate::geometry::{Extent, Piece};
use crate::job::Job;
use crate::mode::CopyRule;
use crate::volume::AttachedVolume;

/// Writes a part to the cache and to the backing device. The part is locked exclusively.
pub(super) async fn write(
    engine: &Rc<Engine>,
    volume: &Rc<AttachedVolume>,
    job: Job<Extent>,
) -> Result<()> {
    engine
        .each_piece(volume, job, |engine, volume, found, job| async move {
            write_piece(&engine, &volume, found, &job).await
        })
        .await
}

/// Writes a piece, which lies in the block `found` or in none.
async fn write_piece(
    engine: &Rc<Engine>,
    volume: &Rc<AttachedVolume>,
    found: Option<BlockId>,
    job: &Job<Piece>,
) -> Result<()> {
    if let Some(id) = found {
        volume.counters.write_hits.add(1);
        return bypass::write_present(engine, volume, id, job, CopyRule::Extend).await;
    }
    volume.counters.write_misses.add(1);
    let block = job.part.block;
    if volume.promotes(volume.key(block))
        && let Some(id) = engine.reclaimer.allocate(volume.id, block).await
    {
        return bypass::write_and_insert(engine, volume, id, job).await;
    }
    bypass::write_absent(engine, volume, job).await
}
