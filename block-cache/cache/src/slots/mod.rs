//! Slots: reads and writes of cached data on the data device, verified where there are checksums.
//!
//! The reclaimer allocates slots ([`Reclaimer::allocate`](crate::evict::Reclaimer::allocate)).

mod checksummed_write;
mod verified_read;

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

use forebay_block::{BlockDeviceExt, Buf, Error, ErrorKind, Result};
use forebay_metadata::order::{Ordered, Site};
use forebay_policy::BlockId;

use crate::checksum::Checksums;
use crate::commit::Committer;
use crate::devices::CacheDevices;
use crate::foundation::Foundation;
use crate::geometry::{Block, Geometry};
use crate::intent::dirty_tracking::DirtyTracker;
use crate::intent::regions::Regions;
use crate::map::marks::Marks;
use crate::map::{BlockState, LIVE, Map, TRACED, UNRECORDED};
use crate::signals::Signals;
use crate::volume::{AttachedVolume, Volumes};
pub(crate) use verified_read::Verdict;

/// Reads and writes of slots.
#[derive(Debug)]
pub(crate) struct SlotIo {
    devices: Rc<CacheDevices>,
    geometry: Geometry,
    map: Rc<RefCell<Map>>,
    marks: Rc<Marks>,
    checksums: Option<Rc<Checksums>>,
    committer: Rc<Committer>,
    tracker: Rc<DirtyTracker>,
    regions: Rc<Regions>,
    volumes: Rc<Volumes>,
    signals: Rc<Signals>,
}

/// A write to a slot that failed.
#[derive(Debug)]
pub(crate) struct SlotWriteError {
    error: Error,
    /// Whether the slot may hold any mixture of old and new data. Else nothing was written to it.
    pub(crate) has_begun: bool,
}

impl SlotWriteError {
    /// Returns the error of a write that failed before its first byte.
    pub(crate) const fn not_begun(error: Error) -> Self {
        let has_begun = false;
        Self { error, has_begun }
    }
}

impl From<Error> for SlotWriteError {
    fn from(error: Error) -> Self {
        let has_begun = true;
        Self { error, has_begun }
    }
}

impl From<SlotWriteError> for Error {
    fn from(failed: SlotWriteError) -> Self {
        failed.error
    }
}

impl SlotIo {
    /// Returns the part, wired to those that it uses.
    pub(crate) fn new(
        base: &Foundation,
        committer: Rc<Committer>,
        tracker: Rc<DirtyTracker>,
        regions: Rc<Regions>,
    ) -> Self {
        Self {
            devices: Rc::clone(&base.devices),
            geometry: base.geometry,
            map: Rc::clone(&base.map),
            marks: Rc::clone(&base.marks),
            checksums: base.checksums.clone(),
            committer,
            tracker,
            regions,
            volumes: Rc::clone(&base.volumes),
            signals: Rc::clone(&base.signals),
        }
    }

    /// Reads from the slot of a block.
    pub(crate) async fn read(&self, id: BlockId, start: u32, buf: Buf) -> Result<()> {
        let offset = self.geometry.data_offset(self.map.borrow().slot(id), start);
        let block = u64::from(self.devices.data_block());
        if offset.is_multiple_of(block) && (buf.len() as u64).is_multiple_of(block) {
            return self.devices.data().read(offset, buf).await;
        }
        // The data device has larger blocks than the volume.
        let (from, wide) = self.widened(offset, buf.len());
        self.devices.data().read(from, wide.clone()).await?;
        self.committer.check_alive()?;
        let skip = usize::try_from(offset - from).expect("less than a block");
        buf.copy_from_buf(&wide.slice(skip..skip + buf.len()));
        Ok(())
    }

    /// Writes to the slot of a block.
    #[track_caller]
    pub(crate) fn write<'a>(
        &'a self,
        volume: &'a AttachedVolume,
        id: BlockId,
        start: u32,
        buf: Buf,
    ) -> impl Future<Output = Result<(), SlotWriteError>> + 'a {
        let site = Site::here();
        async move {
            if let Some(checksums) = &self.checksums {
                return self
                    .write_with_checksums(site, checksums, volume, id, start, buf)
                    .await;
            }
            let result = self.write_data(site, id, start, buf).await;
            self.committer.block_written(id);
            Ok(result?)
        }
    }

    pub(crate) async fn write_data(
        &self,
        site: Site,
        id: BlockId,
        start: u32,
        buf: Buf,
    ) -> Result<()> {
        let offset = self.geometry.data_offset(self.map.borrow().slot(id), start);
        let block = u64::from(self.devices.data_block());
        // A failed cache's state in memory may differ from media: its records may call data clean
        // that would be overwritten here.
        self.committer.check_alive()?;
        if offset.is_multiple_of(block) && (buf.len() as u64).is_multiple_of(block) {
            return Ordered::new(site, self.devices.data().write(offset, buf)).await;
        }
        let (from, wide) = self.widened(offset, buf.len());
        self.devices.data().read(from, wide.clone()).await?;
        self.committer.check_alive()?;
        let skip = usize::try_from(offset - from).expect("less than a block");
        wide.slice(skip..skip + buf.len()).copy_from_buf(&buf);
        Ordered::new(site, self.devices.data().write(from, wide)).await
    }

    fn widened(&self, offset: u64, len: usize) -> (u64, Buf) {
        let block = u64::from(self.devices.data_block());
        let from = offset - offset % block;
        let end = (offset + len as u64).next_multiple_of(block);
        let wide = Buf::scratch(usize::try_from(end - from).expect("little more than the piece"));
        (from, wide)
    }

    /// Takes a block out of the map; its slot is free at once.
    pub(crate) fn forget(&self, id: BlockId) {
        let entry = self.map.borrow().state(id);
        debug_assert!(entry.has(LIVE));
        if entry.has(UNRECORDED) {
            self.marks.recorded(entry.key);
        }
        self.tracker.note_removed(id);
        self.forget_checksums(id);
        self.map.borrow_mut().remove(id);
        // Wakes requests that wait for room. The reclaimer may see no need to run for them.
        self.signals.made_room();
    }

    /// A block leaves its slot.
    pub(crate) fn forget_checksums(&self, id: BlockId) {
        if let Some(checksums) = &self.checksums {
            let map = self.map.borrow();
            checksums.forget(map.slot(id), map.state(id).class);
        }
    }

    /// Returns the dirty granules of a block that are known to be bad. Only a write of the whole
    /// granule makes it good.
    pub(crate) fn bad_granules(&self, id: BlockId) -> u64 {
        let Some(checksums) = &self.checksums else {
            return 0;
        };
        let map = self.map.borrow();
        let entry = map.state(id);
        checksums.bad_granules(map.slot(id), entry.class, entry.dirty)
    }

    /// Notes that a dirty granule is bad, and names it. From the next round of commits on it is so
    /// for all processes to come.
    pub(crate) fn condemn(&self, volume: &AttachedVolume, id: BlockId, granule: u32) -> Error {
        let Some(checksums) = &self.checksums else {
            return ErrorKind::Corrupt.into();
        };
        let (entry, slot) = {
            let map = self.map.borrow();
            (map.state(id), map.slot(id))
        };
        let bytes = self.geometry.granule_bytes(entry.class) as u32;
        let error = self.corrupt(
            volume,
            entry.block(),
            granule * bytes..(granule + 1) * bytes,
        );
        if checksums.bad_granules(slot, entry.class, 1 << granule) == 0 {
            let cells = checksums.cells_of(slot, entry.class, 1 << granule);
            cells.for_each(|cell| checksums.set_bad(cell));
            checksums.counters.condemned.add(1);
            tracing::error!(volume = volume.name, error = %error, "dirty data is corrupt on the \
                                                                   cache device and IS LOST");
            self.committer.queue_record(id);
            self.committer.request_commit();
        }
        error
    }

    /// Returns the error for a read of corrupt dirty data.
    fn corrupt(&self, volume: &AttachedVolume, block: Block, bytes: Range<u32>) -> Error {
        let end = bytes.end.min(volume.limit(self.geometry, block));
        let at = self.geometry.backing_offset(block, bytes.start);
        Error::new(
            ErrorKind::Corrupt,
            format!(
                "volume {}: {} bytes at {at} ARE LOST: they were dirty, and are corrupt on the \
                 cache device\n\
                 help: rewrite these bytes, all of them, from a backup",
                volume.name,
                end - bytes.start,
            ),
        )
    }

    /// The error of a write-back, if something is left in a volume that cannot be written back
    /// because it is bad.
    pub(crate) fn bad_left(&self, volume: u16) -> Option<Error> {
        self.checksums
            .as_ref()
            .filter(|checksums| checksums.has_bad())?;
        let attached = self.volumes.get(volume)?;
        let blocks: Vec<BlockId> = self.map.borrow().of_volume(volume).collect();
        blocks.into_iter().find_map(|id| {
            let found = self.map.borrow().state(id);
            let bad = self.bad_granules(id);
            let bytes = self.geometry.granule_bytes(found.class) as u32;
            let first = bad.trailing_zeros();
            (bad != 0)
                .then(|| self.corrupt(&attached, found.block(), first * bytes..(first + 1) * bytes))
        })
    }

    /// Drops clean granules of a block.
    pub(crate) fn drop_clean(&self, id: BlockId, granules: u64) {
        let changed = {
            let mut map = self.map.borrow_mut();
            let BlockState { valid, dirty, .. } = map.state(id);
            let dropped = granules & valid & !dirty;
            map.set(id, valid & !dropped, dirty);
            dropped != 0
        };
        if changed {
            self.committer.queue_record(id);
        }
    }

    /// Forgets a block that was allocated and got no data. Returns whether it did. The block has
    /// been locked exclusively since its allocation.
    pub(crate) fn forget_if_empty(&self, id: BlockId) -> bool {
        let empty = {
            let map = self.map.borrow();
            let entry = map.state(id);
            entry.valid == 0 && !entry.has(TRACED)
        };
        if empty {
            self.forget(id);
        }
        empty
    }
}
