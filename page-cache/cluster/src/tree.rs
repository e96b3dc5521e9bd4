//! A directory tree as the store: a page's inode is that of its file in stat(2).

mod direct;
mod pages;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, FileTimes, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use forebay_block::{Context, Error, ErrorKind, Result};
use forebay_io::blocks::{allocate_range, next_data};
use forebay_io::uncached::Uncached;

use crate::mapped::Mapped;
use crate::pool::Pool;
use crate::second_names::{self, SecondNames};
use direct::SourceFile;

/// Maximum number of files that stay open, in addition to those that programs have open.
const OPEN_MAX: usize = 512;

/// Precision of a file's modification time; many writes change it once.
const TIME_EXACT: Duration = Duration::from_millis(4);

/// The tree, as one node sees it.
#[derive(Debug)]
pub struct Tree {
    root: PathBuf,
    device: u64,
    /// Symbolic links named by inodes, for a read-only source and for files that are being
    /// truncated.
    links: PathBuf,
    second_names: Option<SecondNames>,
    mapped: Mapped,
    state: Mutex<State>,
    uncached: Uncached,
    /// Whether the system allows io_uring, once that is known.
    has_ring: OnceLock<bool>,
    /// Whether io_uring reads its files directly, once that is known.
    submits: OnceLock<bool>,
    /// Whether the owner reports refused pages itself.
    quiet: bool,
    /// Held while a file is changed, by one thread of this process and then by one process.
    changing: Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    /// Files that programs have open, and how often.
    opened: BTreeMap<u64, (Arc<SourceFile>, u32)>,
    /// Those of them for whose second name the source had no room. No frame holds a page that this
    /// node has read or written of them.
    unnamed: BTreeSet<u64>,
    /// Recently used files.
    used: BTreeMap<u64, Arc<SourceFile>>,
    /// Files with a failed sync, whose writes may be lost.
    failed: BTreeSet<u64>,
    /// Time of the last log line about refused pages.
    complained: Option<Instant>,
}

impl Tree {
    /// Opens the tree at `root`.
    ///
    /// # Errors
    /// If it is not a directory.
    pub(crate) fn new(root: &Path, pool: &Pool) -> Result<Self> {
        let metadata = fs::metadata(root).context(|| format!("source {}", root.display()))?;
        if !metadata.is_dir() {
            let context = format!(
                "source {}: it is not a directory: a block device is joined by `DeviceNode`, and \
                 has no files",
                root.display()
            );
            return Err(Error::new(ErrorKind::InvalidInput, context));
        }
        Ok(Self {
            root: root.to_owned(),
            device: metadata.dev(),
            links: pool.files(),
            second_names: SecondNames::open(root),
            mapped: Mapped::load(pool, root)?,
            state: Mutex::default(),
            uncached: Uncached::default(),
            has_ring: OnceLock::new(),
            submits: OnceLock::new(),
            quiet: false,
            changing: Mutex::default(),
        })
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the second names of files, if the source can have them.
    pub(crate) const fn second_names(&self) -> Option<&SecondNames> {
        self.second_names.as_ref()
    }

    /// Returns its mapped directories.
    pub(crate) const fn mapped(&self) -> &Mapped {
        &self.mapped
    }

    /// Marks a file of a mapped directory as mapped, until it is closed. Returns false if frames
    /// may hold pages of it, since it has or had another name.
    pub(crate) fn map(&self, file: &fs::File) -> Result<bool> {
        // This order matters: adopting a file does the same two steps in reverse order.
        second_names::mark_mapped(file)?;
        let inode = file.metadata()?.ino();
        Ok(!self
            .second_names
            .as_ref()
            .is_some_and(|second_names| second_names.has(inode)))
    }

    /// Opens or creates a file below the root, and returns its inode. It must be closed with
    /// [`Tree::close`]. From then on any node can find the file by its inode.
    pub(crate) fn open(&self, path: &Path, create: bool) -> Result<u64> {
        let mut parts = path.components();
        let inside = parts
            .clone()
            .all(|part| matches!(part, Component::Normal(_)));
        let ours = parts.next() == Some(Component::Normal(second_names::NAME.as_ref()));
        let named = || format!("{} in {}", path.display(), self.root.display());
        if !inside || ours || path.as_os_str().is_empty() {
            let context = format!("{}: not a path below the source", named());
            return Err(Error::new(ErrorKind::InvalidInput, context));
        }
        let whole = self.root.join(path);
        if create && self.mapped.holds_new(&whole) {
            return Err(for_mounts()).context(named);
        }
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(create);
        loop {
            let file = options.open(&whole).context(named)?;
            match self.adopt(file).context(named) {
                // The file was removed or replaced, and given up meanwhile: the name leads to the
                // current file.
                Err(error) if error.raw_os_error() == Some(libc::ESTALE) => {}
                adopted => return adopted,
            }
        }
    }

    /// Adopts a file of the tree that is open for reading and writing, as [`Tree::open`] does.
    /// Fails with `ESTALE` if it was given up since.
    pub(crate) fn adopt(&self, file: fs::File) -> Result<u64> {
        let metadata = file.metadata()?;
        if !metadata.is_file() || metadata.dev() != self.device {
            let context = "not a regular file of the source's own file system";
            return Err(Error::new(ErrorKind::Unsupported, context));
        }
        if self.mapped.holds(&file) {
            return Err(for_mounts());
        }
        let inode = metadata.ino();
        let mut state = self.lock();
        state.failed.remove(&inode);
        if let Some((_, count)) = state.opened.get_mut(&inode) {
            *count += 1;
            return Ok(inode);
        }
        check_unmapped(&file)?;
        second_names::mark_open(&file, true)?;
        match &self.second_names {
            Some(second_names) if !second_names.add_if_room(&file, inode)? => {
                state.unnamed.insert(inode);
            }
            Some(_) => {}
            None => self.link(&file, inode)?,
        }
        // Checked twice, since of two that begin at once one must see the other.
        check_unmapped(&file)?;
        state.used.remove(&inode);
        state
            .opened
            .insert(inode, (Arc::new(SourceFile::new(file)), 1));
        Ok(inode)
    }

    /// Gives an open file its second name, if the source had no room for it at the open. Returns
    /// false if it has none still: then no node has written to the file, and none may use frames
    /// for it.
    pub(crate) fn ensure_named(&self, inode: u64) -> Result<bool> {
        let mut state = self.lock();
        if !state.unnamed.contains(&inode) {
            return Ok(true);
        }
        let (Some(second_names), Some((file, _))) = (&self.second_names, state.opened.get(&inode))
        else {
            return Ok(true);
        };
        let is_named = match second_names.add_if_room(file, inode) {
            // It was removed since. So no other node can open it.
            Err(error) if error.raw_os_error() == Some(libc::ESTALE) => false,
            added => added.context(|| format!("naming inode {inode}"))?,
        };
        if is_named {
            state.unnamed.remove(&inode);
        }
        Ok(is_named)
    }

    /// Ends one [`Tree::open`]. `resident` returns the inodes of which frames hold pages.
    pub(crate) fn close(&self, inode: u64, resident: impl FnOnce() -> BTreeSet<u64>) {
        let mut state = self.lock();
        let Some((_, count)) = state.opened.get_mut(&inode) else {
            return;
        };
        *count -= 1;
        if *count > 0 {
            return;
        }
        if let Some((file, _)) = state.opened.remove(&inode) {
            let unmarked = second_names::mark_open(&file, false);
            let is_named = !state.unnamed.remove(&inode);
            if unmarked.is_ok() && is_named {
                state.use_lately(inode, file);
            }
        }
        drop(state);
        self.lost_name(inode, resident);
    }

    /// Notes that a file may have no name left but its second one.
    pub(crate) fn lost_name(&self, inode: u64, resident: impl FnOnce() -> BTreeSet<u64>) {
        let given_up = self
            .second_names
            .as_ref()
            .map(|second_names| second_names.give_up(inode, resident));
        if let Some(Err(error)) = given_up {
            tracing::warn!(
                "page cache: the blocks of removed file {} are not freed: {error}\n    \
                 help: stop all nodes, and start the directory once without them",
                self.named(inode)
            );
        }
    }

    /// Records the file of this inode, if it can have no second name.
    fn link(&self, file: &fs::File, inode: u64) -> Result<()> {
        let full = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
        let link = self.links.join(inode.to_string());
        if fs::read_link(&link).is_ok_and(|target| target == full) {
            return Ok(());
        }
        let new = self.links.join(format!("{inode}.{}", std::process::id()));
        let made = std::os::unix::fs::symlink(full, &new).and_then(|()| fs::rename(&new, &link));
        made.context(|| format!("naming a file in {}", self.links.display()))
    }

    /// Returns the file's attributes. The size is correct, whatever is in frames.
    pub(crate) fn metadata(&self, inode: u64) -> Result<fs::Metadata> {
        let metadata = self.file(inode)?.metadata();
        metadata.context(|| self.named(inode))
    }

    /// Returns the file's size, bytes.
    pub(crate) fn size_bytes(&self, inode: u64) -> Result<u64> {
        Ok(self.metadata(inode)?.size())
    }

    /// Extends the file to at least this length.
    pub(crate) fn grow(&self, inode: u64, size_bytes: u64) -> Result<()> {
        let file = self.file(inode)?;
        let grown = self.change(&file, || match file.metadata()?.size() {
            size if size < size_bytes => file.set_len(size_bytes),
            _ => Ok(()),
        });
        grown.context(|| self.named(inode))
    }

    /// Allocates the blocks of a range of the file. Returns false if the source cannot.
    pub(crate) fn allocate(&self, inode: u64, bytes: Range<u64>) -> Result<bool> {
        let file = self.file(inode)?;
        let allocated = self.change(&file, || allocate_range(&file, bytes));
        allocated.context(|| self.named(inode))
    }

    /// Returns the first range with data in a range of the file in the source. The source may lack
    /// data of pages in frames.
    pub(crate) fn next_data(&self, inode: u64, bytes: Range<u64>) -> Result<Option<Range<u64>>> {
        let file = self.file(inode)?;
        next_data(&file, bytes).context(|| self.named(inode))
    }

    /// Sets the file's length.
    pub(crate) fn resize(&self, inode: u64, size_bytes: u64) -> Result<()> {
        let file = self.file(inode)?;
        let resized = self.change(&file, || file.set_len(size_bytes));
        resized.context(|| self.named(inode))
    }

    /// Records that frames may hold data beyond the file's end, up to `end`, until
    /// [`Tree::end_cut`]. The record outlives this process, as frames do. The caller must have
    /// locked the file's size, also for the next two functions.
    pub(crate) fn begin_cut(&self, inode: u64, end: u64) -> Result<()> {
        let path = self.cut(inode);
        let made = std::os::unix::fs::symlink(end.to_string(), &path);
        made.context(|| format!("making {}", path.display()))
    }

    /// Returns the end of the data that frames may hold beyond the file's end, if a truncation was
    /// not completed.
    pub(crate) fn begun_cut(&self, inode: u64) -> Result<Option<u64>> {
        let path = self.cut(inode);
        let end = match fs::read_link(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            end => end.context(|| format!("reading {}", path.display()))?,
        };
        let end = end.to_str().and_then(|end| end.parse().ok());
        end.map(Some).ok_or_else(|| {
            let context = format!("{}: it names no offset", path.display());
            Error::new(ErrorKind::Corrupt, context)
        })
    }

    /// Notes that frames hold zeroes beyond the end of the file.
    pub(crate) fn end_cut(&self, inode: u64) -> Result<()> {
        let path = self.cut(inode);
        fs::remove_file(&path).context(|| format!("removing {}", path.display()))
    }

    fn cut(&self, inode: u64) -> PathBuf {
        self.links.join(format!("{inode}.cut"))
    }

    /// Sets the file's modification time after a write, given its attributes after the write.
    pub(crate) fn touch(&self, inode: u64, metadata: &fs::Metadata) -> Result<()> {
        let now = SystemTime::now();
        let age = now.duration_since(metadata.modified()?);
        if age.is_ok_and(|age| age < TIME_EXACT) {
            return Ok(());
        }
        let file = self.file(inode)?;
        let times = FileTimes::new().set_modified(now);
        let touched = self.change(&file, || file.set_times(times));
        touched.context(|| self.named(inode))
    }

    /// Runs `body` while no other process writes to the file or changes its size or times.
    pub(crate) fn change<T>(
        &self,
        file: &fs::File,
        body: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        let _alone = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        second_names::change(file, body)
    }

    fn file(&self, inode: u64) -> Result<Arc<SourceFile>> {
        let mut state = self.lock();
        if let Some((file, _)) = state.opened.get(&inode) {
            return Ok(Arc::clone(file));
        }
        if let Some(file) = state.used.get(&inode) {
            return Ok(Arc::clone(file));
        }
        let file = match &self.second_names {
            Some(second_names) => second_names.find(inode),
            None => {
                let link = self.links.join(inode.to_string());
                OpenOptions::new().read(true).write(true).open(link)
            }
        };
        let file = file.context(|| self.named(inode))?;
        if file.metadata().context(|| self.named(inode))?.ino() != inode {
            let context = format!(
                "{}: another file is in its place\n\
                 help: do not move or replace cached files of a read-only source",
                self.named(inode)
            );
            return Err(Error::new(ErrorKind::NotFound, context));
        }
        let file = Arc::new(SourceFile::new(file));
        state.use_lately(inode, Arc::clone(&file));
        Ok(file)
    }

    /// Describes the file of an inode for messages: by path if it is known.
    fn named(&self, inode: u64) -> String {
        let opened = || {
            // The lock may be held by a thread that opens a file.
            let state = self.state.try_lock().ok()?;
            let opened = state.opened.get(&inode).map(|(file, _)| file);
            let file = opened.or_else(|| state.used.get(&inode))?;
            let path = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()?;
            let below = path.strip_prefix(&self.root).ok()?;
            (!below.starts_with(second_names::NAME)).then_some(path)
        };
        let link = || fs::read_link(self.links.join(inode.to_string())).ok();
        match opened().or_else(link) {
            Some(path) => path.display().to_string(),
            None => second_names::unnamed(inode, &self.root),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn for_mounts() -> Error {
    let context = "a mapped file (SQLite's logs, or in a mapped directory) needs a mount\n\
                   help: use it on a mount";
    Error::new(ErrorKind::Unsupported, context)
}

/// Checks that no program uses a file in a mapped directory, also on mounts of earlier nodes.
///
/// # Errors
/// `Busy` if one does.
fn check_unmapped(file: &fs::File) -> Result<()> {
    if second_names::is_unmapped(file)? {
        return Ok(());
    }
    let context = "programs have the file open or mapped, perhaps on the mount of an ended node\n\
                   help: let them close it, and unmount that mount";
    Err(Error::new(ErrorKind::Busy, context))
}

impl State {
    fn use_lately(&mut self, inode: u64, file: Arc<SourceFile>) {
        if self.used.len() >= OPEN_MAX {
            self.used.retain(|_, file| Arc::strong_count(file) > 1);
        }
        self.used.insert(inode, file);
    }
}
