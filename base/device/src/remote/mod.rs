//! Requests to a peer on another machine, common to all protocols, and their fate when the
//! connection is lost. A protocol sends them and receives the answers.
//!
//! - `limits`: requests that the peer accepts.
//! - `slots`: requests without an answer.
//! - `unflushed`: copies of acknowledged changes that no flush has covered.
//! - `resend`: sends them again after a loss.
//! - `reconnect`: life cycle of the connection.

pub(crate) mod fault;
pub(crate) mod limits;
pub(crate) mod reconnect;
mod resend;
pub(crate) mod slots;
mod unflushed;

use std::cell::{Cell, RefCell};
use std::ops::{Deref, Range};
use std::rc::Rc;
use std::time::Duration;

use forebay_block::{Completion, Error, Op, Request, Result};
use forebay_io::sync::WaitList;

use fault::Fault;
use resend::Resend;
use slots::{Pending, Slots};
use unflushed::{Ended, Unflushed};

/// State that a device shares with its tasks.
pub(crate) trait Close {
    /// Ends all queued requests and the tasks.
    fn close(&self);
}

/// Reference of a device to its state. The state is closed with the last device. Tasks have no such
/// reference.
pub(crate) struct CloseOnDrop<S: Close>(pub(crate) Rc<S>);

impl<S: Close> Deref for CloseOnDrop<S> {
    type Target = Rc<S>;

    fn deref(&self) -> &Rc<S> {
        &self.0
    }
}

impl<S: Close> Drop for CloseOnDrop<S> {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Properties of the peer, and times of its protocol.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// Size of the device, bytes.
    pub(crate) size_bytes: u64,
    /// Whether a power loss may revert acknowledged changes.
    pub(crate) volatile_cache: bool,
    /// Maximum number of commands in flight.
    pub(crate) depth: u16,
    /// Time after a loss until queued requests fail.
    pub(crate) patience: Duration,
    /// Pause before each attempt to reconnect.
    pub(crate) pause: Duration,
    /// Minimum time from a loss with unanswered changes to the next connection. By then the peer
    /// carries out none of them any more.
    pub(crate) silence: Duration,
    /// Time after a loss for which no other change of the same range follows an unanswered one;
    /// zero if `silence` is enough.
    pub(crate) quarantine: Duration,
}

/// Requests to a peer. They outlive its connections.
pub(crate) struct Session {
    /// Kind and name of the peer in messages.
    peer: String,
    /// Name of the device in errors.
    pub(crate) name: String,
    rules: Rules,
    pub(crate) slots: RefCell<Slots>,
    /// Error for new requests while the peer is away, set after [`Rules::patience`] or when another
    /// device answers.
    away: RefCell<Option<Error>>,
    closed: Cell<bool>,
    closing: WaitList,
    /// Acknowledged changes that a power loss of the peer might revert.
    unflushed: RefCell<Unflushed>,
    /// Number of pending changes without FUA, which a power loss might revert.
    volatile: Cell<u64>,
    /// Ranges that may be lost and were not reported yet.
    lost: RefCell<Vec<Range<u64>>>,
    /// Number of lost connections.
    losses: Cell<u64>,
    /// Resend in progress after a loss.
    resend: RefCell<Option<Resend>>,
    /// Number of successive connections that were lost during a resend.
    lost_resends: Cell<u8>,
}

impl Session {
    /// Creates a session with the peer `name`, which messages call a `kind`.
    pub(crate) fn new(kind: &str, name: String, rules: Rules) -> Self {
        Self {
            peer: format!("{kind} {name}"),
            name,
            rules,
            slots: RefCell::new(Slots::new(rules.depth)),
            away: RefCell::default(),
            closed: Cell::new(false),
            closing: WaitList::new(),
            unflushed: RefCell::new(Unflushed::new(rules.volatile_cache)),
            volatile: Cell::new(0),
            lost: RefCell::default(),
            losses: Cell::new(0),
            resend: RefCell::default(),
            lost_resends: Cell::new(0),
        }
    }

    /// Returns the number of connections that were lost so far.
    pub(crate) const fn losses(&self) -> u64 {
        self.losses.get()
    }

    /// Returns whether the device is closed.
    pub(crate) const fn is_closed(&self) -> bool {
        self.closed.get()
    }

    /// Closes the device: queued requests end, and [`reconnect::stay_connected`] returns.
    pub(crate) fn close(&self) {
        self.closed.set(true);
        self.closing.wake_all();
    }

    /// Queues a request, or completes it at once if the peer is away for long. The caller sends
    /// queued requests.
    pub(crate) fn submit(&self, request: Request, done: Completion, connected: bool) {
        let number = self.unflushed.borrow().number();
        self.queue(Pending::new(request, done, number), connected);
    }

    /// Like [`Session::submit`], with a request that was made already.
    pub(crate) fn queue(&self, pending: Pending, connected: bool) {
        let refused = match (connected, &*self.away.borrow()) {
            (false, Some(why)) => Some(why.clone()),
            _ => None,
        };
        if let Some(why) = refused {
            return pending.done.complete(Err(why));
        }
        if pending.request.op == Op::Flush
            && let Some(error) = self.take_lost_error()
        {
            return pending.done.complete(Err(error));
        }
        if self.rules.volatile_cache && pending.is_volatile() {
            self.volatile.set(self.volatile.get() + 1);
        }
        self.slots.borrow_mut().queue(pending);
    }

    /// Completes a request, and records a change that a later loss might revert.
    pub(crate) fn ended(&self, pending: Pending, outcome: Result<()>) {
        if pending.is_resent {
            return self.complete_resent(&pending.request, outcome);
        }
        if self.rules.volatile_cache {
            let mut unflushed = self.unflushed.borrow_mut();
            let others = self.volatile.get() > 0 || !unflushed.is_empty();
            let volatile = pending.is_volatile();
            if volatile {
                self.volatile.set(self.volatile.get() - 1);
            }
            match &outcome {
                Ok(()) if pending.request.op == Op::Flush => {
                    let covered = match fault::has(Fault::FlushCoversLater) {
                        true => unflushed.number(),
                        false => pending.before,
                    };
                    unflushed.flushed(covered);
                }
                Ok(()) if !volatile && !others => {}
                // The peer never received it.
                Err(_) if pending.sent_at.is_none() => {}
                _ if pending.is_change() => {
                    let range =
                        pending.request.offset..pending.request.offset + pending.request.len;
                    let ended = match (outcome.is_err(), volatile) {
                        (true, _) => Ended::Failed,
                        (false, true) => Ended::Volatile,
                        (false, false) => Ended::Durable {
                            concurrent: self.slots.borrow().has_change_in(&range),
                        },
                    };
                    unflushed.record(&pending.request, pending.before, ended, self.losses.get());
                }
                _ => {}
            }
        }
        pending.done.complete(outcome);
    }
}
