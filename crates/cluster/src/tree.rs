//! A directory tree as the store: a page's inode is its file's, as stat(2) has it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay_block::{Context, Error, ErrorKind, Result};
use forebay_pagecache::message::PageId;
use forebay_pagecache::store::Store;

use crate::PAGE_BYTES;
use crate::pool::Pool;

/// Most files that are kept open at a time, beside those that programs have open.
const OPEN_MAX: usize = 512;

/// The tree, as one node sees it.
#[derive(Debug)]
pub struct Tree {
    root: PathBuf,
    device: u64,
    files: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    open: BTreeMap<u64, Arc<fs::File>>,
    /// Files of which the system has said that something written to them may be lost.
    failed: BTreeSet<u64>,
}

impl Tree {
    /// The tree at `root`.
    ///
    /// # Errors
    /// If it is no directory.
    pub(crate) fn new(root: &Path, pool: &Pool) -> Result<Self> {
        let metadata = fs::metadata(root).context(|| format!("source {}", root.display()))?;
        if !metadata.is_dir() {
            let context = format!("source {}: it is no directory", root.display());
            return Err(Error::new(ErrorKind::InvalidInput, context));
        }
        Ok(Self {
            root: root.to_owned(),
            device: metadata.dev(),
            files: pool.files(),
            state: Mutex::default(),
        })
    }

    /// Opens a file below the root, or makes it, and returns its inode. Any node can find the file by that from then
    /// on.
    pub(crate) fn open(&self, path: &Path, create: bool) -> Result<u64> {
        let inside = path
            .components()
            .all(|part| matches!(part, Component::Normal(_)));
        let named = || format!("{} in {}", path.display(), self.root.display());
        if !inside || path.as_os_str().is_empty() {
            let context = format!("{}: not a path below the source", named());
            return Err(Error::new(ErrorKind::InvalidInput, context));
        }
        let full = self.root.join(path);
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(create).open(&full);
        let file = file.context(named)?;
        let metadata = file.metadata().context(named)?;
        if !metadata.is_file() || metadata.dev() != self.device {
            let context = format!(
                "{}: not a regular file of the source's own file system",
                named()
            );
            return Err(Error::new(ErrorKind::Unsupported, context));
        }
        let inode = metadata.ino();
        self.name(inode, &full)?;
        let mut state = self.lock();
        state.failed.remove(&inode);
        state.open.insert(inode, Arc::new(file));
        Ok(inode)
    }

    /// Leaves word which file has this inode.
    fn name(&self, inode: u64, full: &Path) -> Result<()> {
        let link = self.files.join(inode.to_string());
        if fs::read_link(&link).is_ok_and(|target| target == full) {
            return Ok(());
        }
        let new = self.files.join(format!("{inode}.{}", std::process::id()));
        let made = std::os::unix::fs::symlink(full, &new).and_then(|()| fs::rename(&new, &link));
        made.context(|| format!("naming a file in {}", self.files.display()))
    }

    /// The file's size, bytes.
    pub(crate) fn size_bytes(&self, inode: u64) -> Result<u64> {
        let metadata = self.file(inode)?.metadata();
        Ok(metadata.context(|| self.named(inode))?.size())
    }

    /// Makes the file at least this long.
    pub(crate) fn grow(&self, inode: u64, size_bytes: u64) -> Result<()> {
        let file = self.file(inode)?;
        if file.metadata().context(|| self.named(inode))?.size() < size_bytes {
            file.set_len(size_bytes).context(|| self.named(inode))?;
        }
        Ok(())
    }

    fn file(&self, inode: u64) -> Result<Arc<fs::File>> {
        let mut state = self.lock();
        if let Some(file) = state.open.get(&inode) {
            return Ok(Arc::clone(file));
        }
        let link = self.files.join(inode.to_string());
        let file = OpenOptions::new().read(true).write(true).open(&link);
        let file = file.context(|| self.named(inode))?;
        if file.metadata().context(|| self.named(inode))?.ino() != inode {
            let context = format!(
                "{}: another file is in its place: files that are cached are not to be moved",
                self.named(inode)
            );
            return Err(Error::new(ErrorKind::NotFound, context));
        }
        if state.open.len() >= OPEN_MAX {
            state.open.retain(|_, file| Arc::strong_count(file) > 1);
        }
        let file = Arc::new(file);
        state.open.insert(inode, Arc::clone(&file));
        Ok(file)
    }

    fn named(&self, inode: u64) -> String {
        let link = self.files.join(inode.to_string());
        match fs::read_link(link) {
            Ok(path) => path.display().to_string(),
            Err(_) => format!("inode {inode} of {}", self.root.display()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store for Tree {
    fn read_page(&self, page: PageId, into: &mut [u8]) -> Result<()> {
        let file = self.file(page.inode)?;
        let start = page.index * PAGE_BYTES as u64;
        let mut done = 0;
        while done < into.len() {
            match file.read_at(&mut into[done..], start + done as u64) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error).context(|| self.named(page.inode)),
            }
        }
        into[done..].fill(0);
        Ok(())
    }

    fn write_page(&self, page: PageId, from: &[u8]) -> Result<()> {
        let file = self.file(page.inode)?;
        let start = page.index * PAGE_BYTES as u64;
        // Files only grow, and before what is behind their end is written.
        let size = file.metadata().context(|| self.named(page.inode))?.size();
        let len = size.saturating_sub(start).min(from.len() as u64);
        let len = usize::try_from(len).unwrap_or(from.len());
        let written = file.write_all_at(&from[..len], start);
        written.context(|| format!("writing {}", self.named(page.inode)))
    }

    fn sync(&self, inode: u64) -> Result<()> {
        let file = self.file(inode)?;
        let synced = file.sync_data();
        let mut state = self.lock();
        // The system says it once; what it has dropped then does not come back by asking again.
        if synced.is_err() {
            state.failed.insert(inode);
        }
        let failed = state.failed.contains(&inode);
        drop(state);
        if failed {
            let context = format!(
                "fsync of {}: the system has lost something written: open it again and write it again",
                self.named(inode)
            );
            return Err(Error::new(ErrorKind::Lost, context));
        }
        Ok(())
    }
}
