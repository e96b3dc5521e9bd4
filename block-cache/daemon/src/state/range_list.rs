//! Lists of data that a volume lost, with the time. `NAME.abandoned` has the data that a command
//! gave up. `NAME.lost` has the losses that an opening of the cache found.
//!
//! The lists are records for people. A list is durable before the cache forgets the data. So the
//! lost ranges stay named in a place that outlives the daemon and its log.

use std::fs::OpenOptions;
use std::io::{Read as _, Write as _};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use forebay_block::Result;

use super::StateDirectory;
use super::files::{self, sync_directory};

impl StateDirectory {
    /// Records durably the dirty data of a volume that is about to be abandoned. Returns the path
    /// of the list.
    ///
    /// # Errors
    /// The error of the operating system. The caller must abandon nothing then.
    pub fn note_abandoned(
        &self,
        volume: &str,
        epoch: u64,
        ranges: &[Range<u64>],
    ) -> Result<PathBuf> {
        let path = self.path.join(format!("{volume}.abandoned"));
        let whose = format!("volume {volume:?}, epoch {epoch}");
        append(&path, &whose, "dirty data abandoned", ranges)?;
        Ok(path)
    }

    /// Records durably the ranges of a volume that an opening of its cache found lost, and their
    /// `fate`. An equal list is not added again: an opening that fails is repeated.
    ///
    /// # Errors
    /// The error of the operating system. The caller must not let the cache forget the losses then.
    pub fn note_lost(&self, volume: &str, fate: &str, ranges: &[Range<u64>]) -> Result<()> {
        let path = self.path.join(format!("{volume}.lost"));
        append(&path, &format!("volume {volume:?}"), fate, ranges)
    }
}

/// Appends ranges of the volume `whose` and their `fate` to the list at `path`, unless the list has
/// the same ranges with this fate. On return they are durable.
///
/// # Errors
/// The error of the operating system. The caller must forget nothing then.
fn append(path: &Path, whose: &str, fate: &str, ranges: &[Range<u64>]) -> Result<()> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let seconds = now.map_or(0, |since| since.as_secs());
    let mut listed = format!(": {fate}, offset and length in bytes\n");
    for Range { start, end } in ranges {
        listed.push_str(&format!("{start} {}\n", end - start));
    }
    let mut options = OpenOptions::new();
    let file = files::open(path, options.read(true).append(true).create(true));
    let added = file.and_then(|mut file| {
        let mut former = Vec::new();
        file.read_to_end(&mut former)?;
        if !holds(&String::from_utf8_lossy(&former), whose, &listed) {
            let text = format!("{whose}, {seconds} s since 1970{listed}");
            if let Err(error) = file.write_all(text.as_bytes()) {
                // The next list must not continue a part of this one.
                file.set_len(former.len() as u64)?;
                return Err(error.into());
            }
        }
        Ok(file.sync_all()?)
    });
    files::in_context(added, || {
        format!("cannot list lost ranges in {}", path.display())
    })?;
    sync_directory(path.parent().unwrap_or(Path::new(".")))
}

/// Returns whether a text has the list `listed` of the volume `whose`, and nothing more in it.
fn holds(text: &str, whose: &str, listed: &str) -> bool {
    text.match_indices(listed).any(|(at, _)| {
        let header = text[..at].rsplit('\n').next().unwrap_or_default();
        let rest = &text[at + listed.len()..];
        header.starts_with(whose) && (rest.is_empty() || rest.starts_with("volume "))
    })
}
