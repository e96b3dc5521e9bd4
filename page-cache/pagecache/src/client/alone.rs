//! Exclusive use of a file: the threads of a node exclude each other first.

use std::collections::BTreeSet;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use forebay_block::Result;

use super::{Client, GIVE_WAY, Link};
use crate::message::LockRange;
use crate::segment::Segment;
use crate::store::Store;

impl<S: Store, L: Link> Client<S, L> {
    /// Runs `body` while no other thread and no other node uses the file exclusively, in order to
    /// change its size. It costs no message unless two nodes meet.
    ///
    /// # Errors
    /// `Disconnected`, or errors of `body`.
    pub fn alone<T>(&self, inode: u64, body: impl FnOnce() -> Result<T>) -> Result<T> {
        let word = self.segment.alone_word(inode);
        let _turn = self.turns.take(word);
        let state = self.lock_state();
        if let Some(error) = &state.broken {
            return Err(error.clone());
        }
        let node = state.node.id();
        drop(state);
        if self.segment.take_alone(word, node) {
            let _alone = Alone(&self.segment, word);
            return body();
        }
        self.locked(whole(inode), || {
            while !self.segment.take_awaited(word, node) {
                if let Some(error) = self.broken() {
                    return Err(error);
                }
                std::thread::sleep(GIVE_WAY);
            }
            let _alone = Alone(&self.segment, word);
            body()
        })
    }
}

/// Words that threads of this node have or wait for.
#[derive(Debug, Default)]
pub(super) struct Turns {
    taken: Mutex<BTreeSet<u32>>,
    left: Condvar,
}

impl Turns {
    /// Waits until no other thread of this node has the word.
    pub(super) fn take(&self, word: u32) -> Turn<'_> {
        let mut taken = self.lock();
        while !taken.insert(word) {
            taken = self
                .left
                .wait(taken)
                .unwrap_or_else(PoisonError::into_inner);
        }
        Turn { turns: self, word }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<u32>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A thread's turn.
pub(super) struct Turn<'a> {
    turns: &'a Turns,
    word: u32,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.turns.lock().remove(&self.word);
        self.turns.left.notify_all();
    }
}

/// A word that this node has until this is dropped.
pub(super) struct Alone<'a>(pub(super) &'a Segment, pub(super) u32);

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        self.0.leave_alone(self.1);
    }
}

/// Returns the range that represents a file at the directory: no page has this number.
pub(super) const fn whole(inode: u64) -> LockRange {
    LockRange {
        inode,
        start: u64::MAX - 1,
        end: u64::MAX,
        exclusive: true,
    }
}
