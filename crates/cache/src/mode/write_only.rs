//! Write-only. Writes: as write-back. Reads: served from the cache where it has the data, never
//! promoted.

use std::rc::Rc;

use forebay_block::Result;

use super::write_back;
use crate::engine::Engine;
use crate::geometry::Extent;
use crate::job::Job;
use crate::read;
use crate::volume::AttachedVolume;

pub(super) async fn write(
    engine: &Rc<Engine>,
    volume: &Rc<AttachedVolume>,
    job: Job<Extent>,
) -> Result<()> {
    write_back::write(engine, volume, job).await
}

pub(super) async fn read(
    engine: &Rc<Engine>,
    volume: &Rc<AttachedVolume>,
    job: Job<Extent>,
) -> Result<()> {
    read::without_promotion(engine, volume, job, read::Use::AllValid).await
}
