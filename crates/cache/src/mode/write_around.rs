//! Write-around. Reads: served from the cache, promoted on a miss. Writes: to the backing device; what
//! the cache holds of them is kept up to date, missed blocks are not taken in.

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
    around::write_beside(engine, volume, job, around::Copy::Refresh).await
}

pub(super) async fn read(
    engine: &Rc<Engine>,
    volume: &Rc<Attached>,
    job: Job<Stretch>,
    wide: Stretch,
) -> Result<()> {
    fetch::promoting(engine, volume, job, wide).await
}
