//! Reactors: a thread, its executor and its driver.
//!
//! The loop takes messages of other threads and runs ready tasks. It submits all their new
//! operations to the engine in one system call, and sleeps in that same call when nothing is ready.

mod driver;
mod spin;

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use forebay_block::{Context, Error, ErrorKind, Result};

pub use crate::engine::Engine;
use crate::rt::Executor;
pub use driver::Faults;
#[cfg(test)]
pub(crate) use driver::FileOp;
pub(crate) use driver::{Driver, Hold, IoLimits, OpenFile, Socket};

/// Tasks polled before the engine gets its turn.
const TASKS_PER_TURN: usize = 256;

/// One thread's executor and driver.
pub struct Reactor {
    executor: Rc<Executor>,
    driver: Rc<Driver>,
}

thread_local! {
    static CURRENT: RefCell<Option<Rc<Driver>>> = const { RefCell::new(None) };
}

/// The driver of the reactor that runs on this thread.
pub(crate) fn current() -> Result<Rc<Driver>> {
    CURRENT
        .with(|current| current.borrow().clone())
        .ok_or_else(|| {
            Error::new(
                ErrorKind::InvalidInput,
                "no reactor runs on this thread: only a reactor's tasks may open files and sockets",
            )
        })
}

/// Has the reactor of this thread look for work all the time from now on, and never sleep: it takes
/// a whole processor. With threads in place of io_uring it sleeps all the same.
///
/// # Errors
/// If no reactor runs on this thread.
pub fn never_sleep() -> Result<()> {
    current().map(|driver| driver.never_sleep())
}

struct Entered {
    _executor: crate::rt::Entered,
    previous: Option<Rc<Driver>>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        CURRENT.with(|current| current.replace(self.previous.take()));
    }
}

impl std::fmt::Debug for Reactor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reactor")
            .field("engine", &self.engine_name())
            .finish_non_exhaustive()
    }
}

impl Reactor {
    /// A reactor for this thread.
    ///
    /// # Errors
    /// If the engine is not available, or `FOREBAY_IO` names none.
    pub fn new(engine: Engine) -> Result<Rc<Self>> {
        let driver = Driver::new(engine)?;
        let parker = Arc::clone(driver.parker());
        Ok(Rc::new(Self {
            executor: Executor::new(move || parker.unpark()),
            driver,
        }))
    }

    /// `"io_uring"` or `"threads"`.
    #[must_use]
    pub fn engine_name(&self) -> &'static str {
        self.driver.engine_name()
    }

    /// Returns the handle by which other threads give work to this reactor.
    #[must_use]
    pub fn remote(&self) -> crate::rt::Remote {
        self.executor.remote()
    }

    /// Makes this the thread's reactor and runs `future` and everything it spawns until `future`
    /// ends. Spawned tasks that have not ended stay, and continue in the next `run`.
    ///
    /// # Panics
    /// If the kernel refuses to run the engine any longer.
    pub fn run<T: 'static>(self: &Rc<Self>, future: impl Future<Output = T> + 'static) -> T {
        let _entered = self.enter();
        let value = Rc::new(Cell::new(None));
        let slot = Rc::clone(&value);
        self.executor.spawn(async move {
            slot.set(Some(future.await));
        });
        loop {
            self.executor.collect();
            self.executor.run_ready(TASKS_PER_TURN);
            if let Some(value) = value.take() {
                return value;
            }
            self.driver.turn(&self.executor);
        }
    }

    /// Returns a reactor with a virtual clock that draws the next task by `seed`. It serves tests
    /// that are both ends of a conversation on one thread. It runs only in [`Reactor::settle`],
    /// [`Reactor::pass`] and [`Reactor::run_simulated`].
    ///
    /// # Errors
    /// If the engine is not available.
    pub fn simulated(engine: Engine, seed: u64) -> Result<Rc<Self>> {
        Ok(Rc::new(Self {
            executor: Executor::simulated(seed),
            driver: Driver::new(engine)?,
        }))
    }

    /// Makes this the thread's reactor while `f` runs.
    pub fn within<T>(&self, f: impl FnOnce() -> T) -> T {
        let _entered = self.enter();
        f()
    }

    /// Runs all tasks that are ready or become ready, until the rest wait for time or for others.
    pub fn settle(&self) {
        let _entered = self.enter();
        loop {
            self.executor.collect();
            let ran = self.executor.run_ready(TASKS_PER_TURN);
            let came = self.driver.look();
            if ran == 0 && !came && !self.executor.has_work() {
                return;
            }
        }
    }

    /// The same while the virtual clock advances by `time`.
    ///
    /// # Panics
    /// If the clock is a real one.
    pub fn pass(&self, time: Duration) {
        let end = self.executor.now() + time;
        loop {
            self.settle();
            match self.executor.next_timer() {
                Some(due) if due <= end => self.executor.advance(due),
                _ => return self.executor.advance(end),
            }
        }
    }

    /// Runs `future` to its end. The virtual clock advances by steps of two milliseconds, one each
    /// millisecond of real time, and only while nothing is ready. A delay of this thread therefore
    /// uses up no time limit of its tasks.
    ///
    /// # Panics
    /// If the clock is a real one.
    pub fn run_simulated<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> T {
        const STEP: Duration = Duration::from_millis(2);
        /// The kernel may deliver later than at once, from threads of its own.
        const DELIVERY: Duration = Duration::from_millis(1);
        let value = Rc::new(Cell::new(None));
        let slot = Rc::clone(&value);
        self.executor.spawn(async move {
            slot.set(Some(future.await));
        });
        loop {
            self.settle();
            if let Some(value) = value.take() {
                return value;
            }
            std::thread::sleep(DELIVERY);
            self.pass(STEP);
        }
    }

    /// Time since it was made, by its clock.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.executor.now()
    }

    fn enter(&self) -> Entered {
        Entered {
            _executor: self.executor.enter(),
            previous: CURRENT.with(|current| current.replace(Some(Rc::clone(&self.driver)))),
        }
    }
}

impl Drop for Reactor {
    /// Drops the tasks and waits for the operations in flight, whose memory the kernel may touch.
    fn drop(&mut self) {
        let _entered = self.enter();
        self.executor.clear();
        self.driver.close();
    }
}

/// Starts a thread named `name` that runs a reactor. `main` is called on it and its future is run
/// to its end; then the thread ends.
///
/// # Errors
/// If the thread or its reactor cannot be made.
pub fn spawn_reactor<F: Future<Output = ()> + 'static>(
    name: &str,
    engine: Engine,
    main: impl FnOnce() -> F + Send + 'static,
) -> Result<JoinHandle<()>> {
    let (send, receive) = std::sync::mpsc::sync_channel(1);
    let thread = std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(move || match Reactor::new(engine) {
            Ok(reactor) => {
                let _ = send.send(Ok(()));
                reactor.run(async move { main().await });
            }
            Err(error) => {
                let _ = send.send(Err(error));
            }
        })
        .context(|| format!("starting the thread of reactor {name}"))?;
    receive
        .recv()
        .unwrap_or_else(|_| Err(Error::new(ErrorKind::Io, "the thread died at its start")))
        .context(|| format!("starting reactor {name}"))?;
    Ok(thread)
}

#[cfg(test)]
mod tests;
