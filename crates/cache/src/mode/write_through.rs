//! Write-through. Reads: served from the cache, promoted on a miss. Writes: to the backing device and
//! to the cache, which takes missed blocks in.

use std::rc::Rc;

use forebay_block::Result;
use forebay_metadata::order::Site;
use forebay_policy::BlockId;

use crate::engine::Engine;
use crate::geometry::{Extent, Piece};
use crate::job::Job;
use crate::volume::AttachedVolume;
use crate::{bypass, read};

pub(super) async fn write(
    engine: &Rc<Engine>,
    volume: &Rc<AttachedVolume>,
    job: Job<Extent>,
) -> Result<()> {
    if job.bypass {
        return bypass::write_beside(engine, volume, job, bypass::Copy::Extend).await;
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
    volume: &Rc<AttachedVolume>,
    found: Option<BlockId>,
    job: &Job<Piece>,
) -> Result<()> {
    if let Some(slot) = found {
        volume.counters.write_hits.add(1);
        return bypass::write_present(engine, volume, slot, job, bypass::Copy::Extend).await;
    }
    volume.counters.write_misses.add(1);
    let block = job.part.block;
    if volume.promotes(volume.key(block))
        && let Some(slot) = engine.reclaimer.allocate(volume.id, block).await
    {
        return bypass::write_and_insert(engine, volume, slot, job).await;
    }
    bypass::write_absent(engine, volume, job).await
}

pub(super) async fn read(
    engine: &Rc<Engine>,
    volume: &Rc<AttachedVolume>,
    job: Job<Extent>,
    wide: Extent,
) -> Result<()> {
    read::promoting(engine, volume, job, wide).await
}
