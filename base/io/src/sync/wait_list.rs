//! Wait lists: tasks that wait for a change of state that they share.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::task::{Poll, Waker};

/// A list of tasks that wait for a change.
///
/// Waiters re-check their condition in a loop; a wake-up means only that it may have changed.
#[derive(Debug, Default)]
pub struct WaitList {
    wakers: RefCell<Vec<Waker>>,
    /// Number of calls of [`WaitList::wake_all`].
    epoch: Cell<u64>,
}

impl WaitList {
    /// Returns a list without tasks.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            wakers: RefCell::new(Vec::new()),
            epoch: Cell::new(0),
        }
    }

    /// Wakes all tasks that wait.
    pub fn wake_all(&self) {
        self.epoch.set(self.epoch.get() + 1);
        let wakers = std::mem::take(&mut *self.wakers.borrow_mut());
        for waker in wakers {
            waker.wake();
        }
    }

    /// Waits for the next [`WaitList::wake_all`] after this call (not after the first poll).
    pub fn wait(&self) -> impl Future<Output = ()> + '_ {
        let seen = self.epoch.get();
        poll_fn(move |cx| {
            if self.epoch.get() != seen {
                return Poll::Ready(());
            }
            let mut wakers = self.wakers.borrow_mut();
            // A task that abandons a wait and starts another needs no second waker.
            if !wakers.last().is_some_and(|last| last.will_wake(cx.waker())) {
                wakers.push(cx.waker().clone());
            }
            Poll::Pending
        })
    }

    /// Waits until `condition` holds; it is checked now and after each wake-up.
    pub async fn until(&self, mut condition: impl FnMut() -> bool) {
        while !condition() {
            self.wait().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rt::block_on_simulated;

    #[test]
    fn waits_that_are_given_up_leave_one_waker() {
        block_on_simulated(1, async {
            let list = WaitList::new();
            for _ in 0..1000 {
                let mut wait = Box::pin(list.wait());
                let polled = poll_fn(|cx| Poll::Ready(wait.as_mut().poll(cx))).await;
                assert!(polled.is_pending());
            }
            assert_eq!(list.wakers.borrow().len(), 1);
        });
    }
}
