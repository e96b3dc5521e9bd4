//! Detection of truncated metadata of a cache in service, even if the file has its length again.
//!
//! The superblock, the log, the bit-tree and the checksums are read only at a start. So a
//! truncation harms the next start, while the cache in service has everything in memory. As soon as
//! the file has its length again, the cache rewrites all of it, and nothing is lost. The format
//! wrote every byte of the metadata. So a new hole is a truncation, or was punched by a tool, and
//! rewriting is right in both cases. docs/internals/truncation.md argues it.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

use forebay_block::{Error, ErrorKind, Result};
use forebay_io::sync::Semaphore;
use forebay_metadata::superblock::{COPY_BYTES, COPY_STRIDE_BYTES};

use super::missing::is_file;
use crate::checksum::Checksums;
use crate::commit::Committer;
use crate::devices::CacheDevices;
use crate::failpoints::{Fault, planted};
use crate::foundation::Foundation;
use crate::intent::dirty_tracking::DirtyTracker;
use crate::superblock::SuperblockStore;

/// Number of times that metadata is rewritten for one truncation, if others follow meanwhile.
const REWRITES: u32 = 3;
/// Most looks in a row that do not search for holes, because the file has the same size and takes
/// the same space. Writes may fill as much of older holes as a truncation took.
const LOOKS: u32 = 60;

/// The watch on the device that holds the metadata, in service.
#[derive(Debug)]
pub(crate) struct MetadataWatch {
    devices: Rc<CacheDevices>,
    committer: Rc<Committer>,
    superblock: Rc<SuperblockStore>,
    tracker: Rc<DirtyTracker>,
    checksums: Option<Rc<Checksums>>,
    /// Size of the device when the watch began, in bytes.
    size_bytes: Cell<u64>,
    /// Holes in the metadata at the last search, in bytes.
    holes: RefCell<Vec<Range<u64>>>,
    /// Space that the file took just before the last search, in bytes.
    allocated_bytes: Cell<Option<u64>>,
    /// Looks since the last search.
    looks: Cell<u32>,
    /// Whether the file was shorter since the last rewrite, and has its size again.
    was_short: Cell<bool>,
    /// Size of the device while it is too short, in bytes.
    short_bytes: Cell<Option<u64>>,
    /// Turn to look.
    turn: Semaphore,
}

impl MetadataWatch {
    /// Returns a watch that has not begun.
    pub(crate) fn new(
        base: &Foundation,
        committer: Rc<Committer>,
        superblock: Rc<SuperblockStore>,
        tracker: Rc<DirtyTracker>,
    ) -> Self {
        Self {
            devices: Rc::clone(&base.devices),
            committer,
            superblock,
            tracker,
            checksums: base.checksums.clone(),
            size_bytes: Cell::default(),
            holes: RefCell::default(),
            allocated_bytes: Cell::default(),
            looks: Cell::default(),
            was_short: Cell::default(),
            short_bytes: Cell::default(),
            turn: Semaphore::new(1),
        }
    }

    /// Begins to watch: the holes that are there now are nobody's loss.
    pub(crate) fn begin(&self) {
        self.keep_size();
        self.size_bytes
            .set(self.devices.metadata().info().size_bytes);
        self.holes.replace(self.present_holes());
    }

    /// Makes the next look search for holes, whatever the size and the space of the file are.
    pub(crate) fn search_next(&self) {
        self.looks.set(LOOKS);
    }

    /// Checks whether metadata was truncated since the last check. If so, and the device is long
    /// enough, rewrites all metadata.
    ///
    /// A search for holes may visit each extent of a large file. So a look compares the size and
    /// the space of the file first. Returns whether metadata was missing.
    pub(crate) async fn look(&self) -> bool {
        self.turn.acquire(1).await;
        let is_cut = if !self.committer.is_alive() {
            // Nothing is rewritten. The length no longer says anything about the metadata.
            if self.devices.metadata().info().size_bytes >= self.end() {
                self.short_bytes.set(None);
            }
            self.short_bytes.get().is_some()
        } else {
            !planted(Fault::OverlookCut) && self.look_alone().await
        };
        self.turn.release(1);
        is_cut
    }

    /// Returns why metadata is missing on the device now; none if it is complete.
    pub(crate) fn trouble(&self) -> Option<Error> {
        let size = self.short_bytes.get()?;
        let device = self.devices.metadata();
        let (name, end, whole) = (device.info().name, self.end(), self.size_bytes.get());
        if !self.committer.is_alive() {
            return Some(Error::new(
                ErrorKind::Lost,
                format!(
                    "{name} was truncated while it is in use, and the cache has failed: dirty data \
                     IS LOST at the next start\n\
                     help: read the dirty data through the volume now; {size} of {end} bytes of \
                     metadata are left"
                ),
            ));
        }
        let length = match is_file(device.as_ref()) {
            true => format!("make the file as long as it was (`truncate -s {whole} FILE`)"),
            false => format!("give the device the {whole} bytes that it had"),
        };
        Some(Error::new(
            ErrorKind::Lost,
            format!(
                "{name} was truncated while it is in use: {size} of {end} bytes of metadata are \
                 left\n\
                 help: do not stop the daemon; {length} before clients write more: it then \
                 rewrites its metadata, and nothing is lost. A write of metadata before that fails \
                 the cache, and dirty data IS LOST at the next start"
            ),
        ))
    }

    async fn look_alone(&self) -> bool {
        let device = self.devices.metadata();
        self.keep_size();
        let size = device.info().size_bytes;
        if size < self.end() {
            self.short_bytes.set(Some(size));
            return true;
        }
        let was_short = self.was_short.get() || self.short_bytes.get().is_some();
        self.looks.set(self.looks.get() + 1);
        let is_same = device.allocated_bytes() == self.allocated_bytes.get();
        if is_same && !was_short && self.looks.get() < LOOKS {
            return false;
        }
        let holes = self.present_holes();
        let is_cut = was_short || has_new(&holes, &self.holes.borrow());
        if is_cut {
            let name = device.info().name;
            match self.write_anew().await {
                Ok(holes) => {
                    tracing::error!(
                        "{name} was truncated while it is in use, or has new holes: all metadata \
                         is rewritten, and nothing of it is lost"
                    );
                    self.was_short.set(false);
                    self.short_bytes.set(None);
                    self.holes.replace(holes);
                }
                // The next look finds the same holes and tries again, if the cache is alive.
                Err(error) => tracing::error!(
                    "{name} was truncated while it is in use, and its metadata cannot be \
                     rewritten: {}",
                    error.report()
                ),
            }
        } else {
            self.holes.replace(holes);
        }
        is_cut
    }

    /// Gives a metadata file of its own its size back. The size of a file with data in it stays:
    /// zeroes must not take the place of lost data.
    fn keep_size(&self) {
        // If the system refuses, the file is too short, which `trouble` describes.
        if !self.devices.is_one()
            && let Ok(true) = self.devices.metadata().keep_size(self.end())
        {
            self.was_short.set(true);
        }
    }

    /// Rewrites all metadata, durably. Returns the holes that are left.
    ///
    /// A truncation meanwhile can take a part that is already rewritten. It leaves holes that were
    /// not there when that part was done. Then everything is rewritten again.
    ///
    /// # Errors
    /// The device's own: the cache has failed then. `Lost` after too many truncations meanwhile.
    async fn write_anew(&self) -> Result<Vec<Range<u64>>> {
        for _ in 0..REWRITES {
            // Without a superblock no start finds the rest.
            self.superblock.change(|_| ()).await?;
            let with_superblock = self.present_holes();
            self.tracker.rewrite_tree().await?;
            let with_tree = self.present_holes();
            if let Some(checksums) = &self.checksums {
                checksums.note_all_changed();
            }
            self.committer.rewrite_log().await?;
            let holes = self.present_holes();
            let is_written = |part: Range<u64>| {
                !(holes.iter()).any(|hole| hole.start < part.end && part.start < hole.end)
            };
            let copies = [0, COPY_STRIDE_BYTES].map(|at| at..at + COPY_BYTES as u64);
            if !has_new(&with_tree, &with_superblock)
                && !has_new(&holes, &with_tree)
                && copies.into_iter().all(is_written)
                && self.committer.live_log_bytes().into_iter().all(is_written)
            {
                return Ok(holes);
            }
        }
        let name = self.devices.metadata().info().name;
        let message =
            format!("{name} was truncated {REWRITES} times while its metadata was rewritten");
        Err(Error::new(ErrorKind::Lost, message))
    }

    /// Searches for the holes in the metadata.
    fn present_holes(&self) -> Vec<Range<u64>> {
        let device = self.devices.metadata();
        // A truncation during the search shows at the next look.
        self.allocated_bytes.set(device.allocated_bytes());
        self.looks.set(0);
        let holes = device.holes(0..self.end());
        holes.unwrap_or_default()
    }

    /// Returns where the metadata ends on its device, in bytes.
    fn end(&self) -> u64 {
        self.superblock.current().metadata_end()
    }
}

/// Returns whether some of these holes was not there before. Holes only become smaller otherwise.
fn has_new(holes: &[Range<u64>], before: &[Range<u64>]) -> bool {
    let is_old = |hole: &Range<u64>| {
        let near = before.partition_point(|old| old.end <= hole.start);
        (before.get(near)).is_some_and(|old| old.start <= hole.start && hole.end <= old.end)
    };
    !holes.iter().all(is_old)
}
