//! Flush of a volume.

use std::rc::Rc;

use forebay_block::Result;

use crate::engine::Engine;
use crate::volume::AttachedVolume;

/// Makes every acknowledged write durable, whatever the mode: first on the backing device, for
/// writes that bypassed the cache, then in the cache, its data and its map. The mode may have
/// changed since the writes. Each step does nothing where nothing was written.
pub(crate) async fn flush(engine: &Rc<Engine>, volume: &Rc<AttachedVolume>) -> Result<()> {
    volume.backing.check()?;
    if volume.backing.owes_clients() {
        engine.failures.flush_backing(volume).await?;
    }
    engine.committer.commit().await
}
