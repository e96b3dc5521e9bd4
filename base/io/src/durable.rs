//! Creation of whole files: durable, and without a moment at which a part of one has its name.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use crate::tree::{Renaming, rename};

/// Creates the file `path` with these contents, unless there is a file. Returns whether it was
/// created. The directory entry is durable with the return in either case. `temporary` is a new
/// path on the same file system, which is locked while it exists; see [`remove_abandoned`].
///
/// # Errors
/// The system's error. The file may exist then only if the directory could not be flushed.
pub fn create(path: &Path, temporary: &Path, contents: &[u8]) -> io::Result<bool> {
    let made = write_temporary(temporary, contents).and_then(|file| {
        let created = give_name(temporary, path);
        // The lock lasts until the file has its name.
        drop(file);
        created
    });
    let created = match made {
        Ok(created) => created,
        Err(error) => {
            let _ = fs::remove_file(temporary);
            return Err(error);
        }
    };
    if !created {
        // One that remains is removed at the next start.
        let _ = fs::remove_file(temporary);
    }
    // Of a file that exists, too: its creator may have ended before this step.
    sync_directory(path.parent().unwrap_or(Path::new(".")))?;
    Ok(created)
}

fn write_temporary(path: &Path, contents: &[u8]) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let options = options.write(true).create_new(true).mode(0o600);
    let mut file = options.open(path)?;
    match file.try_lock() {
        Ok(()) => {}
        // A start that takes it for abandoned removes it. The next attempt has another name.
        Err(TryLockError::WouldBlock) => return Err(io::ErrorKind::ResourceBusy.into()),
        // The file system has no locks, so no start can take it for abandoned.
        Err(TryLockError::Error(_)) => {}
    }
    file.write_all(contents)?;
    file.sync_all()?;
    Ok(file)
}

/// Gives the file `temporary` the name `path`, unless there is a file. Returns whether it was.
fn give_name(temporary: &Path, path: &Path) -> io::Result<bool> {
    let renamed = rename(temporary, path, Renaming::Refuse);
    let named = match renamed {
        // NFS and others can only replace, but link atomically.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            let linked = fs::hard_link(temporary, path);
            if linked.is_ok() {
                let _ = fs::remove_file(temporary);
            }
            linked
        }
        other => other,
    };
    match named {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error),
    }
}

/// Makes the entries of a directory durable.
///
/// # Errors
/// The system's error.
pub fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// Removes the temporary files in `directory` that an ended process has left there. Those of
/// running processes are locked, and stay. Returns the number of removed files.
///
/// # Errors
/// The system's error.
pub fn remove_abandoned(directory: &Path) -> io::Result<usize> {
    let mut removed = 0;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if !entry.file_type()?.is_file() {
            continue;
        }
        let path = entry.path();
        let file = match OpenOptions::new().write(true).open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        if file.try_lock().is_ok() {
            match fs::remove_file(&path) {
                Ok(()) => removed += 1,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(removed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Scratch;

    #[test]
    fn a_file_is_created_once_and_whole() {
        let scratch = Scratch::new();
        let (path, temporary) = (scratch.path("file"), scratch.path("temporary"));
        assert!(create(&path, &temporary, b"first").expect("created"));
        assert!(!create(&path, &temporary, b"second").expect("there is one"));
        assert_eq!(fs::read(&path).expect("there"), b"first");
        assert!(!temporary.exists());
        let nowhere = scratch.path("missing/file");
        let error = create(&nowhere, &temporary, b"third").expect_err("no directory");
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        assert!(!temporary.exists());
    }

    #[test]
    fn only_abandoned_temporary_files_are_removed() {
        let scratch = Scratch::new();
        let (mine, left) = (scratch.path("mine"), scratch.path("left"));
        let held = write_temporary(&mine, b"in progress").expect("written");
        fs::write(&left, "part").expect("written");
        let directory = mine.parent().expect("it has one");
        assert_eq!(remove_abandoned(directory).expect("answers"), 1);
        assert!(mine.exists() && !left.exists());
        drop(held);
        assert_eq!(remove_abandoned(directory).expect("answers"), 1);
        assert!(!mine.exists());
    }
}
