//! Files under way: each has a hidden name beside the one that it will have, `.NAME.PROCESS.part`.
//!
//! They are listed, so that a process that is told to end can remove them ([`abandon`]). One that
//! is killed cannot: it leaves its part without the lock on it, and the next that writes a file of
//! the same name removes it.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use forebay_block::{Context as _, Result};

use super::destination::folder;

/// The parts of this process, with the names that they are to have.
static PARTS: Mutex<Vec<(PathBuf, PathBuf)>> = Mutex::new(Vec::new());

fn parts() -> MutexGuard<'static, Vec<(PathBuf, PathBuf)>> {
    PARTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes all files that are under way, and hands their names to `last`, the process's end: none
/// is finished meanwhile.
pub fn abandon<T>(last: impl FnOnce(&[PathBuf]) -> T) -> T {
    let mut parts = parts();
    let names = parts.drain(..).map(|(part, path)| {
        let _ = fs::remove_file(part);
        path
    });
    let names: Vec<PathBuf> = names.collect();
    last(&names)
}

/// A file under way. Dropped, it is removed.
pub struct Part {
    path: PathBuf,
}

impl Part {
    /// Begins the file that will be `path`, which must have a file's name.
    ///
    /// # Errors
    /// What the system says.
    pub fn create(path: &Path) -> Result<(Self, File)> {
        let name = path.file_name().unwrap_or_default();
        remove_stale(path, name);
        let part = path.with_file_name(hidden(name, std::process::id()));
        let mut parts = parts();
        let file = File::create_new(&part).context(|| format!("cannot make {}", path.display()))?;
        // Where a file system has no locks, what is left after a kill stays.
        let _ = file.try_lock();
        parts.push((part.clone(), path.to_owned()));
        Ok((Self { path: part }, file))
    }

    /// Gives the file its name, in place of what has it.
    ///
    /// # Errors
    /// What the system says; what has the name keeps it then.
    pub fn rename(&self, path: &Path) -> io::Result<()> {
        let mut parts = parts();
        fs::rename(&self.path, path)?;
        parts.retain(|(part, _)| *part != self.path);
        Ok(())
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let mut parts = parts();
        let before = parts.len();
        parts.retain(|(part, _)| *part != self.path);
        // After a rename nothing of ours is there.
        if parts.len() < before {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn hidden(name: &OsStr, process: u32) -> OsString {
    let mut hidden = OsString::from(".");
    hidden.push(name);
    hidden.push(format!(".{process}.part"));
    hidden
}

/// Removes the parts of the same file that processes left that are no more.
fn remove_stale(path: &Path, name: &OsStr) {
    let entries = fs::read_dir(folder(path)).into_iter().flatten().flatten();
    for entry in entries {
        let Some(process) = process_of(&entry.file_name(), name) else {
            continue;
        };
        let part = entry.path();
        // Of another machine, or in another container, it may have a number that nobody has here:
        // the lock tells.
        let lives = Path::new("/proc").join(process.to_string()).exists();
        let stale = !lives && File::open(&part).is_ok_and(|file| file.try_lock().is_ok());
        if stale {
            let _ = fs::remove_file(part);
        }
    }
}

/// Whose part of `name` a file of this name is.
fn process_of(file: &OsStr, name: &OsStr) -> Option<u32> {
    let rest = file.as_encoded_bytes().strip_prefix(b".")?;
    let rest = rest.strip_prefix(name.as_encoded_bytes())?;
    let number = rest.strip_prefix(b".")?.strip_suffix(b".part")?;
    str::from_utf8(number).ok()?.parse().ok()
}
