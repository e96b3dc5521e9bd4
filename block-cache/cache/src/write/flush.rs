//! Flush of a volume.

use std::rc::Rc;

use forebay_block::Result;

use crate::engine::Engine;
use crate::volume::AttachedVolume;

/// Makes every acknowledged write durable, in any mode. The backing device is flushed first, for
/// writes that bypassed the cache. Then the cache makes its data and its map durable. The mode may
/// have changed since the writes. Each step does nothing where nothing was written.
pub(crate) async fn flush(engine: &Rc<Engine>, volume: &Rc<AttachedVolume>) -> Result<()> {
    volume.backing.check()?;
    if volume.backing.owes_clients() || volume.backing.owes_note() {
        engine.failures.flush_backing(volume).await?;
    }
    engine.committer.commit().await
}
