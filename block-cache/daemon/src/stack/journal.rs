//! Path and owner of a cache's process journal.
//!
//! The default path is derived from the UUID of the cache. If the configuration sets another path,
//! the default path is a link to it. So `forebay format` and `forebay check`, which know only the
//! cache, find the journal of a dead daemon.

mod owner;

use std::fs::File;
use std::io::ErrorKind as IoKind;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use forebay_block::{Buf, Context as _, Error, ErrorKind, Result};
use forebay_io::Stop;
use forebay_io::file::is_in_memory;
use forebay_io::shm::{look_shared, open_shared, open_shared_until};
use forebay_io::system::boot_id;
use forebay_metadata::journal;

use crate::config::Config;
use crate::state::hex;
pub(crate) use owner::JournalOwner;
pub(crate) use owner::left_of;
use owner::{default_path, is_of, is_own, owner, refuse_foreign};

/// Default directory of journals.
const USUAL_DIRECTORY: &str = "/dev/shm";
/// Length of the magic at the start of a journal (docs/internals/format/process-journal.md), bytes.
const MAGIC_BYTES: usize = 8;
/// Least size of a journal in use, bytes.
const SMALLEST_BYTES: u64 = 1 << 20;

/// Returns the path of a cache's process journal, if it has one, as far as the cache alone shows
/// it.
pub(crate) fn find(uuid: &[u8; 16]) -> PathBuf {
    let usual = default_path(uuid);
    std::fs::read_link(&usual).unwrap_or(usual)
}

/// Refuses a journal at `path` that is not this cache's, and any journal while the cache's own is
/// elsewhere. Nothing is lost in this case, so the user must not be asked to abandon data.
///
/// # Errors
/// `Busy` with both paths, or as [`refuse_foreign`].
fn refuse_unless_own(path: &Path, whose: &JournalOwner) -> Result<()> {
    let uuid = &whose.uuid;
    let found = find(uuid);
    refuse_foreign(&found, whose)?;
    refuse_foreign(path, whose)?;
    if found == path || !is_of(&found, uuid) {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Busy,
        format!(
            "the process journal of this cache is {found}, and the configuration names {path}\n\
             help: move it there (`mv {found} {path}`), or start once with journal = \"{found}\"",
            found = found.display(),
            path = path.display()
        ),
    ))
}

/// Returns the path at which a cache's process journal should be.
pub(crate) fn wanted(configured: Option<&Path>, uuid: &[u8; 16]) -> PathBuf {
    configured.map_or_else(|| default_path(uuid), Path::to_path_buf)
}

/// Returns a warning if the journal of a configuration is not in memory.
pub(crate) fn warning_of_place(config: &Config) -> Option<String> {
    let cache = config
        .cache
        .as_ref()
        .filter(|_| config.memory_cache().is_none())?;
    let path = cache.journal_path().unwrap_or(Path::new(USUAL_DIRECTORY));
    (!is_in_memory(path)).then(|| {
        format!(
            "{}: the process journal {} is on the file system of a disk\n    \
             help: set `journal` in [cache] to a path on tmpfs, such as one in /dev/shm: the \
             kernel writes changes of the journal to the disk, and acknowledged writes may wait \
             for that. The death of the daemon loses no more there, and a power loss no less: no \
             journal of an earlier boot is used",
            config.place(cache.journal_line()),
            path.display()
        )
    })
}

/// Returns the size that the journal at `path` will have if `len` bytes are requested, and the
/// number of bytes that its file lacks.
pub(super) fn wanted_bytes(path: &Path, len: u64) -> (u64, u64) {
    let Ok(found) = std::fs::metadata(path) else {
        return (len, len);
    };
    let len = match found.len() >= SMALLEST_BYTES {
        true => found.len(),
        false => len,
    };
    (len, len.saturating_sub(found.blocks() * 512))
}

/// Maps the journal of the cache `uuid` at its configured or default path. An existing journal
/// keeps its size: it may hold the only copy of acknowledged writes, and a change of size would
/// erase it.
///
/// # Errors
/// `Busy` if a journal with acknowledged writes would be lost: that of another cache at this path,
/// or that of this cache elsewhere. `InvalidInput` for a file that is not a journal.
pub(super) fn open(
    configured: Option<&Path>,
    mut len: usize,
    whose: &JournalOwner,
    stop: &Stop,
) -> Result<Opened> {
    let uuid = &whose.uuid;
    let path = wanted(configured, uuid);
    refuse_unless_own(&path, whose)?;
    if configured.is_none() && path.is_symlink() {
        // The target of the link holds no valid data.
        std::fs::remove_file(&path).context(|| path.display().to_string())?;
    }
    let found = owner(&path, Some(uuid), &whose.stake)?;
    let other = found.filter(|owner| owner != uuid);
    // A journal whose creation was interrupted holds nothing, and its size means nothing.
    let created = found.is_none();
    if created {
        // If this fails, opening the journal reports the reason.
        let _ = create_owned(&path, len, uuid);
    }
    // A truncated journal of this cache keeps more data the less it is changed.
    let smallest = match found {
        Some(of) if of == *uuid => journal::JOURNAL_MIN_BYTES as u64,
        _ => SMALLEST_BYTES,
    };
    if let Ok(metadata) = std::fs::metadata(&path)
        && metadata.len() >= smallest
    {
        let there = usize::try_from(metadata.len()).unwrap_or(len);
        if there != len && other.is_none() {
            tracing::warn!(
                "the process journal {} has {there} bytes and keeps that size\n    \
                 help: for journal_size = {len}, remove it after a clean shutdown",
                path.display()
            );
        }
        len = there;
    }
    let mapped = open_shared_until(&path, len, stop);
    if created && mapped.is_err() {
        // Otherwise it would keep its size.
        remove_unused(&path, uuid);
    }
    let (memory, _) = mapped.map_err(|error| match error.kind() {
        ErrorKind::NoSpace => error.context(
            "cannot open the process journal\n\
             help: set `journal` in [cache] to a path on tmpfs, or use a smaller `journal_size`",
        ),
        _ => error.context(format!("the process journal {}", path.display())),
    })?;
    if let Some(other) = other {
        refuse_others(&memory, &other, &path)?;
    }
    if created {
        memory.copy_from(MAGIC_BYTES, uuid);
    }
    Ok(Opened {
        memory,
        path,
        created,
    })
}

/// Refuses the journal of another cache that was not stopped cleanly in this boot.
fn refuse_others(memory: &Buf, other: &[u8; 16], path: &Path) -> Result<()> {
    let Some(left) = journal::Journal::recover(memory, other, &boot_id()?) else {
        return Ok(());
    };
    // A close of its cache would have removed the file. That cache does not open without it.
    let content = match left.poisoned || !left.entries.is_empty() || left.damaged > 0 {
        true => "holds acknowledged writes of",
        false => "belongs to",
    };
    Err(Error::new(
        ErrorKind::Busy,
        format!(
            "the process journal {} {content} a cache that was not stopped cleanly\n    \
             help: serve and stop cache {} first, or set `journal` in [cache] to another path; \
             remove the file only if that cache is gone",
            path.display(),
            hex(other)
        ),
    ))
}

/// Returns the error that [`open`] will return for the path of the journal. Changes nothing.
///
/// # Errors
/// As [`open`].
pub(crate) fn foresee(configured: Option<&Path>, whose: &JournalOwner) -> Result<()> {
    let uuid = &whose.uuid;
    let path = wanted(configured, uuid);
    refuse_unless_own(&path, whose)?;
    if configured.is_none() && path.is_symlink() {
        return Ok(());
    }
    let other = owner(&path, Some(uuid), &whose.stake)?.filter(|owner| owner != uuid);
    match (other, existing(&path)?) {
        (Some(other), Some(memory)) => refuse_others(&memory, &other, &path),
        _ => Ok(()),
    }
}

/// Creates a file of `len` bytes at `path` that names the cache `uuid` as its owner. So the file
/// has an owner even if this process dies before it writes the journal.
fn create_owned(path: &Path, len: usize, uuid: &[u8; 16]) -> std::io::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".forebay-new");
    let _ = std::fs::remove_file(&beside);
    let mut options = File::options();
    let file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&beside)?;
    file.set_len(len as u64)?;
    file.write_all_at(uuid, MAGIC_BYTES as u64)?;
    std::fs::rename(&beside, path)
}

/// A mapped journal.
pub(super) struct Opened {
    pub(super) memory: Buf,
    /// Path of the journal.
    pub(super) path: PathBuf,
    /// Whether it did not exist before, or held nothing.
    pub(super) created: bool,
}

/// Removes a journal that was created for a cache that then did not open, unless the cache has
/// started to use it.
pub(super) fn remove_unused(path: &Path, uuid: &[u8; 16]) {
    if matches!(owner(path, Some(uuid), ""), Ok(None)) {
        let _ = std::fs::remove_file(path);
        // A link to a journal of an earlier process.
        let usual = default_path(uuid);
        if std::fs::read_link(&usual).is_ok_and(|leads_to| leads_to == path) {
            let _ = std::fs::remove_file(&usual);
        }
    }
}

/// Removes dangling links at the default paths of journals: their caches are gone with their
/// journals after a daemon was killed. Links of other users are not touched.
pub(super) fn sweep() {
    let entries = std::fs::read_dir(USUAL_DIRECTORY).into_iter().flatten();
    // SAFETY: no memory is involved.
    let user = unsafe { libc::geteuid() };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let name = name.to_str().unwrap_or_default();
        let named = name
            .strip_prefix("forebay-")
            .and_then(|name| name.strip_suffix(".journal"));
        let dangling = || {
            let leads_to = std::fs::read_link(entry.path()).ok()?;
            let ours = entry.metadata().ok()?.uid() == user;
            let gone =
                matches!(std::fs::metadata(&leads_to), Err(e) if e.kind() == IoKind::NotFound);
            Some(ours && gone)
        };
        if named.is_some_and(|uuid| uuid.len() == 32) && dangling() == Some(true) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// Links the default path to a journal that is in use elsewhere.
pub(super) fn link_default_path(uuid: &[u8; 16], path: &Path) {
    let usual = default_path(uuid);
    if usual == path {
        return;
    }
    let _ = std::fs::remove_file(&usual);
    if let Err(error) = std::os::unix::fs::symlink(path, &usual) {
        tracing::debug!("no link {} to the journal: {error}", usual.display());
    }
}

/// Returns a copy of the journal of a cache that is not open, if there is one. Neither changes nor
/// allocates any part of the journal.
///
/// # Errors
/// `Busy` if a daemon uses it; otherwise the error of the operating system.
fn existing(path: &Path) -> Result<Option<Buf>> {
    look_shared(path).context(|| format!("the process journal {}", path.display()))
}

/// Returns the journal at `path` if it belongs to the last opening of a closed cache; otherwise the
/// reason why it does not. The result is a copy as in [`existing`]. With `mend` it is the journal
/// itself, to repair the cache from it.
///
/// # Errors
/// As [`existing`].
pub(crate) fn own(whose: &JournalOwner, path: &Path, mend: bool) -> Result<Result<Option<Buf>>> {
    if !is_of(path, &whose.uuid) {
        return Ok(Ok(None));
    }
    match refuse_foreign(path, whose) {
        Ok(()) if mend => map(path).map(|journal| Ok(Some(journal))),
        Ok(()) => existing(path).map(Ok),
        Err(error) => Ok(Err(error)),
    }
}

/// Maps the journal at `path` with its present size, so that no part of it changes.
fn map(path: &Path) -> Result<Buf> {
    let len = std::fs::metadata(path)
        .context(|| path.display().to_string())?
        .len();
    let len = usize::try_from(len).unwrap_or(usize::MAX);
    let (journal, _) =
        open_shared(path, len).context(|| format!("the process journal {}", path.display()))?;
    Ok(journal)
}

/// Removes the journal of a cache whose writes are all elsewhere or abandoned, and the link to it.
/// Leaves a journal of another copy of the cache, or of another opening.
pub(crate) fn remove(whose: &JournalOwner, path: &Path) {
    let remove = |path: &Path| match std::fs::remove_file(path) {
        Err(error) if error.kind() != IoKind::NotFound => {
            tracing::warn!(
                "cannot remove the process journal {}: {error}",
                path.display()
            );
        }
        _ => {}
    };
    let usual = default_path(&whose.uuid);
    if is_own(path, whose) {
        remove(path);
    }
    // A link to another copy's journal belongs to that copy.
    if std::fs::read_link(&usual).is_ok_and(|leads_to| !leads_to.exists()) {
        remove(&usual);
    }
}

#[cfg(test)]
mod tests;
