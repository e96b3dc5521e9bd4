//! Refuses a cache that does not belong to a volume, with the reason and the remedy.

use forebay_block::{Error, ErrorKind, Result};

use super::{AttachRequest, history};
use crate::state::epoch::{CacheId, Record};

/// Refuses a cache that does not belong to the volume. `ours` is the record if it names this cache.
pub(super) fn check(request: &AttachRequest<'_>, ours: Option<Record>) -> Result<Option<String>> {
    let name = request.volume;
    let refused = match (request.record, request.cache_epoch) {
        (None, None) => return Ok(None),
        (None, Some(_)) if request.served_as.is_some() => format!(
            "the cache has data of it, and the state directory knows its device only as volume \
             {:?}\n    \
             help: set `state` in [server] to the state directory that it had; or start with \
             --adopt {name}, and give up dirty data that may be older than the backing device's \
             with --discard-stale-dirty {name}; or, if nothing wrote to the backing device without \
             this cache, {}",
            request.served_as.as_deref().unwrap_or_default(),
            keep_dirty(request)
        ),
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
            if ours.is_some() && history::is_of(request, record, epoch) {
                return Ok(None);
            }
            let is_behind = epoch > record.epoch;
            let is_logged = record.logged_since.is_some_and(|since| since < epoch)
                || (record.logged_since.is_none() && history::has_writes(request));
            if record.logs_every_write() {
                format!(
                    "the state directory knows it only without a cache, and this cache has data \
                     of it\n    \
                     help: set `state` in [server] to the state directory that it had; or start \
                     with --adopt {name}, and give up dirty data {} with --discard-stale-dirty \
                     {name}; or, if nothing wrote to the backing device without this cache, {}",
                    match request.served_as.is_none() && request.ranges.is_some() {
                        true => "in the ranges that were written without a cache",
                        false => "that may be older than the backing device's",
                    },
                    keep_dirty(request)
                )
            } else if is_logged && ours.is_some() {
                format!(
                    "the state directory is older than this cache (epoch {epoch}), and knows \
                     writes without it\n    \
                     help: put the newest state directory back, or name it with `state` in \
                     [server]; or start with --adopt {name}, and give up dirty data in the ranges \
                     that were written without the cache with --discard-stale-dirty {name}; or, \
                     if nothing wrote to the backing device without this cache, {}",
                    keep_dirty(request)
                )
            } else if !matches!(record.cache, CacheId::Uuid(_)) {
                format!(
                    "served without this cache, or cache and state directory are of different \
                     times\n    \
                     help: put the newest state directory or cache device back (`state` in \
                     [server] names the directory); or start with --adopt {name}, and give up \
                     dirty data that may be older than the backing device's with \
                     --discard-stale-dirty {name}; or, if the cache is no earlier copy and \
                     nothing wrote to the backing device without it, {}",
                    keep_dirty(request)
                )
            } else if is_behind && ours.is_some() {
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
                     `forebay detach {name}` there, and start with --adopt {name}; or, if nothing \
                     wrote to the backing device without this cache, {}",
                    record.epoch,
                    record.cache,
                    keep_dirty(request)
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
                     the volume with cache {}, which had it last, and detach it there; or start \
                     with --adopt {name}, and give up dirty data that may be older than the \
                     backing device's with --discard-stale-dirty {name}; or, if the cache is no \
                     earlier copy and nothing wrote to the backing device without it, {}",
                    record.attached,
                    record.epoch,
                    record.cache,
                    keep_dirty(request)
                )
            }
        }
    };
    Err(Error::new(ErrorKind::Busy, refused))
}

/// Returns the remedy that keeps all dirty data of a cache which the state directory does not know.
fn keep_dirty(request: &AttachRequest<'_>) -> String {
    let name = request.volume;
    let other = match &request.served_as {
        Some(other) => format!(", {other}.epoch"),
        None => String::new(),
    };
    format!(
        "remove {name}.epoch{other} and {name}.ranges from the state directory and start with \
         --adopt {name}, which keeps dirty data of the cache"
    )
}
