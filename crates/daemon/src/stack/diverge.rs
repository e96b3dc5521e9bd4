//! A volume goes on without a cache that failed in service (`serve --accept-divergence`): from then on as one that is served
//! without its cache, with the same record and the same log of ranges.

use std::rc::Rc;
use std::sync::Arc;

use forebay_block::{BlockDevice, Error, ErrorKind, Result};
use forebay_cache::Cache;

use super::{Served, offload};
use crate::state::decide;
use crate::state::{CacheId, LoggedDevice, StateDirectory};

/// Has a volume go on without the cache, should that fail.
///
/// # Errors
/// What the cache says.
pub(super) fn accept(state: Arc<StateDirectory>, cache: &Cache, served: &Rc<Served>) -> Result<()> {
    let served_again = Rc::downgrade(served);
    let begin = move |backing: Rc<dyn BlockDevice>| {
        let (state, served) = (Arc::clone(&state), served_again.upgrade());
        async move {
            let served = served.ok_or_else(|| Error::from(ErrorKind::ShuttingDown))?;
            served.remembering.acquire(1).await;
            let begun = begin(state, &served, backing).await;
            served.remembering.release(1);
            begun
        }
    };
    cache.accept_divergence(&served.config.name, begin)
}

/// Raises the epoch, durably; what is written to the device that this returns is logged first.
async fn begin(
    state: Arc<StateDirectory>,
    served: &Served,
    backing: Rc<dyn BlockDevice>,
) -> Result<Rc<dyn BlockDevice>> {
    let name = served.config.name.clone();
    let identity = backing.info().identity.unwrap_or(0);
    let plan = decide::without_cache(&name, Some(served.record.get()), identity);
    if let Some(note) = &plan.note {
        tracing::error!("{note}");
    }
    let (path, record, fresh_log) = (state.ranges_path(&name), plan.record, plan.fresh_log);
    offload(move || {
        if fresh_log {
            state.remove_ranges(&name)?;
        }
        state.store(&name, &record)
    })
    .await?;
    let device = match record.cache {
        CacheId::Uuid(_) => LoggedDevice::new(backing, &path)?,
        CacheId::None | CacheId::Memory => backing,
    };
    served.record.set(record);
    Ok(device)
}
