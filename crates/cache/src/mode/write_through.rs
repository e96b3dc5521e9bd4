//! Write-through. Reads: served from the cache, promoted on a miss. Writes: to the backing device and
//! to the cache, which takes missed blocks in.

use std::rc::Rc;

use forebay_block::Result;
use forebay_metadata::order::Site;
use forebay_policy::BlockId;

use super::{around, fetch};
use crate::engine::{Attached, Engine, Job};
use crate::geometry::{Piece, Stretch};

pub(super) async fn write(
    engine: &Rc<Engine>,
    volume: &Rc<Attached>,
    job: Job<Stretch>,
) -> Result<()> {
    if job.around {
        return around::write_beside(engine, volume, job, around::Copy::Extend).await;
    }
    let write = async |job| {
        engine
            .each_piece(volume, job, |engine, volume, found, job| async move {
                write_piece(&engine, &volume, found, &job).await
            })
            .await
    };
    engine.write_locked(Site::here(), volume, job, write).await
}

async fn write_piece(
    engine: &Rc<Engine>,
    volume: &Rc<Attached>,
    found: Option<BlockId>,
    job: &Job<Piece>,
) -> Result<()> {
    if let Some(slot) = found {
        volume.counters.write_hits.add(1);
        return around::write_present(engine, volume, slot, job, around::Copy::Extend).await;
    }
    volume.counters.write_misses.add(1);
    let block = job.part.block;
    if volume.promotes(volume.key(block))
        && let Some(slot) = engine.allocate(volume.id, block).await
    {
        return around::write_and_insert(engine, volume, slot, job).await;
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
