//! `NAME.abandoned`: what dirty data of a volume was given up, and when.
//!
//! Nobody reads it but people. It is written, durably, before the cache forgets the volume, so that
//! whatever is gone is named somewhere that outlives the daemon and its log.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::ops::Range;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use forebay_block::{Context as _, Result};

use super::sync_directory;

/// Adds the ranges of a volume that are about to be given up to the list at `path`. On return they
/// are durable.
///
/// # Errors
/// What the operating system says; then nothing may be given up.
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
    let added = OpenOptions::new().append(true).create(true).open(path);
    let added = added.and_then(|mut file: File| {
        file.write_all(text.as_bytes())?;
        file.sync_all()
    });
    added.context(|| format!("cannot list what is abandoned in {}", path.display()))?;
    sync_directory(path.parent().unwrap_or(Path::new(".")))
}
