//! What happens when a volume meets a cache: pure decisions over what the state directory and the
//! cache remember.

use std::ops::Range;

use forebay_block::{Error, ErrorKind, Result};

use super::epoch::{CacheId, Record};

/// How a volume is attached to a cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attach {
    /// What the state directory must say, durably, before the attach.
    pub before: Record,
    /// The ranges that were written without the cache: its copies of them are stale. None where
    /// that is not known, and everything may be stale.
    pub stale: Option<Vec<Range<u64>>>,
    /// What the state directory must say after the attach; the log of ranges is then obsolete.
    pub after: Record,
    /// What a person should know.
    pub note: Option<String>,
}

/// What meets.
#[derive(Clone, Debug)]
pub struct Meeting<'a> {
    /// The volume's name.
    pub volume: &'a str,
    /// What the state directory remembers.
    pub record: Option<Record>,
    /// The log of ranges; none if there is none, or it is damaged.
    pub ranges: Option<Vec<Range<u64>>>,
    /// The cache that the volume is to be attached to.
    pub cache: CacheId,
    /// The epoch that this cache remembers of the volume; none if it does not know it.
    pub cache_epoch: Option<u64>,
    /// Whether the user says that cache and backing device belong together (`--adopt`).
    pub adopt: bool,
    /// Whether the volume's mode keeps dirty data.
    pub dirty_mode: bool,
}

/// Decides how to attach.
///
/// # Errors
/// `Busy` when the volume was served in a way that this cache cannot know of; the message says what
/// to do.
pub fn attach(meeting: &Meeting<'_>) -> Result<Attach> {
    let name = meeting.volume;
    let same_cache = meeting
        .record
        .is_some_and(|record| record.cache == meeting.cache);
    let mut note = None;
    match (meeting.record, meeting.cache_epoch) {
        // Known to neither: a new volume.
        (None, None) => {}
        (None, Some(epoch)) if !meeting.adopt => {
            return Err(busy(format!(
                "the cache holds data of volume {name:?} (epoch {epoch}), but the state directory \
                 does not know the volume, so that nobody knows whether the backing device was \
                 written to since: use the former state directory (`state` in [server]), or start \
                 with --adopt {name} if cache and backing device belong together"
            )));
        }
        (Some(record), None) if !same_cache => match record.cache {
            CacheId::Uuid(_) if record.may_be_dirty && !meeting.adopt => {
                return Err(busy(format!(
                    "volume {name:?} was last served through cache {}, which may hold data that the \
                     backing device does not have: start once with that cache and run `forebay \
                     detach {name}`, or start with --adopt {name} to give that data up",
                    record.cache
                )));
            }
            CacheId::Memory if record.may_be_dirty => {
                note = Some(format!(
                    "volume {name:?} was last served through a cache in memory that ended without \
                     writing back: what it held alone is lost, as volatile = true allows"
                ));
            }
            _ => {}
        },
        (Some(record), None) if record.may_be_dirty && !meeting.adopt => {
            return Err(busy(format!(
                "this cache held volume {name:?} (epoch {}) and may have had data that the backing \
                 device does not have, but it does not know the volume any more: check it with \
                 `forebay check`, or start with --adopt {name} to go on from the backing device",
                record.epoch
            )));
        }
        (Some(record), Some(epoch)) if !meeting.adopt => {
            let known = record.epoch == epoch || record.logged_since == Some(epoch);
            if !same_cache || !known {
                return Err(busy(format!(
                    "volume {name:?} was served since this cache last saw it (the cache remembers \
                     epoch {epoch}, the state directory epoch {} on cache {}): what the cache holds \
                     is stale. Detach the volume there and format this cache anew, or start with \
                     --adopt {name} if you know that this cache is the newer",
                    record.epoch, record.cache
                )));
            }
        }
        _ => {}
    }
    let last = meeting.record.map_or(0, |record| record.epoch);
    let last = last.max(meeting.cache_epoch.unwrap_or(0));
    // The log matters only to a cache that has not been told of it yet.
    let logged = meeting.record.and_then(|record| record.logged_since);
    let stale = match logged {
        Some(since) if meeting.cache_epoch == Some(since) => meeting.ranges.clone(),
        _ => Some(Vec::new()),
    };
    // The same cache goes on in the same epoch; another one begins a new epoch, so that the former
    // is told apart for ever.
    let epoch = if same_cache && meeting.record.is_some() {
        last
    } else {
        last + 1
    };
    let was_dirty = same_cache && meeting.record.is_some_and(|record| record.may_be_dirty);
    let may_be_dirty = was_dirty || meeting.cache_epoch.is_some();
    let after = Record {
        epoch,
        cache: meeting.cache,
        may_be_dirty: may_be_dirty || meeting.dirty_mode,
        logged_since: None,
    };
    Ok(Attach {
        before: Record {
            // A volume that the cache does not know has no dirty data until it is attached.
            may_be_dirty,
            logged_since: logged.filter(|_| same_cache),
            ..after
        },
        stale,
        after,
        note,
    })
}

/// What the state directory must say, durably, before a volume is served without its cache, and what
/// a person should know.
#[must_use]
pub fn without_cache(volume: &str, record: Option<Record>) -> (Record, Option<String>) {
    let Some(record) = record else {
        let fresh = Record {
            epoch: 1,
            cache: CacheId::None,
            may_be_dirty: false,
            logged_since: None,
        };
        return (fresh, None);
    };
    let cached = matches!(record.cache, CacheId::Uuid(_));
    let note = (cached && record.may_be_dirty).then(|| {
        format!(
            "volume {volume:?} is served without its cache {}, which may hold newer data: clients \
             see the backing device as it is, and what they write over is given up in the cache",
            record.cache
        )
    });
    let next = Record {
        epoch: record.epoch + 1,
        logged_since: match record.logged_since {
            Some(since) => Some(since),
            None => cached.then_some(record.epoch),
        },
        ..record
    };
    (next, note)
}

fn busy(context: String) -> Error {
    Error::new(ErrorKind::Busy, context)
}
