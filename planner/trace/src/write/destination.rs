//! Place of a file that is to be written: its folder, and the errors that name it.

use std::path::{Path, PathBuf};
use std::{fs, io};

use forebay_block::{Error, ErrorKind, Result};

/// The folder of a file.
pub(super) fn folder(path: &Path) -> &Path {
    let folder = path.parent().filter(|folder| *folder != Path::new(""));
    folder.unwrap_or(Path::new("."))
}

/// Returns the path to write a file named `path` to: the target of the link, if it is one.
///
/// # Errors
/// `InvalidInput` if the path names no regular file. `Busy` if the file exists and `overwrite` is
/// not set. `NotFound` if there is no such folder.
pub fn destination(path: &Path, overwrite: bool) -> Result<PathBuf> {
    let refuse = |kind, said: &str| {
        let said = format!("{} {said}", path.display());
        Err(Error::new(kind, said))
    };
    if path.file_name().is_none() {
        return refuse(
            ErrorKind::InvalidInput,
            "ends in no file's name\nhelp: add one",
        );
    }
    let Ok(there) = fs::symlink_metadata(path) else {
        let folder = folder(path);
        if folder.is_dir() {
            return Ok(path.to_owned());
        }
        let said = format!(
            "cannot be made: {} is not a directory\nhelp: make it first",
            folder.display()
        );
        return refuse(ErrorKind::NotFound, &said);
    };
    let Ok(real) = path.canonicalize() else {
        return refuse(
            ErrorKind::InvalidInput,
            "is a link to nothing\nhelp: name the file itself, or remove the link",
        );
    };
    if !real.is_file() {
        refuse(ErrorKind::InvalidInput, "is no regular file: name one")
    } else if !overwrite {
        refuse(
            ErrorKind::Busy,
            "exists\nhelp: name another file, or write over it with --force",
        )
    } else if there.is_symlink() {
        Ok(real)
    } else {
        Ok(path.to_owned())
    }
}

/// Returns the error of a write to `path` or beside it, with the remedy if there is no space.
pub fn with_remedy(path: &Path, error: io::Error) -> io::Error {
    use io::ErrorKind as K;
    let kind = error.kind();
    let remedy = match kind {
        K::StorageFull | K::QuotaExceeded => "free some space",
        K::FileTooLarge => "raise the limit on the size of files (ulimit -f)",
        _ => return error,
    };
    let place = folder(path).display();
    let said = format!("{error} in {place}: {remedy}, or name a file on another file system");
    io::Error::new(kind, said)
}
