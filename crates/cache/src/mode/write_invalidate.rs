//! Write-invalidate. Reads: served from the cache, promoted on a miss. Writes: to the backing device;
//! what the cache holds of them is dropped.

use std::rc::Rc;

use forebay_block::Result;

use crate::engine::Engine;
use crate::geometry::Extent;
use crate::job::Job;
use crate::volume::AttachedVolume;
use crate::{bypass, read};

pub(super) async fn write(
    engine: &Rc<Engine>,
    volume: &Rc<AttachedVolume>,
    job: Job<Extent>,
) -> Result<()> {
    bypass::write_beside(engine, volume, job, bypass::Copy::Drop).await
}

pub(super) async fn read(
    engine: &Rc<Engine>,
    volume: &Rc<AttachedVolume>,
    job: Job<Extent>,
    wide: Extent,
) -> Result<()> {
    read::promoting(engine, volume, job, wide).await
}
