//! Serves volumes without a cache.

use std::rc::Rc;
use std::sync::Arc;

use forebay_block::{BlockDevice, Result};

use super::attaching::Attached;
use super::claiming::Claiming;
use super::degraded::go_without;
use super::offload;
use crate::state::decide;
use crate::state::{CacheId, Record, StateDirectory, Writers};

/// A volume that may be served without a cache.
pub(super) struct Uncached {
    pub(super) state: Arc<StateDirectory>,
    pub(super) name: String,
    pub(super) backing: Rc<dyn BlockDevice>,
    /// Claim that the backing device still needs.
    pub(super) claiming: Option<Claiming>,
    pub(super) record: Option<Record>,
    /// Records of other volumes that were served from the backing device.
    pub(super) others: Vec<(String, Record)>,
    /// Whether a cache that the state directory does not know may have data of the volume.
    pub(super) may_be_cached: bool,
}

impl Uncached {
    /// Serves the backing device. Writes are recorded for each cache that may hold data of the
    /// device under any name.
    pub(super) async fn serve(self) -> Result<Attached> {
        let info = self.backing.info();
        let (sized, name) = ((info.identity, info.size_bytes), &self.name);
        let mut device = self.backing;
        let claim = self.claiming.as_ref().map(|claiming| claiming.claim);
        // After another daemon, everything counts as written.
        let is_known = |record: Record| !claim.is_some_and(|claim| claim.is_after_other(record));
        let announced = |record| match claim {
            Some(claim) => claim.announced_in(record),
            None => record,
        };
        let is_logged =
            |record: &Record| matches!(record.cache, CacheId::Uuid(_)) || record.logs_every_write();
        let others = self.others.into_iter();
        for (other, record) in others.filter(|(_, record)| is_logged(record)) {
            let mut plan = decide::written_without_cache(&other, record);
            if let Some(note) = &plan.note {
                tracing::warn!("the backing device is served as volume {name:?}: {note}");
            }
            plan.record = announced(plan.record);
            let position = decide::position(record.backing, info.identity);
            let position = position.filter(|_| is_known(record));
            device = go_without(&self.state, &other, &plan, position, device).await?;
        }
        let mut plan = decide::without_cache(name, self.record, sized, self.may_be_cached);
        if let Some(note) = &plan.note {
            tracing::warn!("{note}");
        }
        let is_this =
            |record: &Record| (record.backing).overlaps(record.backing_bytes, sized.0, sized.1);
        // The log is of the volume's own device, of which this one may be another part.
        let had = self.record.filter(is_this);
        let position = had.map_or(Some(0), |it| decide::position(it.backing, sized.0));
        let position = position.filter(|position| *position == 0);
        let position = position.filter(|_| had.is_none_or(is_known));
        let is_own = is_this(&plan.record);
        if is_own {
            plan.record = announced(plan.record);
        }
        let device = go_without(&self.state, name, &plan, position, device).await?;
        // The records state the writer, and the writes of another one.
        let mut record = plan.record;
        if let Some(claiming) = &self.claiming {
            claiming.carry_out().await?;
            if is_own {
                // Claims of earlier writers find their places taken.
                record.writers = Writers::of(claiming.claim.next);
                let (state, name) = (Arc::clone(&self.state), self.name.clone());
                offload(move || state.store(&name, &record)).await?;
            }
        }
        Ok(Attached {
            device,
            record,
            pending: None,
        })
    }
}
