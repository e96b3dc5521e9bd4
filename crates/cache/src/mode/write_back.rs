//! Write-back. Reads: served from the cache, promoted on a miss. Writes: to the cache, and to the
//! backing device later. A write that misses goes to the backing device when it belongs to a long
//! sequential stream, when promotion refuses it, or when too much is dirty or nothing can be evicted.

use std::rc::Rc;

use forebay_block::Result;

use super::{around, cached, fetch};
use crate::engine::{Attached, Engine, Job};

pub(super) async fn write(engine: &Rc<Engine>, volume: &Rc<Attached>, job: Job) -> Result<()> {
    let key = volume.key(job.piece.block);
    let _lock = engine.locks.exclusive(key).await;
    let found = engine.map.borrow().find(key);
    if let Some(slot) = found {
        volume.counters.write_hits.add(1);
        return cached::write(engine, volume, slot, &job).await;
    }
    volume.counters.write_misses.add(1);
    let admitted = !job.sequential && !engine.above_dirty_limit() && volume.promotes(key);
    if admitted && let Some(slot) = engine.allocate(key).await {
        let result = cached::write(engine, volume, slot, &job).await;
        // A cache device that takes nothing (a full file system under it, say) is no reason to refuse
        // what the backing device can take, as long as no trace of the attempt is left.
        let traceless = engine.map.borrow().find(key).is_none() && engine.commit.is_alive();
        if result.is_ok() || !traceless {
            return result;
        }
    }
    around::write_absent(engine, volume, &job).await
}

pub(super) async fn read(engine: &Rc<Engine>, volume: &Rc<Attached>, job: Job) -> Result<()> {
    fetch::promoting(engine, volume, job).await
}
