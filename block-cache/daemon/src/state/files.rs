//! Access to the files of the state directory. All are regular files.
//!
//! To open a named pipe may wait for ever. So anything else that has the name of such a file is
//! refused before it is opened.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::path::Path;

use forebay_block::{Context as _, Error, ErrorKind, Result};
use forebay_io::file::{holder_of, irregular_kind, open_regular};

use super::errors::{WRITABLE, with_help};

/// Remedy for a file of another kind.
pub(crate) const MOVE_AWAY: &str =
    "move it away; if it took the place of a file, put that file back";

/// Ends of the names of files that hold records, and of their new contents before they replace
/// them.
const ENDS: [&str; 14] = [
    ".epoch",
    ".disk",
    ".ranges",
    ".ranges-begun",
    ".dirty",
    ".dirty-new",
    ".abandoned",
    ".lost",
    ".transit",
    ".generation",
    ".capacity",
    ".size",
    ".new",
    ".cache",
];

/// Returns whether a name is that of a file that this version reads or writes.
fn is_own(name: &str) -> bool {
    // A user may keep caches here, under other names.
    let is_uuid =
        |stem: &str| stem.len() == 32 && stem.bytes().all(|byte| byte.is_ascii_hexdigit());
    match name.strip_suffix(".cache") {
        Some(stem) => is_uuid(stem),
        None => name == "lock" || ENDS.iter().any(|end| name.ends_with(end)),
    }
}

/// Returns the files of the state directory at `path` that are not regular files: name and kind,
/// in the order of the names.
pub(crate) fn irregular_files(path: &Path) -> Vec<(String, &'static str)> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut found: Vec<_> = names
        .filter(|name| is_own(name))
        .filter_map(|name| irregular_kind(&path.join(&name)).map(|kind| (name, kind)))
        .collect();
    found.sort_unstable();
    found
}

/// Names the process that holds the state directory at `path`, in parentheses; empty if the kernel
/// does not name it.
pub(crate) fn holder_in(path: &Path) -> String {
    holder_of(&path.join("lock")).map_or_else(String::new, |holder| format!(" ({holder})"))
}

/// Returns the kind of what is at the path of the state directory, if that is no directory.
pub(crate) fn not_a_directory(path: &Path) -> Option<&'static str> {
    match irregular_kind(path) {
        None if path.exists() => Some("a regular file"),
        kind => kind.filter(|_| !path.is_dir()),
    }
}

/// Describes such a file of the state directory.
pub(crate) fn is_irregular(name: &str, kind: &str) -> String {
    format!("holds {name}, which is {kind} and not a regular file")
}

/// Opens a file with these options.
///
/// # Errors
/// `InvalidInput` if it is not a regular file; otherwise the error of the operating system.
pub(super) fn open(path: &Path, options: &mut OpenOptions) -> Result<File> {
    open_regular(path, options).map_err(|error| match error.kind() {
        io::ErrorKind::InvalidInput => Error::new(
            ErrorKind::InvalidInput,
            format!("{error}\n    help: {MOVE_AWAY}"),
        ),
        _ => error.into(),
    })
}

/// Adds a context to an error that does not say which file is wrong.
pub(super) fn in_context<T>(done: Result<T>, what: impl FnOnce() -> String) -> Result<T> {
    match done {
        Err(error) if error.kind() == ErrorKind::InvalidInput => Err(error),
        done => done.context(what),
    }
}

/// Returns the contents of a file; `None` if it does not exist.
///
/// # Errors
/// As [`open`].
pub(super) fn read(path: &Path) -> Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    let read = open(path, OpenOptions::new().read(true))
        .and_then(|mut file| Ok(file.read_to_end(&mut bytes)?));
    match read {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        read => in_context(read, || format!("cannot read {}", path.display())).map(|_| Some(bytes)),
    }
}

/// Replaces a file, durably. Its name may not be durable.
///
/// # Errors
/// As [`open`].
pub(super) fn write(path: &Path, content: &[u8]) -> Result<()> {
    let mut options = OpenOptions::new();
    let mut file = open(path, options.write(true).create(true).truncate(true))?;
    file.write_all(content)?;
    Ok(file.sync_all()?)
}

/// Replaces a file atomically and durably. `new` is the path of the new contents until then, in the
/// same directory.
///
/// # Errors
/// As [`open`]. The former file is intact then.
pub(super) fn replace(path: &Path, new: &Path, content: &[u8]) -> Result<()> {
    let failed = |what: &str, path: &Path, error: Error| match error.kind() {
        // It names the file.
        ErrorKind::InvalidInput => error,
        _ => with_help(
            &error,
            &format!("cannot {what} {}", path.display()),
            WRITABLE,
        ),
    };
    write(new, content).map_err(|error| failed("write", new, error))?;
    fs::rename(new, path).map_err(|error| failed("replace", path, error.into()))?;
    sync_directory(path.parent().unwrap_or(Path::new(".")))
}

/// Removes a file that may not exist.
///
/// # Errors
/// The error of the operating system.
pub(super) fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).context(|| path.display().to_string())
        }
        _ => Ok(()),
    }
}

/// Makes the names in a directory durable.
///
/// # Errors
/// The error of the operating system.
pub(super) fn sync_directory(path: &Path) -> Result<()> {
    let synced = File::open(path).and_then(|directory| directory.sync_all());
    synced.context(|| format!("state directory {}", path.display()))
}
