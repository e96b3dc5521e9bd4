//! Pass-through. Reads and writes go to the backing device. What is dirty in the cache is served from
//! it, until it is written back; what is clean is not used, and dropped where it is written.

use std::rc::Rc;

use forebay_block::Result;

use super::{around, fetch};
use crate::engine::{Attached, Engine, Job};
use crate::geometry::Stretch;

pub(super) async fn write(
    engine: &Rc<Engine>,
    volume: &Rc<Attached>,
    job: Job<Stretch>,
) -> Result<()> {
    around::write_beside(engine, volume, job, around::Copy::Drop).await
}

pub(super) async fn read(
    engine: &Rc<Engine>,
    volume: &Rc<Attached>,
    job: Job<Stretch>,
) -> Result<()> {
    fetch::without_promotion(engine, volume, job, fetch::Use::DirtyOnly).await
}
