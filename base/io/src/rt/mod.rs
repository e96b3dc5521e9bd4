//! A single-threaded executor: tasks, timers, wake-ups from other threads.
//!
//! One [`Executor`] belongs to one thread. Tasks are woken by index and generation. So a waker is
//! two words, is copied without counting, and may outlive its task. The driver, which polls devices
//! and sockets, is separate and gets its turn when no task is ready.
//!
//! In simulation the clock is virtual and the next task is drawn from the ready ones by a seed.

pub mod meter;
mod task;
mod timer;
mod wake;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::ptr;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use meter::Meter;
use task::Tasks;
use timer::Timers;
pub use timer::{Sleep, at_most};
pub use wake::Remote;

/// Source of an executor's time.
#[derive(Debug)]
enum Clock {
    Real(Instant),
    Virtual(Cell<Duration>),
}

/// Choice of the next ready task.
#[derive(Debug)]
enum Order {
    /// First woken, first run.
    Fifo,
    /// Drawn by a generator with this state (simulation).
    Seeded(Cell<u64>),
}

/// One thread's tasks and timers.
pub struct Executor {
    id: u8,
    tasks: RefCell<Tasks>,
    ready: RefCell<VecDeque<u32>>,
    timers: RefCell<Timers>,
    clock: Clock,
    order: Order,
    remote: Arc<wake::Shared>,
    turns: Cell<u64>,
    /// Tasks that wait for the next turn.
    later: RefCell<Vec<Waker>>,
    meter: Meter,
    /// Memory for the next work that other threads queue.
    spare: Cell<Vec<wake::Work>>,
}

thread_local! {
    static CURRENT: Cell<*const Executor> = const { Cell::new(ptr::null()) };
}

/// Runs `f` with this thread's executor.
///
/// # Panics
/// Outside of [`Executor::enter`].
fn with_current<T>(f: impl FnOnce(&Executor) -> T) -> T {
    try_with_current(f).expect("called on a thread that runs no reactor")
}

fn try_with_current<T>(f: impl FnOnce(&Executor) -> T) -> Option<T> {
    let current = CURRENT.try_with(Cell::get).ok()?;
    // SAFETY: `enter` sets the pointer from a live Rc and resets it before that Rc is dropped. The
    // executor is only ever used through shared references.
    (!current.is_null()).then(|| f(unsafe { &*current }))
}

/// While this lives, `spawn`, `sleep` and `now` on this thread mean its executor.
#[derive(Debug)]
pub struct Entered {
    executor: Rc<Executor>,
    previous: *const Executor,
}

impl Drop for Entered {
    fn drop(&mut self) {
        CURRENT.with(|current| {
            debug_assert_eq!(current.get(), Rc::as_ptr(&self.executor));
            current.set(self.previous);
        });
    }
}

impl std::fmt::Debug for Executor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Executor")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl Executor {
    /// An executor on the real clock. `unpark` is called, from any thread, when another thread has
    /// queued work for it: it must make the driver's wait return.
    #[must_use]
    pub fn new(unpark: impl Fn() + Send + Sync + 'static) -> Rc<Self> {
        Self::build(Clock::Real(Instant::now()), Order::Fifo, Box::new(unpark))
    }

    /// An executor on a virtual clock that starts at zero, with the next task drawn by `seed`.
    #[must_use]
    pub fn simulated(seed: u64) -> Rc<Self> {
        Self::on_virtual_clock(Order::Seeded(Cell::new(seed)))
    }

    fn on_virtual_clock(order: Order) -> Rc<Self> {
        let clock = Clock::Virtual(Cell::new(Duration::ZERO));
        Self::build(clock, order, Box::new(|| ()))
    }

    fn build(clock: Clock, order: Order, unpark: Box<dyn Fn() + Send + Sync>) -> Rc<Self> {
        let remote = wake::register(unpark);
        Rc::new(Self {
            id: remote.id(),
            tasks: RefCell::new(Tasks::default()),
            ready: RefCell::new(VecDeque::with_capacity(1024)),
            timers: RefCell::new(Timers::default()),
            clock,
            order,
            remote,
            turns: Cell::new(0),
            later: RefCell::default(),
            meter: Meter::default(),
            spare: Cell::default(),
        })
    }

    /// Makes this the thread's executor until the guard is dropped.
    #[must_use]
    pub fn enter(self: &Rc<Self>) -> Entered {
        let previous = CURRENT.with(|current| current.replace(Rc::as_ptr(self)));
        Entered {
            executor: Rc::clone(self),
            previous,
        }
    }

    /// A handle by which other threads give work to this one.
    #[must_use]
    pub fn remote(&self) -> Remote {
        Remote::new(Arc::clone(&self.remote))
    }

    /// Adds a task; it runs at a later [`Executor::run_ready`].
    pub fn spawn(&self, future: impl Future<Output = ()> + 'static) {
        let account = self.meter.account();
        let index = self.tasks.borrow_mut().insert(future, account);
        self.ready.borrow_mut().push_back(index);
    }

    /// Time since the executor was made.
    #[must_use]
    pub fn now(&self) -> Duration {
        match &self.clock {
            Clock::Real(start) => start.elapsed(),
            Clock::Virtual(now) => now.get(),
        }
    }

    /// Takes work that other threads queued, and fires the timers that are due. Whether any task
    /// is ready to run after that.
    pub fn collect(&self) -> bool {
        self.turns.set(self.turns.get().wrapping_add(1));
        if !self.later.borrow().is_empty() {
            let mut later = self.later.take();
            later.drain(..).for_each(Waker::wake);
            self.later.replace(later);
        }
        if self.remote.pending() {
            let mut work = self.remote.take(self.spare.take());
            for work in work.drain(..) {
                match work {
                    wake::Work::Wake(data) => self.wake(data),
                    wake::Work::Call(call) => call(),
                }
            }
            self.spare.set(work);
        }
        if !self.timers.borrow().is_empty() {
            let now = self.now();
            loop {
                let due = self.timers.borrow_mut().pop_due(now);
                let Some(waker) = due else { break };
                waker.wake();
            }
        }
        !self.ready.borrow().is_empty()
    }

    /// Polls ready tasks, at most `budget` of them. Returns how many ran.
    pub fn run_ready(&self, budget: usize) -> usize {
        for ran in 0..budget {
            let Some(index) = self.next_ready() else {
                return ran;
            };
            let Some((mut future, data)) = self.tasks.borrow_mut().begin(index, self.id) else {
                continue;
            };
            let waker = wake::waker(data);
            let mut poll = || future.poll(&mut Context::from_waker(&waker)).is_ready();
            let done = if self.meter.is_on() {
                let account = self.tasks.borrow().account(index);
                self.meter.within(account, poll)
            } else {
                poll()
            };
            let finished = self.tasks.borrow_mut().end(index, future, done);
            // Dropped here, when nothing is borrowed: a future's drop may spawn or wake.
            drop(finished);
        }
        budget
    }

    fn next_ready(&self) -> Option<u32> {
        let mut ready = self.ready.borrow_mut();
        match &self.order {
            Order::Fifo => ready.pop_front(),
            Order::Seeded(state) => {
                let len = ready.len() as u64;
                if len < 2 {
                    return ready.pop_front();
                }
                let draw = usize::try_from(split_mix(state) % len).unwrap_or(0);
                ready.swap_remove_front(draw)
            }
        }
    }

    /// Returns the time at which the next timer is due. `None` without timers.
    #[must_use]
    pub fn next_timer(&self) -> Option<Duration> {
        self.timers.borrow().next()
    }

    /// Returns whether a task is ready, or will be in the next turn, or another thread has queued
    /// work.
    #[must_use]
    pub fn has_work(&self) -> bool {
        !self.ready.borrow().is_empty() || !self.later.borrow().is_empty() || self.remote.pending()
    }

    /// Number of tasks that have not finished.
    #[must_use]
    pub fn task_count(&self) -> usize {
        self.tasks.borrow().len()
    }

    /// Moves the virtual clock forward to `to`; it never goes back.
    ///
    /// # Panics
    /// On an executor with a real clock.
    pub fn advance(&self, to: Duration) {
        let Clock::Virtual(now) = &self.clock else {
            panic!("a real clock cannot be set");
        };
        now.set(now.get().max(to));
    }

    /// Drops every task without running it: the death of the process, in simulation, or the end of
    /// a reactor. Tasks that a dropped task spawns are dropped, too.
    pub fn clear(&self) {
        loop {
            let futures = self.tasks.borrow_mut().take_all();
            self.ready.borrow_mut().clear();
            self.timers.borrow_mut().clear();
            self.later.borrow_mut().clear();
            if futures.is_empty() {
                return;
            }
            forebay_block::abandoning(|| drop(futures));
        }
    }

    fn wake(&self, data: wake::Data) {
        if self.tasks.borrow_mut().mark_queued(data) {
            self.ready.borrow_mut().push_back(data.index());
        }
    }
}

impl Executor {
    /// Gives up an executor with its tasks, which are never dropped.
    pub(crate) fn leak(executor: Rc<Self>) {
        wake::unregister(executor.id);
        std::mem::forget(executor);
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        // Dropping tasks may need the executor as the current one (a future that spawns on drop).
        // It can no longer be entered, so such a drop finds no reactor and must cope.
        self.clear();
        wake::unregister(self.id);
    }
}

/// SplitMix64 (Steele, Lea, Flood 2014): small, seedable, good enough to shuffle with.
pub(crate) fn split_mix(state: &Cell<u64>) -> u64 {
    let next = state.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
    state.set(next);
    let mut z = next;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Adds a task to this thread's executor.
///
/// # Panics
/// On a thread that runs none.
pub fn spawn(future: impl Future<Output = ()> + 'static) {
    with_current(|executor| executor.spawn(future));
}

/// Time since this thread's executor was made (virtual in simulation).
///
/// # Panics
/// On a thread that runs none.
#[must_use]
pub fn now() -> Duration {
    with_current(Executor::now)
}

/// Returns the number of turns that this thread's executor has begun. Events within one turn happen
/// at the same time, as far as the reactor can tell.
///
/// # Panics
/// On a thread that runs none.
#[must_use]
pub fn turns() -> u64 {
    with_current(|executor| executor.turns.get())
}

/// Waits for `duration`.
///
/// # Panics
/// On a thread that runs no executor.
pub fn sleep(duration: Duration) -> Sleep {
    Sleep::until(now() + duration)
}

/// This thread's executor as other threads see it.
///
/// # Panics
/// On a thread that runs none.
#[must_use]
pub fn remote() -> Remote {
    with_current(Executor::remote)
}

/// Lets other ready tasks run once.
pub async fn yield_now() {
    let mut yielded = false;
    std::future::poll_fn(|cx| {
        if yielded {
            return Poll::Ready(());
        }
        yielded = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Waits for this thread's next turn: other ready tasks run, and the driver polls for events. A
/// task with much work uses it to yield to all tasks, where [`yield_now`] yields only to those that
/// are ready already.
pub async fn next_turn() {
    let here = turns();
    std::future::poll_fn(|cx| {
        with_current(|executor| {
            if executor.turns.get() != here {
                return Poll::Ready(());
            }
            executor.later.borrow_mut().push(cx.waker().clone());
            Poll::Pending
        })
    })
    .await;
}

/// Runs a future to its end on a fresh executor without a driver (for tests and tools that do no
/// real I/O). The clock is virtual; idle time passes at once.
///
/// # Panics
/// If the future waits for something that no task or timer provides.
pub fn block_on_simulated<T: 'static>(seed: u64, future: impl Future<Output = T> + 'static) -> T {
    block_on(&Executor::simulated(seed), future)
}

/// The same with tasks in the order of their wake-ups, as on the real clock.
///
/// # Panics
/// As [`block_on_simulated`].
pub fn block_on_in_order<T: 'static>(future: impl Future<Output = T> + 'static) -> T {
    block_on(&Executor::on_virtual_clock(Order::Fifo), future)
}

fn block_on<T: 'static>(executor: &Rc<Executor>, future: impl Future<Output = T> + 'static) -> T {
    let _entered = executor.enter();
    let result = Rc::new(RefCell::new(None));
    let slot = Rc::clone(&result);
    executor.spawn(async move {
        let value = future.await;
        *slot.borrow_mut() = Some(value);
    });
    loop {
        while executor.collect() && result.borrow().is_none() {
            executor.run_ready(1);
        }
        if let Some(value) = result.borrow_mut().take() {
            executor.clear();
            return value;
        }
        let next = executor
            .next_timer()
            .expect("deadlock: every task waits and no timer is set");
        executor.advance(next);
    }
}

/// A future that is polled in place by a task: `Pin<&mut dyn Future>` with the task's memory.
pub(crate) type Polled<'a> = Pin<&'a mut dyn Future<Output = ()>>;

#[cfg(test)]
mod tests;
