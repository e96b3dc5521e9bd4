//! Path of an operation's outcome from a device to the caller.
//!
//! The path is a pair: the device holds a [`Completion`], and the caller holds an [`IoFuture`].
//!
//! Both sides are on one reactor thread and share a cell of that thread's slab. So neither
//! submitting nor completing allocates, once the slab has grown to the largest number of operations
//! in flight. Dropping the future detaches it: the operation continues, keeps its buffer, and its
//! cell is freed when the device completes. Dropping an unused [`Completion`] is a bug in the
//! device. It panics in debug builds and completes with an I/O error in release builds, so that no
//! request is lost silently.

use std::cell::{Cell as Flag, RefCell};
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use crate::{Error, ErrorKind, Result};

enum Cell {
    Free {
        next: u32,
    },
    Pending,
    Waiting(Waker),
    Done(Result<()>),
    /// The future has taken the outcome and is about to be dropped.
    Taken,
    /// The future was dropped before the outcome arrived.
    Detached,
}

struct Slab {
    cells: Vec<Cell>,
    free: u32,
}

const NONE: u32 = u32::MAX;

thread_local! {
    static SLAB: RefCell<Slab> = const { RefCell::new(Slab { cells: Vec::new(), free: NONE }) };
    static ABANDONING: Flag<bool> = const { Flag::new(false) };
}

/// Runs `f`, in which operations may be dropped without completion.
///
/// That happens at the end of a reactor or of a simulated process, where device and caller end
/// together.
pub fn abandoning<T>(f: impl FnOnce() -> T) -> T {
    let before = ABANDONING.replace(true);
    let result = f();
    ABANDONING.set(before);
    result
}

impl Slab {
    fn take(&mut self) -> u32 {
        if self.free == NONE {
            let index = u32::try_from(self.cells.len()).expect("fewer than 2^32 operations");
            self.cells.push(Cell::Pending);
            return index;
        }
        let index = self.free;
        let Cell::Free { next } = self.cells[index as usize] else {
            unreachable!("the free list holds free cells");
        };
        self.free = next;
        self.cells[index as usize] = Cell::Pending;
        index
    }

    fn give_back(&mut self, index: u32) {
        self.cells[index as usize] = Cell::Free { next: self.free };
        self.free = index;
    }
}

/// The device's side of an operation: used exactly once.
#[derive(Debug)]
#[must_use = "an operation that is not completed hangs its caller"]
pub struct Completion {
    index: u32,
    here: PhantomData<*const ()>,
}

/// The caller's side: resolves to the operation's outcome.
#[derive(Debug)]
#[must_use = "a future does nothing unless it is awaited; drop it to detach"]
pub struct IoFuture {
    index: u32,
    here: PhantomData<*const ()>,
}

/// Creates a connected pair for one operation.
pub fn completion_pair() -> (Completion, IoFuture) {
    let index = SLAB.with(|slab| slab.borrow_mut().take());
    (
        Completion {
            index,
            here: PhantomData,
        },
        IoFuture {
            index,
            here: PhantomData,
        },
    )
}

impl Completion {
    /// Completes the operation.
    pub fn complete(self, result: Result<()>) {
        let index = self.index;
        std::mem::forget(self);
        finish(index, result);
    }
}

fn finish(index: u32, result: Result<()>) {
    let waker = SLAB.with(|slab| {
        let mut slab = slab.borrow_mut();
        let cell = &mut slab.cells[index as usize];
        match std::mem::replace(cell, Cell::Pending) {
            Cell::Pending => {
                *cell = Cell::Done(result);
                None
            }
            Cell::Waiting(waker) => {
                *cell = Cell::Done(result);
                Some(waker)
            }
            Cell::Detached => {
                slab.give_back(index);
                None
            }
            Cell::Done(_) | Cell::Taken | Cell::Free { .. } => {
                unreachable!("an operation completes once")
            }
        }
    });
    if let Some(waker) = waker {
        waker.wake();
    }
}

impl Drop for Completion {
    fn drop(&mut self) {
        let Ok(detached) = SLAB
            .try_with(|slab| matches!(slab.borrow().cells[self.index as usize], Cell::Detached))
        else {
            return; // The thread is ending; nobody can wait any more.
        };
        finish(
            self.index,
            Err(Error::new(
                ErrorKind::Io,
                "the device dropped the operation without completing it",
            )),
        );
        if cfg!(debug_assertions) && !detached && !ABANDONING.get() && !std::thread::panicking() {
            panic!("an operation was dropped without being completed");
        }
    }
}

impl Future for IoFuture {
    type Output = Result<()>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        SLAB.with(|slab| {
            let mut slab = slab.borrow_mut();
            let cell = &mut slab.cells[self.index as usize];
            match cell {
                Cell::Done(result) => {
                    let result = std::mem::replace(result, Ok(()));
                    *cell = Cell::Taken;
                    Poll::Ready(result)
                }
                Cell::Waiting(waker) => {
                    waker.clone_from(cx.waker());
                    Poll::Pending
                }
                _ => {
                    *cell = Cell::Waiting(cx.waker().clone());
                    Poll::Pending
                }
            }
        })
    }
}

impl Drop for IoFuture {
    fn drop(&mut self) {
        let _ = SLAB.try_with(|slab| {
            let mut slab = slab.borrow_mut();
            match slab.cells[self.index as usize] {
                Cell::Done(_) | Cell::Taken => slab.give_back(self.index),
                _ => slab.cells[self.index as usize] = Cell::Detached,
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;

    fn poll(future: &mut IoFuture) -> Poll<Result<()>> {
        pin!(future).poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn completes_before_and_after_the_first_poll() {
        let (done, mut future) = completion_pair();
        done.complete(Ok(()));
        assert!(matches!(poll(&mut future), Poll::Ready(Ok(()))));
        let (done, mut future) = completion_pair();
        assert!(poll(&mut future).is_pending());
        done.complete(Err(ErrorKind::NoSpace.into()));
        let Poll::Ready(Err(error)) = poll(&mut future) else {
            panic!("not ready");
        };
        assert_eq!(error.kind(), ErrorKind::NoSpace);
    }

    #[test]
    fn a_detached_operation_returns_its_cell() {
        let (done, future) = completion_pair();
        let index = done.index;
        drop(future);
        let (other, other_future) = completion_pair();
        assert_ne!(other.index, index, "the cell is still in use");
        done.complete(Ok(()));
        let (second, second_future) = completion_pair();
        assert_eq!(second.index, index);
        second.complete(Ok(()));
        other.complete(Ok(()));
        drop((other_future, second_future));
    }

    #[test]
    fn a_dropped_completion_is_found() {
        let caught = std::panic::catch_unwind(|| {
            let (done, _future) = completion_pair();
            drop(done);
        });
        assert_eq!(caught.is_err(), cfg!(debug_assertions));
        let (done, mut future) = completion_pair();
        abandoning(|| drop(done));
        assert!(matches!(poll(&mut future), Poll::Ready(Err(_))));
    }
}
