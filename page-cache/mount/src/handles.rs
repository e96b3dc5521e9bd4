//! What programs have open.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};

use forebay_cluster::names::Entry;
use forebay_cluster::{File, Names};
use forebay_io::fuse::Held;

/// A node's names and open files, until the mount ends: nothing of the node is left here then, so that it can leave.
#[derive(Debug)]
pub(crate) struct Handles {
    state: RwLock<Option<State>>,
}

#[derive(Debug)]
struct State {
    names: Arc<Names>,
    next: u64,
    open: HashMap<u64, Handle>,
    /// By number: the kernel wants all opens of one file to have one.
    backing: HashMap<u64, Weak<Held>>,
}

/// A file of a mapped directory that a program has open.
#[derive(Debug)]
pub(crate) struct Mapped {
    /// Its own open file, so that it hears of all that fails from now on, as the system says that once to each.
    pub(crate) file: fs::File,
    /// What the kernel reads, writes and maps, for all who have the file open here.
    pub(crate) backing: Arc<Held>,
}

/// Something that is open.
#[derive(Clone, Debug)]
pub(crate) enum Handle {
    /// A file.
    File(Arc<File>),
    /// A file of a mapped directory.
    Mapped(Arc<Mapped>),
    /// A directory, with what was in it when it was opened.
    Directory(Arc<[Entry]>),
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

    /// The names.
    pub(crate) fn names(&self) -> io::Result<Arc<Names>> {
        let state = self.read();
        let state = state.as_ref().ok_or_else(ended)?;
        Ok(Arc::clone(&state.names))
    }

    /// Remembers something that was opened; its number.
    pub(crate) fn add(&self, handle: Handle) -> io::Result<u64> {
        let mut state = self.write();
        let state = state.as_mut().ok_or_else(ended)?;
        let number = state.next;
        state.next += 1;
        state.open.insert(number, handle);
        Ok(number)
    }

    /// A file of this number that was opened in a mapped directory, with what stands behind all opens of it.
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

    /// A file that is read and written here.
    pub(crate) fn file(&self, number: u64) -> io::Result<Arc<File>> {
        match self.find(number)? {
            Handle::File(file) => Ok(file),
            // The kernel does so by itself.
            Handle::Mapped(_) => Err(io::Error::from_raw_os_error(libc::EIO)),
            Handle::Directory(_) => Err(io::Error::from_raw_os_error(libc::EISDIR)),
        }
    }

    pub(crate) fn directory(&self, number: u64) -> io::Result<Arc<[Entry]>> {
        match self.find(number)? {
            Handle::Directory(entries) => Ok(entries),
            Handle::File(_) | Handle::Mapped(_) => Err(io::Error::from_raw_os_error(libc::ENOTDIR)),
        }
    }

    /// Closes.
    pub(crate) fn remove(&self, number: u64) {
        let removed = self
            .write()
            .as_mut()
            .and_then(|state| state.open.remove(&number));
        let mapped = matches!(removed, Some(Handle::Mapped(_)));
        // Closing may wait: not under the lock.
        drop(removed);
        if mapped && let Some(state) = self.write().as_mut() {
            state
                .backing
                .retain(|_, backing| backing.strong_count() > 0);
        }
    }

    /// Closes all, for good.
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
