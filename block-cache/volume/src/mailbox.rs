//! Messages to a reactor, many for one wake-up.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay_io::rt::Remote;

/// A queue that one reactor empties. Only the message that finds it empty wakes the reactor.
pub(crate) struct Mailbox<T> {
    remote: Remote,
    queue: Mutex<Queue<T>>,
    handle: fn(T),
}

struct Queue<T> {
    waiting: Vec<T>,
    /// Memory of the last batch, for reuse.
    spare: Vec<T>,
    closed: bool,
}

impl<T: Send + 'static> Mailbox<T> {
    /// Creates a mailbox of the reactor behind `remote`, which calls `handle` there for each
    /// message.
    pub(crate) fn new(remote: Remote, handle: fn(T)) -> Arc<Self> {
        Arc::new(Self {
            remote,
            queue: Mutex::new(Queue {
                waiting: Vec::new(),
                spare: Vec::new(),
                closed: false,
            }),
            handle,
        })
    }

    /// Returns whether the mailbox belongs to the calling reactor.
    pub(crate) fn is_here(&self) -> bool {
        self.remote.is_current()
    }

    /// Sends a message, or returns it if the mailbox is closed.
    pub(crate) fn post(self: &Arc<Self>, message: T) -> Result<(), T> {
        let first = {
            let mut queue = self.lock();
            if queue.closed {
                return Err(message);
            }
            queue.waiting.push(message);
            queue.waiting.len() == 1
        };
        if first {
            let this = Arc::clone(self);
            self.remote.call(move || this.deliver());
        }
        Ok(())
    }

    /// Sends messages under one lock and with at most one wake-up. A closed mailbox drops them.
    pub(crate) fn post_all(self: &Arc<Self>, messages: impl Iterator<Item = T>) {
        let first = {
            let mut queue = self.lock();
            if queue.closed {
                return;
            }
            let first = queue.waiting.is_empty();
            queue.waiting.extend(messages);
            first && !queue.waiting.is_empty()
        };
        if first {
            let this = Arc::clone(self);
            self.remote.call(move || this.deliver());
        }
    }

    fn deliver(&self) {
        let mut batch = {
            let mut queue = self.lock();
            let spare = std::mem::take(&mut queue.spare);
            std::mem::replace(&mut queue.waiting, spare)
        };
        for message in batch.drain(..) {
            (self.handle)(message);
        }
        self.lock().spare = batch;
    }

    /// Closes the mailbox. Returns the undelivered messages.
    pub(crate) fn close(&self) -> Vec<T> {
        let mut queue = self.lock();
        queue.closed = true;
        std::mem::take(&mut queue.waiting)
    }

    /// Returns whether the mailbox is closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.lock().closed
    }

    fn lock(&self) -> MutexGuard<'_, Queue<T>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
