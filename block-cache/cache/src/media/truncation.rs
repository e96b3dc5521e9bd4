//! Detection of a truncated data device: a file that was made shorter, even if it has its length
//! again.
//!
//! The data beyond the cut is gone, and reads as zeroes once the file has its length again. Three
//! signs show a truncation. One is the size, if it is checked in between. Another is the allocated
//! space, which never shrinks otherwise. The third is a hole, since every valid granule was
//! written.
//!
//! At a start only a hole that extends to the end of the data counts. A tool may have punched holes
//! where the file had zeroes. Lost data is named, is not written back, and reads as an error until
//! the next start, which forgets it. A block device that is shorter loses nothing, and nothing is
//! recorded of it. docs/durability.md argues it.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

use forebay_block::{Error, ErrorKind, Result};
use forebay_policy::BlockId;

use super::missing::{is_file, merged, missing_granules};
use crate::checksum::Checksums;
use crate::commit::Committer;
use crate::devices::CacheDevices;
use crate::failpoints::{Fault, planted};
use crate::foundation::Foundation;
use crate::geometry::Geometry;
use crate::lost_range::{LostRange, ranges};
use crate::map::{LIVE, Map, UNKNOWN};
use crate::superblock::SuperblockStore;

/// The watch on the data device of a cache in service.
#[derive(Debug)]
pub(crate) struct TruncationWatch {
    devices: Rc<CacheDevices>,
    geometry: Geometry,
    map: Rc<RefCell<Map>>,
    committer: Rc<Committer>,
    superblock: Rc<SuperblockStore>,
    checksums: Option<Rc<Checksums>>,
    /// Smallest size that was seen below the size that the cache needs, in bytes.
    seen_bytes: Cell<Option<u64>>,
    /// Space that the file took at the last look, in bytes.
    allocated_bytes: Cell<u64>,
    /// Whether holes are evidence of a truncation.
    holes_count: Cell<bool>,
}

impl TruncationWatch {
    /// Returns a watch that has not begun.
    pub(crate) fn new(
        base: &Foundation,
        committer: Rc<Committer>,
        superblock: Rc<SuperblockStore>,
    ) -> Self {
        Self {
            devices: Rc::clone(&base.devices),
            geometry: base.geometry,
            map: Rc::clone(&base.map),
            committer,
            superblock,
            checksums: base.checksums.clone(),
            seen_bytes: Cell::default(),
            allocated_bytes: Cell::default(),
            holes_count: Cell::default(),
        }
    }

    /// Starts the detection. `holes_count` says whether holes of this device indicate a truncation.
    pub(crate) fn begin(&self, holes_count: bool) {
        self.holes_count.set(holes_count);
        let allocated = self.devices.data().allocated_bytes().unwrap_or(0);
        self.allocated_bytes.set(allocated);
    }

    /// Checks whether the data device was truncated since the last check, and handles that.
    pub(crate) async fn look(&self) {
        if planted(Fault::OverlookCut) {
            return;
        }
        let (size, end) = (self.devices.data().info().size_bytes, self.geometry_end());
        let allocated = self.devices.data().allocated_bytes().unwrap_or(0);
        let had = self.allocated_bytes.replace(allocated);
        if size < end {
            self.handle_truncation(size).await;
        } else if allocated < had {
            self.handle_truncation(end).await;
        }
    }

    /// Refuses to write back data in a hole of the data device. It was cut off, and reads as
    /// zeroes.
    ///
    /// # Errors
    /// `Lost` if some of it does.
    pub(crate) async fn refuse(&self, id: BlockId, start: u32, len: u64) -> Result<()> {
        if !self.holes_count.get() || planted(Fault::OverlookCut) {
            return Ok(());
        }
        let at = self.geometry.data_offset(self.map.borrow().slot(id), start);
        let holes = self.devices.data().holes(at..at + len);
        if holes.is_none_or(|holes| holes.is_empty()) || self.holds_zeroes(id, start, len) {
            return Ok(());
        }
        self.handle_truncation(self.geometry_end()).await;
        Err(Error::new(
            ErrorKind::Lost,
            "the data was LOST when the cache device was truncated, and is not written back",
        ))
    }

    /// Returns whether the data device was cut while it is in use.
    pub(crate) const fn is_cut(&self) -> bool {
        self.seen_bytes.get().is_some()
    }

    /// Why the end cannot be a clean one, if the data device was cut while it was in use.
    pub(crate) async fn reason(&self) -> Option<Error> {
        if !planted(Fault::OverlookCut) {
            // Writes since the last check may hide that the file takes less space.
            let size = self
                .devices
                .data()
                .info()
                .size_bytes
                .min(self.geometry_end());
            self.handle_truncation(size).await;
        }
        let size = self.seen_bytes.get()?;
        let name = self.devices.data().info().name;
        if !is_file(self.devices.data().as_ref()) {
            let what = format!(
                "{name} was shorter while it was in use, {size} bytes: data beyond is not written \
                 back, and may be LOST\n\
                 help: restore the length of the device: then nothing is lost"
            );
            return Some(Error::new(ErrorKind::Lost, what));
        }
        Some(Error::new(
            ErrorKind::Lost,
            format!(
                "{name} was truncated while it was in use, to {size} bytes or more: the rest, also \
                 dirty data, IS LOST"
            ),
        ))
    }

    /// Returns whether the checksums of these bytes of a block are known, and are those of zeroes.
    fn holds_zeroes(&self, id: BlockId, start: u32, len: u64) -> bool {
        let slot = self.map.borrow().slot(id);
        (self.checksums.as_ref()).is_some_and(|it| it.holds_zeroes(slot, start, len))
    }

    fn geometry_end(&self) -> u64 {
        self.superblock.current().data_end()
    }

    /// Handles a truncation to `size` bytes, even if the device has its length again. The lost data
    /// is named and reads as an error from now on.
    async fn handle_truncation(&self, size: u64) {
        let (end, offset) = (self.geometry_end(), self.superblock.current().data_offset);
        let is_file = is_file(self.devices.data().as_ref());
        let mut holes = match self.holes_count.get() {
            true => self.devices.data().holes(offset..end).unwrap_or_default(),
            false => Vec::new(),
        };
        if size < end {
            holes.push(size..end);
        }
        let lost = self.give_up_missing(&merged(holes));
        if lost.is_none() && size >= end {
            return;
        }
        let seen = self.seen_bytes.get();
        let smallest = seen.map_or(size, |seen| seen.min(size));
        self.seen_bytes.set(Some(smallest));
        if seen == Some(smallest) {
            return;
        }
        let name = self.devices.data().info().name;
        if !is_file && !planted(Fault::NoteAnyShort) {
            let what = format!(
                "{name} became shorter while it is in use: {size} of {end} bytes are left\n\
                 help: restore its length before the next start: then nothing is lost"
            );
            return self.committer.fail(Error::new(ErrorKind::Io, what));
        }
        let in_holes = lost.is_some() && size >= end;
        for range in lost.unwrap_or_default() {
            tracing::error!(
                volume = range.volume,
                offset = range.offset,
                len = range.len,
                "LOST: the cache device was truncated there before the data was written back"
            );
        }
        let what = format!(
            "{name} was truncated in use: {size} of {end} bytes left\n\
             help: stop the daemon, and make the file as long as before with `truncate -s`"
        );
        self.committer.fail(Error::new(ErrorKind::Lost, what));
        if smallest < end || in_holes {
            let noted = self
                .superblock
                .change(|superblock| {
                    superblock.service.was_cut |= in_holes;
                    if smallest < end {
                        superblock.service.cut_bytes = smallest.max(1);
                    }
                })
                .await;
            if let Err(error) = noted {
                tracing::error!(
                    "the truncation of the cache device cannot be recorded: {}",
                    error.report()
                );
            }
        }
    }

    /// Leaves blocks in doubt that miss data. Returns the dirty ranges among them. Returns `None`
    /// if nothing is newly missing.
    fn give_up_missing(&self, holes: &[Range<u64>]) -> Option<Vec<LostRange>> {
        if holes.is_empty() {
            return None;
        }
        let (mut lost, mut found) = (Vec::new(), false);
        let ids = self.map.borrow().ids();
        for id in ids {
            let (entry, slot) = {
                let map = self.map.borrow();
                if !map.has(id, LIVE) {
                    continue;
                }
                (map.state(id), map.slot(id))
            };
            let volume = entry.key.volume();
            let superblock = self.superblock.current();
            let Some(known) = superblock.volumes.iter().find(|known| known.id == volume) else {
                continue;
            };
            let missing = missing_granules(
                holes,
                &self.geometry,
                (entry.block(), entry.valid),
                slot,
                known.size_bytes,
            );
            let checksums = self.checksums.as_ref();
            let zeroes = checksums.map_or(0, |it| it.zero_granules(slot, entry.class, missing));
            let missing = missing & !zeroes;
            if missing == 0 || entry.has(UNKNOWN) {
                continue;
            }
            found = true;
            lost.extend(ranges(
                &self.geometry,
                &known.name,
                entry.block(),
                missing & entry.dirty,
            ));
            drop(superblock);
            // The backing device has the clean data.
            self.map.borrow_mut().set(id, entry.dirty, entry.dirty);
            self.committer.leave_in_doubt(id, 0);
        }
        found.then(|| LostRange::joined(lost))
    }
}
