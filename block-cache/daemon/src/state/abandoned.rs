//! `NAME.abandoned`: list of the dirty data that a volume lost on request, with the time.
//!
//! Forebay never reads this file; it is a record for people. It is durable before the cache forgets
//! the volume. So the lost ranges stay named in a place that outlives the daemon and its log.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::ops::Range;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use forebay_block::Result;

use super::files::{self, sync_directory};

/// Appends the ranges of a volume that are about to be abandoned to the list at `path`. On return
/// they are durable.
///
/// # Errors
/// The error of the operating system. The caller must abandon nothing then.
pub(super) fn note(path: &Path, volume: &str, epoch: u64, ranges: &[Range<u64>]) -> Result<()> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let seconds = now.map_or(0, |since| since.as_secs());
    let mut text = format!(
        "volume {volume:?}, epoch {epoch}, {seconds} s since 1970: dirty data abandoned, offset \
         and length in bytes\n"
    );
    for Range { start, end } in ranges {
        text.push_str(&format!("{start} {}\n", end - start));
    }
    let added = files::open(path, OpenOptions::new().append(true).create(true));
    let added = added.and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        Ok(file.sync_all()?)
    });
    files::in_context(added, || {
        format!("cannot list what is abandoned in {}", path.display())
    })?;
    sync_directory(path.parent().unwrap_or(Path::new(".")))
}
