//! Creation of whole files: durable, and without a moment at which a part of one has its name.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

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

/// Age from which on an empty file without a lock has no writer. A writer locks its file at once.
const ABANDONED_AGE: Duration = Duration::from_secs(600);

/// Removes the temporary files in `directory` that an ended process has left there. Those of
/// running processes are locked, and stay. So does an empty file of the last ten minutes: its
/// writer may lock it next. Files that cannot be removed stay. Returns the number of removed files.
///
/// # Errors
/// The system's error if the directory cannot be read.
pub fn remove_abandoned(directory: &Path) -> io::Result<usize> {
    let paths: io::Result<Vec<_>> = fs::read_dir(directory)?
        .map(|entry| Ok(entry?.path()))
        .collect();
    // Such as a file of another user. The next start tries it.
    let removed = |path: &PathBuf| remove_if_abandoned(path).unwrap_or(false);
    Ok(paths?.into_iter().filter(removed).count())
}

/// Removes a temporary file that no process writes. Returns whether it did.
fn remove_if_abandoned(path: &Path) -> io::Result<bool> {
    if !fs::symlink_metadata(path)?.is_file() {
        return Ok(false);
    }
    let file = OpenOptions::new().write(true).open(path)?;
    // Without locks, nothing shows whether a process writes it.
    if file.try_lock().is_err() {
        return Ok(false);
    }
    let about = file.metadata()?;
    let is_old = (about.modified()?.elapsed()).is_ok_and(|age| age >= ABANDONED_AGE);
    if about.len() == 0 && !is_old {
        return Ok(false);
    }
    fs::remove_file(path).map(|()| true)
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
    #[test]
    fn a_temporary_file_that_is_not_locked_yet_stays() {
        let scratch = Scratch::new();
        let (fresh, old) = (scratch.path("fresh"), scratch.path("old"));
        let long_ago = std::time::SystemTime::now() - 2 * ABANDONED_AGE;
        File::create(&fresh).expect("created");
        let file = File::create(&old).expect("created");
        file.set_modified(long_ago).expect("set");
        drop(file);
        let directory = fresh.parent().expect("it has one");
        assert_eq!(remove_abandoned(directory).expect("answers"), 1);
        assert!(fresh.exists() && !old.exists());
    }

    #[test]
    fn a_file_that_cannot_be_opened_stays_and_is_no_error() {
        let scratch = Scratch::new();
        let (running, left) = (scratch.path("a-program"), scratch.path("left"));
        fs::copy("/bin/sleep", &running).expect("copied");
        fs::write(&left, "part").expect("written");
        // A program that runs cannot be opened to write, not even by root.
        let mut child = std::process::Command::new(&running)
            .arg("60")
            .spawn()
            .expect("it runs");
        let removed = remove_abandoned(left.parent().expect("it has one"));
        child.kill().expect("it runs");
        child.wait().expect("it ended");
        assert_eq!(removed.expect("no error"), 1);
        assert!(running.exists() && !left.exists());
    }
}
