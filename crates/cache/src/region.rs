//! Marks on regions (64 neighbouring blocks, unless the format says otherwise): what the log must know before a clean copy may be overwritten in
//! place (`MaybeDirty`, rule 3) or before a write goes to the backing device beside a cached copy
//! (`Intent`, rule 5).
//!
//! Where a bit-tree says what may be dirty (see `tracking`), a region has the mark `MaybeDirty` in memory only.
//!
//! A region has one mark at a time, so that after a crash there is one answer to who is newer. A mark
//! is set durably before the first operation that needs it, stays for those that follow, and is cleared
//! when the region has been quiet for a while.

mod clear;
mod table;

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::rc::Rc;

use forebay_block::{Error, ErrorKind, Result};
use forebay_io::rt;
use forebay_io::sync::WaitList;
use forebay_metadata::order::{Part, Site};
use forebay_metadata::record::MarkState;
use forebay_policy::{BlockId, BlockKey};

use crate::commit::Ticket;
use crate::engine::Engine;
use crate::map::{NO_RECORD, UNRECORDED};
use crate::plant::{Fault, planted};
use crate::queue::Entry;
use crate::tracking::Tracking;
use table::Table;

/// Number of a region in the table.
pub(crate) type RegionId = u32;

/// Marks take up at most this part of the log's ring; see docs/internals/format/log.md, "Room".
const RING_SHARE: u64 = 16;

/// The regions that have a mark, if only in memory, or are getting one.
#[derive(Debug)]
pub(crate) struct Regions {
    /// Blocks in a region, as a power of two.
    shift: u8,
    table: RefCell<Table>,
    changed: WaitList,
    /// Somebody is making room in the table.
    clearing: Cell<bool>,
    /// The last round that logs the end of a mark.
    unmarked: Cell<Ticket>,
    /// Volumes whose backing devices are being flushed so that marks can go.
    in_line: RefCell<Vec<u16>>,
    /// Slots whose record on its way says what durable record and mark say already.
    repeated: RefCell<HashSet<BlockId>>,
}

impl Regions {
    pub(crate) fn new(shift: u8) -> Self {
        Self {
            shift,
            table: RefCell::default(),
            changed: WaitList::new(),
            clearing: Cell::new(false),
            unmarked: Cell::default(),
            in_line: RefCell::default(),
            repeated: RefCell::default(),
        }
    }

    /// Whether the record of a slot that is on its way says nothing new.
    pub(crate) fn is_repeated(&self, slot: BlockId) -> bool {
        self.repeated.borrow().contains(&slot)
    }

    /// The record of a slot says more than a durable record and a mark.
    pub(crate) fn says_more(&self, slot: BlockId) {
        let mut repeated = self.repeated.borrow_mut();
        if !repeated.is_empty() {
            repeated.remove(&slot);
        }
    }

    /// A round of commits has ended: only what is still to be logged is on its way.
    pub(crate) fn trim_repeated(&self, is_pending: impl Fn(BlockId) -> bool) {
        (self.repeated.borrow_mut()).retain(|slot| is_pending(*slot));
    }

    /// The region that a block belongs to.
    fn address(&self, key: BlockKey) -> (u16, u64) {
        (key.volume(), key.block() >> self.shift)
    }

    /// What the log should say of a region; none if it is gone.
    pub(crate) fn logged(&self, id: RegionId) -> Option<(u16, u64, MarkState)> {
        let table = self.table.borrow();
        let region = table.regions.get(id as usize)?.as_ref()?;
        Some((region.volume, region.region, region.logged))
    }

    pub(crate) fn set_record(&self, id: RegionId, at: u32) {
        self.table.borrow_mut().get(id).record_at = at;
    }

    /// Place of the record that counts; none if the region is gone.
    pub(crate) fn record_at(&self, id: RegionId) -> Option<u32> {
        let table = self.table.borrow();
        table
            .regions
            .get(id as usize)?
            .as_ref()
            .map(|region| region.record_at)
    }

    /// A slot of this block turned dirty in place, without a record.
    pub(crate) fn unrecorded(&self, key: BlockKey) {
        if let Some(region) = self.table.borrow_mut().find(self.address(key)) {
            region.unrecorded += 1;
        }
    }

    /// A record of such a slot was logged.
    pub(crate) fn recorded(&self, key: BlockKey) {
        if let Some(region) = self.table.borrow_mut().find(self.address(key)) {
            debug_assert!(region.unrecorded > 0);
            region.unrecorded -= 1;
        }
    }

    /// At recovery: a region was found marked.
    pub(crate) fn restore(
        &self,
        volume: u16,
        number: u64,
        state: MarkState,
        place: u32,
    ) -> RegionId {
        let mut table = self.table.borrow_mut();
        let id = table.get_or_insert(volume, number);
        let region = table.get(id);
        region.state = state;
        region.logged = state;
        region.record_at = place;
        table.set_marked(id, true);
        id
    }

    /// At recovery: blocks of the region of this one are dirty, as something else than a mark says.
    pub(crate) fn restore_unlogged(&self, key: BlockKey) {
        let (volume, number) = self.address(key);
        let mut table = self.table.borrow_mut();
        let id = table.get_or_insert(volume, number);
        let region = table.get(id);
        debug_assert_ne!(region.state, MarkState::Intent, "intent wins");
        region.state = MarkState::MaybeDirty;
    }

    /// Marks that a log of this many records has room for.
    pub(crate) const fn limit(&self, capacity: u64) -> u64 {
        capacity / RING_SHARE
    }

    /// Numbers that were ever given out; all are below this.
    pub(crate) fn numbers(&self) -> RegionId {
        u32::try_from(self.table.borrow().regions.len()).expect("fewer than 2^31 regions")
    }

    /// Marks in the log.
    pub(crate) fn len(&self) -> usize {
        self.table.borrow().marked
    }

    fn is_empty(&self) -> bool {
        self.table.borrow().by_address.is_empty()
    }

    pub(crate) fn wake(&self) {
        self.changed.wake_all();
    }

    /// Forgets a volume that was detached: its records count no more. Regions that somebody is at go when they fall quiet.
    pub(crate) fn forget_volume(&self, volume: u16) {
        let mut table = self.table.borrow_mut();
        let ids: Vec<RegionId> = table
            .by_address
            .iter()
            .filter(|((owner, _), _)| *owner == volume)
            .map(|(_, id)| *id)
            .collect();
        for id in ids {
            let region = table.get(id);
            if !region.busy && region.users == 0 {
                table.remove(id);
            }
        }
    }
}

/// While this lives, the region keeps its mark.
#[must_use = "dropping it lets the mark go"]
#[derive(Debug)]
pub(crate) struct RegionUse {
    engine: Rc<Engine>,
    id: RegionId,
}

impl Drop for RegionUse {
    fn drop(&mut self) {
        let quiet = {
            let mut table = self.engine.regions.table.borrow_mut();
            let region = table.get(self.id);
            region.users -= 1;
            region.users == 0
        };
        if quiet {
            self.engine.regions.changed.wake_all();
        }
    }
}

impl Engine {
    /// Waits until the region of `key` durably has the mark `want`, and keeps it so for as long as the
    /// returned value lives. What is written of the block is locked exclusively.
    #[track_caller]
    pub(crate) fn enter_region(
        self: &Rc<Self>,
        key: BlockKey,
        want: MarkState,
    ) -> impl Future<Output = Result<Option<RegionUse>>> + '_ {
        let site = Site::here();
        async move {
            if site.lacks(Part::Step) {
                return Ok(None);
            }
            self.enter(key, want).await.map(Some)
        }
    }

    /// With checksums: waits until the region of `key` durably has a mark, whichever, and keeps it so. What is
    /// overwritten there has a checksum that may be older than the data until its record is written.
    #[track_caller]
    pub(crate) fn open_for_overwriting(
        self: &Rc<Self>,
        key: BlockKey,
    ) -> impl Future<Output = Result<Option<RegionUse>>> + '_ {
        let site = Site::here();
        async move {
            let unmarked = site.lacks(Part::Step) || planted(Fault::SumBeforeData);
            if self.sums.is_none() || unmarked {
                return Ok(None);
            }
            let has_intent = {
                let mut table = self.regions.table.borrow_mut();
                let region = table.find(self.regions.address(key));
                region.is_some_and(|region| !region.busy && region.state == MarkState::Intent)
            };
            let want = match has_intent {
                true => MarkState::Intent,
                false => MarkState::MaybeDirty,
            };
            self.enter(key, want).await.map(Some)
        }
    }

    /// With checksums: whether the region of `key` has a mark that what is dirty may be overwritten under, at
    /// once. With a bit-tree it is the tree that must have one, too.
    #[inline]
    pub(crate) fn is_open_for_overwriting(&self, key: BlockKey) -> bool {
        let mut table = self.regions.table.borrow_mut();
        let region = table.find(self.regions.address(key));
        region.is_some_and(|region| {
            let open = match region.state {
                MarkState::None => false,
                MarkState::MaybeDirty => !matches!(self.tracking, Tracking::Abt(_)),
                MarkState::Intent => true,
            };
            open && !region.busy
        })
    }

    /// Keeps the mark of a region that has one and that nobody is changing.
    pub(crate) fn keep_open(self: &Rc<Self>, key: BlockKey) -> Option<RegionUse> {
        let mut table = self.regions.table.borrow_mut();
        let id = *table.by_address.get(&self.regions.address(key))?;
        table.get(id).users += 1;
        Some(RegionUse {
            engine: Rc::clone(self),
            id,
        })
    }

    async fn enter(self: &Rc<Self>, key: BlockKey, want: MarkState) -> Result<RegionUse> {
        loop {
            self.check_alive()?;
            let (volume, number) = self.regions.address(key);
            let logged = self.logs_mark(want);
            if logged && !self.has_room_for_mark(key) {
                self.make_room_for_marks().await?;
                continue;
            }
            let id = {
                let mut table = self.regions.table.borrow_mut();
                let id = table.get_or_insert(volume, number);
                let region = table.get(id);
                if region.busy {
                    None
                } else if region.state == want {
                    region.users += 1;
                    region.last_used = rt::now();
                    return Ok(RegionUse {
                        engine: Rc::clone(self),
                        id,
                    });
                } else {
                    region.busy = true;
                    if logged {
                        table.set_marked(id, true);
                    }
                    Some(id)
                }
            };
            let Some(id) = id else {
                self.regions.changed.wait().await;
                continue;
            };
            let result = self.change_region(id, want).await;
            {
                let mut table = self.regions.table.borrow_mut();
                let region = table.get(id);
                region.busy = false;
                if result.is_ok() {
                    region.state = want;
                }
            }
            self.regions.changed.wake_all();
            result?;
        }
    }

    /// Whether a region with this mark has it in the log, not in memory alone.
    fn logs_mark(&self, want: MarkState) -> bool {
        want == MarkState::Intent || self.tracking.is_exact()
    }

    /// Whether the region of `key` has a mark, or one more would leave the log its room.
    fn has_room_for_mark(&self, key: BlockKey) -> bool {
        let limit = self.regions.limit(self.commit.log.borrow().capacity());
        let mut table = self.regions.table.borrow_mut();
        (table.marked as u64) < limit
            || (table.find(self.regions.address(key))).is_some_and(|region| region.marked)
    }

    /// Clears marks that are in nobody's use, or waits until somebody else has, or for one to fall out
    /// of use.
    async fn make_room_for_marks(self: &Rc<Self>) -> Result<()> {
        if self.regions.clearing.replace(true) {
            self.regions.changed.wait().await;
            return Ok(());
        }
        let before = self.regions.len();
        let result = self.clear_older_half().await;
        self.regions.clearing.set(false);
        if self.regions.len() < before {
            self.regions.changed.wake_all();
            return Ok(());
        }
        result?;
        // Others who wait for room are not woken: they would find none either, and wake us.
        let in_motion = {
            let table = self.regions.table.borrow();
            (table.regions.iter().flatten()).any(|region| region.busy || region.users > 0)
        };
        if !in_motion {
            self.regions.changed.wake_all();
            return Err(Error::new(
                ErrorKind::Io,
                "the log has no room for another mark: those of volumes whose backing devices cannot be flushed fill it; restart to attach them again",
            ));
        }
        self.regions.changed.wait().await;
        Ok(())
    }

    /// Changes a region's mark from whatever it is to `want`.
    async fn change_region(&self, id: RegionId, want: MarkState) -> Result<()> {
        loop {
            let users = self.regions.table.borrow_mut().get(id).users;
            if users == 0 {
                break;
            }
            self.regions.changed.wait().await;
        }
        let (volume, number, state) = {
            let mut table = self.regions.table.borrow_mut();
            let region = table.get(id);
            (region.volume, region.region, region.state)
        };
        if state != MarkState::None {
            self.make_exact(volume, number, state).await?;
        }
        let logged = match self.logs_mark(want) {
            true => want,
            false => MarkState::None,
        };
        let before = {
            let mut table = self.regions.table.borrow_mut();
            std::mem::replace(&mut table.get(id).logged, logged)
        };
        if before == logged {
            // An earlier mark of the region is what the next process believes until the end of it is durable.
            let unmarked = self.regions.unmarked.get();
            self.request(unmarked);
            return self.committed(unmarked).await;
        }
        self.queue_entry(Entry::Mark(id));
        self.stats.marks.add(1);
        self.commit().await?;
        if logged == MarkState::None {
            // What the log says of no mark need not be said again.
            let mut table = self.regions.table.borrow_mut();
            table.set_marked(id, false);
            table.get(id).record_at = NO_RECORD;
        }
        Ok(())
    }

    /// Makes the block records of a region say all that its mark says, so that the mark can go.
    async fn make_exact(&self, volume: u16, number: u64, state: MarkState) -> Result<()> {
        if state == MarkState::Intent
            && let Some(attached) = self.volume_by_id(volume)
        {
            // What went round the cache is durable before its announcement goes (rule 5).
            self.flush_backing(&attached).await?;
        }
        self.queue_unrecorded(volume, number);
        self.commit().await
    }

    /// Queues the records of a region's slots that are dirty by its mark only.
    fn queue_unrecorded(&self, volume: u16, number: u64) {
        let shift = self.regions.shift;
        // Marks cover whole regions of blocks.
        let first = self.geometry.region_of(number << shift);
        let last = self.geometry.region_of(((number + 1) << shift) - 1);
        for region in first..=last {
            let slots: Vec<BlockId> = {
                let map = self.map.borrow();
                map.overlapping(volume, region, u64::MAX)
                    .map(|(slot, _)| slot)
                    .filter(|slot| map.has(*slot, UNRECORDED))
                    .collect()
            };
            for slot in slots {
                if self.record_is_durable(slot) {
                    self.regions.repeated.borrow_mut().insert(slot);
                }
                self.queue_record(slot);
            }
        }
    }
}
