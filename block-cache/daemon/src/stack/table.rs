//! Finds block translation tables without opening them.

use std::io::{self, Seek as _, SeekFrom};
use std::os::unix::fs::{FileExt as _, FileTypeExt as _};
use std::path::Path;

use forebay_block::{DeviceInfo, Error, ErrorKind, Result};
use forebay_btt::layout::{ARENA_MAX_BYTES, InfoBlock, NoInfo, PAGE_BYTES, Version};
use forebay_io::file::open_to_look;
use forebay_io::pmem::is_dax;

use crate::config::{Config, DeviceKind};

pub(super) fn no_table(on: &str, path: &Path) -> Error {
    Error::new(
        ErrorKind::NotFound,
        format!(
            "there is no block translation table on device {on:?}\n    help: make one with \
             `forebay format --btt {}`. If there was one, put a copy of the medium back: its data \
             IS LOST",
            path.display()
        ),
    )
}

/// Returns the error that [`super::devices::open`] will return for a table that certainly does not
/// exist, without opening it.
///
/// # Errors
/// `NotFound` with the place in the configuration.
pub(crate) fn refuse_without_table(config: &Config, name: &str) -> Result<()> {
    for entry in config.stack(name) {
        let DeviceKind::Btt { on } = &entry.kind else {
            continue;
        };
        if let Some(path) = config.file_of(on).filter(|path| is_without_table(path)) {
            let place = config.place(entry.line);
            return Err(no_table(on, path).context(format!("{place}: device {:?}", entry.name)));
        }
    }
    Ok(())
}

/// Returns the reason why device `name` seems empty: it is a file with a table on it, opened
/// without that table.
pub(super) fn behind_table(config: &Config, name: &str) -> Option<Error> {
    let leaf = *config.stack(name).last()?;
    let DeviceKind::File { path, .. } = &leaf.kind else {
        return None;
    };
    has_table(path).then(|| {
        Error::new(
            ErrorKind::InvalidInput,
            format!(
                "{}: device {:?}: {} has a block translation table, and can be read only through \
                 that\n    \
                 help: write kind = \"pmem\" here, and name a device of kind \"btt\" over it where \
                 this one is named",
                config.place(leaf.line),
                leaf.name,
                path.display()
            ),
        )
    })
}

/// Whether a file begins with a table. A device that can only be mapped must have one. A table at
/// the end of a file may be an earlier one: opening it would restore old contents over the present
/// ones.
pub(super) fn has_table(path: &Path) -> bool {
    look(path, first).is_ok_and(|found| found)
}

/// Sets the block size of the table under device `name`, if there is one, in the description of the
/// medium.
pub(crate) fn with_table(config: &Config, name: &str, mut medium: DeviceInfo) -> DeviceInfo {
    let stack = config.stack(name);
    let has_table = (stack.iter()).any(|entry| matches!(entry.kind, DeviceKind::Btt { .. }));
    if has_table && let Some(bytes) = config.file_of(name).and_then(block_bytes) {
        medium.logical_block_bytes = bytes;
    }
    medium
}

/// Returns the block size of the table in a file, bytes; `None` if no info block is valid.
fn block_bytes(path: &Path) -> Option<u32> {
    let file = open_to_look(path).ok()?;
    let size_bytes = file.metadata().ok()?.len();
    for version in Version::ALL {
        for at in [first(version, size_bytes), copy(version, size_bytes)]
            .into_iter()
            .flatten()
        {
            let mut page = [0; PAGE_BYTES as usize];
            if file.read_exact_at(&mut page, at).is_ok()
                && let Ok(info) = InfoBlock::decode(&page)
            {
                return Some(info.block_bytes);
            }
        }
    }
    None
}

/// Returns the offset of the first info block, in a file of any size.
fn first(version: Version, _: u64) -> Option<u64> {
    Some(version.start_bytes())
}

/// Returns the offset of the copy of the first info block.
fn copy(version: Version, size_bytes: u64) -> Option<u64> {
    let start = version.start_bytes();
    let arena = size_bytes.saturating_sub(start).min(ARENA_MAX_BYTES);
    (start + arena - arena % PAGE_BYTES).checked_sub(PAGE_BYTES)
}

/// Whether a table certainly cannot be opened, not even from the copy of its first info block.
fn is_without_table(path: &Path) -> bool {
    [first, copy]
        .into_iter()
        .all(|place| matches!(look(path, place), Ok(false)))
}

/// Whether an info block, valid or not, is at one of these places of a file of that size.
fn look(path: &Path, place: fn(Version, u64) -> Option<u64>) -> io::Result<bool> {
    let found = std::fs::metadata(path)?;
    if found.file_type().is_char_device() && is_dax(&found) {
        return Ok(true);
    }
    let file = open_to_look(path)?;
    let size_bytes = (&file).seek(SeekFrom::End(0))?;
    for at in Version::ALL
        .into_iter()
        .filter_map(|version| place(version, size_bytes))
    {
        let mut page = [0; PAGE_BYTES as usize];
        match file.read_exact_at(&mut page, at) {
            Ok(()) if InfoBlock::decode(&page) != Err(NoInfo::Absent) => return Ok(true),
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {}
            Err(error) => return Err(error),
        }
    }
    Ok(false)
}
