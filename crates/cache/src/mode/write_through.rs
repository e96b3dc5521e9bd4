//! Write-through. Reads: served from the cache, promoted on a miss. Writes: to the backing device and
//! to the cache, which takes missed blocks in.

use std::rc::Rc;

use forebay_block::Result;

use super::{around, fetch};
use crate::engine::{Attached, Engine, Job};

pub(super) async fn write(engine: &Rc<Engine>, volume: &Rc<Attached>, job: Job) -> Result<()> {
    let key = volume.key(job.piece.block);
    let _lock = engine.locks.exclusive(key).await;
    let found = engine.map.borrow().find(key);
    if let Some(slot) = found {
        volume.counters.write_hits.add(1);
        return around::write_present(engine, volume, slot, &job, around::Copy::Extend).await;
    }
    volume.counters.write_misses.add(1);
    if !job.sequential
        && volume.promotes(key)
        && let Some(slot) = engine.allocate(key).await
    {
        return around::write_and_insert(engine, volume, slot, &job).await;
    }
    around::write_absent(engine, volume, &job).await
}

pub(super) async fn read(engine: &Rc<Engine>, volume: &Rc<Attached>, job: Job) -> Result<()> {
    fetch::promoting(engine, volume, job).await
}
