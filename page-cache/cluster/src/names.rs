//! Files and directories of the source by name, for a mount.
//!
//! File contents go through the cache. Names, modes, owners and times are those of the source and
//! change there at once, so that all nodes see them. A file or directory that has a number in use
//! stays open here (`O_PATH`) until it is forgotten. So its number is not reused, and a rename of
//! it or of a parent has no effect.

mod locks;
mod making;
mod mapped;
mod xattrs;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, FileType, Metadata, OpenOptions, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirEntryExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::SystemTime;

use forebay_block::{Context, Error, ErrorKind, Result};
pub use forebay_io::tree::{NodeKind, Renaming};
use forebay_io::tree::{Room, raise_open_files, read_link, rename, room, set_times};

use crate::file::File;
use crate::locks::Locks;
use crate::node::{Inner, Node};
use crate::second_names;
pub use making::{Maker, NewFile};
use mapped::MountedBy;
pub use mapped::Opened;

/// Number of the top directory. All others have their inode number.
pub const ROOT: u64 = 1;

/// Mode bits that a program may set.
const MODE_BITS: u32 = 0o7777;

/// Attributes of a file or directory.
#[derive(Clone, Debug)]
pub struct Attributes {
    /// Its number.
    pub number: u64,
    /// Number of its names in the source, as programs see it.
    pub links: u64,
    /// All other attributes. The size is correct, whatever is in frames.
    pub metadata: Metadata,
}

/// Attributes to set; `None` leaves one unchanged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Permissions.
    pub mode: Option<u32>,
    /// Owner.
    pub user: Option<u32>,
    /// Its group.
    pub group: Option<u32>,
    /// Time of the last access.
    pub accessed: Option<SystemTime>,
    /// Time of the last modification.
    pub modified: Option<SystemTime>,
}

impl Changes {
    /// Returns whether it changes nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// An entry of a directory.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The name.
    pub name: OsString,
    /// Number of the file.
    pub number: u64,
    /// Type of the file.
    pub kind: FileType,
}

/// The source, by names. Errors are those of the system, for programs that check their numbers.
#[derive(Debug)]
pub struct Names {
    node: Arc<Inner>,
    device: u64,
    root: Arc<fs::File>,
    known: Mutex<BTreeMap<u64, Known>>,
    locks: Locks,
    mount: OnceLock<MountedBy>,
}

#[derive(Debug)]
struct Known {
    file: Arc<fs::File>,
    lookups: u64,
    /// Whether it is a mapped file or directory, or in a mapped directory.
    mapped: bool,
}

impl Node {
    /// Returns the files of the source by name, for a mount.
    ///
    /// # Errors
    /// `ReadOnly` if the source is not writable, or errors of the system.
    pub fn names(&self) -> Result<Names> {
        Names::new(self.inner())
    }
}

impl Names {
    pub(crate) fn new(node: Arc<Inner>) -> Result<Self> {
        let tree = node.client().store();
        let source = tree.root().to_owned();
        let named = || format!("source {}", source.display());
        if tree.second_names().is_none() {
            let context = format!(
                "{}: {} could not be made in it, without which files cannot be renamed or removed: \
                 have the directory process write there",
                named(),
                second_names::NAME
            );
            return Err(Error::new(ErrorKind::ReadOnly, context));
        }
        if let Err(error) = raise_open_files() {
            tracing::info!("page cache: few files can be open at a time: {error}");
        }
        let root = open_path(&source).context(named)?;
        let device = root.metadata().context(named)?.dev();
        Ok(Self {
            node,
            device,
            root: Arc::new(root),
            known: Mutex::default(),
            locks: Locks::default(),
            mount: OnceLock::new(),
        })
    }

    /// Returns the path of the source.
    #[must_use]
    pub fn source(&self) -> &Path {
        self.node.client().store().root()
    }

    /// Looks up a name. The number stays valid until it was forgotten as often as it was found.
    ///
    /// # Errors
    /// Errors of the system; `EXDEV` for a mountpoint in the source.
    pub fn look_up(&self, parent: u64, name: &OsStr) -> io::Result<Attributes> {
        let (_parent, path) = self.child(parent, name)?;
        let file = open_path(&path)?;
        let metadata = file.metadata()?;
        if metadata.dev() != self.device || metadata.ino() == ROOT {
            return Err(io::Error::from_raw_os_error(libc::EXDEV));
        }
        let mapped = self.is_mapped_in((parent, name), &metadata)?;
        let attributes = self.described(&file, metadata)?;
        let mut known = self.lock();
        let entry = known.entry(attributes.metadata.ino());
        let entry = entry.or_insert_with(|| Known {
            file: Arc::new(file),
            lookups: 0,
            mapped,
        });
        entry.lookups += 1;
        Ok(attributes)
    }

    /// Forgets this number of lookups.
    pub fn forget(&self, number: u64, lookups: u64) {
        let mut known = self.lock();
        if let Some(entry) = known.get_mut(&number) {
            entry.lookups = entry.lookups.saturating_sub(lookups);
            if entry.lookups == 0 {
                known.remove(&number);
            }
        }
    }

    /// Returns the current attributes.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn attributes(&self, number: u64) -> io::Result<Attributes> {
        let here = self.file(number)?;
        self.described(&here, here.metadata()?)
    }

    /// Sets attributes.
    ///
    /// # Errors
    /// Errors of the system; `EOPNOTSUPP` for the mode of a symbolic link.
    pub fn change(&self, number: u64, changes: &Changes) -> io::Result<Attributes> {
        let here = self.file(number)?;
        let kind = here.metadata()?.file_type();
        if kind.is_symlink() && changes.mode.is_some() {
            return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
        }
        // It leads to the file itself, also if that is a symbolic link.
        let path = path_of(&here);
        if changes.user.is_some() || changes.group.is_some() {
            std::os::unix::fs::chown(&path, changes.user, changes.group)?;
        }
        if let Some(mode) = changes.mode {
            fs::set_permissions(&path, Permissions::from_mode(mode & MODE_BITS))?;
        }
        if changes.accessed.is_some() || changes.modified.is_some() {
            let set = || set_times(&path, changes.accessed, changes.modified);
            match kind.is_file() {
                true => {
                    let writing = self.reopen(&here)?;
                    self.node.client().store().change(&writing, set)?;
                }
                false => set()?,
            }
        }
        self.attributes(number)
    }

    /// Returns all entries of a directory.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn list(&self, number: u64) -> io::Result<Vec<Entry>> {
        let here = self.file(number)?;
        let mut entries = Vec::new();
        for entry in fs::read_dir(path_of(&here))? {
            let entry = entry?;
            let name = entry.file_name();
            if number == ROOT && name == second_names::NAME {
                continue;
            }
            entries.push(Entry {
                number: entry.ino(),
                kind: entry.file_type()?,
                name,
            });
        }
        Ok(entries)
    }

    /// Opens a file.
    ///
    /// # Errors
    /// Errors of the system or the cache.
    pub fn open(&self, number: u64) -> Result<Opened> {
        let here = self.file(number)?;
        let mapped = self.is_mapped(number)?;
        self.check_mappable(mapped)?;
        self.opened(self.reopen(&here)?, mapped)
    }

    /// Returns the target of a symbolic link.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn read_link(&self, number: u64) -> io::Result<OsString> {
        let here = self.file(number)?;
        Ok(OsString::from_vec(read_link(&here)?))
    }

    /// Removes a file's name. Programs that have the file open keep it.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn remove(&self, parent: u64, name: &OsStr) -> io::Result<()> {
        let (_parent, path) = self.child(parent, name)?;
        let lost = regular(&path)?;
        fs::remove_file(&path)?;
        self.lost_name(lost);
        Ok(())
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn remove_directory(&self, parent: u64, name: &OsStr) -> io::Result<()> {
        let (_parent, path) = self.child(parent, name)?;
        self.check_name_may_change(inode(&path))?;
        fs::remove_dir(path)
    }

    /// Renames a file in one step.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn rename(
        &self,
        (parent, name): (u64, &OsStr),
        (new_parent, new_name): (u64, &OsStr),
        how: Renaming,
    ) -> io::Result<()> {
        let (_parent, from) = self.child(parent, name)?;
        let (_new_parent, to) = self.child_to_make(new_parent, new_name)?;
        let is_mapped = |is_regular| -> io::Result<[bool; 2]> {
            let ends = [(parent, name), (new_parent, new_name)];
            let [from, to] = ends.map(|end| self.is_mapped_at(end, is_regular));
            Ok([from?, to?])
        };
        let [was_mapped, will_be] = is_mapped(regular(&from)?.is_some())?;
        Self::check_class(was_mapped, will_be)?;
        if how == Renaming::Exchange {
            let [will_be, was_mapped] = is_mapped(regular(&to)?.is_some())?;
            Self::check_class(was_mapped, will_be)?;
        }
        self.check_name_may_change(inode(&from))?;
        self.check_name_may_change(inode(&to))?;
        let lost = match how {
            Renaming::Replace => regular(&to).unwrap_or_default(),
            Renaming::Refuse | Renaming::Exchange => None,
        };
        rename(&from, &to, how)?;
        self.lost_name(lost);
        Ok(())
    }

    /// Makes the names in a directory durable.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn sync_directory(&self, number: u64) -> io::Result<()> {
        let here = self.file(number)?;
        fs::File::open(path_of(&here))?.sync_all()
    }

    /// Returns the free and total space of the source.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn room(&self) -> io::Result<Room> {
        room(&self.root)
    }

    fn adopt(&self, file: fs::File) -> Result<File> {
        let inode = self.node.client().store().adopt(file)?;
        File::new(Arc::clone(&self.node), inode)
    }

    /// Opens a known file for reading and writing.
    fn reopen(&self, here: &fs::File) -> io::Result<fs::File> {
        OpenOptions::new()
            .read(true)
            .write(true)
            .open(path_of(here))
    }

    /// Returns the attributes of an open file that has this metadata.
    fn described(&self, file: &fs::File, metadata: Metadata) -> io::Result<Attributes> {
        let second_names = self.node.client().store().second_names();
        let number = if self.is_root(&metadata) {
            ROOT
        } else {
            metadata.ino()
        };
        let links = match second_names {
            Some(second_names) => second_names.links(file, &metadata)?,
            None => metadata.nlink(),
        };
        Ok(Attributes {
            number,
            links,
            metadata,
        })
    }

    fn is_root(&self, metadata: &Metadata) -> bool {
        let root = self.root.metadata();
        root.is_ok_and(|root| root.ino() == metadata.ino())
    }

    fn lost_name(&self, inode: Option<u64>) {
        if let Some(inode) = inode {
            self.node.lost_name(inode);
        }
    }

    fn file(&self, number: u64) -> io::Result<Arc<fs::File>> {
        if number == ROOT {
            return Ok(Arc::clone(&self.root));
        }
        let known = self.lock();
        let entry = known.get(&number);
        let file = entry.map(|entry| Arc::clone(&entry.file));
        file.ok_or_else(|| io::Error::from_raw_os_error(libc::ESTALE))
    }

    /// Returns the path of a name in a directory, valid while the directory is held.
    fn child(&self, parent: u64, name: &OsStr) -> io::Result<(Arc<fs::File>, PathBuf)> {
        let special = matches!(name.as_bytes(), b"" | b"." | b"..");
        if special || name.as_bytes().contains(&b'/') {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        if parent == ROOT && name == second_names::NAME {
            return Err(io::Error::from_raw_os_error(libc::ENOENT));
        }
        let parent = self.file(parent)?;
        let path = path_of(&parent).join(name);
        Ok((parent, path))
    }

    /// Returns the same for a name to create.
    fn child_to_make(&self, parent: u64, name: &OsStr) -> io::Result<(Arc<fs::File>, PathBuf)> {
        if parent == ROOT && name == second_names::NAME {
            return Err(io::Error::from_raw_os_error(libc::EPERM));
        }
        self.child(parent, name)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn open_path(path: &Path) -> io::Result<fs::File> {
    let flags = libc::O_PATH | libc::O_NOFOLLOW;
    OpenOptions::new().read(true).custom_flags(flags).open(path)
}

fn path_of(file: &fs::File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// Returns the inode of the file at a path, if it exists.
fn inode(path: &Path) -> Option<u64> {
    let metadata = fs::symlink_metadata(path).ok()?;
    Some(metadata.ino())
}

/// Returns the inode of the regular file at a path, if it exists.
fn regular(path: &Path) -> io::Result<Option<u64>> {
    let metadata = fs::symlink_metadata(path)?;
    Ok(metadata.is_file().then(|| metadata.ino()))
}
