//! Open files of programs.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};

use forebay_cluster::names::Entry;
use forebay_cluster::{File, Names};
use forebay_io::fuse::Held;

/// A node's names and open files, until the mount ends. Nothing of the node is left here then, so
/// that it can leave.
#[derive(Debug)]
pub(crate) struct Handles {
    state: RwLock<Option<State>>,
}

#[derive(Debug)]
struct State {
    names: Arc<Names>,
    next: u64,
    open: HashMap<u64, Handle>,
    /// Backing files by number: the kernel needs the same one for all opens of a file.
    backing: HashMap<u64, Weak<Held>>,
}

/// An open file of a mapped directory.
#[derive(Debug)]
pub(crate) struct Mapped {
    /// Its own open file, which gets all later errors: the system reports each error once to each
    /// open file.
    pub(crate) file: fs::File,
    /// File that the kernel reads, writes and maps, shared by all opens on this node.
    pub(crate) backing: Arc<Held>,
}

/// An open file or directory.
#[derive(Clone, Debug)]
pub(crate) enum Handle {
    /// A file.
    File(Arc<File>),
    /// A file of a mapped directory.
    Mapped(Arc<Mapped>),
    /// A directory.
    Directory(Arc<Listing>),
}

/// Entries of an open directory, of which a program reads some at a time.
#[derive(Debug)]
pub(crate) struct Listing(Mutex<Listed>);

#[derive(Debug)]
struct Listed {
    entries: Arc<[Entry]>,
    /// Whether a program has begun to read them.
    is_begun: bool,
}

impl Listing {
    /// Creates it with the entries at the time of opening.
    pub(crate) fn new(entries: Vec<Entry>) -> Self {
        Self(Mutex::new(Listed {
            entries: entries.into(),
            is_begun: false,
        }))
    }

    /// Returns the entries. At `offset` 0, a program reads from the start. If it has done so
    /// before, the entries are those that `list` returns now.
    pub(crate) fn entries(
        &self,
        offset: u64,
        list: impl FnOnce() -> io::Result<Vec<Entry>>,
    ) -> io::Result<Arc<[Entry]>> {
        let mut listed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if offset == 0 && std::mem::replace(&mut listed.is_begun, true) {
            listed.entries = list()?.into();
        }
        Ok(Arc::clone(&listed.entries))
    }
}

impl Handles {
    pub(crate) fn new(names: Names) -> Self {
        let state = State {
            names: Arc::new(names),
            next: 1,
            open: HashMap::new(),
            backing: HashMap::new(),
        };
        Self {
            state: RwLock::new(Some(state)),
        }
    }

    /// Returns the names.
    pub(crate) fn names(&self) -> io::Result<Arc<Names>> {
        let state = self.read();
        let state = state.as_ref().ok_or_else(ended)?;
        Ok(Arc::clone(&state.names))
    }

    /// Stores a handle and returns its number.
    pub(crate) fn add(&self, handle: Handle) -> io::Result<u64> {
        let mut state = self.write();
        let state = state.as_mut().ok_or_else(ended)?;
        let number = state.next;
        state.next += 1;
        state.open.insert(number, handle);
        Ok(number)
    }

    /// Creates the handle of an opened file in a mapped directory, with the backing file of all its
    /// opens.
    pub(crate) fn mapped(&self, number: u64, file: fs::File) -> io::Result<Mapped> {
        let mut state = self.write();
        let state = state.as_mut().ok_or_else(ended)?;
        if let Some(backing) = state.backing.get(&number).and_then(Weak::upgrade) {
            return Ok(Mapped { file, backing });
        }
        let backing = Arc::new(state.names.hold(&file)?);
        state.backing.insert(number, Arc::downgrade(&backing));
        Ok(Mapped { file, backing })
    }

    /// Returns a file that this process reads and writes.
    pub(crate) fn file(&self, number: u64) -> io::Result<Arc<File>> {
        match self.find(number)? {
            Handle::File(file) => Ok(file),
            // The kernel reads and writes it by itself.
            Handle::Mapped(_) => Err(io::Error::from_raw_os_error(libc::EIO)),
            Handle::Directory(_) => Err(io::Error::from_raw_os_error(libc::EISDIR)),
        }
    }

    pub(crate) fn directory(&self, number: u64) -> io::Result<Arc<Listing>> {
        match self.find(number)? {
            Handle::Directory(listing) => Ok(listing),
            Handle::File(_) | Handle::Mapped(_) => Err(io::Error::from_raw_os_error(libc::ENOTDIR)),
        }
    }

    /// Closes a handle.
    pub(crate) fn remove(&self, number: u64) {
        let removed = self
            .write()
            .as_mut()
            .and_then(|state| state.open.remove(&number));
        let mapped = matches!(removed, Some(Handle::Mapped(_)));
        // Closing may wait, so it happens outside the lock.
        drop(removed);
        if mapped && let Some(state) = self.write().as_mut() {
            state
                .backing
                .retain(|_, backing| backing.strong_count() > 0);
        }
    }

    /// Closes all handles for good.
    pub(crate) fn close(&self) {
        let closed = self.write().take();
        if let Some(state) = &closed {
            state.names.leave();
        }
        drop(closed);
    }

    pub(crate) fn find(&self, number: u64) -> io::Result<Handle> {
        let state = self.read();
        let open = &state.as_ref().ok_or_else(ended)?.open;
        let handle = open.get(&number).cloned();
        handle.ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))
    }

    fn read(&self) -> RwLockReadGuard<'_, Option<State>> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Option<State>> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }
}

fn ended() -> io::Error {
    io::Error::from_raw_os_error(libc::ENOTCONN)
}
