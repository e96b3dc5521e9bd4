//! Timers: a heap of deadlines. A cancelled timer stays until it is due, and its wake-up has no
//! effect then. Deadlines here are short and few.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::with_current;

struct Entry {
    deadline: Duration,
    sequence: u64,
    waker: Waker,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.sequence == other.sequence
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.deadline, self.sequence).cmp(&(other.deadline, other.sequence))
    }
}

#[derive(Default)]
pub(super) struct Timers {
    heap: BinaryHeap<Reverse<Entry>>,
    sequence: u64,
}

impl Timers {
    pub(super) fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }

    pub(super) fn next(&self) -> Option<Duration> {
        self.heap.peek().map(|Reverse(entry)| entry.deadline)
    }

    pub(super) fn pop_due(&mut self, now: Duration) -> Option<Waker> {
        if self.next()? > now {
            return None;
        }
        self.heap.pop().map(|Reverse(entry)| entry.waker)
    }

    pub(super) fn clear(&mut self) {
        self.heap.clear();
    }

    fn add(&mut self, deadline: Duration, waker: Waker) {
        self.sequence += 1;
        self.heap.push(Reverse(Entry {
            deadline,
            sequence: self.sequence,
            waker,
        }));
    }
}

/// Returns the result of `future`, or `None` after `limit`. It is dropped then, so dropping it must
/// be safe.
pub async fn at_most<T>(limit: Duration, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    let mut late = pin!(Sleep::until(super::now() + limit));
    poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(value) => Poll::Ready(Some(value)),
        Poll::Pending => late.as_mut().poll(cx).map(|()| None),
    })
    .await
}

/// Resolves at a point in time.
#[derive(Debug)]
#[must_use = "a future does nothing unless it is awaited"]
pub struct Sleep {
    deadline: Duration,
    armed: bool,
}

impl Sleep {
    /// Resolves when the executor's clock has reached `deadline`.
    pub const fn until(deadline: Duration) -> Self {
        Self {
            deadline,
            armed: false,
        }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        with_current(|executor| {
            if executor.now() >= self.deadline {
                return Poll::Ready(());
            }
            if !self.armed {
                // A task is the only thing that polls here, and its waker never changes.
                executor
                    .timers
                    .borrow_mut()
                    .add(self.deadline, cx.waker().clone());
                self.armed = true;
            }
            Poll::Pending
        })
    }
}
