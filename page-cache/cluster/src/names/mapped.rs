//! Mapped files ([`crate::mapped`]), by number.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use forebay_block::{Context, Error, ErrorKind, Result};
use forebay_io::fuse::{Connection, Held};
use forebay_pagecache::client;

use super::{Names, ROOT};
use crate::file::File;
use crate::mapped::is_log;

/// Mount by which programs reach the files.
#[derive(Debug)]
pub(super) struct MountedBy {
    connection: Arc<Connection>,
    /// Whether the mount can hold open files, as mapped files need.
    can_hold: bool,
}

/// A file that was opened by its number.
#[derive(Debug)]
pub enum Opened {
    /// A file of the cache.
    Cached(File),
    /// A mapped file: the source's own file, for reading, writing and mapping. It counts as in use
    /// while this is open, or while a mount holds it ([`Names::hold`]).
    Mapped(fs::File),
}

impl Opened {
    /// Sets the length of the file, bytes.
    ///
    /// # Errors
    /// As for [`File::truncate`], or errors of the system.
    pub fn truncate(&self, size_bytes: u64) -> Result<()> {
        match self {
            Self::Cached(file) => file.truncate(size_bytes),
            Self::Mapped(file) => Ok(file.set_len(size_bytes)?),
        }
    }
}

impl Names {
    /// Returns whether any directory is mapped.
    #[must_use]
    pub fn any_mapped(&self) -> bool {
        !self.node.client().store().mapped().is_empty()
    }

    /// Returns whether the file of this number is mapped, or is a mapped directory or in one.
    pub(super) fn is_mapped(&self, number: u64) -> io::Result<bool> {
        if number == ROOT {
            return Ok(false);
        }
        let known = self.lock();
        let entry = known.get(&number);
        let mapped = entry.map(|entry| entry.mapped);
        mapped.ok_or_else(|| io::Error::from_raw_os_error(libc::ESTALE))
    }

    /// Returns the same for a file found by its name.
    pub(super) fn is_mapped_in(
        &self,
        (parent, name): (u64, &OsStr),
        metadata: &fs::Metadata,
    ) -> io::Result<bool> {
        let mapped = self.node.client().store().mapped();
        Ok(mapped.is_top(metadata.ino())
            || self.is_mapped_at((parent, name), metadata.is_file())?)
    }

    /// Returns whether a file of this name is mapped, or is a directory in a mapped one.
    pub(super) fn is_mapped_at(
        &self,
        (parent, name): (u64, &OsStr),
        is_regular: bool,
    ) -> io::Result<bool> {
        Ok((is_regular && is_log(name)) || self.is_mapped(parent)?)
    }

    /// Fails if a file of a mapped class would leave it, or another one would enter it.
    pub(super) fn check_class(was_mapped: bool, is_mapped: bool) -> io::Result<()> {
        match was_mapped == is_mapped {
            true => Ok(()),
            false => Err(io::Error::from_raw_os_error(libc::EXDEV)),
        }
    }

    /// Fails if a mapped file cannot be opened on this mount.
    pub(super) fn check_mappable(&self, mapped: bool) -> io::Result<()> {
        match mapped && self.mount.get().is_some_and(|mount| !mount.can_hold) {
            true => Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP)),
            false => Ok(()),
        }
    }

    /// Registers the mount by which programs reach the files, before they do. The mount must hold
    /// the open and locked mapped files. If no directory is mapped and the mount cannot hold
    /// files, opens of SQLite's logs fail there with `EOPNOTSUPP`.
    ///
    /// # Errors
    /// `Unsupported` or `Permission` if a directory is mapped and the system does not let this
    /// mount map its files.
    pub fn mounted_by(&self, connection: Connection) -> Result<()> {
        let connection = Arc::new(connection);
        let store = self.node.client().store();
        let mut can_hold = true;
        if let Some(second_names) = store.second_names() {
            let named = || format!("source {}", store.root().display());
            let file = second_names.nameless().context(named)?;
            if let Err(error) = connection.hold(&file) {
                if self.any_mapped() {
                    return Err(unmappable(error)).context(named);
                }
                can_hold = false;
                tracing::warn!(
                    "page cache: {}: this mount cannot map files: {error}; SQLite's write-ahead \
                     logs (-wal, -shm) are refused with EOPNOTSUPP",
                    named()
                );
            }
        }
        // There is one mount.
        let _ = self.mount.set(MountedBy {
            connection,
            can_hold,
        });
        Ok(())
    }

    /// Returns whether a request of the mount waits for a thread that reads it.
    #[must_use]
    pub fn has_request(&self) -> bool {
        let mount = self.mount.get();
        mount.is_some_and(|mount| mount.connection.has_request())
    }

    /// Returns whether a read that begins may wait for the source, for the attributes of its file.
    #[must_use]
    pub fn reads_may_wait(&self) -> bool {
        !self.node.client().store().submits()
    }

    /// Runs `body`, which must not wait, and leaves its packets to the directory in the queue. The
    /// caller must [send](Names::send_packets) them soon. The next heartbeat of the node does so,
    /// too.
    pub fn hold_packets(&self, body: impl FnOnce()) -> client::Held {
        self.node.client().hold_packets(body)
    }

    /// Sends the packets in the queue to the directory.
    pub fn send_packets(&self) {
        self.node.client().send_packets();
    }

    /// Makes the mount hold a file.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn hold(&self, file: &fs::File) -> io::Result<Held> {
        let none = || io::Error::other("mapped files need a mount");
        self.mount.get().ok_or_else(none)?.connection.hold(file)
    }

    /// Ends this process's work for its mount. Programs may continue using open or mapped files in
    /// mapped directories, so the mount holds those files itself.
    pub fn leave(&self) {
        if let Some(mount) = self.mount.get() {
            mount.connection.leave();
        }
    }

    /// Checks that a change of this file's name is allowed.
    ///
    /// # Errors
    /// `EBUSY` for a mapped directory, or for a directory above one.
    pub(super) fn check_name_may_change(&self, inode: Option<u64>) -> io::Result<()> {
        let mapped = self.node.client().store().mapped();
        match inode.is_some_and(|inode| mapped.keeps_name(inode)) {
            true => Err(io::Error::from_raw_os_error(libc::EBUSY)),
            false => Ok(()),
        }
    }

    pub(super) fn opened(&self, file: fs::File, mapped: bool) -> Result<Opened> {
        if !mapped {
            return Ok(Opened::Cached(self.adopt(file)?));
        }
        if self.node.client().store().map(&file)? {
            return Ok(Opened::Mapped(file));
        }
        let context = "a mapped file has a second name elsewhere, under which it is or was \
                       cached\n\
                       help: remove one of the names, and restart the directory process while no \
                       node runs";
        Err(Error::with_source(
            ErrorKind::Busy,
            context,
            io::Error::from_raw_os_error(libc::EBUSY),
        ))
    }
}

/// Error for a source whose files cannot be mapped on a mount.
fn unmappable(error: io::Error) -> Error {
    let (kind, context) = match error.raw_os_error() {
        Some(libc::ELOOP) => (
            ErrorKind::Unsupported,
            "it lies on another file system (overlayfs, for one), so that its files cannot be \
             mapped on a mount\n\
             help: use another source, or run the directory process without --map",
        ),
        Some(libc::EPERM) => (
            ErrorKind::Permission,
            "its files can be mapped only by root outside of user namespaces (CAP_SYS_ADMIN)\n\
             help: run the node as that, or the directory process without --map",
        ),
        _ => {
            let context = "its files cannot be mapped on a mount\n\
                 help: run the directory process without --map";
            return Error::from(error).context(context);
        }
    };
    Error::with_source(kind, context, error)
}
