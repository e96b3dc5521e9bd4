//! A second name for each file that was opened: `.forebay/files/INODE` in the source.
//!
//! Pages know their file by its inode, and any node may have to write one back. By this name it finds the file
//! whatever it is called now, and a file that was removed lives on while it is open, or while a frame may hold a page
//! of it: its inode is nobody else's before that. What is not open any more and has no other name is emptied at once
//! and waits in `.forebay/removed` for its pages to go.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use forebay_io::tree::{Lock, conflicting_lock, link_open, lock_byte, try_lock_byte};

/// What is hidden at the top of the source.
pub(crate) const NAME: &str = ".forebay";

/// Who has the file open shares this byte of it; it is behind all that files have.
const OPEN: i64 = i64::MAX - 1;
/// Who changes the file's size or times, or writes to it, has this byte alone.
const CHANGE: i64 = i64::MAX - 2;
/// Who has it open as one of a mapped directory shares this byte.
const MAPPED: i64 = i64::MAX - 3;
/// The last byte that programs may lock.
pub(crate) const PROGRAMS_LAST: i64 = i64::MAX - 4;

/// Removals between two looks for what may go for good.
const SWEEP_EVERY: u32 = 64;

/// The second names of a source.
#[derive(Debug)]
pub(crate) struct Kept {
    files: PathBuf,
    removed: PathBuf,
    removals: AtomicU32,
}

/// A file in words, where its name is not known.
pub(crate) fn unnamed(inode: u64, source: &Path) -> String {
    let source = source.display();
    format!("inode {inode} in {source} (`find {source} -xdev -inum {inode}` names it)")
}

/// Makes what is hidden there, with nothing in it.
pub(crate) fn make_top(source: &Path) -> io::Result<()> {
    builder().create(source.join(NAME))
}

/// Makes room for second names. `anew` says that no node runs, so that those that are there have no use.
pub(crate) fn make(source: &Path, anew: bool) -> io::Result<()> {
    for name in ["files", "removed"] {
        let path = source.join(NAME).join(name);
        if anew && path.exists() {
            fs::remove_dir_all(&path)?;
        }
        builder().create(path)?;
    }
    Ok(())
}

fn builder() -> DirBuilder {
    let mut builder = DirBuilder::new();
    builder.recursive(true).mode(0o700);
    builder
}

/// Says that this open file is in use.
pub(crate) fn mark_open(file: &File, open: bool) -> io::Result<()> {
    let lock = if open { Lock::Shared } else { Lock::None };
    lock_byte(file, OPEN, lock)
}

/// Says that this open file is in use as one of a mapped directory, until it is closed.
pub(crate) fn mark_mapped(file: &File) -> io::Result<()> {
    lock_byte(file, MAPPED, Lock::Shared)
}

/// Whether nobody has the file open as one of a mapped directory.
pub(crate) fn is_unmapped(file: &File) -> io::Result<bool> {
    let found = conflicting_lock(file, MAPPED.into(), Lock::Exclusive)?;
    Ok(found.is_none())
}

/// Changes a file while no other process does. Of one process one thread calls this at a time.
pub(crate) fn change<T>(file: &File, body: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    lock_byte(file, CHANGE, Lock::Exclusive)?;
    let result = body();
    lock_byte(file, CHANGE, Lock::None)?;
    result
}

impl Kept {
    /// Those of a source; `None` if the directory process could not make room for them.
    pub(crate) fn open(source: &Path) -> Option<Self> {
        let top = source.join(NAME);
        let kept = Self {
            files: top.join("files"),
            removed: top.join("removed"),
            removals: AtomicU32::new(0),
        };
        (kept.files.is_dir() && kept.removed.is_dir()).then_some(kept)
    }

    fn of(&self, inode: u64) -> PathBuf {
        self.files.join(inode.to_string())
    }

    /// Gives an open file that is marked so its second name, if it has none. `ESTALE` if it was given up before it
    /// was marked: it is empty, and its name leads elsewhere by now or nowhere.
    pub(crate) fn keep(&self, file: &File, inode: u64) -> io::Result<()> {
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

    /// Whether a file has such a name.
    pub(crate) fn has(&self, inode: u64) -> bool {
        let there = |path: PathBuf| fs::symlink_metadata(path).is_ok();
        there(self.of(inode)) || there(self.removed.join(inode.to_string()))
    }

    /// A file of the source's own file system that has no name.
    pub(crate) fn nameless(&self) -> io::Result<File> {
        let path = self.files.join(format!("new-{}", std::process::id()));
        let file = File::create(&path)?;
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

    /// Names of a file with these attributes that are not ours.
    pub(crate) fn links(&self, metadata: &fs::Metadata) -> u64 {
        let ours = metadata.is_file()
            && metadata.nlink() > 1
            && fs::symlink_metadata(self.of(metadata.ino())).is_ok();
        metadata.nlink() - u64::from(ours)
    }

    /// A file may have lost its last other name, or been closed after that: if so, and nobody has it open, its room
    /// is free from now on. `resident` names the inodes that frames hold pages of.
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
        if file.metadata()?.nlink() > 1 || !try_lock_byte(&file, OPEN, Lock::Exclusive)? {
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

    /// Lets go of removed files of which no frame holds a page.
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
        make(&source, true).expect("made");
        let kept = Kept::open(&source).expect("there");
        let path = source.join("data");
        fs::write(&path, [7; 5000]).expect("written");
        let file = File::options().read(true).write(true).open(&path);
        let file = file.expect("there");
        let inode = file.metadata().expect("answers").ino();
        mark_open(&file, true).expect("locked");
        kept.keep(&file, inode).expect("linked");
        kept.keep(&file, inode).expect("once is enough");
        assert_eq!(kept.links(&file.metadata().expect("answers")), 1);
        let size = || {
            kept.find(inode)
                .map(|file| file.metadata().expect("answers").len())
        };
        kept.give_up(inode, BTreeSet::new).expect("looked");
        assert_eq!(size().expect("it has a name"), 5000);
        fs::remove_file(&path).expect("removed");
        kept.give_up(inode, BTreeSet::new).expect("looked");
        assert_eq!(size().expect("it is open"), 5000);
        mark_open(&file, false).expect("unlocked");
        kept.give_up(inode, BTreeSet::new).expect("looked");
        assert_eq!(size().expect("its inode is nobody's yet"), 0);
        let stale = |file| kept.keep(file, inode).expect_err("given up").raw_os_error();
        assert_eq!(stale(&file), Some(libc::ESTALE));
        kept.sweep(&BTreeSet::from([inode])).expect("swept");
        assert_eq!(size().expect("a frame holds a page"), 0);
        kept.sweep(&BTreeSet::new()).expect("swept");
        assert_eq!(size().expect_err("gone").kind(), io::ErrorKind::NotFound);
        assert_eq!(stale(&file), Some(libc::ESTALE));
        fs::remove_dir_all(&source).expect("removed");
    }
}
