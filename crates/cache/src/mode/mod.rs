//! One table on top, one file a mode.
//!
//! Each mode says what a piece of a read or a write does on a hit and on a miss; the steps they are
//! made of are in `cached` (the cache's copy) and `around` (the backing device beside it).

mod pass_through;
mod write_around;
mod write_back;
mod write_invalidate;
mod write_only;
mod write_through;

use std::rc::Rc;

use forebay_block::Result;

use crate::engine::Engine;
use crate::geometry::Extent;
use crate::job::Job;
use crate::options::Mode;
use crate::volume::AttachedVolume;

pub(crate) use crate::write::zero::zero;
pub(crate) use write_back::write_again;

/// Dispatches a piece of a write.
pub(crate) async fn write(
    engine: &Rc<Engine>,
    volume: &Rc<AttachedVolume>,
    job: Job<Extent>,
) -> Result<()> {
    match volume.mode() {
        Mode::WriteBack => write_back::write(engine, volume, job).await,
        Mode::WriteThrough => write_through::write(engine, volume, job).await,
        Mode::WriteAround => write_around::write(engine, volume, job).await,
        Mode::WriteInvalidate => write_invalidate::write(engine, volume, job).await,
        Mode::WriteOnly => write_only::write(engine, volume, job).await,
        Mode::PassThrough => pass_through::write(engine, volume, job).await,
    }
}

/// Dispatches a part of a read, and of what it brings in: `wide` holds what the job asks for, which may be
/// nothing.
pub(crate) async fn read(
    engine: &Rc<Engine>,
    volume: &Rc<AttachedVolume>,
    job: Job<Extent>,
    wide: Extent,
) -> Result<()> {
    if job.part.len() == 0 && !volume.mode().promotes_reads() {
        // The mode has changed since.
        return Ok(());
    }
    match volume.mode() {
        Mode::WriteBack => write_back::read(engine, volume, job, wide).await,
        Mode::WriteThrough => write_through::read(engine, volume, job, wide).await,
        Mode::WriteAround => write_around::read(engine, volume, job, wide).await,
        Mode::WriteInvalidate => write_invalidate::read(engine, volume, job, wide).await,
        Mode::WriteOnly => write_only::read(engine, volume, job).await,
        Mode::PassThrough => pass_through::read(engine, volume, job).await,
    }
}

/// Makes everything durable that was acknowledged, in every mode: the backing device, for what went
/// round the cache (what was written back is dirty still, and durable so), and the cache's data and map. The mode may have changed since, so both are asked;
/// each does nothing where nothing was written.
pub(crate) async fn flush(engine: &Rc<Engine>, volume: &Rc<AttachedVolume>) -> Result<()> {
    volume.backing.check()?;
    if volume.backing.owes_clients() {
        engine.failures.flush_backing(volume).await?;
    }
    engine.committer.commit().await
}
