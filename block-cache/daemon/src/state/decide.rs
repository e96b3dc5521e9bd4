//! Decides how to attach a volume to a cache. The decisions are pure functions of the records in
//! the state directory and the cache.
//!
//! The cache raises a volume's epoch at every attach. The state directory records the new epoch
//! before the attach (`Record::epoch`) and after it (`Record::attached`). So `attached <= epoch of
//! the cache <= epoch` holds wherever the process dies. An epoch outside of this range has another
//! history: a cache restored from a copy, another state directory, or another cache.

mod refusal;

use std::ops::Range;

use forebay_block::{Error, ErrorKind, Identity, Result};
use forebay_cache::failpoints::{Fault, planted};

use super::epoch::{CacheId, Record};
use super::ranges::LogChange;

/// [`Record::logged_since`] for a log that has all writes, whichever cache has data of the volume.
const ANY_EPOCH: u64 = u64::MAX;

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
    /// Another name under which the backing device was last served, and not through this cache.
    pub served_as: Option<String>,
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
    /// Change of the log of ranges, to be durable before `before` is stored.
    pub log: LogChange,
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
        note = refusal::check(meeting, ours)?;
    }
    let history = history(meeting, ours);
    let epoch = history.epoch;
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
        logged_since: history.logged_since,
        dirty_listed: history.log == LogChange::Unchanged
            && ours.is_some_and(|record| record.dirty_listed),
        backing: meeting.backing,
        backing_bytes: meeting.backing_bytes,
    };
    Ok(Attach {
        before,
        epoch,
        stale: history.stale,
        dirty: history.dirty,
        log: history.log,
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

/// Writes to a volume that its cache does not know of.
struct History {
    /// As [`Attach::epoch`].
    epoch: u64,
    /// As [`Attach::stale`].
    stale: Option<Vec<Range<u64>>>,
    /// As [`Attach::dirty`].
    dirty: Option<Vec<Range<u64>>>,
    /// [`Record::logged_since`] until the cache has the new epoch.
    logged_since: Option<u64>,
    /// As [`Attach::log`].
    log: LogChange,
}

/// Returns the writes that the cache does not know of. `ours` is the record if it names this cache.
///
/// An adopted cache keeps its dirty data only if the state directory knows of no service that was
/// not through this cache. Otherwise that data may be older than the backing device's.
fn history(meeting: &Meeting<'_>, ours: Option<Record>) -> History {
    let last = meeting.record.map_or(0, |record| record.epoch);
    // The cache knows of all writes, or does not know the volume.
    let whole = |epoch| History {
        epoch,
        stale: Some(Vec::new()),
        dirty: None,
        logged_since: ours.and_then(|record| record.logged_since),
        log: LogChange::Unchanged,
    };
    let Some(known) = meeting.cache_epoch else {
        return whole(last);
    };
    let adopted = |stale, log| History {
        epoch: last.max(known) + 1,
        stale,
        dirty: None,
        logged_since: Some(known),
        log,
    };
    // Other writes are unknown: all clean copies are dropped, and dirty data stays.
    let keep_dirty = || adopted(Some(Vec::new()), LogChange::Emptied);
    let suspect_all = || adopted(None, LogChange::Removed);
    match (ours, meeting.record) {
        (Some(record), _) if known < record.attached => suspect_all(),
        (Some(record), _) => match record.logged_since {
            Some(since) if known <= since => match meeting.dirty.clone() {
                Some(dirty) if record.dirty_listed => History {
                    dirty: Some(dirty),
                    ..whole(last)
                },
                _ => History {
                    stale: meeting.ranges.clone(),
                    ..whole(last)
                },
            },
            _ if known > record.epoch => keep_dirty(),
            _ => whole(known),
        },
        (None, None) if meeting.served_as.is_none() => keep_dirty(),
        (None, Some(record)) if record.logs_every_write() && meeting.ranges.is_some() => {
            adopted(meeting.ranges.clone(), LogChange::Unchanged)
        }
        (None, _) if planted(Fault::TrustState) => keep_dirty(),
        (None, _) => suspect_all(),
    }
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
/// and its size in bytes. `may_be_cached` states that a cache which the state directory does not
/// know may have data of the volume. All writes are logged for that cache, whichever it is.
#[must_use]
pub fn without_cache(
    volume: &str,
    record: Option<Record>,
    (backing, backing_bytes): (Identity, u64),
    may_be_cached: bool,
) -> Without {
    let Some(record) = record else {
        return Without {
            record: Record {
                epoch: 1,
                attached: 0,
                cache: CacheId::None,
                may_be_dirty: false,
                logged_since: may_be_cached.then_some(ANY_EPOCH),
                dirty_listed: false,
                backing,
                backing_bytes,
            },
            fresh_log: true,
            note: may_be_cached.then(|| unknown_cache(volume)),
        };
    };
    let cached = matches!(record.cache, CacheId::Uuid(_));
    let keeps = cached && record.backing.is_known();
    let note = match record.logs_every_write() {
        true => Some(unknown_cache(volume)),
        false => (cached && record.may_be_dirty).then(|| {
            format!(
                "volume {volume:?} is served from its backing device, without cache {}, which may \
                 have newer data: writes give that up",
                record.cache
            )
        }),
    };
    Without {
        record: Record {
            epoch: record.epoch + 1,
            logged_since: match cached {
                true => Some(record.epoch),
                false => record.logged_since,
            },
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

/// Returns the position of a served device in the device that a record names, bytes. It may be
/// negative. Both show the same medium. Returns `None` if the position is unknown.
#[must_use]
pub fn position(had: Identity, served: Identity) -> Option<i128> {
    match (had.start, served.start) {
        (Some(had), Some(served)) => Some(i128::from(served) - i128::from(had)),
        (None, None) => Some(0),
        _ => None,
    }
}

fn unknown_cache(volume: &str) -> String {
    format!(
        "volume {volume:?} is served from its backing device, and the state directory knows no \
         cache of it: a cache may have newer data, and writes give that up"
    )
}

/// Returns the first volume among `others`, which were served from one backing device, whose last
/// service was not through `cache`.
#[must_use]
pub fn served_as(others: &[(String, Record)], cache: CacheId) -> Option<String> {
    let mut others = others.iter();
    let found = others.find(|(_, record)| record.cache != cache);
    found.map(|(other, _)| other.clone())
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
    if record.logs_every_write() {
        // The log lacks the writes from now on.
        return Ok(Some(Record {
            logged_since: None,
            ..record
        }));
    }
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
    /// Whether the log of ranges has all writes since the state directory knows the volume, which
    /// was served through no cache since.
    #[must_use]
    pub fn logs_every_write(&self) -> bool {
        self.cache == CacheId::None && self.logged_since == Some(ANY_EPOCH)
    }

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
