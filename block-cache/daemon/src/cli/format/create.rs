//! Files that `forebay format --create` makes.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use forebay_block::{Context as _, Error, ErrorKind, Result};
use forebay_io::file::kind_in_words;
use forebay_io::tree;

use crate::state::append_help;
use forebay_terminal::size::human_bytes;

/// A file created by this command, which is removed if formatting fails.
pub(super) struct CreatedFile(PathBuf);

impl CreatedFile {
    /// Creates an empty file. Fails if another program has created it: that one must not be
    /// removed.
    fn new(path: &Path) -> Result<Self> {
        let mut options = OpenOptions::new();
        let made = options.write(true).create_new(true).mode(0o600).open(path);
        made.context(|| format!("--create: cannot make {}", path.display()))?;
        Ok(Self(path.to_path_buf()))
    }

    pub(super) fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for CreatedFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Less than any cache needs, bytes.
const LEAST_CREATE_BYTES: u64 = 64 << 10;
/// Least size of a cache with the default blocks, bytes.
const LEAST_USUAL_BYTES: u64 = 224 << 10;

/// Returns the free space for a new file, bytes; `None` if its file system reports none, or has no
/// limit.
fn room_for(path: &Path) -> Option<u64> {
    let path = std::path::absolute(path).ok()?;
    let directory = path.ancestors().skip(1).find(|above| above.is_dir())?;
    let room = tree::room(&File::open(directory).ok()?).ok()?;
    (room.blocks > 0).then(|| room.available * u64::from(room.block_bytes))
}

/// Returns the error for a file that is too small for a cache, with the possible sizes.
pub(super) fn no_size(error: &Error, path: &Path) -> Error {
    let most = room_for(path).map_or_else(String::new, |room| {
        format!(", and at most {}", human_bytes(room))
    });
    let help = format!("give --create that size at least{most}");
    Error::with_source(error.kind(), "", append_help(error.report(), &help))
}

/// Checks an existing file against --create. Returns the file to create if there is none.
pub(super) fn check_create(path: &Path, bytes: u64) -> Result<Option<CreatedFile>> {
    let refuse = |kind, what: String| {
        let path = path.display();
        Err(Error::with_source(
            kind,
            "",
            format!("--create: {path} {what}"),
        ))
    };
    let room = room_for(path);
    let most = room.map_or_else(
        || "what its file system has room for".to_owned(),
        |room| format!("{}, for which its file system has room", human_bytes(room)),
    );
    let range = format!("write {} to {most}", human_bytes(LEAST_USUAL_BYTES));
    if bytes < LEAST_CREATE_BYTES {
        let unit = match bytes {
            1..1024 => ": a number without a unit means bytes",
            _ => "",
        };
        let what = format!(
            "cannot be a cache of {bytes} bytes{unit}\n    \
             help: {range}, such as 64M or 64G"
        );
        return refuse(ErrorKind::InvalidInput, what);
    }
    let found = std::fs::metadata(path).ok();
    let there = found.as_ref().map_or(0, |found| found.blocks() * 512);
    let is_file = found.is_none_or(|found| found.is_file());
    if is_file && room.is_some_and(|room| bytes.saturating_sub(there) > room) {
        let what = format!("cannot have {}\n    help: {range}", human_bytes(bytes));
        return refuse(ErrorKind::NoSpace, what);
    }
    let found = match std::fs::metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let parent = path
                .parent()
                .filter(|parent| !parent.as_os_str().is_empty());
            return match parent {
                Some(parent) if !parent.is_dir() => refuse(
                    ErrorKind::NotFound,
                    format!(
                        "cannot be made: {} is no directory\n    help: make that first",
                        parent.display()
                    ),
                ),
                // A dangling link must not be removed.
                _ if path.is_symlink() => Ok(None),
                _ => CreatedFile::new(path).map(Some),
            };
        }
        Err(error) => return Err(error).context(|| path.display().to_string()),
    };
    if !found.is_file() {
        let kind = kind_in_words(&found);
        let help = match found.file_type().is_block_device() {
            true => "leave --create out to format it",
            false => "name a path where nothing is",
        };
        let what = format!("exists and is no file but {kind}\n    help: {help}");
        return refuse(ErrorKind::InvalidInput, what);
    }
    match found.len() {
        0 => Ok(None),
        len if len == bytes => Ok(None),
        len => refuse(
            ErrorKind::InvalidInput,
            format!(
                "exists and has {len} bytes, not {bytes}\n    \
                 help: leave --create out to format it as it is, name another file, or remove it \
                 first"
            ),
        ),
    }
}
