//! Lists of data that a volume lost, with the time: `NAME.abandoned` for data that a command gave up,
//! `NAME.lost` for losses that an opening of the cache found.
//!
//! Forebay never reads these files; they are records for people. A list is durable before the cache
//! forgets the data. So the lost ranges stay named in a place that outlives the daemon and its log.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::ops::Range;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use forebay_block::Result;

use super::files::{self, sync_directory};

/// Appends ranges of the volume `whose` and their `fate` to the list at `path`. On return they are
/// durable.
///
/// # Errors
/// The error of the operating system. The caller must forget nothing then.
pub(super) fn append(path: &Path, whose: &str, fate: &str, ranges: &[Range<u64>]) -> Result<()> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let seconds = now.map_or(0, |since| since.as_secs());
    let mut text = format!("{whose}, {seconds} s since 1970: {fate}, offset and length in bytes\n");
    for Range { start, end } in ranges {
        text.push_str(&format!("{start} {}\n", end - start));
    }
    let added = files::open(path, OpenOptions::new().append(true).create(true));
    let added = added.and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        Ok(file.sync_all()?)
    });
    files::in_context(added, || {
        format!("cannot list lost ranges in {}", path.display())
    })?;
    sync_directory(path.parent().unwrap_or(Path::new(".")))
}
