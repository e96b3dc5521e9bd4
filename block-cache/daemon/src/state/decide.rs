//! What happens when a volume meets a cache: pure decisions over what the state directory and the
//! cache remember.
//!
//! The cache raises a volume's epoch at every attach. The state directory is told of the new epoch
//! before (`Record::epoch`) and after (`Record::attached`) that, so that `attached <= what the
//! cache remembers <= epoch`, wherever the process dies. What lies outside has another history: a
//! cache that was put back from a copy, another state directory, another cache.

use std::ops::Range;

use forebay_block::{Error, ErrorKind, Identity, Result};
use forebay_cache::failpoints::{Fault, planted};

use super::epoch::{CacheId, Record};

/// What meets.
#[derive(Clone, Debug)]
pub struct Meeting<'a> {
    /// The volume's name.
    pub volume: &'a str,
    /// What the state directory remembers.
    pub record: Option<Record>,
    /// The log of ranges; none if there is none, or it is damaged.
    pub ranges: Option<Vec<Range<u64>>>,
    /// The list of what was dirty when the cache failed; none if there is none, or it is damaged.
    pub dirty: Option<Vec<Range<u64>>>,
    /// The cache that the volume is to be attached to.
    pub cache: CacheId,
    /// The epoch that this cache remembers of the volume; none if it does not know it.
    pub cache_epoch: Option<u64>,
    /// Whether the user says that cache and backing device belong together (`--adopt`).
    pub adopt: bool,
    /// Whether the volume's mode keeps dirty data.
    pub dirty_mode: bool,
    /// What tells the backing device from others; whatever it is called.
    pub backing: Identity,
    /// Size of the backing device, bytes.
    pub backing_bytes: u64,
}

/// How a volume is attached to a cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attach {
    /// What the state directory must say, durably, before the attach.
    pub before: Record,
    /// The epoch that the cache is told: a higher one than its own says that the volume was written
    /// without it.
    pub epoch: u64,
    /// Where it was written; none where that is not known, and it may have been everywhere.
    pub stale: Option<Vec<Range<u64>>>,
    /// All that was dirty before that, if it is known: nothing else in the cache counts.
    pub dirty: Option<Vec<Range<u64>>>,
    /// What the state directory must say after the attach; the log of ranges is then obsolete.
    pub after: Record,
    /// What a person should know.
    pub note: Option<String>,
}

/// Decides how to attach.
///
/// # Errors
/// `Busy` when the volume was served in a way that this cache cannot know of; the message says what
/// to do.
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
    // Nobody knows whether the backing device was written to: all clean copies go, and dirty data
    // stays.
    let behind = |known: u64| (last.max(known) + 1, Some(Vec::new()), None);
    let (epoch, stale, dirty) = match (ours, meeting.cache_epoch) {
        (Some(record), Some(known)) => match record.logged_since {
            Some(since) if known <= since => match meeting.dirty.clone() {
                Some(dirty) if record.dirty_listed => (last, nowhere, Some(dirty)),
                _ => (last, meeting.ranges.clone(), None),
            },
            // Adopted though one of the two is of an earlier time.
            _ if !(record.attached..=record.epoch).contains(&known) => behind(known),
            _ => (known, nowhere, None),
        },
        // Adopted from another history.
        (None, Some(known)) => behind(known),
        (_, None) => (last, nowhere, None),
    };
    // The record of this cache says so before anything in it is dirty. Of a cache with another
    // history nobody knows.
    let is_unknown = ours.is_none() || meeting.adopt;
    let may_be_dirty = ours.is_some_and(|record| record.may_be_dirty)
        || is_unknown && meeting.cache_epoch.is_some();
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

/// Refuses what does not belong together. `ours` is the record, if it is of this cache.
fn check(meeting: &Meeting<'_>, ours: Option<Record>) -> Result<Option<String>> {
    let name = meeting.volume;
    let refused = match (meeting.record, meeting.cache_epoch) {
        (None, None) => return Ok(None),
        (None, Some(epoch)) => format!(
            "the cache holds data of volume {name:?} (epoch {epoch}), but the state directory does \
             not know the volume, so that nobody knows whether the backing device was written to \
             since: use the former state directory (`state` in [server]), or start with --adopt \
             {name} if cache and backing device belong together"
        ),
        (Some(record), None) if !record.may_be_dirty => return Ok(None),
        (Some(record), None) => match record.cache {
            CacheId::None => return Ok(None),
            CacheId::Memory => {
                return Ok(Some(format!(
                    "volume {name:?} was last served through a cache in memory that ended without \
                     writing back: what it held alone is lost, as volatile = true allows"
                )));
            }
            CacheId::Uuid(_) if ours.is_some() => format!(
                "this cache held volume {name:?} and may have had data that the backing device \
                 does \
                 not have, but it does not know the volume any more: check it with `forebay \
                 check`, \
                 or start with --adopt {name} to go on from the backing device"
            ),
            CacheId::Uuid(_) => format!(
                "volume {name:?} was last served through cache {}, which may hold data that the \
                 backing device does not have: start once with that cache and run `forebay detach \
                 {name}`, or start with --adopt {name} to give that data up",
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
                    "the state directory is older than this cache: it knows volume {name:?} up to \
                     epoch {}, and the cache \
                     remembers epoch {epoch}, as if a backup of the state directory had been put \
                     back. Put the newest one \
                     back; or, if nothing wrote to the backing device without this cache since, \
                     start with --adopt {name}: \
                     what is dirty in the cache is kept",
                    record.epoch
                )
            } else if is_behind {
                format!(
                    "the state directory knows volume {name:?} up to epoch {} on cache {}, and \
                     this cache remembers epoch \
                     {epoch}: it may be an older backup. Put the newest one back; or, if the \
                     volume was served through that \
                     cache since, `forebay detach {name}` there first; or, if nothing wrote to the \
                     backing device without \
                     this cache, start with --adopt {name}: what is dirty in the cache is kept",
                    record.epoch, record.cache
                )
            } else if ours.is_some() {
                format!(
                    "this cache does not know what happened to volume {name:?} since epoch \
                     {epoch}, and the state directory knows \
                     epoch {}, as if an earlier copy of the cache device had been put back. Put \
                     the newest one back; or, if that is gone, make a new cache with `forebay \
                     format --force --discard-dirty`, and start once \
                     with --adopt {name}: what was not written back IS LOST THEN",
                    record.attached
                )
            } else {
                format!(
                    "this cache remembers epoch {epoch} of volume {name:?}, the state directory \
                     epochs {} to {} on cache {}\n\
                     help: use this cache's own state directory (`state` in [server]), or serve \
                     the volume with the cache \
                     that had it last, and detach it there; or, if this cache and the backing \
                     device belong together, \
                     start with --adopt {name}",
                    record.attached, record.epoch, record.cache
                )
            }
        }
    };
    Err(Error::new(ErrorKind::Busy, refused))
}

/// How a volume is served without its cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Without {
    /// What the state directory must say, durably, before the first write.
    pub record: Record,
    /// Whether a log of ranges that lies about is of another time, and is removed first.
    pub fresh_log: bool,
    /// What a person should know.
    pub note: Option<String>,
}

/// Decides how to serve a volume without its cache, from a backing device of this identity and size
/// in bytes.
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
            "volume {volume:?} is served without its cache {}, which may hold newer data: clients \
             see the backing device as it is, and where they write, the cache's data is given up",
            record.cache
        )
    });
    Without {
        record: Record {
            epoch: record.epoch + 1,
            logged_since: cached.then_some(record.epoch),
            dirty_listed: record.lists_nothing(),
            // What the cache holds belongs to the device that it had, whatever is served meanwhile.
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

/// What becomes of another volume's record when its backing device is served as `volume`, through
/// `cache`; none if it need not change.
///
/// # Errors
/// `Busy` when that volume's cache may hold data that the device does not have, and `volume` would
/// be written through another cache, unless the user adopts the device.
pub fn renamed(
    volume: &str,
    cache: CacheId,
    adopt: bool,
    other: &str,
    record: Record,
) -> Result<Option<Record>> {
    // Of its own volumes a cache knows the devices itself.
    if !matches!(record.cache, CacheId::Uuid(_)) || cache == record.cache {
        return Ok(None);
    }
    if record.may_be_dirty && !adopt {
        return Err(Error::new(
            ErrorKind::Busy,
            format!(
                "the backing device was last served as volume {other:?} through cache {}, which \
                 may hold \
                 data that it does not have: serve it under that name with that cache and `forebay \
                 detach \
                 {other}` first, or start with --adopt {volume} to go on without that data",
                record.cache
            ),
        ));
    }
    // When that volume comes back, its cache hears that the device was written, nobody knows where.
    Ok(Some(Record {
        epoch: record.epoch + 1,
        logged_since: Some(record.epoch),
        dirty_listed: record.lists_nothing(),
        ..record
    }))
}

/// What the state directory must say, durably, with the list of what is `dirty`, before a volume
/// writes past a cache that failed in service.
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
    /// Whether nothing was dirty when the cache failed: then nothing in it counts, wherever the
    /// volume is written.
    const fn lists_nothing(&self) -> bool {
        self.dirty_listed && !self.may_be_dirty
    }
}

/// Whether a device that was last served as volume `last`, with this record, may be served as
/// `volume` without a cache, as the user did not ask for (`--without-cache`).
///
/// # Errors
/// `Busy` when the cache of that time may hold data that the device does not have.
pub fn check_without(volume: &str, last: &str, record: Record) -> Result<()> {
    if !matches!(record.cache, CacheId::Uuid(_)) || !record.may_be_dirty {
        return Ok(());
    }
    let was = match volume == last {
        true => "it".to_owned(),
        false => format!("its backing device, as volume {last:?},"),
    };
    Err(Error::new(
        ErrorKind::Busy,
        format!(
            "volume {volume:?} would be served without a cache, but {was} was last served through \
             cache {}, which may \
             hold data that the backing device does not have: serve volume {last:?} with that \
             cache (`[cache]` in the \
             configuration) and `forebay detach {last}` first, or start with --without-cache \
             {volume} to serve the \
             backing device as it is; what is written then is logged, and nothing else of that \
             data is given up",
            record.cache
        ),
    ))
}
