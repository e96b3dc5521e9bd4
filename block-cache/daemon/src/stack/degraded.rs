//! Lets a volume continue without its cache: from a start on (`serve --without-cache`), or after
//! the cache failed in service. The state directory first has the raised epoch. It has also the log
//! of written ranges, or the list of dirty ranges that are not overwritten (rule 6).

use std::rc::Rc;
use std::sync::Arc;

use forebay_block::{BlockDevice, Error, ErrorKind, Result};
use forebay_cache::{Cache, Fallback, Remains};

use super::{Served, offload};
use crate::state::decide::{self, Without};
use crate::state::{LoggedDevice, RangeLog, StateDirectory};

/// Lets a volume continue without the cache in these modes, should the cache fail.
///
/// # Errors
/// The error of the cache.
pub(super) fn accept(
    state: Arc<StateDirectory>,
    cache: &Cache,
    served: &Rc<Served>,
    fallback: Fallback,
) -> Result<()> {
    let weak = Rc::downgrade(served);
    let begin = move |remains: Remains| {
        let (state, served) = (Arc::clone(&state), weak.upgrade());
        async move {
            let served = served.ok_or_else(|| Error::from(ErrorKind::ShuttingDown))?;
            served.remembering.acquire(1).await;
            let begun = begin(&state, &served, remains).await;
            state.refusals().note(&served.config.name, &begun);
            served.remembering.release(1);
            begun
        }
    };
    cache.allow_degraded(&served.config.name, fallback, begin)
}

async fn begin(
    state: &Arc<StateDirectory>,
    served: &Served,
    remains: Remains,
) -> Result<Rc<dyn BlockDevice>> {
    let Remains { backing, dirty } = remains;
    let name = &served.config.name;
    let info = backing.info();
    let Some(dirty) = dirty else {
        let sized = (info.identity, info.size_bytes);
        let plan = decide::without_cache(name, Some(served.record.get()), sized, true);
        let device = go_without(state, name, &plan, Some(0), backing).await?;
        served.record.set(plan.record);
        return Ok(device);
    };
    let record = decide::without_failed_cache(served.record.get(), &dirty);
    let (state, name) = (Arc::clone(state), name.clone());
    offload(move || state.store_with_dirty(&name, &record, &dirty)).await?;
    served.record.set(record);
    Ok(backing)
}

/// Raises the epoch, durably. The returned device logs each range before it is written.
///
/// `position` is that of [`decide::position`]. If it is `None`, the log has everything as written.
///
/// The log exists before the epoch is raised. A raised epoch without a log means that everything
/// was written and all dirty data is stale. A log without a raised epoch means nothing.
pub(super) async fn go_without(
    state: &Arc<StateDirectory>,
    name: &str,
    plan: &Without,
    position: Option<i128>,
    backing: Rc<dyn BlockDevice>,
) -> Result<Rc<dyn BlockDevice>> {
    let (refusals, volume) = (Arc::clone(state.refusals()), name);
    let (state, name) = (Arc::clone(state), name.to_owned());
    let (record, fresh) = (plan.record, plan.fresh_log);
    let log = offload(move || {
        let is_positioned = position.is_some();
        if fresh || !is_positioned {
            state.remove_ranges(&name)?;
        }
        let log = (record.logged_since)
            .map(|_| RangeLog::open(&state.ranges_path(&name), fresh && is_positioned))
            .transpose()?;
        state.store(&name, &record)?;
        Ok(log)
    });
    match log.await? {
        Some(log) => LoggedDevice::wrap(backing, position.unwrap_or(0), log, volume, &refusals),
        None => Ok(backing),
    }
}
