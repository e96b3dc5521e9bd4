//! Decides how to attach a volume to a cache. The decisions are pure functions of the records in
//! the state directory and the cache.
//!
//! The cache raises a volume's epoch at every attach. The state directory records the new epoch
//! before the attach (`Record::epoch`) and after it (`Record::attached`). So `attached <= epoch of
//! the cache <= epoch` holds wherever the process dies. An epoch outside of this range has another
//! history: a cache restored from a copy, another state directory, or another cache.

mod claims;
mod history;
mod refusal;

use std::ops::Range;

use forebay_block::{Error, ErrorKind, Identity, Result};
use forebay_cache::failpoints::{Fault, planted};

pub use claims::Claim;
use history::History;

use super::epoch::{ANY_EPOCH, CacheId, Record};
use super::ranges::LogChange;
use super::writers::Writers;

/// A volume and the cache that it is about to be attached to.
#[derive(Clone, Debug)]
pub struct AttachRequest<'a> {
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
    /// Claim of the backing device, if that is in object storage.
    pub claim: Option<Claim>,
}

/// Decision: how to attach a volume to a cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attach {
    /// Record to store durably before the claim of a backing device in object storage.
    pub announced: Option<Record>,
    /// Whether another daemon has served that device since. An existing log of ranges is obsolete
    /// then, and is removed before `announced` is stored.
    pub is_after_other: bool,
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
pub fn attach(request: &AttachRequest<'_>) -> Result<Attach> {
    let after_other = claims::after_other(request);
    let is_after_other = after_other.is_some();
    let request = after_other.as_ref().unwrap_or(request);
    let announced = |claim: Claim| Some(claim.announced_in(request.record?));
    let ours = request
        .record
        .filter(|record| record.cache == request.cache && record.cache != CacheId::Memory);
    let mut note = None;
    if !request.adopt && !planted(Fault::TrustState) {
        note = refusal::check(request, ours)?;
    }
    let history = History::new(request, ours);
    let epoch = history.epoch;
    // The record of this cache states dirty data before the cache holds any. The record says
    // nothing about a cache with another history.
    let is_unknown = ours.is_none() || request.adopt;
    let may_be_dirty = ours.is_some_and(|record| record.may_be_dirty)
        || (is_unknown && request.cache_epoch.is_some());
    let before = Record {
        epoch: epoch.max(request.cache_epoch.unwrap_or(0)) + 1,
        attached: history.attached,
        cache: request.cache,
        may_be_dirty,
        logged_since: history.logged_since,
        dirty_listed: history.log == LogChange::Unchanged
            && ours.is_some_and(|record| record.dirty_listed),
        backing: request.backing,
        backing_bytes: request.backing_bytes,
        writers: (request.claim).map_or_else(Writers::default, |claim| Writers::of(claim.next)),
    };
    Ok(Attach {
        announced: request.claim.and_then(announced),
        is_after_other,
        before,
        epoch,
        stale: history.stale,
        dirty: history.dirty,
        log: history.log,
        after: Record {
            attached: before.epoch,
            may_be_dirty: may_be_dirty || request.dirty_mode,
            logged_since: None,
            dirty_listed: false,
            ..before
        },
        note,
    })
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
                writers: Writers::default(),
            },
            fresh_log: true,
            note: may_be_cached.then(|| unknown_cache(volume)),
        };
    };
    let mut plan = written_without_cache(volume, record);
    // Data in the cache belongs to the device that the volume had then, whichever device is served
    // now.
    let is_cached = matches!(record.cache, CacheId::Uuid(_));
    if !is_cached || !record.backing.is_known() {
        (plan.record.backing, plan.record.backing_bytes) = (backing, backing_bytes);
    }
    let is_same = (record.backing).overlaps(record.backing_bytes, backing, backing_bytes)
        && position(record.backing, backing) == Some(0);
    if record.logs_every_write() && !is_same {
        // The log has the ranges of another device.
        plan.record.logged_since = None;
        plan.fresh_log = true;
    }
    plan
}

/// As [`without_cache`], for a volume whose backing device is served under another name.
#[must_use]
pub fn written_without_cache(volume: &str, record: Record) -> Without {
    let is_cached = matches!(record.cache, CacheId::Uuid(_));
    Without {
        record: Record {
            epoch: record.epoch + 1,
            logged_since: match is_cached {
                true => Some(record.epoch),
                false => record.logged_since,
            },
            dirty_listed: record.lists_nothing(),
            ..record
        },
        fresh_log: record.logged_since.is_none(),
        note: match record.logs_every_write() {
            true => Some(unknown_cache(volume)),
            false => (is_cached && record.may_be_dirty).then(|| {
                format!(
                    "volume {volume:?} is served from its backing device, without cache {}, which \
                     may have newer data: writes give that up",
                    record.cache
                )
            }),
        },
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
        "volume {volume:?} is served without a cache: a cache may have newer data, which writes \
         give up\n    \
         help: the state directory knows no cache of it; if no cache has data of it, ignore this"
    )
}

/// Returns the first volume among `others`, which were served from one backing device, whose last
/// service was not through `cache`. Returns `None` if there is none.
#[must_use]
pub fn served_as(others: &[(String, Record)], cache: CacheId) -> Option<String> {
    let mut others = others.iter();
    let found = others.find(|(_, record)| record.cache != cache || record.logged_since.is_some());
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
        return Ok(claims::written_elsewhere(record));
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
    Ok(claims::written_elsewhere(record))
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
             backing device as it is. Writes are logged then, and give up that data only where \
             they are",
            record.cache
        ),
    ))
}
