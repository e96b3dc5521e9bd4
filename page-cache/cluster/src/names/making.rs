//! New files, directories and links.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use forebay_block::Result;
use forebay_io::owner::as_owner;
use forebay_io::tree::{NodeKind, link_open, make_node};

use super::{Attributes, Changes, MODE_BITS, Names, Opened};

/// User and group that a new file belongs to. In a set-group-ID directory it belongs to the
/// directory's group.
#[derive(Clone, Copy, Debug)]
pub struct Maker {
    /// The user.
    pub user: u32,
    /// The group.
    pub group: u32,
}

/// A file or directory to create.
#[derive(Clone, Copy, Debug)]
pub struct NewFile<'a> {
    /// Number of its directory.
    pub parent: u64,
    /// Its name.
    pub name: &'a OsStr,
    /// Its permissions, after the requesting program's umask.
    pub mode: u32,
    /// Its owner. `None` stands for this process.
    pub maker: Option<Maker>,
}

impl NewFile<'_> {
    fn mode(&self) -> u32 {
        self.mode & MODE_BITS
    }

    /// Runs `make` such that the files which it creates have their owner from the start.
    ///
    /// A later `chown` of the name could hit another file: users may have exchanged it meanwhile.
    fn make<T>(&self, make: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        match self.maker {
            Some(Maker { user, group }) => as_owner(user, group, make),
            None => make(),
        }
    }
}

impl Names {
    /// Creates a file, or opens the existing one unless it must be `new`. The file counts as found
    /// by [`Names::look_up`].
    ///
    /// # Errors
    /// Errors of the system or the cache. `ESTALE` if the file exists, must not be new, and the
    /// requesting program may not be permitted to open it.
    pub fn create(&self, file: &NewFile<'_>, new: bool) -> Result<(Attributes, Opened)> {
        let (_parent, path) = self.child_to_make(file.parent, file.name)?;
        let mapped = self.is_mapped_at((file.parent, file.name), true)?;
        self.check_mappable(mapped)?;
        let mut options = OpenOptions::new();
        let options = options
            .read(true)
            .write(true)
            .mode(file.mode())
            .custom_flags(libc::O_NOFOLLOW);
        let created = file.make(|| options.clone().create_new(true).open(&path));
        let opened = match created {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && !new => {
                // The kernel has checked no permissions of a file that it did not find. It looks
                // the name up again after this error.
                if file.maker.is_some() {
                    return Err(io::Error::from_raw_os_error(libc::ESTALE).into());
                }
                options.open(&path)?
            }
            opened => {
                let opened = opened?;
                if file.maker.is_none() {
                    // The requested mode, independent of this process's umask.
                    opened.set_permissions(Permissions::from_mode(file.mode()))?;
                }
                opened
            }
        };
        let inode = opened.metadata()?.ino();
        let opened = self.opened(opened, mapped)?;
        let attributes = self.look_up(file.parent, file.name)?;
        if attributes.number == inode {
            return Ok((attributes, opened));
        }
        // Another program has put another file there meanwhile.
        self.forget(attributes.number, 1);
        Err(io::Error::from_raw_os_error(libc::ESTALE).into())
    }

    /// Creates a directory, which counts as found by [`Names::look_up`].
    ///
    /// # Errors
    /// Errors of the system.
    pub fn make_directory(&self, directory: &NewFile<'_>) -> io::Result<Attributes> {
        let (_parent, path) = self.child_to_make(directory.parent, directory.name)?;
        directory.make(|| DirBuilder::new().mode(directory.mode()).create(&path))?;
        self.made(directory)
    }

    /// Creates a regular file, FIFO or socket without opening it. It counts as found by
    /// [`Names::look_up`].
    ///
    /// # Errors
    /// Errors of the system.
    pub fn make_node(&self, file: &NewFile<'_>, kind: NodeKind) -> io::Result<Attributes> {
        let (_parent, path) = self.child_to_make(file.parent, file.name)?;
        file.make(|| make_node(&path, kind, file.mode()))?;
        self.made(file)
    }

    /// Looks up a new file, and gives it the requested mode, independent of this process's umask.
    fn made(&self, file: &NewFile<'_>) -> io::Result<Attributes> {
        let made = self.look_up(file.parent, file.name)?;
        if file.maker.is_some() {
            return Ok(made);
        }
        let changes = Changes {
            mode: Some(file.mode),
            ..Changes::default()
        };
        self.change(made.number, &changes)
    }

    /// Creates a symbolic link, which counts as found by [`Names::look_up`].
    ///
    /// # Errors
    /// Errors of the system.
    pub fn make_link(&self, link: &NewFile<'_>, target: &Path) -> io::Result<Attributes> {
        let (_parent, path) = self.child_to_make(link.parent, link.name)?;
        link.make(|| std::os::unix::fs::symlink(target, path))?;
        self.look_up(link.parent, link.name)
    }

    /// Gives a file another name, which counts as found by [`Names::look_up`].
    ///
    /// # Errors
    /// Errors of the system; `ENOENT` if the last name of the file was removed, on any node.
    pub fn link(&self, number: u64, parent: u64, name: &OsStr) -> io::Result<Attributes> {
        let here = self.file(number)?;
        let metadata = here.metadata()?;
        let (inode, is_regular) = (metadata.ino(), metadata.is_file());
        let will_be_mapped = self.is_mapped_at((parent, name), is_regular)?;
        Self::check_class(self.is_mapped(number)?, will_be_mapped)?;
        let (_parent, path) = self.child_to_make(parent, name)?;
        match self.node.client().store().second_names() {
            Some(second_names) if is_regular => {
                let locked = fs::File::open(super::path_of(&here))?;
                let linked = second_names.link(&here, &locked, &path);
                drop(locked);
                // Its last name may have been removed meanwhile, and no node has given it up then.
                self.node.lost_name(inode);
                linked?;
            }
            _ => link_open(&here, &path)?,
        }
        self.look_up(parent, name)
    }

    /// Clears the set-user-ID bit of a regular file, and the set-group-ID bit if the group may
    /// execute it.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn clear_set_id(&self, number: u64) -> io::Result<()> {
        let here = self.file(number)?;
        let metadata = here.metadata()?;
        if !metadata.is_file() {
            return Ok(());
        }
        let mode = metadata.mode();
        let mut cleared = mode & !libc::S_ISUID;
        if mode & libc::S_IXGRP != 0 {
            cleared &= !libc::S_ISGID;
        }
        if cleared != mode {
            let permissions = Permissions::from_mode(cleared & MODE_BITS);
            fs::set_permissions(super::path_of(&here), permissions)?;
        }
        Ok(())
    }
}
