//! Queues between the reactor and the threads of an image.
//!
//! - The *sender* starts requests, since a call of librbd may wait for a lock or for room.
//! - Threads of librbd report outcomes. One wake-up of the reactor covers all outcomes that were
//!   reported before its task ran.
//! - The *keeper* asks the cluster whether this client still holds the lock.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

use forebay_block::{Buf, Op};

/// A request among those in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Token {
    /// Number of its lane.
    pub(super) lane: usize,
    /// Its number there.
    pub(super) cid: u16,
}

/// A request for librbd.
pub(super) struct Command {
    /// Request among those in flight.
    pub(super) token: Token,
    pub(super) op: Op,
    pub(super) offset: u64,
    pub(super) len: u64,
    pub(super) buf: Option<Buf>,
}

#[derive(Default)]
struct Queue {
    commands: VecDeque<Command>,
    /// Requests that were queued and have not ended.
    in_flight: usize,
    closing: bool,
}

/// State of an image that has changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Changes {
    /// Whether another client may have the lock.
    pub(super) is_lock_lost: bool,
    /// New size of an image that has grown, bytes.
    pub(super) grown_to: Option<u64>,
    /// Number of bytes left of an image that has shrunk. librbd ends a change beyond them without
    /// an error.
    pub(super) shrunk_to: Option<u64>,
}

#[derive(Default)]
struct News {
    /// Requests that have ended, with librbd's return value.
    ended: Vec<(Token, i64)>,
    changes: Changes,
    waker: Option<Waker>,
}

/// Queues of an image.
#[derive(Default)]
pub(super) struct Port {
    queue: Mutex<Queue>,
    /// Wakes the sender.
    queued: Condvar,
    /// Wakes the keeper.
    closed: Condvar,
    news: Mutex<News>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Port {
    /// Queues requests for the sender. Leaves `commands` empty.
    pub(super) fn send(&self, commands: &mut Vec<Command>) {
        if commands.is_empty() {
            return;
        }
        let mut queue = lock(&self.queue);
        queue.in_flight += commands.len();
        queue.commands.extend(commands.drain(..));
        drop(queue);
        self.queued.notify_one();
    }

    /// Reports the outcome of a request, from any thread.
    pub(super) fn ended(&self, token: Token, result: i64) {
        self.report(|news| news.ended.push((token, result)));
        let mut queue = lock(&self.queue);
        queue.in_flight -= 1;
        let closing = queue.closing;
        drop(queue);
        if closing {
            self.queued.notify_one();
            // The reactor may have taken the outcome before the request stopped counting.
            self.report(|_| ());
        }
    }

    /// Reports changes: `note` adds them to those that the reactor has not seen yet.
    pub(super) fn report_changes(&self, note: impl FnOnce(&mut Changes)) {
        self.report(|news| note(&mut news.changes));
    }

    fn report(&self, add: impl FnOnce(&mut News)) {
        let waker = {
            let mut news = lock(&self.news);
            add(&mut news);
            news.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Waits for outcomes and changes. Moves outcomes to `ended`, and returns the changes. Returns
    /// with nothing if the image is closed and no request is in flight.
    pub(super) async fn news(&self, ended: &mut Vec<(Token, i64)>) -> Changes {
        poll_fn(|cx| {
            let mut news = lock(&self.news);
            let has_changes = news.changes != Changes::default();
            if !news.ended.is_empty() || has_changes || self.is_over() {
                std::mem::swap(&mut news.ended, ended);
                return Poll::Ready(std::mem::take(&mut news.changes));
            }
            news.waker = Some(cx.waker().clone());
            Poll::Pending
        })
        .await
    }

    fn is_over(&self) -> bool {
        let queue = lock(&self.queue);
        queue.closing && queue.in_flight == 0
    }

    /// Ends the threads, once all queued requests have ended.
    pub(super) fn close(&self) {
        lock(&self.queue).closing = true;
        self.queued.notify_all();
        self.closed.notify_all();
        self.report(|_| ());
    }

    /// Waits for requests, and moves them to `batch`, which is empty. Leaves it empty if the image
    /// is closed and no request is in flight.
    pub(super) fn next(&self, batch: &mut VecDeque<Command>) {
        let idle = |queue: &mut Queue| {
            queue.commands.is_empty() && !(queue.closing && queue.in_flight == 0)
        };
        let waited = self.queued.wait_while(lock(&self.queue), idle);
        let mut queue = waited.unwrap_or_else(PoisonError::into_inner);
        std::mem::swap(&mut queue.commands, batch);
    }

    /// Sleeps for `pause`, or until the image is closed. Returns whether the image is still open.
    pub(super) fn sleep_while_open(&self, pause: Duration) -> bool {
        let open = |queue: &mut Queue| !queue.closing;
        let waited = (self.closed).wait_timeout_while(lock(&self.queue), pause, open);
        !waited.unwrap_or_else(PoisonError::into_inner).0.closing
    }
}
