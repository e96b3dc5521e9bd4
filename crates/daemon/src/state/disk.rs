//! Whether a volume has all that it acknowledged to the users of its block device.
//!
//! These do not notice that a process died, and go on with the next one: so it is remembered here, in `NAME.disk`, when
//! something may be missing, until a device is made anew. The file is empty while nothing is.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;

use forebay_block::{Context as _, Result};

use super::sync_directory;

/// What is remembered: none if no device was ever made, an empty text if nothing is missing, else what may be.
pub(super) fn load(directory: &Path, volume: &str) -> Result<Option<String>> {
    let path = directory.join(format!("{volume}.disk"));
    match fs::read(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        read => {
            let bytes = read.context(|| path.display().to_string())?;
            Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
        }
    }
}

/// Remembers it, durably.
pub(super) fn store(directory: &Path, volume: &str, gap: &str) -> Result<()> {
    let path = directory.join(format!("{volume}.disk"));
    let new = directory.join(format!("{volume}.disk.new"));
    let written = File::create(&new).and_then(|mut file| {
        file.write_all(gap.as_bytes())?;
        file.sync_all()
    });
    let stored = written.and_then(|()| fs::rename(&new, &path));
    stored.context(|| path.display().to_string())?;
    sync_directory(directory)
}
