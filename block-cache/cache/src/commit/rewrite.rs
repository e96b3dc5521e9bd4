//! Rewrites the log from memory, after the last record on media.

use forebay_block::Result;
use forebay_io::rt;
use forebay_policy::BlockId;

use super::Committer;
use crate::commit::queue::Entry;
use crate::failpoints::{Fault, planted};
use crate::map::{DYING, LIVE, NO_RECORD};

/// Most records that a rewrite has in the queue at a time.
pub(crate) const STEP_RECORDS: usize = 1 << 12;
/// Most blocks or marks that a rewrite visits in one turn of the reactor.
const TURN_VISITS: u32 = 1 << 16;

impl Committer {
    /// Logs all live records once more, and moves the tail of the log up to there, both durably. So
    /// the next start reads nothing of the log's earlier content. Requests continue meanwhile.
    ///
    /// # Errors
    /// The devices' own. The cache has failed then.
    pub(crate) async fn rewrite_log(&self) -> Result<()> {
        if planted(Fault::GiveUpUnlogged) {
            self.give_up_log();
            return self.commit().await;
        }
        let queue_block = |number: u32| {
            let id = BlockId::new(number);
            let is_live = self.is_live(id);
            if is_live {
                self.queue_record(id);
            }
            is_live
        };
        let blocks = self.map.borrow().numbers();
        self.log_in_steps(blocks, queue_block).await?;
        let queue_mark = |id: u32| {
            let is_logged = (self.marks.record_at(id)).is_some_and(|at| at != NO_RECORD);
            if is_logged {
                self.queue_entry(Entry::Mark(id));
            }
            is_logged
        };
        self.log_in_steps(self.marks.numbers(), queue_mark).await?;
        self.queue_entry(Entry::Open);
        self.commit_all().await?;
        let oldest = self.oldest_record().await;
        self.log.borrow_mut().retire_to(oldest);
        // The first batch keeps the former tail until it is durable. The second declares the new
        // tail.
        self.queue_entry(Entry::Open);
        self.commit_all().await?;
        self.queue_entry(Entry::Open);
        self.commit().await
    }

    /// A block that is dying counts no more: its slot is free when its death is durable.
    fn is_live(&self, id: BlockId) -> bool {
        let map = self.map.borrow();
        map.has(id, LIVE) && !map.has(id, DYING)
    }

    /// Calls `queue` for each number below `end`, and makes the queued records durable step by
    /// step. `queue` returns whether it queued one.
    async fn log_in_steps(&self, end: u32, queue: impl Fn(u32) -> bool) -> Result<()> {
        let mut queued = 0;
        for number in 0..end {
            queued += usize::from(queue(number));
            if queued == STEP_RECORDS {
                self.commit().await?;
                queued = 0;
            } else if number % TURN_VISITS == TURN_VISITS - 1 {
                rt::next_turn().await;
            }
        }
        match queued {
            0 => Ok(()),
            _ => self.commit().await,
        }
    }

    /// Returns the number of the oldest record that counts, or of an older one.
    ///
    /// A record that requests log meanwhile is newer than the record *open*. So the result holds
    /// for blocks that the search has passed, too.
    async fn oldest_record(&self) -> u64 {
        let is_there = |position: &u32| *position != NO_RECORD;
        let oldest_of = |positions: &mut dyn Iterator<Item = u32>| {
            self.log.borrow().oldest_of(positions.filter(is_there))
        };
        let mut oldest = oldest_of(&mut std::iter::once(self.opened_at.get()));
        let end = self.map.borrow().numbers();
        for first in (0..end).step_by(TURN_VISITS as usize) {
            let numbers = first..end.min(first.saturating_add(TURN_VISITS));
            let counting = BlockId::range(numbers).filter(|id| self.is_live(*id));
            let mut positions = counting.map(|id| self.map.borrow().record_at(id));
            oldest = oldest.min(oldest_of(&mut positions));
            rt::next_turn().await;
        }
        let mut marks = (0..self.marks.numbers()).filter_map(|id| self.marks.record_at(id));
        oldest.min(oldest_of(&mut marks))
    }
}
