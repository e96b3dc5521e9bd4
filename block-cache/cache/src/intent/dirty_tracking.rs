//! Durable state for copies that are overwritten in place (rule 3): marks of regions, a bit-tree,
//! or nothing. Formatting the cache chooses one.
//!
//! With marks, [`regions`](crate::intent::regions) does all of it. With the bit-tree a region has
//! its mark only in memory, where it still excludes bypassing writes. The tree, over the *slots*
//! of the data, records durably which data may be dirty. With nothing, all data may be dirty after
//! a crash. Marks of *intent* are in the log in any case.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use forebay_block::{BlockDevice, Error, Result};
use forebay_io::rt;
use forebay_metadata::superblock::{DirtyTracking, Superblock};
use forebay_metadata::tree::{self, LoadReport, Marked, Priced, TreeOptions, TreeWriter};
use forebay_policy::{BlockId, Slot};

use crate::commit::Committer;
use crate::devices::CacheDevices;
use crate::foundation::Foundation;
use crate::geometry::{Geometry, slots};
use crate::lock::LockTable;
use crate::map::{COMPARED, LIVE, MARKED, Map, RECOVERED, UNFLUSHED, UNRECORDED};
use crate::presumed_dirty::PresumedDirty;
use crate::service_state::ServiceState;
use crate::stats::{Stats, TreeStats};
use crate::volume::Volumes;

/// Interval at which the tree is adjusted and written.
const PERIOD: Duration = Duration::from_secs(1);

/// Method of tracking.
#[derive(Debug)]
pub(crate) enum Tracking {
    Exact,
    Abt(Box<BlockTree>),
    None,
}

/// The tree over the slots of the data.
#[derive(Debug)]
pub(crate) struct BlockTree {
    writer: TreeWriter,
    /// Blocks that turned clean and are marked still.
    cleaned: RefCell<Vec<BlockId>>,
}

impl Tracking {
    /// Opens the state that the superblock names. Raises the superblock to a new epoch if there is
    /// a tree to load.
    pub(crate) async fn open(
        metadata: &Rc<dyn BlockDevice>,
        superblock: &mut Superblock,
    ) -> Result<(Self, LoadReport)> {
        match superblock.dirty_tracking {
            DirtyTracking::Exact => return Ok((Self::Exact, LoadReport::default())),
            DirtyTracking::None => return Ok((Self::None, LoadReport::default())),
            DirtyTracking::Abt => {}
        }
        let extent = superblock.tree().expect("a tree is what was chosen");
        superblock.tree_epoch = superblock.tree_epoch.checked_add(1).ok_or_else(|| {
            let what = "the cache was opened 4,294,967,295 times, the limit of its bit-tree\n\
                        help: format it again, which discards it";
            Error::new(forebay_block::ErrorKind::NoSpace, what)
        })?;
        for _ in 0..2 {
            superblock.sequence += 1;
            (superblock.write(metadata.as_ref(), superblock.role)).await?;
        }
        let (seed, epoch) = (superblock.seed(), superblock.tree_epoch);
        let (options, adjuster) = (TreeOptions::default(), Priced::new(extent.shape));
        let loaded = tree::load(metadata.as_ref(), extent, seed, epoch, options, adjuster).await?;
        let report = loaded.report;
        let writer = TreeWriter::new(Rc::clone(metadata), extent, seed, loaded);
        let cleaned = RefCell::default();
        Ok((Self::Abt(Box::new(BlockTree { writer, cleaned })), report))
    }

    /// Returns whether the log says exactly which data may be dirty.
    #[inline]
    pub(crate) const fn is_exact(&self) -> bool {
        matches!(self, Self::Exact)
    }

    /// Returns whether data in a slot may have been overwritten since its record. Ignores marks.
    pub(crate) fn may_be_dirty(&self, slot: Slot, class: u8) -> bool {
        match self {
            Self::Exact => false,
            Self::Abt(tree) => tree.writer.tree().may_be_dirty(slots(slot, class)),
            Self::None => true,
        }
    }

    pub(crate) fn stats(&self) -> Option<TreeStats> {
        let Self::Abt(tree) = self else { return None };
        let unit_bytes = u64::from(tree.writer.unit_bytes());
        let tree = tree.writer.tree();
        Some(TreeStats {
            persists: tree.persists(),
            bytes: tree.persists() * unit_bytes,
            memory_bytes: tree.memory_bytes() as u64,
        })
    }
}

fn slots_of(map: &Map, id: BlockId) -> Range<u64> {
    slots(map.slot(id), map.state(id).class)
}

/// The part that says, durably, which copies may be overwritten in place.
#[derive(Debug)]
pub(crate) struct DirtyTracker {
    tracking: Tracking,
    devices: Rc<CacheDevices>,
    geometry: Geometry,
    map: Rc<RefCell<Map>>,
    locks: Rc<LockTable>,
    committer: Rc<Committer>,
    volumes: Rc<Volumes>,
    presumed: Rc<PresumedDirty>,
    service: Rc<ServiceState>,
    stats: Rc<Stats>,
    /// Whether cached data has checksums.
    has_checksums: bool,
}

impl DirtyTracker {
    /// Returns the part, wired to those that it uses.
    pub(crate) fn new(
        base: &Foundation,
        tracking: Tracking,
        committer: Rc<Committer>,
        presumed: Rc<PresumedDirty>,
    ) -> Self {
        Self {
            tracking,
            devices: Rc::clone(&base.devices),
            geometry: base.geometry,
            map: Rc::clone(&base.map),
            locks: Rc::clone(&base.locks),
            committer,
            volumes: Rc::clone(&base.volumes),
            presumed,
            service: Rc::clone(&base.service),
            stats: Rc::clone(&base.stats),
            has_checksums: base.checksums.is_some(),
        }
    }

    /// Returns whether the log says exactly which data may be dirty.
    #[inline]
    pub(crate) const fn is_exact(&self) -> bool {
        self.tracking.is_exact()
    }

    /// Returns whether a bit-tree says which data may be dirty.
    #[inline]
    pub(crate) const fn has_tree(&self) -> bool {
        matches!(self.tracking, Tracking::Abt(_))
    }

    /// Returns the counters of the bit-tree, if there is one.
    pub(crate) fn tree_stats(&self) -> Option<TreeStats> {
        self.tracking.stats()
    }

    /// Makes durable that a block may be dirty, before the first byte of a write in place. The
    /// region has its mark in memory, and the written granules are locked exclusively.
    pub(crate) async fn announce(&self, id: BlockId) -> Result<()> {
        let Tracking::Abt(tree) = &self.tracking else {
            return Ok(());
        };
        let slots = slots_of(&self.map.borrow(), id);
        let marked = if self.map.borrow().has(id, MARKED) {
            // Possibly by another write that is still waiting.
            tree.writer.tree().marked(slots)
        } else {
            self.map.borrow_mut().add_flags(id, MARKED);
            tree.writer.tree().mark(slots)
        };
        if matches!(marked, Marked::After(_)) {
            self.in_turn(tree.writer.durable(marked)).await?;
        }
        self.committer.check_alive()
    }

    /// Serializes writes of the tree with other flushes of its device. A failure is reported before
    /// the next one begins. Of two concurrent flushes, the one with the error for lost data might
    /// be answered last (rule 9).
    async fn in_turn(&self, written: impl Future<Output = Result<()>>) -> Result<()> {
        let turn = self.committer.metadata_turn();
        if self.devices.metadata_is_volatile() {
            turn.acquire(1).await;
        }
        let result = self.tree_written(written.await);
        if self.devices.metadata_is_volatile() {
            turn.release(1);
        }
        result
    }

    /// A failed write of the tree may have been a failed flush.
    fn tree_written(&self, result: Result<()>) -> Result<()> {
        // A cache that has failed otherwise must know that its data is in doubt as well.
        let known = match self.devices.is_one() {
            true => self.committer.flush_failed(),
            false => !self.committer.is_alive(),
        };
        if let Err(error) = &result
            && !known
        {
            self.committer.metadata_flush_failed();
            self.committer.fail(error.clone());
        }
        result
    }

    /// A block was given a slot.
    pub(crate) fn note_placed(&self, id: BlockId) {
        if let Tracking::Abt(tree) = &self.tracking {
            let slots = slots_of(&self.map.borrow(), id);
            tree.writer.tree().place(slots);
        }
    }

    /// A block leaves its slot: no durable record speaks of it any more.
    pub(crate) fn note_removed(&self, id: BlockId) {
        self.no_longer_recovering(id);
        if let Tracking::Abt(tree) = &self.tracking {
            let slots = slots_of(&self.map.borrow(), id);
            let mut tree = tree.writer.tree();
            if self.map.borrow().has(id, MARKED) {
                self.map.borrow_mut().clear_flags(id, MARKED);
                tree.clear(slots.clone());
            }
            tree.remove(slots);
        }
    }

    /// All that was dirty of a block was written back, and the backing device was flushed.
    pub(crate) fn note_clean(&self, id: BlockId) {
        self.no_longer_recovering(id);
        if let Tracking::Abt(tree) = &self.tracking
            && self.map.borrow().has(id, MARKED)
        {
            tree.cleaned.borrow_mut().push(id);
        }
    }

    /// Notes that a write in place failed before its first byte. Without this the mark announced
    /// for a clean block would stay until the block leaves its slot. After a crash the block would
    /// be compared in vain, and corruption in it would go unnoticed.
    pub(crate) fn note_unwritten(&self, id: BlockId) {
        if let Tracking::Abt(tree) = &self.tracking {
            let entry = self.map.borrow().state(id);
            if entry.has(MARKED) && entry.dirty == 0 {
                tree.cleaned.borrow_mut().push(id);
            }
        }
    }

    /// Clears, after a round of commits, the marks of blocks that are clean and flushed on the data
    /// device as well. Without that flush a record that calls the block clean would describe older
    /// data. With checksums, the mark stays until the log has the record with the checksums of the
    /// overwritten data. A start would believe those of the record before.
    pub(crate) fn unmark_clean(&self) {
        let Tracking::Abt(tree) = &self.tracking else {
            return;
        };
        tree.cleaned.borrow_mut().retain(|&id| {
            let entry = self.map.borrow().state(id);
            if !entry.has(LIVE) || !entry.has(MARKED) || entry.dirty != 0 {
                // It is retried when it is clean.
                return false;
            }
            let is_older = self.has_checksums && !self.committer.overwrites_are_recorded(id);
            if entry.has(UNFLUSHED) || self.locks.is_changed(self.geometry, &entry) || is_older {
                return true;
            }
            self.map.borrow_mut().clear_flags(id, MARKED);
            let slots = slots_of(&self.map.borrow(), id);
            tree.writer.tree().clear(slots);
            false
        });
    }

    /// Notes at recovery which blocks are presumed dirty, and puts the cached blocks into the
    /// bit-tree. `unrecorded` has the blocks that count as dirty without a record that says so.
    pub(crate) fn restore_tracking(&self, unrecorded: &[BlockId]) {
        for id in unrecorded {
            self.committer.note_unrecorded(*id);
            self.map.borrow_mut().add_flags(*id, RECOVERED | COMPARED);
        }
        self.presumed.begin(unrecorded.len());
        let Tracking::Abt(tree) = &self.tracking else {
            return;
        };
        let ids = self.map.borrow().ids();
        for id in ids.filter(|id| self.map.borrow().has(*id, LIVE)) {
            self.note_placed(id);
        }
        for id in unrecorded {
            let slots = slots_of(&self.map.borrow(), *id);
            // These marks are durable already. They are not written before they are cleared.
            let _ = tree.writer.tree().mark(slots);
            self.map.borrow_mut().add_flags(*id, MARKED);
        }
    }

    fn no_longer_recovering(&self, id: BlockId) {
        let mut map = self.map.borrow_mut();
        if map.has(id, RECOVERED) {
            map.clear_flags(id, RECOVERED | COMPARED);
            self.presumed.remove(id);
        }
    }

    /// Closes the tree for a clean end, when every record is exact and durable and the tree adds
    /// nothing.
    pub(crate) async fn close_tracking(&self) -> Result<()> {
        let Tracking::Abt(tree) = &self.tracking else {
            return Ok(());
        };
        {
            let mut map = self.map.borrow_mut();
            for id in map.ids() {
                if map.has(id, MARKED) && !map.has(id, UNRECORDED) {
                    map.clear_flags(id, MARKED);
                    tree.writer.tree().clear(slots_of(&map, id));
                }
            }
        }
        self.in_turn(tree.writer.close()).await
    }

    /// Rewrites the bit-tree, if there is one, after the medium lost some of it.
    ///
    /// # Errors
    /// The device's own. The cache has failed then.
    pub(crate) async fn rewrite_tree(&self) -> Result<()> {
        match &self.tracking {
            Tracking::Abt(tree) => self.in_turn(tree.writer.rewrite()).await,
            Tracking::Exact | Tracking::None => Ok(()),
        }
    }

    /// The task that adjusts the tree and writes changes that no request waits for.
    pub(crate) async fn tree_timer(self: Rc<Self>) {
        let Tracking::Abt(tree) = &self.tracking else {
            return;
        };
        loop {
            rt::sleep(PERIOD).await;
            if self.service.is_stopping() || !self.committer.is_alive() {
                return;
            }
            let persists = tree.writer.tree().persists();
            let ticked = (tree.writer).tick(rt::now(), self.client_writes(), persists);
            // A cache that failed meanwhile said so.
            let _ = self.in_turn(ticked).await;
        }
    }

    /// Pieces of writes that clients sent since the cache was opened.
    fn client_writes(&self) -> u64 {
        let mut writes = self.stats.writes_of_detached.get();
        (self.volumes).for_each(|volume| writes += volume.counters.writes());
        writes
    }
}
