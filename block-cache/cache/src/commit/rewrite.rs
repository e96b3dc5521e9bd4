//! Rewrites the log from memory, after the last record on media.

use forebay_block::Result;
use forebay_policy::BlockId;

use super::Committer;
use crate::commit::queue::Entry;
use crate::failpoints::{Fault, planted};
use crate::map::{DYING, LIVE, NO_RECORD};

impl Committer {
    /// Logs all live records once more, and moves the tail of the log up to there, both durably. So
    /// the next start reads nothing of the log's earlier content. Requests continue meanwhile.
    ///
    /// # Errors
    /// The devices' own. The cache has failed then.
    pub(crate) async fn log_anew(&self) -> Result<()> {
        if planted(Fault::GiveUpUnlogged) {
            self.give_up_log();
            return self.commit().await;
        }
        let is_live = |slot: BlockId| {
            let map = self.map.borrow();
            map.has(slot, LIVE) && !map.has(slot, DYING)
        };
        let slots = self.map.borrow().numbers();
        for slot in (0..slots).filter(|slot| is_live(*slot)) {
            self.queue_record(slot);
        }
        let is_logged = |id: &u32| (self.marks.record_at(*id)).is_some_and(|at| at != NO_RECORD);
        for id in (0..self.marks.numbers()).filter(is_logged) {
            self.queue_entry(Entry::Mark(id));
        }
        self.queue_entry(Entry::Open);
        self.commit_all().await?;
        // A block that is dying counts no more: its slot is free when its death is durable.
        let counting = (0..slots).filter(|slot| is_live(*slot));
        let counting = counting.map(|slot| self.map.borrow().record_at(slot));
        let marks = (0..self.marks.numbers()).filter_map(|id| self.marks.record_at(id));
        self.retire_before(counting.chain(marks));
        // The first batch keeps the former tail until it is durable. The second declares the new one.
        self.queue_entry(Entry::Open);
        self.commit_all().await?;
        self.queue_entry(Entry::Open);
        self.commit().await
    }
}
