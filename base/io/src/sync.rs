//! Synchronization of tasks of one reactor. Nothing here is shared between threads.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// A list of tasks that wait for a change.
///
/// Waiters re-check their condition in a loop; a wake-up means only that it may have changed.
#[derive(Debug, Default)]
pub struct WaitList {
    wakers: RefCell<Vec<Waker>>,
    epoch: Cell<u64>,
}

impl WaitList {
    /// An empty list.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            wakers: RefCell::new(Vec::new()),
            epoch: Cell::new(0),
        }
    }

    /// Wakes all who wait.
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
            self.wakers.borrow_mut().push(cx.waker().clone());
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

/// A counter of permits. Tasks get permits in order of arrival.
#[derive(Debug)]
pub struct Semaphore {
    state: RefCell<SemaphoreState>,
}

#[derive(Debug)]
struct SemaphoreState {
    available: u64,
    next_ticket: u64,
    queue: VecDeque<(u64, u64, Option<Waker>)>,
}

impl Semaphore {
    /// A semaphore with `permits` available.
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

    fn wake_front(&self) {
        let mut state = self.state.borrow_mut();
        let available = state.available;
        let waker = match state.queue.front_mut() {
            Some((_, wanted, waker)) if *wanted <= available => waker.take(),
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
    ticket: Option<u64>,
    taken: bool,
}

impl Future for Acquire<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.semaphore.state.borrow_mut();
        let first = match self.ticket {
            None => state.queue.is_empty(),
            Some(ticket) => state.queue.front().is_some_and(|entry| entry.0 == ticket),
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
                state
                    .queue
                    .push_back((ticket, self.permits, Some(cx.waker().clone())));
                drop(state);
                self.ticket = Some(ticket);
            }
            Some(ticket) => {
                let entry = state.queue.iter_mut().find(|entry| entry.0 == ticket);
                if let Some((_, _, waker)) = entry {
                    *waker = Some(cx.waker().clone());
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
            .retain(|entry| entry.0 != ticket);
        self.semaphore.wake_front();
    }
}

/// A value that one task sets once and others wait for.
#[derive(Debug)]
pub struct Promise<T> {
    shared: Rc<(RefCell<Option<T>>, WaitList)>,
}

impl<T> Clone for Promise<T> {
    fn clone(&self) -> Self {
        Self {
            shared: Rc::clone(&self.shared),
        }
    }
}

impl<T> Default for Promise<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Promise<T> {
    /// A promise that is not set.
    #[must_use]
    pub fn new() -> Self {
        Self {
            shared: Rc::new((RefCell::new(None), WaitList::new())),
        }
    }

    /// Sets the value and wakes all who wait. A second value is ignored.
    pub fn set(&self, value: T) {
        self.shared.0.borrow_mut().get_or_insert(value);
        self.shared.1.wake_all();
    }

    /// Returns whether the value is there.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.shared.0.borrow().is_some()
    }
}

impl<T: Clone> Promise<T> {
    /// The value, if it is there.
    #[must_use]
    pub fn now(&self) -> Option<T> {
        self.shared.0.borrow().clone()
    }

    /// Waits for the value.
    pub async fn get(&self) -> T {
        loop {
            if let Some(value) = &*self.shared.0.borrow() {
                return value.clone();
            }
            self.shared.1.wait().await;
        }
    }
}
