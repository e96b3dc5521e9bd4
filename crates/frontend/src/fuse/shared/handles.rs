//! What programs have open.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use forebay_cluster::names::Entry;
use forebay_cluster::{File, Names};

/// A node's names and open files, until the mount ends: nothing of the node is left here then, so that it can leave.
#[derive(Debug)]
pub(super) struct Handles {
    state: RwLock<Option<State>>,
}

#[derive(Debug)]
struct State {
    names: Arc<Names>,
    next: u64,
    open: HashMap<u64, Handle>,
}

/// Something that is open.
#[derive(Clone, Debug)]
pub(super) enum Handle {
    /// A file.
    File(Arc<File>),
    /// A directory, with what was in it when it was opened.
    Directory(Arc<[Entry]>),
}

impl Handles {
    pub(super) fn new(names: Names) -> Self {
        let state = State {
            names: Arc::new(names),
            next: 1,
            open: HashMap::new(),
        };
        Self {
            state: RwLock::new(Some(state)),
        }
    }

    /// The names.
    pub(super) fn names(&self) -> io::Result<Arc<Names>> {
        let state = self.read();
        let state = state.as_ref().ok_or_else(ended)?;
        Ok(Arc::clone(&state.names))
    }

    /// Remembers something that was opened; its number.
    pub(super) fn add(&self, handle: Handle) -> io::Result<u64> {
        let mut state = self.write();
        let state = state.as_mut().ok_or_else(ended)?;
        let number = state.next;
        state.next += 1;
        state.open.insert(number, handle);
        Ok(number)
    }

    pub(super) fn file(&self, number: u64) -> io::Result<Arc<File>> {
        match self.find(number)? {
            Handle::File(file) => Ok(file),
            Handle::Directory(_) => Err(io::Error::from_raw_os_error(libc::EISDIR)),
        }
    }

    pub(super) fn directory(&self, number: u64) -> io::Result<Arc<[Entry]>> {
        match self.find(number)? {
            Handle::Directory(entries) => Ok(entries),
            Handle::File(_) => Err(io::Error::from_raw_os_error(libc::ENOTDIR)),
        }
    }

    /// Closes.
    pub(super) fn remove(&self, number: u64) {
        let removed = self
            .write()
            .as_mut()
            .and_then(|state| state.open.remove(&number));
        // Closing may wait: not under the lock.
        drop(removed);
    }

    /// Closes all, for good.
    pub(super) fn close(&self) {
        let closed = self.write().take();
        drop(closed);
    }

    fn find(&self, number: u64) -> io::Result<Handle> {
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
