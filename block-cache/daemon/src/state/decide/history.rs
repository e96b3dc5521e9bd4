//! Finds the writes to a volume that its cache does not know of.

use std::ops::Range;

use forebay_cache::failpoints::{Fault, planted};

use super::{AttachRequest, position};
use crate::state::epoch::Record;
use crate::state::ranges::LogChange;

/// Writes to a volume that its cache does not know of.
pub(super) struct History {
    /// As [`Attach::epoch`](super::Attach::epoch).
    pub epoch: u64,
    /// As [`Attach::stale`](super::Attach::stale).
    pub stale: Option<Vec<Range<u64>>>,
    /// As [`Attach::dirty`](super::Attach::dirty).
    pub dirty: Option<Vec<Range<u64>>>,
    /// [`Record::attached`] until the cache has the new epoch.
    pub attached: u64,
    /// [`Record::logged_since`] until the cache has the new epoch.
    pub logged_since: Option<u64>,
    /// As [`Attach::log`](super::Attach::log).
    pub log: LogChange,
}

/// Whether a cache with epoch `known` for a volume has the history that the record of its volume
/// has.
///
/// A log of ranges begins with a raised epoch, and the attach after it raises the epoch twice. So a
/// cache that is above the log by one was attached in a time that the state directory lacks. A log
/// is removed before a record without it is stored. So a record beside such a log is older.
pub(super) fn is_of(request: &AttachRequest<'_>, record: Record, known: u64) -> bool {
    let is_older = match record.logged_since {
        Some(since) => known == since.saturating_add(1),
        None => has_writes(request),
    };
    (record.attached..=record.epoch).contains(&known) && !is_older
}

/// Whether the log of ranges has writes.
pub(super) fn has_writes(request: &AttachRequest<'_>) -> bool {
    let ranges = request.ranges.as_ref();
    ranges.is_some_and(|ranges| !ranges.is_empty())
}

impl History {
    /// Returns the writes. `ours` is the record if it names this cache.
    ///
    /// An adopted cache keeps its dirty data only if the state directory knows of no service that
    /// was not through this cache. Otherwise that data may be older than the backing device's.
    pub(super) fn new(request: &AttachRequest<'_>, ours: Option<Record>) -> Self {
        let last = request.record.map_or(0, |record| record.epoch);
        // The cache knows of all writes, or does not know the volume.
        let whole = |epoch| Self {
            epoch,
            stale: Some(Vec::new()),
            dirty: None,
            attached: ours.map_or(0, |record| record.attached),
            logged_since: ours.and_then(|record| record.logged_since),
            log: LogChange::Unchanged,
        };
        let Some(known) = request.cache_epoch else {
            return whole(last);
        };
        let adopted = |stale, log| Self {
            epoch: last.max(known) + 1,
            stale,
            dirty: None,
            attached: known,
            logged_since: Some(known),
            log,
        };
        // Other writes are unknown: all clean copies are dropped, and dirty data stays.
        let keep_dirty = || adopted(Some(Vec::new()), LogChange::Emptied);
        let suspect_all = || adopted(None, LogChange::Removed);
        let ranges = logged(request);
        let suspect_logged = || match ranges.clone() {
            Some(ranges) => adopted(Some(ranges), LogChange::Unchanged),
            None => suspect_all(),
        };
        match (ours, request.record) {
            // An older copy of the cache.
            (Some(record), _) if known < record.attached => suspect_all(),
            // The user states that the device replaces the former one. It was served, too.
            (Some(record), _) if is_replaced(request, record) && request.served_as.is_some() => {
                suspect_all()
            }
            (Some(record), _) => match record.logged_since {
                Some(since) if known <= since => match request.dirty.clone() {
                    Some(dirty) if record.dirty_listed => Self {
                        dirty: Some(dirty),
                        ..whole(last)
                    },
                    _ => Self {
                        stale: ranges,
                        ..whole(last)
                    },
                },
                _ if is_of(request, record, known) => whole(known),
                // The record is older than the cache, or than the log.
                Some(_) if record.dirty_listed => suspect_all(),
                Some(_) => suspect_logged(),
                None if has_writes(request) => suspect_logged(),
                None => keep_dirty(),
            },
            _ if planted(Fault::TrustState) => keep_dirty(),
            (None, _) if request.served_as.is_some() => suspect_all(),
            (None, Some(record)) if record.logs_every_write() => suspect_logged(),
            (None, Some(_)) => suspect_all(),
            // The record is gone, and its log has writes.
            (None, None) if has_writes(request) => suspect_logged(),
            (None, None) => keep_dirty(),
        }
    }
}

/// Returns the log of ranges, unless it has the ranges of another part of the medium.
fn logged(request: &AttachRequest<'_>) -> Option<Vec<Range<u64>>> {
    let (backing, bytes) = (request.backing, request.backing_bytes);
    let is_elsewhere = |record: Record| {
        (record.backing).overlaps(record.backing_bytes, backing, bytes)
            && position(record.backing, backing) != Some(0)
    };
    match request.record.is_some_and(is_elsewhere) {
        true => None,
        false => request.ranges.clone(),
    }
}

/// Whether the backing device shares no data with the one that the record names.
fn is_replaced(request: &AttachRequest<'_>, record: Record) -> bool {
    let (backing, bytes) = (request.backing, request.backing_bytes);
    record.backing.is_known()
        && !record
            .backing
            .overlaps(record.backing_bytes, backing, bytes)
}
