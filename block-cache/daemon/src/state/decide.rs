//! Decides how to attach a volume to a cache. The decisions are pure functions of the records in
//! the state directory and the cache.
//!
//! The cache raises a volume's epoch at every attach. The state directory records the new epoch
//! before the attach (`Record::epoch`) and after it (`Record::attached`). So `attached <= epoch of
//! the cache <= epoch` holds wherever the process dies. An epoch outside of this range has another
//! history: a cache restored from a copy, another state directory, or another cache.

use std::ops::Range;

use forebay_block::{Error, ErrorKind, Identity, Result};
use forebay_cache::failpoints::{Fault, planted};

use super::epoch::{CacheId, Record};

/// A volume and the cache that it is about to be attached to.
#[derive(Clone, Debug)]
pub struct Meeting<'a> {
    /// The volume's name.
    pub volume: &'a str,
    /// Record of the volume in the state directory.
    pub record: Option<Record>,
    /// Log of written ranges; `None` if it is absent or damaged.
    pub ranges: Option<Vec<Range<u64>>>,
    /// Ranges that were dirty when the cache failed; `None` if the list is absent or damaged.
    pub dirty: Option<Vec<Range<u64>>>,
    /// The cache that the volume will be attached to.
    pub cache: CacheId,
    /// Epoch that this cache records for the volume; `None` if it does not know the volume.
    pub cache_epoch: Option<u64>,
    /// Whether the user states that cache and backing device belong together (`--adopt`).
    pub adopt: bool,
    /// Whether the volume's mode keeps dirty data.
    pub dirty_mode: bool,
    /// Identity of the backing device, independent of its name.
    pub backing: Identity,
    /// Size of the backing device, bytes.
    pub backing_bytes: u64,
}

/// Decision: how to attach a volume to a cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attach {
    /// Record to store durably before the attach.
    pub before: Record,
    /// Epoch to pass to the cache. An epoch above the cache's own means that the volume was written
    /// without the cache.
    pub epoch: u64,
    /// Ranges that were written without the cache; `None` if unknown, so that all are suspect.
    pub stale: Option<Vec<Range<u64>>>,
    /// Ranges that were dirty before that, if known. The cache then drops all other data.
    pub dirty: Option<Vec<Range<u64>>>,
    /// Record to store after the attach. The log of ranges is obsolete by then.
    pub after: Record,
    /// Notice for the user.
    pub note: Option<String>,
}

/// Decides how to attach a volume.
///
/// # Errors
/// `Busy` if the volume was served in a way that this cache cannot know of. The message states the
/// remedy.
pub fn attach(meeting: &Meeting<'_>) -> Result<Attach> {
    let ours = meeting
        .record
        .filter(|record| record.cache == meeting.cache && record.cache != CacheId::Memory);
    let mut note = None;
    if !meeting.adopt && !planted(Fault::TrustState) {
        note = check(meeting, ours)?;
    }
    let last = meeting.record.map_or(0, |record| record.epoch);
    let nowhere = Some(Vec::new());
    // Writes to the backing device are unknown: drop all clean copies and keep dirty data.
    let behind = |known: u64| (last.max(known) + 1, Some(Vec::new()), None);
    let (epoch, stale, dirty) = match (ours, meeting.cache_epoch) {
        (Some(record), Some(known)) => match record.logged_since {
            Some(since) if known <= since => match meeting.dirty.clone() {
                Some(dirty) if record.dirty_listed => (last, nowhere, Some(dirty)),
                _ => (last, meeting.ranges.clone(), None),
            },
            // Adopted although cache and state directory are of different times.
            _ if !(record.attached..=record.epoch).contains(&known) => behind(known),
            _ => (known, nowhere, None),
        },
        // Adopted from another history.
        (None, Some(known)) => behind(known),
        (_, None) => (last, nowhere, None),
    };
    // The record of this cache states dirty data before the cache holds any. The record says
    // nothing about a cache with another history.
    let is_unknown = ours.is_none() || meeting.adopt;
    let may_be_dirty = ours.is_some_and(|record| record.may_be_dirty)
        || (is_unknown && meeting.cache_epoch.is_some());
    let before = Record {
        epoch: epoch.max(meeting.cache_epoch.unwrap_or(0)) + 1,
        attached: ours.map_or(0, |record| record.attached),
        cache: meeting.cache,
        may_be_dirty,
        logged_since: ours.and_then(|record| record.logged_since),
        dirty_listed: ours.is_some_and(|record| record.dirty_listed),
        backing: meeting.backing,
        backing_bytes: meeting.backing_bytes,
    };
    Ok(Attach {
        before,
        epoch,
        stale,
        dirty,
        after: Record {
            attached: before.epoch,
            may_be_dirty: may_be_dirty || meeting.dirty_mode,
            logged_since: None,
            dirty_listed: false,
            ..before
        },
        note,
    })
}

/// Refuses a cache that does not belong to the volume. `ours` is the record if it names this cache.
fn check(meeting: &Meeting<'_>, ours: Option<Record>) -> Result<Option<String>> {
    let name = meeting.volume;
    let refused = match (meeting.record, meeting.cache_epoch) {
        (None, None) => return Ok(None),
        (None, Some(epoch)) => format!(
            "the cache has data of it (epoch {epoch}), and the state directory does not know it\n\
             help: set `state` in [server] to the state directory that it had, or to the place to \
             which that was moved; or, if cache and backing device belong together and nothing \
             wrote to the device since, start once with --adopt {name}"
        ),
        (Some(record), None) if !record.may_be_dirty => return Ok(None),
        (Some(record), None) => match record.cache {
            CacheId::None => return Ok(None),
            CacheId::Memory => {
                return Ok(Some(format!(
                    "volume {name:?} was last served through a cache in memory that ended without \
                     writing back: dirty data IS LOST, as volatile = true allows"
                )));
            }
            CacheId::Uuid(_) if ours.is_some() => format!(
                "this cache may have had dirty data of it, and does not know it any more\n    \
                 help: check it with `forebay check`, or start with --adopt {name} to continue \
                 from the backing device"
            ),
            CacheId::Uuid(_) => format!(
                "the cache that it was served through last may have its dirty data\n    \
                 help: start once with cache {} and run `forebay detach {name}`, or start with \
                 --adopt {name} to give that data up",
                record.cache
            ),
        },
        (Some(record), Some(epoch)) => {
            let known = record.attached..=record.epoch;
            if ours.is_some() && known.contains(&epoch) {
                return Ok(None);
            }
            let is_behind = epoch > record.epoch;
            if is_behind && (ours.is_some() || record.cache == CacheId::None) {
                format!(
                    "the state directory is older than this cache: it knows epoch {}, the cache \
                     epoch {epoch}\n    \
                     help: a backup of the state directory may have been put back: put the newest \
                     one back, or name it with `state` in [server]; or, if nothing wrote to the \
                     backing device without this cache since, start with --adopt {name}, which \
                     keeps dirty data of the cache",
                    record.epoch
                )
            } else if is_behind {
                format!(
                    "the state directory knows its epoch {} on another cache, this cache its \
                     epoch {epoch}\n    \
                     help: it may be an older backup: put the newest one back, or name it with \
                     `state` in [server]; or, if the volume was served through cache {} since, \
                     `forebay detach {name}` there first; or, if nothing wrote to the backing \
                     device without this cache, start with --adopt {name}, which keeps dirty data \
                     of the cache",
                    record.epoch, record.cache
                )
            } else if ours.is_some() {
                format!(
                    "this cache is older than the state directory: it knows epoch {epoch}, the \
                     directory epoch {}\n    \
                     help: an earlier copy of the cache device may have been put back: put the \
                     newest one back; or, if that is gone, make a new cache with `forebay format \
                     --force --discard-dirty`, and start once with --adopt {name}: what was not \
                     written back IS LOST THEN",
                    record.attached
                )
            } else {
                format!(
                    "this cache last served the volume in epoch {epoch}, and another one since, in \
                     epochs {} to {}, as the state directory says\n    \
                     help: use this cache's own state directory (`state` in [server]), or serve \
                     the volume with cache {}, which had it last, and detach it there; or, if this \
                     cache and the backing device belong together, start with --adopt {name}",
                    record.attached, record.epoch, record.cache
                )
            }
        }
    };
    Err(Error::new(ErrorKind::Busy, refused))
}

/// Decision: how to serve a volume without its cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Without {
    /// Record to store durably before the first write.
    pub record: Record,
    /// Whether an existing log of ranges is obsolete and must be removed first.
    pub fresh_log: bool,
    /// Notice for the user.
    pub note: Option<String>,
}

/// Decides how to serve a volume without its cache. `backing` is the identity of the backing device
/// and its size in bytes.
#[must_use]
pub fn without_cache(
    volume: &str,
    record: Option<Record>,
    (backing, backing_bytes): (Identity, u64),
) -> Without {
    let Some(record) = record else {
        return Without {
            record: Record {
                epoch: 1,
                attached: 0,
                cache: CacheId::None,
                may_be_dirty: false,
                logged_since: None,
                dirty_listed: false,
                backing,
                backing_bytes,
            },
            fresh_log: true,
            note: None,
        };
    };
    let cached = matches!(record.cache, CacheId::Uuid(_));
    let keeps = cached && record.backing.is_known();
    let note = (cached && record.may_be_dirty).then(|| {
        format!(
            "volume {volume:?} is served from its backing device, without cache {}, which may have \
             newer data: writes give that up",
            record.cache
        )
    });
    Without {
        record: Record {
            epoch: record.epoch + 1,
            logged_since: cached.then_some(record.epoch),
            dirty_listed: record.lists_nothing(),
            // Data in the cache belongs to the device that the volume had then, whichever device is
            // served now.
            backing: match keeps {
                true => record.backing,
                false => backing,
            },
            backing_bytes: match keeps {
                true => record.backing_bytes,
                false => backing_bytes,
            },
            ..record
        },
        fresh_log: record.logged_since.is_none(),
        note,
    }
}

/// Returns the new record of volume `other` after `volume` is served from the same backing device
/// through `cache`. Returns `None` if the record need not change.
///
/// # Errors
/// `Busy` if the cache of that volume may hold data that the device lacks, and `volume` would be
/// written through another cache. The user can adopt the device to override this.
pub fn renamed(
    volume: &str,
    cache: CacheId,
    adopt: bool,
    other: &str,
    record: Record,
) -> Result<Option<Record>> {
    // A cache knows the devices of its own volumes.
    if !matches!(record.cache, CacheId::Uuid(_)) || cache == record.cache {
        return Ok(None);
    }
    if record.may_be_dirty && !adopt {
        return Err(Error::new(
            ErrorKind::Busy,
            format!(
                "its device was last served as volume {other:?}, whose cache may have dirty data\n\
                 help: serve it under that name with cache {}, and `forebay detach {other}` first; \
                 or start with --adopt {volume} to give that data up",
                record.cache
            ),
        ));
    }
    // At the next attach of that volume, its cache learns that unknown ranges of the device were
    // written.
    Ok(Some(Record {
        epoch: record.epoch + 1,
        logged_since: Some(record.epoch),
        dirty_listed: record.lists_nothing(),
        ..record
    }))
}

/// Returns the record to store durably, with the list of `dirty` ranges, before a volume writes
/// without a cache that failed in service.
#[must_use]
pub fn without_failed_cache(record: Record, dirty: &[Range<u64>]) -> Record {
    let cached = matches!(record.cache, CacheId::Uuid(_));
    Record {
        epoch: record.epoch + 1,
        logged_since: cached.then_some(record.epoch),
        dirty_listed: cached,
        may_be_dirty: !dirty.is_empty(),
        ..record
    }
}

impl Record {
    /// Whether nothing was dirty when the cache failed. The cache then holds no data worth keeping,
    /// whatever is written to the volume.
    const fn lists_nothing(&self) -> bool {
        self.dirty_listed && !self.may_be_dirty
    }
}

/// Checks whether a device may be served as `volume` without a cache although the user did not give
/// `--without-cache`. The device was last served as volume `last`, with this record.
///
/// # Errors
/// `Busy` if the cache of that time may hold data that the device lacks.
pub fn check_without(volume: &str, last: &str, record: Record) -> Result<()> {
    if !matches!(record.cache, CacheId::Uuid(_)) || !record.may_be_dirty {
        return Ok(());
    }
    let was = match volume == last {
        true => "it has no cache now, but its former cache may have its dirty data".to_owned(),
        false => {
            format!("its device was served as volume {last:?}, whose cache may have dirty data")
        }
    };
    Err(Error::new(
        ErrorKind::Busy,
        format!(
            "{was}\n    \
             help: serve volume {last:?} with cache {} (`[cache]` in the configuration), and \
             `forebay detach {last}` first. Or start with --without-cache {volume} to serve the \
             backing device as it is: writes are logged then, and give up that data only where \
             they are",
            record.cache
        ),
    ))
}
