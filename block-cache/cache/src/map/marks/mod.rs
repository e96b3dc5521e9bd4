//! Marks of regions, as the log has them: the blocks that each mark covers, and the position of its
//! record.
//!
//! [`Regions`](crate::intent::regions::Regions) sets and clears marks; the committer logs them.

mod table;

use std::cell::RefCell;
use std::collections::HashSet;
use std::time::Duration;

use forebay_metadata::record::MarkState;
use forebay_policy::{BlockId, BlockKey};

use super::NO_RECORD;
pub(crate) use table::Region;
use table::Table;

/// Number of a region in the table.
pub(crate) type MarkId = u32;

/// Marks take up at most this part of the log's ring; see docs/internals/format/log.md, "Room".
const RING_SHARE: u64 = 16;

/// Returns the granules that count as valid and as dirty after a crash, given those of a record
/// (docs/internals/write-order.md).
pub(crate) const fn after_crash(state: MarkState, valid: u64, dirty: u64) -> (u64, u64) {
    match state {
        MarkState::MaybeDirty => (valid, valid),
        MarkState::Intent => (dirty, dirty),
        MarkState::None => (valid, dirty),
    }
}

/// The answer to a caller that wants a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entered {
    /// The region has the mark, and keeps it until [`Marks::leave`].
    Held(MarkId),
    /// Another task changes the mark.
    Busy,
    /// The caller changes the mark, then calls [`Marks::end_change`].
    ToChange(MarkId),
}

/// A region whose mark is being cleared.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cleared {
    /// Number in the table.
    pub(crate) id: MarkId,
    /// Number of the volume.
    pub(crate) volume: u16,
    /// Number of the region in the volume.
    pub(crate) region: u64,
    /// Mark that goes.
    pub(crate) state: MarkState,
}

/// The regions that have a mark, if only in memory, or are getting one.
#[derive(Debug)]
pub(crate) struct Marks {
    /// Blocks in a region, as a power of two.
    shift: u8,
    table: RefCell<Table>,
    /// Blocks whose record in flight says the same as the durable record and the mark.
    repeated: RefCell<HashSet<BlockId>>,
}

impl Marks {
    /// Returns a table without marks.
    pub(crate) fn new(shift: u8) -> Self {
        Self {
            shift,
            table: RefCell::default(),
            repeated: RefCell::default(),
        }
    }

    /// Returns the units of a region.
    pub(crate) const fn units(&self, region: u64) -> std::ops::Range<u64> {
        region << self.shift..(region + 1) << self.shift
    }

    /// Returns whether a block's record in flight says nothing new.
    pub(crate) fn is_repeated(&self, block: BlockId) -> bool {
        self.repeated.borrow().contains(&block)
    }

    /// Notes that a block's record in flight says nothing new.
    pub(crate) fn repeat(&self, block: BlockId) {
        self.repeated.borrow_mut().insert(block);
    }

    /// Notes that the record of a block says more than a durable record and a mark.
    pub(crate) fn says_more(&self, block: BlockId) {
        let mut repeated = self.repeated.borrow_mut();
        if !repeated.is_empty() {
            repeated.remove(&block);
        }
    }

    /// Ends a round of commits: only records of blocks that are still to be logged are in flight.
    pub(crate) fn trim_repeated(&self, is_pending: impl Fn(BlockId) -> bool) {
        (self.repeated.borrow_mut()).retain(|block| is_pending(*block));
    }

    /// Returns the region that a block belongs to.
    pub(crate) const fn address(&self, key: BlockKey) -> (u16, u64) {
        (key.volume(), key.block() >> self.shift)
    }

    /// Returns what the log should say of a region; none if the region has gone.
    pub(crate) fn logged(&self, id: MarkId) -> Option<(u16, u64, MarkState)> {
        let table = self.table.borrow();
        let region = table.regions.get(id as usize)?.as_ref()?;
        Some((region.volume, region.region, region.logged))
    }

    /// Notes where the record of a mark stands in the ring.
    pub(crate) fn set_record(&self, id: MarkId, at: u32) {
        self.table.borrow_mut().get(id).record_at = at;
    }

    /// Returns the position in the ring of the record that counts; none if the region has gone.
    pub(crate) fn record_at(&self, id: MarkId) -> Option<u32> {
        let table = self.table.borrow();
        table
            .regions
            .get(id as usize)?
            .as_ref()
            .map(|region| region.record_at)
    }

    /// Notes that this block turned dirty in place, without a record.
    pub(crate) fn unrecorded(&self, key: BlockKey) {
        if let Some(region) = self.table.borrow_mut().find(self.address(key)) {
            region.unrecorded += 1;
        }
    }

    /// Notes that a record of such a block was logged.
    pub(crate) fn recorded(&self, key: BlockKey) {
        if let Some(region) = self.table.borrow_mut().find(self.address(key)) {
            debug_assert!(region.unrecorded > 0);
            region.unrecorded -= 1;
        }
    }

    /// Adds a mark that recovery found.
    pub(crate) fn restore(
        &self,
        volume: u16,
        number: u64,
        state: MarkState,
        position: u32,
    ) -> MarkId {
        let mut table = self.table.borrow_mut();
        let id = table.get_or_insert(volume, number);
        let region = table.get(id);
        region.state = state;
        region.logged = state;
        region.record_at = position;
        table.set_marked(id, true);
        id
    }

    /// Notes that recovery found dirty blocks in the region of this one, which no mark says.
    pub(crate) fn restore_unlogged(&self, key: BlockKey) {
        let (volume, number) = self.address(key);
        let mut table = self.table.borrow_mut();
        let id = table.get_or_insert(volume, number);
        let region = table.get(id);
        debug_assert_ne!(region.state, MarkState::Intent, "intent wins");
        region.state = MarkState::MaybeDirty;
    }

    /// Returns the number of marks that a log of this many records has room for.
    pub(crate) const fn limit(&self, capacity: u64) -> u64 {
        capacity / RING_SHARE
    }

    /// Returns the count of numbers that were ever given out; all numbers are below it.
    pub(crate) fn numbers(&self) -> MarkId {
        u32::try_from(self.table.borrow().regions.len()).expect("fewer than 2^31 regions")
    }

    /// Returns the number of marks in the log.
    pub(crate) fn len(&self) -> usize {
        self.table.borrow().marked
    }

    /// Returns whether no region has a mark, not even in memory.
    pub(crate) fn is_empty(&self) -> bool {
        self.table.borrow().by_address.is_empty()
    }

    /// Returns whether the region of `key` has a mark in the log, or one more leaves the log its
    /// room.
    pub(crate) fn has_room(&self, key: BlockKey, log_records: u64) -> bool {
        let limit = self.limit(log_records);
        let mut table = self.table.borrow_mut();
        (table.marked as u64) < limit
            || (table.find(self.address(key))).is_some_and(|region| region.marked)
    }

    /// Returns whether the region of `key` has this mark and no task changes it.
    pub(crate) fn has(&self, key: BlockKey, state: MarkState) -> bool {
        self.state(key) == Some(state)
    }

    /// Returns the mark of the region of `key`; none if there is none, or a task changes it.
    #[inline]
    pub(crate) fn state(&self, key: BlockKey) -> Option<MarkState> {
        let mut table = self.table.borrow_mut();
        let region = table.find(self.address(key))?;
        (!region.busy && region.state != MarkState::None).then_some(region.state)
    }

    /// Asks for a mark of the region of `key`, at the time `now`. A mark that is `logged` counts in
    /// the log.
    pub(crate) fn enter(
        &self,
        key: BlockKey,
        want: MarkState,
        logged: bool,
        now: Duration,
    ) -> Entered {
        let (volume, number) = self.address(key);
        let mut table = self.table.borrow_mut();
        let id = table.get_or_insert(volume, number);
        let region = table.get(id);
        if region.busy {
            return Entered::Busy;
        }
        if region.state == want {
            region.users += 1;
            region.last_used = now;
            return Entered::Held(id);
        }
        region.busy = true;
        if logged {
            table.set_marked(id, true);
        }
        Entered::ToChange(id)
    }

    /// Keeps the mark of the region of `key`, if it is in the table.
    pub(crate) fn hold(&self, key: BlockKey) -> Option<MarkId> {
        let mut table = self.table.borrow_mut();
        let id = *table.by_address.get(&self.address(key))?;
        table.get(id).users += 1;
        Some(id)
    }

    /// Gives up one use of a mark. Returns whether that was the last.
    pub(crate) fn leave(&self, id: MarkId) -> bool {
        let mut table = self.table.borrow_mut();
        let region = table.get(id);
        region.users -= 1;
        region.users == 0
    }

    /// Returns whether operations in flight rely on a mark.
    pub(crate) fn is_used(&self, id: MarkId) -> bool {
        self.table.borrow_mut().get(id).users > 0
    }

    /// Returns the volume, the number and the mark of a region.
    pub(crate) fn region(&self, id: MarkId) -> (u16, u64, MarkState) {
        let mut table = self.table.borrow_mut();
        let region = table.get(id);
        (region.volume, region.region, region.state)
    }

    /// Sets the state that the log is given next. Returns the state that it was given last.
    pub(crate) fn set_logged(&self, id: MarkId, logged: MarkState) -> MarkState {
        let mut table = self.table.borrow_mut();
        std::mem::replace(&mut table.get(id).logged, logged)
    }

    /// Notes that the log durably has a region without a mark, so this need not be logged.
    pub(crate) fn unlog(&self, id: MarkId) {
        let mut table = self.table.borrow_mut();
        table.set_marked(id, false);
        table.get(id).record_at = NO_RECORD;
    }

    /// Ends the change of a mark to `state`; none if the change failed.
    pub(crate) fn end_change(&self, id: MarkId, state: Option<MarkState>) {
        let mut table = self.table.borrow_mut();
        let region = table.get(id);
        region.busy = false;
        region.state = state.unwrap_or(region.state);
    }

    /// Returns whether a task changes some mark or an operation relies on one.
    pub(crate) fn are_in_motion(&self) -> bool {
        let table = self.table.borrow();
        (table.regions.iter().flatten()).any(|region| region.busy || region.users > 0)
    }

    /// Takes the idle regions that are `wanted`, by the time of their last use: all, or the half
    /// that has been quiet longest. No task enters them before [`Marks::end_clearing`].
    pub(crate) fn take_idle(&self, half: bool, wanted: impl Fn(&Region) -> bool) -> Vec<Cleared> {
        let mut table = self.table.borrow_mut();
        let mut idle: Vec<(Duration, MarkId)> = table
            .by_address
            .values()
            .filter_map(|&id| {
                let region = table.regions[id as usize].as_ref()?;
                (region.is_idle() && wanted(region)).then_some((region.last_used, id))
            })
            .collect();
        // The table's order is not the same in each run; a simulation's must be.
        idle.sort_unstable();
        if half {
            idle.truncate(idle.len().div_ceil(2));
        }
        let take = |(_, id)| {
            let region = table.get(id);
            region.busy = true;
            Cleared {
                id,
                volume: region.volume,
                region: region.region,
                state: region.state,
            }
        };
        idle.into_iter().map(take).collect()
    }

    /// Ends the clearing of a mark. Returns whether the end of a mark is to be logged.
    pub(crate) fn end_clearing(&self, cleared: Cleared, succeeded: bool) -> bool {
        let Cleared {
            id, volume, region, ..
        } = cleared;
        let mut table = self.table.borrow_mut();
        // A volume that was detached meanwhile has no regions left.
        if table.by_address.get(&(volume, region)) != Some(&id) {
            return false;
        }
        if !succeeded {
            table.get(id).busy = false;
            return false;
        }
        let marked = table.get(id).marked;
        table.remove(id);
        marked
    }

    /// Forgets a volume that was detached: its records count no more. Regions in use go when they
    /// fall quiet.
    pub(crate) fn forget_volume(&self, volume: u16) {
        let mut table = self.table.borrow_mut();
        let ids: Vec<MarkId> = table
            .by_address
            .iter()
            .filter(|((owner, _), _)| *owner == volume)
            .map(|(_, id)| *id)
            .collect();
        for id in ids {
            if table.get(id).is_idle() {
                table.remove(id);
            }
        }
    }
}
