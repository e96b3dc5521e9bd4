//! A second name for each opened file: `.forebay/files/INODE` in the source.
//!
//! Pages know their file by its inode, and any node may have to write one back. By this name it
//! finds the file under any other name. A removed file exists while it is open, or while a frame
//! may hold a page of it. So its inode is not reused before that. A file without another name that
//! is not open any more is truncated to zero at once. It waits in `.forebay/removed` until its
//! pages have left memory.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use forebay_io::NewDirectories;
use forebay_io::tree::{Lock, conflicting_lock, link_open, lock_byte, try_lock_byte};

/// Hidden directory at the top of the source.
pub(crate) const NAME: &str = ".forebay";

/// Byte on which a user of the open file has a shared lock. It is beyond the end of all files.
const OPEN: i64 = i64::MAX - 1;
/// Byte on which a process has an exclusive lock while it writes to the file or changes its size or
/// times.
const CHANGE: i64 = i64::MAX - 2;
/// Byte on which a user has a shared lock while it has the file open in a mapped directory.
const MAPPED: i64 = i64::MAX - 3;
/// The last byte that programs may lock.
pub(crate) const PROGRAMS_LAST: i64 = i64::MAX - 4;

/// Number of removals between two sweeps.
const SWEEP_EVERY: u32 = 64;

/// Second names of a source.
#[derive(Debug)]
pub(crate) struct SecondNames {
    files: PathBuf,
    removed: PathBuf,
    removals: AtomicU32,
}

/// Describes a file whose name is not known.
pub(crate) fn unnamed(inode: u64, source: &Path) -> String {
    let source = source.display();
    format!("inode {inode} in {source} (`find {source} -xdev -inum {inode}` names it)")
}

/// Creates the empty hidden directory. Dropping the result removes it.
pub(crate) fn make_top(source: &Path) -> io::Result<NewDirectories> {
    NewDirectories::create(&source.join(NAME), 0o700)
}

/// Creates the directories for second names. `is_unused` says that no node runs, so that existing
/// names are unused. Dropping the result removes those that did not exist.
pub(crate) fn make(source: &Path, is_unused: bool) -> io::Result<Vec<NewDirectories>> {
    let mut made = Vec::new();
    for name in ["files", "removed"] {
        let path = source.join(NAME).join(name);
        let existed = path.exists();
        if is_unused && existed {
            fs::remove_dir_all(&path)?;
        }
        let new = NewDirectories::create(&path, 0o700)?;
        match existed {
            true => new.keep(),
            false => made.push(new),
        }
    }
    Ok(made)
}

/// Marks this open file as in use.
pub(crate) fn mark_open(file: &File, open: bool) -> io::Result<()> {
    let lock = if open { Lock::Shared } else { Lock::None };
    lock_byte(file, OPEN, lock)
}

/// Marks this open file as in use in a mapped directory, until it is closed.
pub(crate) fn mark_mapped(file: &File) -> io::Result<()> {
    lock_byte(file, MAPPED, Lock::Shared)
}

/// Returns whether no program has the file open in a mapped directory.
pub(crate) fn is_unmapped(file: &File) -> io::Result<bool> {
    let found = conflicting_lock(file, MAPPED.into(), Lock::Exclusive)?;
    Ok(found.is_none())
}

/// Runs `body` while no other process changes the file. Only one thread of a process may call this
/// at a time.
pub(crate) fn change<T>(file: &File, body: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    lock_byte(file, CHANGE, Lock::Exclusive)?;
    let result = body();
    lock_byte(file, CHANGE, Lock::None)?;
    result
}

impl SecondNames {
    /// Opens the second names of a source. Returns `None` if the directory process could not create
    /// them.
    pub(crate) fn open(source: &Path) -> Option<Self> {
        let top = source.join(NAME);
        let names = Self {
            files: top.join("files"),
            removed: top.join("removed"),
            removals: AtomicU32::new(0),
        };
        (names.files.is_dir() && names.removed.is_dir()).then_some(names)
    }

    fn of(&self, inode: u64) -> PathBuf {
        self.files.join(inode.to_string())
    }

    /// Gives an open, marked file its second name, if it has none. Fails with `ESTALE` if the file
    /// was given up before it was marked. Such a file is empty, and its name now leads to another
    /// file or nowhere.
    pub(crate) fn add(&self, file: &File, inode: u64) -> io::Result<()> {
        let stale = Err(io::Error::from_raw_os_error(libc::ESTALE));
        if fs::symlink_metadata(self.removed.join(inode.to_string())).is_ok() {
            return stale;
        }
        match link_open(file, &self.of(inode)) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => stale,
            other => other,
        }
    }

    /// Does what [`SecondNames::add`] does, and returns false if the source has no room for the
    /// name.
    pub(crate) fn add_if_room(&self, file: &File, inode: u64) -> io::Result<bool> {
        match self.add(file, inode) {
            Err(error) if is_full(&error) => Ok(false),
            added => added.map(|()| true),
        }
    }

    /// Returns whether a file has a second name.
    pub(crate) fn has(&self, inode: u64) -> bool {
        let there = |path: PathBuf| fs::symlink_metadata(path).is_ok();
        there(self.of(inode)) || there(self.removed.join(inode.to_string()))
    }

    /// Creates a nameless file on the source's file system, or opens the record of its pool if the
    /// source is full.
    pub(crate) fn nameless(&self) -> io::Result<File> {
        let path = self.files.join(format!("new-{}", std::process::id()));
        let file = match File::create(&path) {
            Err(error) if is_full(&error) => return File::open(self.files.with_file_name("pool")),
            file => file?,
        };
        // Another thread may do the same.
        fs::remove_file(&path).or_else(gone)?;
        Ok(file)
    }

    /// Opens a file by its inode.
    pub(crate) fn find(&self, inode: u64) -> io::Result<File> {
        let open = |path: PathBuf| File::options().read(true).write(true).open(path);
        match open(self.of(inode)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                open(self.removed.join(inode.to_string()))
            }
            other => other,
        }
    }

    /// Returns the number of names of an open file that has this metadata, without its second name.
    pub(crate) fn links(&self, file: &File, metadata: &fs::Metadata) -> io::Result<u64> {
        if !metadata.is_file() || fs::symlink_metadata(self.of(metadata.ino())).is_err() {
            return Ok(metadata.nlink());
        }
        // The second name may be newer than the metadata.
        Ok(file.metadata()?.nlink().saturating_sub(1))
    }

    /// Gives a regular file another name. `file` leads to it, and `locked` is open for reading.
    /// Fails with `ENOENT` if the file has no name but its second one: programs have removed it.
    pub(crate) fn link(&self, file: &File, locked: &File, to: &Path) -> io::Result<()> {
        // So no node gives the file up between the check and the new name.
        mark_open(locked, true)?;
        let metadata = locked.metadata()?;
        let is_given_up = self.removed.join(metadata.ino().to_string());
        let is_given_up = fs::symlink_metadata(is_given_up).is_ok();
        if is_given_up || self.links(locked, &metadata)? == 0 {
            return Err(io::Error::from_raw_os_error(libc::ENOENT));
        }
        link_open(file, to)
    }

    /// Notes that a file has lost a name or was closed. If it has no other name and is not open,
    /// its blocks are freed. `resident` returns the inodes of which frames hold pages.
    pub(crate) fn give_up(
        &self,
        inode: u64,
        resident: impl FnOnce() -> BTreeSet<u64>,
    ) -> io::Result<()> {
        let path = self.of(inode);
        let file = match File::options().read(true).write(true).open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            file => file?,
        };
        let has_names = || file.metadata().map(|metadata| metadata.nlink() > 1);
        // A program may give it a name until the lock, and none after it.
        if has_names()? || !try_lock_byte(&file, OPEN, Lock::Exclusive)? || has_names()? {
            return Ok(());
        }
        change(&file, || file.set_len(0))?;
        fs::rename(&path, self.removed.join(inode.to_string()))?;
        drop(file);
        let removals = self.removals.fetch_add(1, Ordering::Relaxed) + 1;
        if removals.is_multiple_of(SWEEP_EVERY) {
            self.sweep(&resident())?;
        }
        Ok(())
    }

    /// Deletes removed files of which no frame holds a page.
    fn sweep(&self, resident: &BTreeSet<u64>) -> io::Result<()> {
        for entry in fs::read_dir(&self.removed)? {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str());
            let inode = name.and_then(|name| name.parse().ok());
            if inode.is_none_or(|inode| resident.contains(&inode)) {
                continue;
            }
            match File::options().read(true).write(true).open(&path) {
                // Another node was faster.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                file => {
                    let file = file?;
                    if try_lock_byte(&file, OPEN, Lock::Exclusive)? {
                        fs::remove_file(&path).or_else(gone)?;
                    }
                }
            }
        }
        Ok(())
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}

fn gone(error: io::Error) -> io::Result<()> {
    match error.kind() {
        io::ErrorKind::NotFound => Ok(()),
        _ => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("forebay-keep-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).expect("made");
        path
    }

    #[test]
    fn a_removed_file_lives_while_it_is_open_and_while_pages_are_there() {
        let source = source("life");
        let made = make(&source, true).expect("made");
        made.into_iter().for_each(NewDirectories::keep);
        let names = SecondNames::open(&source).expect("there");
        let path = source.join("data");
        fs::write(&path, [7; 5000]).expect("written");
        let file = File::options().read(true).write(true).open(&path);
        let file = file.expect("there");
        let inode = file.metadata().expect("answers").ino();
        mark_open(&file, true).expect("locked");
        let older = file.metadata().expect("answers");
        names.add(&file, inode).expect("linked");
        names.add(&file, inode).expect("once is enough");
        let metadata = || file.metadata().expect("answers");
        let links = |metadata| names.links(&file, &metadata).expect("answers");
        assert_eq!((links(older), links(metadata())), (1, 1));
        let size = || {
            names
                .find(inode)
                .map(|file| file.metadata().expect("answers").len())
        };
        names.give_up(inode, BTreeSet::new).expect("looked");
        assert_eq!(size().expect("it has a name"), 5000);
        fs::remove_file(&path).expect("removed");
        names.give_up(inode, BTreeSet::new).expect("looked");
        assert_eq!(size().expect("it is open"), 5000);
        assert_eq!(links(metadata()), 0);
        mark_open(&file, false).expect("unlocked");
        names.give_up(inode, BTreeSet::new).expect("looked");
        assert_eq!(size().expect("its inode is nobody's yet"), 0);
        let stale = |file| names.add(file, inode).expect_err("given up").raw_os_error();
        assert_eq!(stale(&file), Some(libc::ESTALE));
        names.sweep(&BTreeSet::from([inode])).expect("swept");
        assert_eq!(size().expect("a frame holds a page"), 0);
        names.sweep(&BTreeSet::new()).expect("swept");
        assert_eq!(size().expect_err("gone").kind(), io::ErrorKind::NotFound);
        assert_eq!(stale(&file), Some(libc::ESTALE));
        fs::remove_dir_all(&source).expect("removed");
    }
}
