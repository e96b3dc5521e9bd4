//! Writes: a part is split, locked, and written as its mode says.
//!
//! Data goes to the cache ([`dirty`]), to the cache and the backing device ([`through`]), or past
//! the cache ([`bypass`]). [`slot_write`] writes dirty data to a slot. [`zero`](mod@zero) discards
//! and zeroes.

mod dirty;
mod flush;
mod slot_write;
mod through;
mod zero;

use std::rc::Rc;

use forebay_block::Result;
use forebay_metadata::order::Site;

use crate::engine::Engine;
use crate::geometry::Extent;
use crate::job::Job;
use crate::mode::{CopyRule, WriteRule};
use crate::volume::AttachedVolume;
use crate::{bypass, degraded, parallel};
pub(crate) use flush::flush;
use slot_write::Use;
pub(crate) use zero::zero;

/// Writes a part of a request.
pub(crate) async fn write(
    engine: &Rc<Engine>,
    volume: &Rc<AttachedVolume>,
    job: Job<Extent>,
) -> Result<()> {
    let cuts = engine.cut_write(volume, &job.part);
    if cuts.is_empty() {
        return write_part(engine, volume, job, Use::New).await;
    }
    let starts = [job.part.start].into_iter().chain(cuts.clone());
    let ends = cuts.into_iter().chain([job.part.end]);
    parallel::all((starts.zip(ends)).map(|(start, end)| {
        let job = job.cut(start..end);
        write_part(engine, volume, job, Use::Noted)
    }))
    .await
}

/// Locks what a write touches, and runs it.
async fn write_part(
    engine: &Rc<Engine>,
    volume: &Rc<AttachedVolume>,
    job: Job<Extent>,
    using: Use,
) -> Result<()> {
    let _lock = engine.lock_blocks(Site::here(), volume, &job.part).await;
    let write = async |job| write_by_mode(engine, volume, job, using).await;
    write_or_degrade(engine, volume, job, write).await
}

async fn write_by_mode(
    engine: &Rc<Engine>,
    volume: &Rc<AttachedVolume>,
    job: Job<Extent>,
    using: Use,
) -> Result<()> {
    match volume.mode().write_rule() {
        WriteRule::Dirty => dirty::write(engine, volume, job, using).await,
        WriteRule::Through if job.bypass => {
            bypass::write(engine, volume, job, CopyRule::Extend).await
        }
        WriteRule::Through => through::write(engine, volume, job).await,
        WriteRule::Bypass(copy) => bypass::write(engine, volume, job, copy).await,
    }
}

/// Retries a hit that failed on the hit path, under the caller's lock.
pub(crate) async fn retry_hit(
    engine: &Rc<Engine>,
    volume: &Rc<AttachedVolume>,
    job: Job<Extent>,
) -> Result<()> {
    let write = async |job| dirty::write(engine, volume, job, Use::Noted).await;
    write_or_degrade(engine, volume, job, write).await
}

/// Runs a write under its lock, if the cache has not failed. The last holder of the lock may have
/// failed with the cache. Then its changes, for example the death of a block, are only in the map
/// and not on media.
///
/// A volume that continues without a failed cache writes past it under the same lock. So no reader
/// sees a part of the write, then another write, and then the first part once more.
async fn write_or_degrade(
    engine: &Rc<Engine>,
    volume: &Rc<AttachedVolume>,
    job: Job<Extent>,
    write: impl AsyncFnOnce(Job<Extent>) -> Result<()>,
) -> Result<()> {
    let past = volume.falls_back().then(|| job.clone());
    let written = match engine.committer.check_alive() {
        Ok(()) => write(job).await,
        Err(error) => Err(error),
    };
    match (written, past) {
        // Boxed, since it is seldom: every write's future would have room for it.
        (Err(error), Some(job)) => Box::pin(degraded::write(engine, volume, job, error)).await,
        (written, _) => written,
    }
}
