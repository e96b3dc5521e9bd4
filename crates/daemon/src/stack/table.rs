//! Where a block translation table lies, found out without opening it.

use std::fs::File;
use std::io::{self, Seek as _, SeekFrom};
use std::os::unix::fs::{FileExt as _, FileTypeExt as _};
use std::path::Path;

use forebay_block::{Error, ErrorKind, Result};
use forebay_btt::layout::{ARENA_MAX_BYTES, InfoBlock, NoInfo, PAGE_BYTES, Version};

use crate::config::{Config, DeviceKind};

pub(super) fn no_table(on: &str, path: &Path) -> Error {
    Error::new(
        ErrorKind::NotFound,
        format!(
            "there is no block translation table on device {on:?}: make one with `forebay format --btt {}`, unless there was one: \
             then put a copy of the medium back, since what was on it IS LOST",
            path.display()
        ),
    )
}

/// Says what [`super::devices::open`] will of a table that is certainly not there, without opening it.
///
/// # Errors
/// `NotFound` with the place in the configuration.
pub(crate) fn refuse_without_table(config: &Config, name: &str) -> Result<()> {
    for entry in config.stack(name) {
        let DeviceKind::Btt { on } = &entry.kind else {
            continue;
        };
        let is_missing = |path: &&Path| look(path).is_ok_and(|found| !found);
        if let Some(path) = config.file_of(on).filter(is_missing) {
            let place = config.place(entry.line);
            return Err(no_table(on, path).context(format!("{place}: device {:?}", entry.name)));
        }
    }
    Ok(())
}

/// Why nothing is found on the device called `name`: a file with a table on it, which is opened here without that.
pub(super) fn behind_table(config: &Config, name: &str) -> Option<Error> {
    let leaf = *config.stack(name).last()?;
    let DeviceKind::File { path, .. } = &leaf.kind else {
        return None;
    };
    has_table(path).then(|| {
        Error::new(
            ErrorKind::InvalidInput,
            format!(
                "{}: device {:?}: {} has a block translation table, through which alone the rest of it can be read: write \
                 kind = \"pmem\" here, and name a device of kind \"btt\" over it where this one is named",
                config.place(leaf.line),
                leaf.name,
                path.display()
            ),
        )
    })
}

/// Whether a file begins like a table, or ends so; what can only be mapped must have one.
pub(super) fn has_table(path: &Path) -> bool {
    look(path).is_ok_and(|found| found)
}

/// As [`has_table`]; an error where that cannot be read.
fn look(path: &Path) -> io::Result<bool> {
    let file = File::open(path)?;
    let found = file.metadata()?.file_type();
    if found.is_char_device() {
        return Ok(true);
    }
    let size_bytes = (&file).seek(SeekFrom::End(0))?;
    for version in Version::ALL {
        let start = version.start_bytes();
        // The copy of the first arena's info block.
        let arena = size_bytes.saturating_sub(start).min(ARENA_MAX_BYTES);
        let copy = (start + arena - arena % PAGE_BYTES).checked_sub(PAGE_BYTES);
        for at in [Some(start), copy].into_iter().flatten() {
            let mut page = [0; PAGE_BYTES as usize];
            match file.read_exact_at(&mut page, at) {
                Ok(()) if InfoBlock::decode(&page) != Err(NoInfo::Absent) => return Ok(true),
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(false)
}
