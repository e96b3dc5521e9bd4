//! Marks on regions of 64 neighbouring blocks, unless the format says otherwise. A mark must be in
//! the log before a clean copy may be overwritten in place (`MaybeDirty`, rule 3). It must also be
//! there before a write to the backing device bypasses a cached copy (`Intent`, rule 5).
//!
//! If a bit-tree tracks possibly dirty data (see `dirty_tracking`), a region has the mark
//! `MaybeDirty` only in memory.
//!
//! A region has one mark at a time. So after a crash exactly one of the two copies is known to be
//! newer. A mark is set durably before the first operation that needs it. It stays for later
//! operations, and is cleared when the region has been quiet for a while.

mod clear;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use forebay_block::{Error, ErrorKind, Result};
use forebay_io::rt;
use forebay_io::sync::WaitList;
use forebay_metadata::order::{Part, Site};
use forebay_metadata::record::MarkState;
use forebay_policy::{BlockId, BlockKey};

use super::dirty_tracking::DirtyTracker;
use crate::backing_failures::BackingFailures;
use crate::commit::queue::Entry;
use crate::commit::{Committer, Ticket};
use crate::failpoints::{Fault, planted};
use crate::foundation::Foundation;
use crate::geometry::Geometry;
use crate::map::marks::{Entered, MarkId, Marks};
use crate::map::{Map, UNRECORDED};
use crate::service_state::ServiceState;
use crate::stats::Stats;
use crate::volume::Volumes;

/// The service that sets and clears marks.
#[derive(Debug)]
pub(crate) struct Regions {
    geometry: Geometry,
    map: Rc<RefCell<Map>>,
    marks: Rc<Marks>,
    committer: Rc<Committer>,
    volumes: Rc<Volumes>,
    failures: Rc<BackingFailures>,
    tracker: Rc<DirtyTracker>,
    service: Rc<ServiceState>,
    stats: Rc<Stats>,
    /// Whether cached data has checksums.
    has_checksums: bool,
    changed: WaitList,
    /// Whether a task makes room in the table.
    clearing: Cell<bool>,
    /// The last round that logs the end of a mark.
    unmarked: Cell<Ticket>,
    /// Volumes whose backing devices are being flushed so that marks can go.
    in_line: RefCell<Vec<u16>>,
}

impl Regions {
    /// Returns the part, wired to those that it uses.
    pub(crate) fn new(
        base: &Foundation,
        committer: Rc<Committer>,
        failures: Rc<BackingFailures>,
        tracker: Rc<DirtyTracker>,
    ) -> Self {
        Self {
            geometry: base.geometry,
            map: Rc::clone(&base.map),
            marks: Rc::clone(&base.marks),
            committer,
            volumes: Rc::clone(&base.volumes),
            failures,
            tracker,
            service: Rc::clone(&base.service),
            stats: Rc::clone(&base.stats),
            has_checksums: base.checksums.is_some(),
            changed: WaitList::new(),
            clearing: Cell::new(false),
            unmarked: Cell::default(),
            in_line: RefCell::default(),
        }
    }

    /// Wakes the tasks that wait for a mark, so that they see a failure.
    pub(crate) fn wake(&self) {
        self.changed.wake_all();
    }
}

/// While this lives, the region keeps its mark.
#[must_use = "dropping it lets the mark go"]
#[derive(Debug)]
pub(crate) struct RegionUse {
    regions: Rc<Regions>,
    id: MarkId,
}

impl Drop for RegionUse {
    fn drop(&mut self) {
        if self.regions.marks.leave(self.id) {
            self.regions.changed.wake_all();
        }
    }
}

impl Regions {
    /// Waits until the region of `key` durably has the mark `want`. The mark stays while the
    /// returned value lives. The caller holds an exclusive lock on the granules that it writes.
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

    /// With checksums: waits until the region of `key` durably has any mark, and keeps it. The
    /// checksum of overwritten data may be older than the data until its record is written.
    #[track_caller]
    pub(crate) fn open_for_overwriting(
        self: &Rc<Self>,
        key: BlockKey,
    ) -> impl Future<Output = Result<Option<RegionUse>>> + '_ {
        let site = Site::here();
        async move {
            let unmarked = site.lacks(Part::Step) || planted(Fault::ChecksumBeforeData);
            if !self.has_checksums || unmarked {
                return Ok(None);
            }
            let want = match self.marks.has(key, MarkState::Intent) {
                true => MarkState::Intent,
                false => MarkState::MaybeDirty,
            };
            self.enter(key, want).await.map(Some)
        }
    }

    /// With checksums: returns whether the region of `key` has a mark under which dirty data may be
    /// overwritten at once. With a bit-tree, the tree must have a mark, too.
    #[inline]
    pub(crate) fn is_open_for_overwriting(&self, key: BlockKey) -> bool {
        self.marks.state(key).is_some_and(|state| match state {
            MarkState::None => false,
            MarkState::MaybeDirty => !self.tracker.has_tree(),
            MarkState::Intent => true,
        })
    }

    /// Keeps the mark of a region that has one, if the mark is not changing.
    pub(crate) fn keep_open(self: &Rc<Self>, key: BlockKey) -> Option<RegionUse> {
        let id = self.marks.hold(key)?;
        Some(RegionUse {
            regions: Rc::clone(self),
            id,
        })
    }

    async fn enter(self: &Rc<Self>, key: BlockKey, want: MarkState) -> Result<RegionUse> {
        loop {
            self.committer.check_alive()?;
            let logged = self.logs_mark(want);
            if logged && !self.has_room_for_mark(key) {
                self.make_room_for_marks().await?;
                continue;
            }
            let id = match self.marks.enter(key, want, logged, rt::now()) {
                Entered::Held(id) => {
                    let regions = Rc::clone(self);
                    return Ok(RegionUse { regions, id });
                }
                Entered::Busy => {
                    self.changed.wait().await;
                    continue;
                }
                Entered::ToChange(id) => id,
            };
            let result = self.change_region(id, want).await;
            (self.marks).end_change(id, result.is_ok().then_some(want));
            self.changed.wake_all();
            result?;
        }
    }

    /// Whether a region with this mark has it in the log, not in memory alone.
    fn logs_mark(&self, want: MarkState) -> bool {
        want == MarkState::Intent || self.tracker.is_exact()
    }

    /// Whether the region of `key` has a mark, or one more would leave the log its room.
    fn has_room_for_mark(&self, key: BlockKey) -> bool {
        self.marks.has_room(key, self.committer.log_records())
    }

    /// Clears unused marks, or waits until another task has done so or until a mark falls out of
    /// use.
    async fn make_room_for_marks(self: &Rc<Self>) -> Result<()> {
        if self.clearing.replace(true) {
            self.changed.wait().await;
            return Ok(());
        }
        let before = self.marks.len();
        let result = self.clear_older_half().await;
        self.clearing.set(false);
        if self.marks.len() < before {
            self.changed.wake_all();
            return Ok(());
        }
        result?;
        // Others who wait for room are not woken: they would find none either, and wake us.
        if !self.marks.are_in_motion() {
            self.changed.wake_all();
            return Err(Error::new(
                ErrorKind::Io,
                "the log has no space for another mark: it is full of marks of volumes whose \
                 backing devices cannot be flushed\n\
                 help: restart to attach these volumes again",
            ));
        }
        self.changed.wait().await;
        Ok(())
    }

    /// Changes a region's mark, of any state, to `want`.
    async fn change_region(&self, id: MarkId, want: MarkState) -> Result<()> {
        while self.marks.is_used(id) {
            self.changed.wait().await;
        }
        let (volume, number, state) = self.marks.region(id);
        if state != MarkState::None {
            self.make_exact(volume, number, state).await?;
        }
        let logged = match self.logs_mark(want) {
            true => want,
            false => MarkState::None,
        };
        if self.marks.set_logged(id, logged) == logged {
            // An earlier mark of the region is what the next process believes until the end of it
            // is durable.
            let unmarked = self.unmarked.get();
            self.committer.request(unmarked);
            return self.committer.committed(unmarked).await;
        }
        self.committer.queue_entry(Entry::Mark(id));
        self.stats.marks.add(1);
        self.committer.commit().await?;
        if logged == MarkState::None {
            self.marks.unlog(id);
        }
        Ok(())
    }

    /// Makes the block records of a region say all that its mark says, so that the mark can go.
    async fn make_exact(&self, volume: u16, number: u64, state: MarkState) -> Result<()> {
        if state == MarkState::Intent
            && let Some(attached) = self.volumes.get(volume)
        {
            // Bypassing writes must be durable before their mark is cleared (rule 5).
            self.failures.flush_backing(&attached).await?;
        }
        self.queue_unrecorded(volume, number);
        self.committer.commit().await
    }

    /// Queues the records of a region's blocks that are dirty by its mark only.
    fn queue_unrecorded(&self, volume: u16, number: u64) {
        let units = self.marks.units(number);
        // Marks cover whole regions of blocks.
        let first = self.geometry.region_of(units.start);
        let last = self.geometry.region_of(units.end - 1);
        for region in first..=last {
            let blocks: Vec<BlockId> = {
                let map = self.map.borrow();
                map.overlapping(volume, region, u64::MAX)
                    .map(|(id, _)| id)
                    .filter(|id| map.has(*id, UNRECORDED))
                    .collect()
            };
            for id in blocks {
                if self.committer.record_is_durable(id) {
                    self.marks.repeat(id);
                }
                self.committer.queue_record(id);
            }
        }
    }
}
