//! Evidence of a cache on a device that has no superblock any more, and the errors for it.

use std::path::{Path, PathBuf};

use forebay_block::{Error, ErrorKind};

use crate::state::opening::caches_at;
use crate::state::{CacheId, Record, hex, of_cache, with_help};

use super::journal;

/// A cache that was on a device, as other places record it.
#[derive(Debug)]
pub(crate) struct Remains {
    uuid: [u8; 16],
    /// Volumes of which it may have data that their backing devices lack.
    dirty: Vec<String>,
    /// Its process journal of this boot.
    journal: Option<PathBuf>,
}

impl Remains {
    /// Looks for a cache that was at the path `place`, in a state directory and in process
    /// journals. `part` is the UUID in the superblock of its other device, if that has one.
    pub(crate) fn find(
        state: &Path,
        place: &str,
        configured: Option<&Path>,
        part: Option<[u8; 16]>,
    ) -> Option<Self> {
        let left = journal::left_of(place, configured, None);
        let noted = caches_at(state, place);
        let named = |uuid: &[u8; 16]| !volumes_of(state, uuid).is_empty();
        let in_use = noted.iter().copied().find(named);
        let uuid = part
            .or(left.as_ref().map(|(uuid, _)| *uuid))
            .or(in_use)
            .or(noted.first().copied())?;
        let volumes = volumes_of(state, &uuid).into_iter();
        let dirty = volumes.filter(|(_, record)| record.may_be_dirty);
        Some(Self {
            uuid,
            dirty: dirty.map(|(volume, _)| volume).collect(),
            journal: (left.filter(|(of, _)| *of == uuid)).map(|(_, path)| path),
        })
    }

    /// Returns the UUID of the cache, as text.
    pub(crate) fn uuid(&self) -> String {
        hex(&self.uuid)
    }

    /// Describes the data that is lost with the cache, as a sentence.
    pub(crate) fn stake(&self) -> String {
        let volumes = match &self.dirty[..] {
            [] => String::new(),
            names => format!("dirty data of volume {}", names.join(", ")),
        };
        let writes = self.journal.as_ref().map_or_else(String::new, |path| {
            format!(
                "acknowledged writes in the process journal {}",
                path.display()
            )
        });
        match (volumes.is_empty(), writes.is_empty()) {
            (true, true) => {
                "No dirty data of it is recorded: only clean copies are lost".to_owned()
            }
            (false, false) => format!("LOST with it may be {volumes}, and {writes}"),
            _ => format!("LOST with it may be {volumes}{writes}"),
        }
    }
}

fn volumes_of(state: &Path, uuid: &[u8; 16]) -> Vec<(String, Record)> {
    of_cache(state, CacheId::Uuid(*uuid))
}

/// Returns the error for `what`, which has no readable superblock, with the remedy. The paths of
/// data and metadata are arguments for `forebay format`; `in_lines` selects metadata in lines.
/// `remains` is the cache that was there, as other places record it.
pub(crate) fn unreadable(
    error: Error,
    what: &str,
    (data, metadata): (Option<&Path>, Option<&Path>),
    in_lines: bool,
    remains: Option<Remains>,
) -> Error {
    let flag = |name: &str, path: Option<&Path>| {
        path.map_or_else(String::new, |path| format!(" --{name} {}", path.display()))
    };
    let lines = if in_lines { " --pmem" } else { "" };
    let devices = flag("cache", data) + &flag("metadata", metadata) + lines;
    let stake = remains.as_ref().map(Remains::stake);
    let stake = stake.map_or_else(String::new, |stake| format!(". {stake}"));
    let remedy = format!(
        "put the device back, or a copy of it. Else make a new cache with `forebay format --force \
         --discard-dirty{devices}`, which discards what is left of this one, and start once with \
         --adopt VOLUME for each volume: acknowledged data that is not written back to the \
         backing devices IS LOST THEN{stake}"
    );
    match (error.kind(), remains) {
        (ErrorKind::NotFound, Some(remains)) => Error::new(
            ErrorKind::Corrupt,
            format!(
                "the superblocks of cache {} on {what} are lost\n    \
                 help: they were overwritten, or another device is in their place: {remedy}",
                remains.uuid()
            ),
        ),
        (ErrorKind::NotFound, None) => Error::new(
            ErrorKind::NotFound,
            format!(
                "there is no cache on {what}\n    \
                 help: if there never was one, make one with `forebay format{devices}`, which \
                 discards what the device has. If there was one, put its device back, or a copy \
                 of it: acknowledged data that is not written back IS LOST with it"
            ),
        ),
        (ErrorKind::Corrupt, _) => with_help(
            &error,
            &format!("the cache on {what} cannot be opened"),
            &remedy,
        ),
        _ => error.context(format!("the cache on {what} cannot be read")),
    }
}
