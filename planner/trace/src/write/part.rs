//! Unfinished files: each has a hidden name in the directory of the final one,
//! `.NAME.PROCESS.part`.
//!
//! A process that ends on a signal removes its own ([`abandon`]). A killed process cannot. It
//! leaves its file without the lock, and the next process that writes a file of the same name
//! removes it.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use forebay_block::{Context as _, Result};

use super::destination::folder;

/// Unfinished files of this process, with their final names.
static PARTS: Mutex<Vec<(PathBuf, PathBuf)>> = Mutex::new(Vec::new());

fn parts() -> MutexGuard<'static, Vec<(PathBuf, PathBuf)>> {
    PARTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes all unfinished files, and passes their names to `last`, the end of the process. No file
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

/// An unfinished file, removed on drop.
pub struct Part {
    path: PathBuf,
}

impl Part {
    /// Creates the unfinished file of `path`, which must have a file name.
    ///
    /// # Errors
    /// The error of the operating system.
    pub fn create(path: &Path) -> Result<(Self, File)> {
        let name = path.file_name().unwrap_or_default();
        remove_stale(path, name);
        let part = path.with_file_name(hidden(name, std::process::id()));
        let mut parts = parts();
        let file = File::create_new(&part).context(|| format!("cannot make {}", path.display()))?;
        // Without locks in the file system, files of killed processes stay.
        let _ = file.try_lock();
        parts.push((part.clone(), path.to_owned()));
        Ok((Self { path: part }, file))
    }

    /// Renames the file to its final name, and replaces an existing one.
    ///
    /// # Errors
    /// The error of the operating system. An existing file is unchanged then.
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
        // After a rename there is no file to remove.
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

/// Removes unfinished files of the same name whose processes have ended.
fn remove_stale(path: &Path, name: &OsStr) {
    let entries = fs::read_dir(folder(path)).into_iter().flatten().flatten();
    for entry in entries {
        let Some(process) = process_of(&entry.file_name(), name) else {
            continue;
        };
        let part = entry.path();
        // On another machine or in another container, the process number may be unused here: the
        // lock shows whether it lives.
        let lives = Path::new("/proc").join(process.to_string()).exists();
        let stale = !lives && File::open(&part).is_ok_and(|file| file.try_lock().is_ok());
        if stale {
            let _ = fs::remove_file(part);
        }
    }
}

/// Returns the process of an unfinished file of `name`.
fn process_of(file: &OsStr, name: &OsStr) -> Option<u32> {
    let rest = file.as_encoded_bytes().strip_prefix(b".")?;
    let rest = rest.strip_prefix(name.as_encoded_bytes())?;
    let number = rest.strip_prefix(b".")?.strip_suffix(b".part")?;
    str::from_utf8(number).ok()?.parse().ok()
}
