//! Volumes that a cache knows and that are not attached: their cached data, and how to forget them.
//!
//! A known volume takes one of a few places in the superblock, even if its configuration and its
//! backing device are gone. Forgetting a volume needs neither of the two. First the volume's number
//! is removed from the superblock, durably, which makes its records meaningless. Then its blocks
//! leave the map.

use std::cmp::Reverse;
use std::ops::Range;
use std::rc::Rc;

use forebay_block::{Error, ErrorKind, Result};
use forebay_metadata::superblock::{MAX_VOLUMES, VolumeEntry};

use crate::cache::Cache;
use crate::engine::Engine;
use crate::format::inspect::Inspection;

/// Ranges that an error names.
const NAMED: usize = 8;

/// A volume that the cache knows and that is not attached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdleVolume {
    /// The volume's name.
    pub name: String,
    /// Size of its backing device at its last attach, in bytes.
    pub size_bytes: u64,
    /// Epoch of its last attach.
    pub epoch: u64,
    /// Number of bytes of the volume that are cached.
    pub cached_bytes: u64,
    /// Number of bytes that the backing device does not have.
    pub dirty_bytes: u64,
    /// Whether a start must still report a loss of acknowledged writes.
    pub owes_report: bool,
}

impl IdleVolume {
    /// Whether nothing is lost when the cache forgets it.
    #[must_use]
    pub const fn is_expendable(&self) -> bool {
        self.dirty_bytes == 0 && !self.owes_report
    }
}

impl Cache {
    /// Most volumes that a cache knows at a time.
    pub const MAX_VOLUMES: usize = MAX_VOLUMES;

    /// Number of volumes that the cache can add to those that it knows.
    #[must_use]
    pub fn free_volumes(&self) -> usize {
        MAX_VOLUMES.saturating_sub(self.engine.superblock.current().volumes.len())
    }

    /// Returns the volumes that are not attached, in the order in which they were attached first.
    #[must_use]
    pub fn idle_volumes(&self) -> Vec<IdleVolume> {
        let engine = &self.engine;
        let map = engine.map.borrow();
        let superblock = engine.superblock.current();
        let idle = superblock.volumes.iter();
        let mut idle: Vec<&VolumeEntry> = idle
            .filter(|entry| !engine.volumes.contains(entry.id))
            .collect();
        idle.sort_unstable_by_key(|entry| entry.id);
        let idle = idle.into_iter().map(|entry| {
            let share = map.share(entry.id);
            IdleVolume {
                name: entry.name.clone(),
                size_bytes: entry.size_bytes,
                epoch: entry.epoch,
                cached_bytes: share.bytes,
                dirty_bytes: share.dirty_bytes,
                owes_report: entry.flush_failed || entry.has_unreported_loss,
            }
        });
        idle.collect()
    }

    /// Returns the dirty byte ranges of a volume that is not attached, in ascending order. Adjacent
    /// ranges are merged.
    ///
    /// # Errors
    /// As [`Cache::forget`] for a volume that is unknown or attached.
    pub fn idle_dirty_ranges(&self, name: &str) -> Result<Vec<Range<u64>>> {
        let id = self.engine.idle_volume(name)?;
        Ok(self.engine.dirty_ranges_of(id))
    }

    /// Forgets a volume that is not attached. With `discard_dirty`, the data that its backing
    /// device does not have IS LOST. Returns the lost ranges, as [`Cache::idle_dirty_ranges`].
    ///
    /// # Errors
    /// `NotFound` for a volume that the cache does not know; `Busy` for one that is attached.
    /// `Busy` for one that has dirty data without `discard_dirty`; the message names the first
    /// ranges. The cache device's own errors.
    pub async fn forget(&self, name: &str, discard_dirty: bool) -> Result<Vec<Range<u64>>> {
        // It must not be attached meanwhile.
        self.engine.attaching.acquire(1).await;
        let forgotten = self.engine.forget_idle(name, discard_dirty).await;
        self.engine.attaching.release(1);
        forgotten
    }
}

impl Inspection {
    /// Checks that volumes of these names can be attached together: those that the cache does not
    /// know need room.
    ///
    /// # Errors
    /// `NoSpace` with the volumes that could make room.
    pub fn check_room(&self, names: &[&str]) -> Result<()> {
        let known = |name: &str| self.volumes.iter().any(|volume| volume.name == name);
        let new = names.iter().filter(|name| !known(name)).count();
        let others = (self.volumes.iter()).filter(|known| !names.contains(&&*known.name));
        let idle: Vec<IdleVolume> = (others.map(|known| IdleVolume {
            name: known.name.clone(),
            size_bytes: known.size_bytes,
            epoch: known.epoch,
            cached_bytes: known.cached_bytes,
            dirty_bytes: known.dirty_bytes,
            owes_report: known.owes_report,
        }))
        .collect();
        check_count(names.len())?;
        let expendable = idle.iter().filter(|idle| idle.is_expendable()).count();
        if new > MAX_VOLUMES.saturating_sub(self.volumes.len()) + expendable {
            return Err(no_room(&idle));
        }
        if new > usize::from(self.free_numbers) {
            return Err(no_number());
        }
        Ok(())
    }
}

/// Checks that a cache can know `volumes` at the same time.
///
/// # Errors
/// `NoSpace` with the most volumes.
pub fn check_count(volumes: usize) -> Result<()> {
    if volumes <= MAX_VOLUMES {
        return Ok(());
    }
    let what = format!(
        "the configuration has {volumes} volumes for the cache, which takes at most {MAX_VOLUMES}\n\
         help: take volumes out of the configuration, or use a second cache with its own daemon"
    );
    Err(Error::new(ErrorKind::NoSpace, what))
}

/// Returns the error of a cache that cannot add another volume. `idle` are the volumes that it
/// knows and does not serve.
#[must_use]
pub fn no_room(idle: &[IdleVolume]) -> Error {
    // The others make room by themselves, as far as no volume of the configuration has them.
    let mut staying: Vec<&IdleVolume> = idle.iter().filter(|idle| !idle.is_expendable()).collect();
    staying.sort_by_key(|idle| Reverse(idle.dirty_bytes));
    if staying.is_empty() {
        staying = idle.iter().collect();
    }
    let named: Vec<String> = (staying.iter().take(NAMED))
        .map(|idle| {
            let owes = if idle.owes_report {
                ", a loss to report"
            } else {
                ""
            };
            format!("{} ({} bytes dirty{owes})", idle.name, idle.dirty_bytes)
        })
        .collect();
    let help = match named.is_empty() {
        true => "detach one (`forebay detach NAME`), or use a second cache".to_owned(),
        false => format!(
            "detach one, or let the cache forget one (`forebay forget NAME`): {}",
            named.join(", ")
        ),
    };
    let what = format!(
        "the cache knows {MAX_VOLUMES} volumes, the most that it can, and has no room for \
         another\nhelp: {help}"
    );
    Error::new(ErrorKind::NoSpace, what)
}

/// A cache has no number for another volume.
pub(crate) fn no_number() -> Error {
    let what = "the cache has used all its 65,534 volume numbers, and never uses one twice\n\
                help: detach its volumes and format it again";
    Error::new(ErrorKind::NoSpace, what)
}

impl Engine {
    fn idle_volume(&self, name: &str) -> Result<u16> {
        let superblock = self.superblock.current();
        let known = superblock.volumes.iter().find(|entry| entry.name == name);
        let Some(known) = known else {
            let names: Vec<&str> = (superblock.volumes.iter())
                .map(|entry| &*entry.name)
                .collect();
            let help = match names.is_empty() {
                true => "there is nothing to do: it has no data of any volume".to_owned(),
                false => format!("name one of its volumes: {}", names.join(", ")),
            };
            let what = format!("the cache does not know volume {name:?}\nhelp: {help}");
            return Err(Error::new(ErrorKind::NotFound, what));
        };
        if self.volumes.contains(known.id) {
            let what = format!(
                "volume {name:?} is being served\nhelp: write it back and detach it with `forebay \
                 detach {name}`"
            );
            return Err(Error::new(ErrorKind::Busy, what));
        }
        Ok(known.id)
    }

    fn dirty_ranges_of(&self, id: u16) -> Vec<Range<u64>> {
        let blocks: Vec<_> = self.map.borrow().of_volume(id).collect();
        self.dirty_ranges(blocks.into_iter())
    }

    async fn forget_idle(
        self: &Rc<Self>,
        name: &str,
        discard_dirty: bool,
    ) -> Result<Vec<Range<u64>>> {
        let id = self.idle_volume(name)?;
        self.committer.check_alive()?;
        let dirty = self.dirty_ranges_of(id);
        if !dirty.is_empty() && !discard_dirty {
            return Err(would_lose(name, &dirty));
        }
        for Range { start, end } in &dirty {
            tracing::warn!(
                volume = name,
                offset = start,
                len = end - start,
                "dirty data is discarded and LOST"
            );
        }
        self.forget_number(id).await?;
        Ok(dirty)
    }
}

fn would_lose(name: &str, dirty: &[Range<u64>]) -> Error {
    let bytes: u64 = dirty.iter().map(|range| range.end - range.start).sum();
    let ranges: Vec<String> = (dirty.iter().take(NAMED))
        .map(|range| format!("{}+{}", range.start, range.end - range.start))
        .collect();
    let more = match dirty.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let what = format!(
        "volume {name:?} has {bytes} bytes of dirty data that its backing device does not have\n\
         help: serve it and write it back, or give this data up with --discard-dirty: {}{more} \
         (offset+length)",
        ranges.join(", ")
    );
    Error::new(ErrorKind::Busy, what)
}
