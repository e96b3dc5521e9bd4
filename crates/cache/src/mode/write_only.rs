//! Write-only. Writes: as write-back. Reads: served from the cache where it has the data, never
//! promoted.

use std::rc::Rc;

use forebay_block::Result;

use super::{fetch, write_back};
use crate::engine::{Attached, Engine, Job};
use crate::geometry::Stretch;

pub(super) async fn write(
    engine: &Rc<Engine>,
    volume: &Rc<Attached>,
    job: Job<Stretch>,
) -> Result<()> {
    write_back::write(engine, volume, job).await
}

pub(super) async fn read(
    engine: &Rc<Engine>,
    volume: &Rc<Attached>,
    job: Job<Stretch>,
) -> Result<()> {
    fetch::without_promotion(engine, volume, job, fetch::Use::AllValid).await
}
