//! Removes volumes from the cache that it knows and that are not served, on request or to make
//! room.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use forebay_block::{Error, ErrorKind, Result};
use forebay_cache::{Cache, UNREPORTED_LOSS, check_count, no_room};

use super::cache::OpenCache;
use super::{Stack, note_lost, offload};
use crate::state::{CacheId, Record, StateDirectory};
use forebay_terminal::size::human_bytes;

/// Number of lost ranges that a reply names, if a file lists all.
pub(super) const NAMED_RANGES: usize = 1000;

impl Stack {
    /// Removes a volume from the cache that is not served, without its backing device. With
    /// `discard_dirty`, data that only the cache has IS LOST. Returns a description of the result,
    /// range by range.
    ///
    /// # Errors
    /// `Busy` for a volume that is served, or that has dirty data without `discard_dirty`.
    /// `NotFound` for one that the cache does not know. `InvalidInput` without a cache. An error of
    /// the state directory or the cache device.
    pub async fn forget_volume(&self, name: &str, discard_dirty: bool) -> Result<String> {
        if let Ok(served) = self.served(name) {
            let help = match served.cached {
                true => format!("write it back and detach it with `forebay detach {name}`"),
                false => format!(
                    "stop the daemon, and run `forebay forget {name} CONFIG`: the volume is served \
                     without its cache"
                ),
            };
            let what = format!("volume {name:?} is being served\nhelp: {help}");
            return Err(Error::new(ErrorKind::Busy, what));
        }
        let Some(cache) = &self.cache else {
            let what = match self.bypasses_cache {
                true => format!(
                    "the cache is bypassed (--without-cache), and keeps volume {name:?}\n\
                     help: stop the daemon, and run `forebay forget {name} CONFIG`"
                ),
                false => "there is no [cache] in the configuration: nothing is known of volumes\n\
                          help: name the cache of the volume (--cache), or add a [cache]"
                    .to_owned(),
            };
            return Err(Error::new(ErrorKind::InvalidInput, what));
        };
        self.ready().await?;
        let opened = cache.opened().await?;
        let dirty = opened.cache.idle_dirty_ranges(name)?;
        let list = match (dirty.is_empty(), discard_dirty) {
            (false, true) => note_discarded(&self.state, name, cache.id, &dirty).await?,
            (false, false) => None,
            (true, _) => {
                note_clean(&self.state, name, cache.id).await?;
                None
            }
        };
        let owed = note_owed_losses(&opened.cache, Some(&self.state), name).await?;
        let lost = opened.cache.forget(name, discard_dirty).await?;
        note_forgotten(&self.state, name, cache.id).await?;
        Ok(forgotten_in_words(name, &lost, list) + &owed)
    }
}

/// Reports losses of a volume that no start has reported, before the cache forgets the volume.
/// Returns the lines for the user, or an empty text.
///
/// # Errors
/// The error of the state directory.
pub(crate) async fn note_owed_losses(
    cache: &Cache,
    state: Option<&Arc<StateDirectory>>,
    name: &str,
) -> Result<String> {
    let mut lines = String::new();
    if cache.has_unreported_loss(name) {
        tracing::error!(volume = name, "{UNREPORTED_LOSS}");
        lines.push_str(&format!("\n  {UNREPORTED_LOSS}"));
    }
    if !cache.has_failed_flush(name) {
        return Ok(lines);
    }
    tracing::error!(
        volume = name,
        "A FLUSH OF ITS BACKING DEVICE FAILED: UNFLUSHED WRITES that were not dirty in the cache \
         MAY BE LOST"
    );
    if let Some(state) = state {
        note_lost(state, vec![name.to_owned()]).await?;
    }
    lines.push_str("\n  a flush of its backing device failed: UNFLUSHED WRITES MAY BE LOST");
    Ok(lines)
}

/// Makes room in a cache for a volume. Removes clean volumes that are not in the configuration, the
/// longest known first. Removes none unless all volumes of the start find room.
///
/// # Errors
/// `NoSpace` if there is none. An error of the state directory or the cache device.
pub(super) async fn make_room(
    state: &Arc<StateDirectory>,
    opening: &OpenCache,
    cache: &Cache,
    name: &str,
) -> Result<()> {
    if cache.knows(name) {
        return Ok(());
    }
    let unknown = (opening.cached.iter()).filter(|name| !cache.knows(name));
    let wanted = unknown.count();
    check_count(opening.cached.len())?;
    let mut idle = cache.idle_volumes();
    // This start, or a later one without --without-cache, attaches configured volumes.
    idle.retain(|idle| !opening.configured.contains(&idle.name));
    let expendable: Vec<_> = idle.iter().filter(|idle| idle.is_expendable()).collect();
    let free = cache.free_volumes();
    if wanted > free + expendable.len() {
        return Err(no_room(&idle));
    }
    let Some(one) = expendable.first().filter(|_| free == 0) else {
        return Ok(());
    };
    note_clean(state, &one.name, opening.id).await?;
    cache.forget(&one.name, false).await?;
    note_forgotten(state, &one.name, opening.id).await?;
    tracing::warn!(
        volume = one.name,
        "the cache forgets this volume, which is clean and not in the configuration: volume \
         {name:?} needs its place"
    );
    Ok(())
}

/// Returns a description of the result.
pub(crate) fn forgotten_in_words(name: &str, lost: &[Range<u64>], list: Option<PathBuf>) -> String {
    if lost.is_empty() {
        return format!("volume {name:?} is forgotten; nothing of it was dirty");
    }
    let bytes = lost.iter().map(|range| range.end - range.start).sum();
    let has_list = list.is_some();
    let listed = list.map_or_else(String::new, |list| {
        format!(", listed in {}", list.display())
    });
    let mut text = format!(
        "volume {name:?} is forgotten; {} of dirty data DISCARDED{listed}",
        human_bytes(bytes)
    );
    let named = match has_list {
        true => NAMED_RANGES,
        false => usize::MAX,
    };
    text.push_str(&ranges_in_words(lost, named));
    text
}

/// Returns a line for each range, at most `named`, and their number beyond that. A file has all of
/// them then. The reply of a daemon has a maximum length.
pub(super) fn ranges_in_words(ranges: &[Range<u64>], named: usize) -> String {
    let mut text = String::new();
    for Range { start, end } in ranges.iter().take(named) {
        text.push_str(&format!("\n  {} bytes at {start}", end - start));
    }
    if let Some(more) = ranges.len().checked_sub(named).filter(|more| *more > 0) {
        text.push_str(&format!("\n  and {more} more ranges"));
    }
    text
}

/// Records durably the data that is about to be discarded, so that it blocks no later start.
/// Returns the path of the list.
pub(crate) async fn note_discarded(
    state: &Arc<StateDirectory>,
    name: &str,
    cache: CacheId,
    dirty: &[Range<u64>],
) -> Result<Option<PathBuf>> {
    let (directory, owned, dirty) = (Arc::clone(state), name.to_owned(), dirty.to_vec());
    let list = offload(move || {
        let epoch = directory.load(&owned)?.map_or(0, |record| record.epoch);
        let list = directory.note_abandoned(&owned, epoch, &dirty)?;
        directory.note_disk_gap(&owned, Some("its dirty data was discarded"), true)?;
        Ok(list)
    })
    .await?;
    note_clean(state, name, cache).await?;
    Ok(Some(list))
}

/// Records that the cache holds no dirty data of a volume, before the cache forgets the volume.
pub(crate) async fn note_clean(
    state: &Arc<StateDirectory>,
    name: &str,
    cache: CacheId,
) -> Result<()> {
    change(state, name, cache, Record::clean).await
}

/// Records that a cache has forgotten a volume.
pub(crate) async fn note_forgotten(
    state: &Arc<StateDirectory>,
    name: &str,
    cache: CacheId,
) -> Result<()> {
    change(state, name, cache, Record::forgotten).await
}

/// Changes the record of a volume, if it was last attached to this cache.
async fn change(
    state: &Arc<StateDirectory>,
    name: &str,
    cache: CacheId,
    change: fn(Record) -> Record,
) -> Result<()> {
    let (state, name) = (Arc::clone(state), name.to_owned());
    offload(move || match state.load(&name)? {
        Some(record) if record.cache == cache => state.store(&name, &change(record)),
        _ => Ok(()),
    })
    .await
}
