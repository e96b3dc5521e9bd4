//! Pass-through. Reads and writes go to the backing device. What is dirty in the cache is served from
//! it, until it is written back; what is clean is not used, and dropped where it is written.

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
) -> Result<()> {
    read::without_promotion(engine, volume, job, read::Use::DirtyOnly).await
}
