//! The node's mutex. The requests of its effects are carried out when the mutex is released:
//! messages are passed to the system, threads wake, and operations continue.

use std::cell::Cell;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, MutexGuard, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};

use forebay_block::{Error, Result};

use super::io::Woken;
use super::{Client, Link, State, not_in_time};
use crate::message::PageId;
use crate::node::Ticket;
use crate::store::Store;

/// A condition variable of the node's mutex. A notification without a waiting thread costs no
/// system call.
#[derive(Debug, Default)]
pub(super) struct Signal {
    changed: Condvar,
    /// Number of threads that wait. It grows under the mutex, so a thread that changes the state
    /// under the mutex sees all that wait for the change.
    waiting: AtomicUsize,
}

impl Signal {
    pub(super) fn notify_one(&self) {
        if self.waiting.load(Ordering::Relaxed) > 0 {
            self.changed.notify_one();
        }
    }

    pub(super) fn notify_all(&self) {
        if self.waiting.load(Ordering::Relaxed) > 0 {
            self.changed.notify_all();
        }
    }
}

/// A continuation of an operation. It gets an error if the operation has failed.
pub(super) type Then = Box<dyn FnOnce(Result<()>) + Send>;

/// A waiter for an operation.
pub(super) enum Waiter {
    /// A thread, which finds the outcome in [`State::outcomes`].
    Thread(Thread),
    /// A continuation.
    Then {
        page: PageId,
        /// Time at which it fails.
        deadline: Option<Instant>,
        then: Then,
    },
}

impl fmt::Debug for Waiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Thread(_) => "Thread",
            Self::Then { .. } => "Then",
        })
    }
}

/// Outcome of [`Client::hold_packets`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Whether packets are left in the queue: the caller must [send](Client::send_packets) them
    /// soon.
    pub packets: bool,
    /// Whether a read waits for its page.
    pub waits: bool,
}

thread_local! {
    /// Packets that this thread holds back, and reads that wait, if it holds packets back.
    static HELD: Cell<Option<Held>> = const { Cell::new(None) };
}

/// Returns whether this thread holds packets back.
fn hold() -> bool {
    let held = HELD.get().map(|held| Held {
        packets: true,
        ..held
    });
    HELD.set(held);
    held.is_some()
}

/// Notes that a read waits, for [`Held`].
pub(super) fn note_wait() {
    HELD.set(HELD.get().map(|held| Held {
        waits: true,
        ..held
    }));
}

impl<S: Store, L: Link> Client<S, L> {
    /// Runs `body`, and leaves the packets of this thread in the queue. `body` must not wait.
    pub fn hold_packets(&self, body: impl FnOnce()) -> Held {
        HELD.set(Some(Held::default()));
        body();
        HELD.take().unwrap_or_default()
    }

    /// Sends the packets in the queue.
    pub fn send_packets(&self) {
        self.link.flush();
    }
}

/// Work for the time after the release of the mutex.
#[derive(Debug, Default)]
pub(super) struct Deferred {
    /// Whether there are queued messages other than publications.
    pub(super) sends: bool,
    /// Whether there are queued publications.
    pub(super) publishes: bool,
    /// Number of threads to wake for I/O of the store.
    pub(super) io: usize,
    /// Whether there are new fills for the thread of [`Client::run_fills`].
    pub(super) fills: bool,
    /// Waiters with an outcome: a retry (`None`), or the end and whether it succeeded.
    pub(super) woken: Vec<(Waiter, Result<Option<bool>>)>,
}

impl Deferred {
    fn is_empty(&self) -> bool {
        let has_messages = self.sends || self.publishes;
        !has_messages && self.io == 0 && !self.fills && self.woken.is_empty()
    }

    pub(super) fn wake(&mut self, woken: Woken) {
        self.io += usize::from(woken == Woken::Io);
        self.fills |= woken == Woken::Fills;
    }
}

impl State {
    /// Passes the outcome of an operation to its waiter. Returns whether it has one.
    pub(super) fn resume(&mut self, ticket: Ticket, outcome: Option<bool>) -> bool {
        let waiter = self.waiters.remove(&ticket);
        if !matches!(waiter, Some(Waiter::Then { .. })) {
            self.outcomes.insert(ticket, outcome);
        }
        let is_awaited = waiter.is_some();
        let woken = waiter.map(|waiter| (waiter, Ok(outcome)));
        self.deferred.woken.extend(woken);
        is_awaited
    }

    /// Lets all operations fail from now on.
    pub(super) fn fail(&mut self, error: Error) {
        for (_, waiter) in std::mem::take(&mut self.waiters) {
            self.deferred.woken.push((waiter, Err(error.clone())));
        }
        self.broken = Some(error);
    }

    /// Lets continuations fail that have waited for too long.
    pub(super) fn expire(&mut self) {
        let now = Instant::now();
        let is_late = |waiter: &mut Waiter| match waiter {
            Waiter::Thread(_) => false,
            Waiter::Then { deadline, .. } => deadline.is_some_and(|deadline| deadline <= now),
        };
        for (ticket, waiter) in self.waiters.extract_if(.., |_, waiter| is_late(waiter)) {
            self.node.cancel(ticket);
            self.deferred.woken.push((waiter, Err(not_in_time())));
        }
    }
}

/// The locked state of a client.
pub(super) struct Locked<'a, S: Store, L: Link> {
    pub(super) client: &'a Client<S, L>,
    /// Present until the release.
    state: Option<MutexGuard<'a, State>>,
}

impl<'a, S: Store, L: Link> Locked<'a, S, L> {
    pub(super) fn new(client: &'a Client<S, L>, state: MutexGuard<'a, State>) -> Self {
        let state = Some(state);
        Self { client, state }
    }

    /// Waits for the signal, or returns soon without one: the caller checks its condition, and
    /// waits again.
    pub(super) fn wait(self, signal: &Signal) -> Self {
        self.wait_by(signal, |changed, state| {
            changed.wait(state).unwrap_or_else(PoisonError::into_inner)
        })
    }

    /// Like [`Locked::wait`], at most for `time`.
    pub(super) fn wait_timeout(self, signal: &Signal, time: Duration) -> Self {
        self.wait_by(signal, |changed, state| {
            let waited = changed.wait_timeout(state, time);
            waited.unwrap_or_else(PoisonError::into_inner).0
        })
    }

    fn wait_by(
        mut self,
        signal: &Signal,
        wait: impl FnOnce(&Condvar, MutexGuard<'a, State>) -> MutexGuard<'a, State>,
    ) -> Self {
        let client = self.client;
        let Some(state) = self.state.take_if(|state| state.deferred.is_empty()) else {
            drop(self);
            return client.lock_state();
        };
        signal.waiting.fetch_add(1, Ordering::Relaxed);
        let state = wait(&signal.changed, state);
        signal.waiting.fetch_sub(1, Ordering::Relaxed);
        Self::new(client, state)
    }
}

impl<S: Store, L: Link> Deref for Locked<'_, S, L> {
    type Target = State;

    fn deref(&self) -> &State {
        self.state.as_ref().expect("present until the release")
    }
}

impl<S: Store, L: Link> DerefMut for Locked<'_, S, L> {
    fn deref_mut(&mut self) -> &mut State {
        self.state.as_mut().expect("present until the release")
    }
}

impl<S: Store, L: Link> Drop for Locked<'_, S, L> {
    fn drop(&mut self) {
        let Some(mut state) = self.state.take() else {
            return;
        };
        let Deferred {
            sends,
            publishes,
            io,
            fills,
            woken,
        } = std::mem::take(&mut state.deferred);
        drop(state);
        let filler = self.client.filler.get();
        if fills && let Some(filler) = filler {
            filler.wake();
        }
        for _ in 0..io {
            self.client.requested.notify_one();
        }
        for (waiter, outcome) in woken {
            match waiter {
                Waiter::Thread(thread) => thread.unpark(),
                Waiter::Then { page, then, .. } => then(self.client.ended(outcome, page)),
            }
        }
        let has_messages = sends || publishes;
        if has_messages && !filler.is_some_and(|filler| filler.sends(sends)) && !hold() {
            self.client.link.flush();
        }
    }
}
