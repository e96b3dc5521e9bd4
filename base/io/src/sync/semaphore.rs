//! Semaphores: permits that tasks share.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

/// A counter of permits. Tasks get permits in order of arrival.
#[derive(Debug)]
pub struct Semaphore {
    state: RefCell<SemaphoreState>,
}

#[derive(Debug)]
struct SemaphoreState {
    available: u64,
    next_ticket: u64,
    /// Tasks that wait, in order of arrival.
    queue: VecDeque<Waiter>,
}

/// A task that waits for permits.
#[derive(Debug)]
struct Waiter {
    ticket: u64,
    permits: u64,
    /// Taken when the task is woken. A poll without success sets a new one.
    waker: Option<Waker>,
}

impl Semaphore {
    /// Returns a semaphore with `permits` free permits.
    #[must_use]
    pub const fn new(permits: u64) -> Self {
        Self {
            state: RefCell::new(SemaphoreState {
                available: permits,
                next_ticket: 0,
                queue: VecDeque::new(),
            }),
        }
    }

    /// Returns the number of free permits.
    #[must_use]
    pub fn available(&self) -> u64 {
        self.state.borrow().available
    }

    /// Takes `permits` now, if they are free and no task waits for some.
    #[must_use]
    pub fn try_acquire(&self, permits: u64) -> bool {
        let mut state = self.state.borrow_mut();
        let take = state.queue.is_empty() && state.available >= permits;
        if take {
            state.available -= permits;
        }
        take
    }

    /// Takes `permits`, waiting in order of arrival. Give them back with [`Semaphore::release`].
    pub fn acquire(&self, permits: u64) -> Acquire<'_> {
        Acquire {
            semaphore: self,
            permits,
            ticket: None,
            taken: false,
        }
    }

    /// Gives permits back.
    pub fn release(&self, permits: u64) {
        self.state.borrow_mut().available += permits;
        self.wake_front();
    }

    /// Wakes the first task of the queue if its permits are free.
    fn wake_front(&self) {
        let mut state = self.state.borrow_mut();
        let available = state.available;
        let waker = match state.queue.front_mut() {
            Some(first) if first.permits <= available => first.waker.take(),
            _ => None,
        };
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Waits for permits; see [`Semaphore::acquire`].
#[derive(Debug)]
#[must_use = "a future does nothing unless it is awaited"]
pub struct Acquire<'a> {
    semaphore: &'a Semaphore,
    permits: u64,
    /// Place in the queue, after the first poll without success.
    ticket: Option<u64>,
    /// Whether the permits were taken.
    taken: bool,
}

impl Future for Acquire<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.semaphore.state.borrow_mut();
        let first = match self.ticket {
            None => state.queue.is_empty(),
            Some(ticket) => state
                .queue
                .front()
                .is_some_and(|waiter| waiter.ticket == ticket),
        };
        if first && state.available >= self.permits {
            state.available -= self.permits;
            if self.ticket.is_some() {
                state.queue.pop_front();
            }
            drop(state);
            self.taken = true;
            self.semaphore.wake_front();
            return Poll::Ready(());
        }
        match self.ticket {
            None => {
                let ticket = state.next_ticket;
                state.next_ticket += 1;
                state.queue.push_back(Waiter {
                    ticket,
                    permits: self.permits,
                    waker: Some(cx.waker().clone()),
                });
                drop(state);
                self.ticket = Some(ticket);
            }
            Some(ticket) => {
                let mut queue = state.queue.iter_mut();
                if let Some(waiter) = queue.find(|waiter| waiter.ticket == ticket) {
                    waiter.waker = Some(cx.waker().clone());
                }
            }
        }
        Poll::Pending
    }
}

impl Drop for Acquire<'_> {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket.filter(|_| !self.taken) else {
            return;
        };
        self.semaphore
            .state
            .borrow_mut()
            .queue
            .retain(|waiter| waiter.ticket != ticket);
        self.semaphore.wake_front();
    }
}
