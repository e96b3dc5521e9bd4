//! Error text that names the holder of a source.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::{Found, PROCESS_BITS, Zone, number};
use crate::pool::Pool;

/// Returns the reason why a source is unavailable, its holder, and the remedy.
pub(super) fn describe(source: &Path, found: &Found) -> String {
    let (here, place) = (source.display(), found.place.display());
    let Some((number, process)) = lock_owner(found) else {
        return format!(
            "source {here}: another program has {place} locked\nhelp: end that program first"
        );
    };
    let pool = pool_of(process, number);
    let who = match &pool {
        Some(pool) => format!("process {process} of the pool {}", pool.display()),
        None => format!("process {process} of another pool, which this process cannot see,"),
    };
    let what = match found.zone {
        Zone::Source if found.place == source => format!("{who} has it"),
        Zone::Source => format!("{who} has {place}, which it is in"),
        Zone::Above => match pool.as_deref().and_then(source_of) {
            Some(inner) => format!("{who} has {}, which is in it", inner.display()),
            None => format!("{who} has something in it"),
        },
    };
    let remedy = match &pool {
        Some(pool) => format!(
            "use that pool (--pool {}), or end its directory and all its nodes first",
            pool.display()
        ),
        None => "end the directory and all nodes of that pool first".into(),
    };
    format!("source {here}: {what}, and a file is in one pool at a time\nhelp: {remedy}")
}

/// Returns the pool and the process that a lock names, if it is a lock of Forebay.
fn lock_owner(found: &Found) -> Option<(u64, u32)> {
    if found.lock.first != found.lock.last {
        return None;
    }
    let inside = u64::try_from(found.lock.first - found.zone.first()).ok()?;
    let process = u32::try_from(inside & ((1 << PROCESS_BITS) - 1)).ok()?;
    Some((inside >> PROCESS_BITS, process))
}

/// Returns the pool's directory, which the process has open.
fn pool_of(process: u32, pool: u64) -> Option<PathBuf> {
    for entry in fs::read_dir(format!("/proc/{process}/fd")).ok()?.flatten() {
        let Ok(metadata) = fs::metadata(entry.path()) else {
            continue;
        };
        if metadata.is_dir() && number(metadata.dev(), metadata.ino()) == pool {
            return fs::read_link(entry.path()).ok();
        }
    }
    None
}

fn source_of(pool: &Path) -> Option<PathBuf> {
    Pool::new(pool).ok()?.source().ok()
}
