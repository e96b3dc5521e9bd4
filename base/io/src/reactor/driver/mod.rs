//! The driver of one reactor: operations in flight, and the engine that carries them out.

mod faults;
mod file;
mod slab;
mod socket;

use std::cell::{Cell, OnceCell, RefCell};
use std::future::Future;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use forebay_block::{Buf, Completion, ErrorKind, Result};

use super::spin::Spin;
use crate::engine::{Engine, Epoll, FileStep, Parker, Pool, Ring, SocketStep, Target, Token, Wait};
use crate::rt::Executor;
pub use faults::Faults;
pub(crate) use file::{FileOp, IoLimits, OpenFile};
use slab::{Operation, Slab};
pub(crate) use socket::{Hold, Socket};
use socket::{SocketOp, SocketState};

/// Number of workers of a file in the threads engine.
const THREADS_WORKERS: usize = 16;
/// Number of workers for `BLKDISCARD` of a block device, if a ring does the other I/O.
const DISCARD_WORKERS: usize = 2;
/// Length of the zeroes that are written where a device cannot make its own.
const ZEROES_BYTES: usize = 256 << 10;
/// Time for which a reactor that never sleeps looks for work in one turn.
const BUSY_TURN: Duration = Duration::from_millis(1);

enum Backend {
    Uring(Box<Ring>),
    Threads(Epoll),
}

pub(crate) struct Driver {
    backend: RefCell<Backend>,
    pool: OnceCell<Pool>,
    operations: RefCell<Slab>,
    results: RefCell<Vec<(Token, i32)>>,
    parker: Arc<Parker>,
    spin: RefCell<Spin>,
    /// Whether it looks for work all the time.
    busy: Cell<bool>,
    closed: Cell<bool>,
    zeroes: OnceCell<Buf>,
}

impl Driver {
    pub(crate) fn new(engine: Engine) -> Result<Rc<Self>> {
        let parker = Arc::new(Parker::new()?);
        let backend = match engine.resolve()? {
            Engine::Threads => Backend::Threads(Epoll::new(&parker)?),
            Engine::Uring => Backend::Uring(Box::new(Ring::new(&parker)?)),
            Engine::Auto => match Ring::new(&parker) {
                Ok(ring) => Backend::Uring(Box::new(ring)),
                Err(error) => {
                    tracing::warn!(
                        "io_uring is not available, using the slower threads engine: {}",
                        error.report()
                    );
                    Backend::Threads(Epoll::new(&parker)?)
                }
            },
        };
        let pool = OnceCell::new();
        if matches!(backend, Backend::Threads(_)) {
            let _ = pool.set(Pool::new(&parker, THREADS_WORKERS)?);
        }
        Ok(Rc::new(Self {
            backend: RefCell::new(backend),
            pool,
            operations: RefCell::new(Slab::default()),
            results: RefCell::new(Vec::with_capacity(256)),
            parker,
            spin: RefCell::new(Spin::new()),
            busy: Cell::new(false),
            closed: Cell::new(false),
            zeroes: OnceCell::new(),
        }))
    }

    pub(crate) fn engine_name(&self) -> &'static str {
        match &*self.backend.borrow() {
            Backend::Uring(_) => "io_uring",
            Backend::Threads(_) => "threads",
        }
    }

    /// Has it look for work in place of sleeping, where that takes no system call.
    pub(crate) fn never_sleep(&self) {
        let can = matches!(&*self.backend.borrow(), Backend::Uring(_));
        self.busy.set(can);
    }

    pub(crate) fn parker(&self) -> &Arc<Parker> {
        &self.parker
    }

    /// Returns whether sockets of this driver have to be non-blocking: an engine that waits by
    /// epoll needs that, io_uring wants the contrary.
    pub(crate) fn wants_nonblocking(&self) -> bool {
        matches!(&*self.backend.borrow(), Backend::Threads(_))
    }

    /// Prepares for [`FileStep::Discard`], which needs a worker thread on either engine.
    pub(crate) fn prepare_discard(&self) -> Result<()> {
        if self.pool.get().is_none() {
            let _ = self.pool.set(Pool::new(&self.parker, DISCARD_WORKERS)?);
        }
        Ok(())
    }

    /// Zeroes to write from; never written to.
    pub(crate) fn zeroes(&self) -> &Buf {
        self.zeroes.get_or_init(|| Buf::zeroed(ZEROES_BYTES))
    }

    /// Registers a file with the ring, which then finds it without counting references.
    pub(crate) fn register(&self, fd: RawFd) -> Target {
        let slot = match &mut *self.backend.borrow_mut() {
            Backend::Uring(ring) => ring.register(fd),
            Backend::Threads(_) => None,
        };
        Target { fd, slot }
    }

    pub(crate) fn unregister(&self, target: Target) {
        if let (Backend::Uring(ring), Some(slot)) = (&mut *self.backend.borrow_mut(), target.slot) {
            ring.unregister(slot);
        }
    }

    /// A socket is about to be closed.
    pub(crate) fn forget(&self, fd: RawFd) {
        if let Backend::Threads(epoll) = &mut *self.backend.borrow_mut() {
            epoll.forget(fd);
        }
    }

    /// Starts a file operation; its completion says how it ended.
    pub(crate) fn start_file(&self, operation: FileOp) {
        if self.closed.get() {
            let (done, _) = operation.into_parts();
            done.complete(Err(ErrorKind::ShuttingDown.into()));
            return;
        }
        let step = operation.step();
        let token = self
            .operations
            .borrow_mut()
            .insert(Operation::File(operation));
        self.launch_file(token, &step);
    }

    fn launch_file(&self, token: Token, step: &FileStep) {
        if !matches!(step, FileStep::Discard { .. })
            && let Backend::Uring(ring) = &mut *self.backend.borrow_mut()
        {
            ring.push_file(token, step);
            return;
        }
        self.pool
            .get()
            .expect("a pool is made before a file needs it")
            .push(token, *step);
    }

    /// Starts a socket operation and returns what waits for its result.
    pub(crate) fn start_socket(
        self: &Rc<Self>,
        socket: &Rc<Socket>,
        step: &SocketStep,
        hold: Hold,
    ) -> SocketFuture {
        let closed = self.closed.get();
        let state = if closed {
            SocketState::Ready(-libc::ESHUTDOWN)
        } else {
            SocketState::Waiting(None)
        };
        let token = self
            .operations
            .borrow_mut()
            .insert(Operation::Socket(SocketOp {
                socket: Rc::clone(socket),
                _hold: hold,
                accepts: matches!(step, SocketStep::Accept { .. }),
                left_behind: step.is_left_behind(),
                state,
            }));
        if !closed {
            let at_once = match &mut *self.backend.borrow_mut() {
                Backend::Uring(ring) => {
                    ring.push_socket(token, step);
                    None
                }
                Backend::Threads(epoll) => epoll.start(token, step),
            };
            if let Some(result) = at_once {
                self.deliver(token, result);
            }
        }
        SocketFuture {
            driver: Rc::clone(self),
            token,
            taken: false,
        }
    }

    /// Runs one turn: hands the queued steps to the engine and takes the results. Waits for results
    /// if the executor has nothing to do.
    pub(crate) fn turn(&self, executor: &Executor) {
        let has_work = || executor.has_work();
        if has_work() {
            self.turn_for(Wait::No, has_work);
            return;
        }
        let timeout = executor
            .next_timer()
            .map(|due| due.saturating_sub(executor.now()));
        if timeout == Some(Duration::ZERO) {
            self.turn_for(Wait::No, has_work);
            return;
        }
        if self.busy.get() {
            self.turn_for(Wait::No, has_work);
            if !has_work() {
                // Returns to the loop in time for tasks that wait for a deadline.
                let patience = timeout.map_or(BUSY_TURN, |timeout| timeout.min(BUSY_TURN));
                self.look_out(Instant::now(), patience, has_work);
                self.turn_for(Wait::No, has_work);
            }
            return;
        }
        let patience = match &*self.backend.borrow() {
            Backend::Uring(_) => self.spin.borrow().patience(),
            // Its sockets cannot be looked at without a system call.
            Backend::Threads(_) => None,
        };
        // Not if a timer would cut it short, which says nothing about the next idle times.
        if let Some(patience) = patience
            && timeout.is_none_or(|timeout| timeout > 2 * patience)
        {
            // Queued steps start now, and may have ended already. They count as they do for a
            // reactor that sleeps: otherwise only the stalls of a load would count.
            self.turn_for(Wait::No, has_work);
            if has_work() {
                self.spin.borrow_mut().spun(true, Duration::ZERO);
                return;
            }
            let begin = Instant::now();
            let found = self.look_out(begin, patience, has_work);
            self.spin.borrow_mut().spun(found, begin.elapsed());
            if found {
                self.turn_for(Wait::No, has_work);
                return;
            }
        }
        let begin = Instant::now();
        self.turn_for(Wait::Until(timeout), has_work);
        self.spin.borrow_mut().slept(begin.elapsed());
    }

    /// Number of short idle times in a row after which this polls.
    #[cfg(test)]
    pub(crate) fn polls_after(&self) -> u32 {
        self.spin.borrow().threshold()
    }

    /// Waits for something to do without sleeping, for at most `patience` from `begin`. Whether
    /// there is.
    fn look_out(&self, begin: Instant, patience: Duration, has_work: impl Fn() -> bool) -> bool {
        const LOOKS_A_CLOCK: u32 = 32;
        let found = || {
            let results = match &mut *self.backend.borrow_mut() {
                Backend::Uring(ring) => ring.has_results(),
                Backend::Threads(_) => false,
            };
            results || has_work() || self.pool.get().is_some_and(Pool::has_results)
        };
        while begin.elapsed() < patience {
            for _ in 0..LOOKS_A_CLOCK {
                if found() {
                    return true;
                }
                std::hint::spin_loop();
            }
        }
        false
    }

    /// One turn that waits for nothing; whether something had ended.
    pub(crate) fn look(&self) -> bool {
        self.turn_for(Wait::No, || true)
    }

    /// Returns whether something had ended.
    fn turn_for(&self, mut wait: Wait, has_work: impl Fn() -> bool) -> bool {
        if wait != Wait::No {
            self.parker.prepare();
            if has_work() || self.pool.get().is_some_and(Pool::has_results) {
                wait = Wait::No;
            }
        }
        let mut results = self.results.take();
        match &mut *self.backend.borrow_mut() {
            Backend::Uring(ring) => ring.turn(wait, &mut results),
            Backend::Threads(epoll) => epoll.turn(wait, &mut results),
        }
        self.parker.awake();
        if let Some(pool) = self.pool.get() {
            pool.take_results(&mut results);
        }
        let some = !results.is_empty();
        for (token, result) in results.drain(..) {
            self.deliver(token, result);
        }
        self.results.replace(results);
        some
    }

    /// Tells an operation the result of its step. Nothing is borrowed while an operation is dropped
    /// or completed: that may close files and sockets of this driver.
    fn deliver(&self, token: Token, result: i32) {
        let mut operations = self.operations.borrow_mut();
        match operations.get(token) {
            None => debug_assert!(false, "a result without an operation"),
            Some(Operation::File(file)) => match file.advance(result) {
                None => {
                    let step = file.step();
                    drop(operations);
                    self.launch_file(token, &step);
                }
                Some(outcome) => {
                    let taken = operations.take(token);
                    drop(operations);
                    finish(taken, outcome);
                }
            },
            Some(Operation::Socket(socket)) => {
                match std::mem::replace(&mut socket.state, SocketState::Ready(result)) {
                    SocketState::Waiting(waker) => {
                        drop(operations);
                        if let Some(waker) = waker {
                            waker.wake();
                        }
                    }
                    SocketState::Ready(_) | SocketState::Detached => {
                        let taken = operations.take(token);
                        drop(operations);
                        throw_away(taken, result);
                    }
                }
            }
        }
    }

    /// The future of a socket operation was dropped before it saw the result.
    fn detach(&self, token: Token) {
        let mut operations = self.operations.borrow_mut();
        let Some(Operation::Socket(socket)) = operations.get(token) else {
            return;
        };
        if let SocketState::Ready(result) = socket.state {
            let taken = operations.take(token);
            drop(operations);
            throw_away(taken, result);
        } else {
            socket.state = SocketState::Detached;
            drop(operations);
            self.cancel(token);
        }
    }

    /// Cancels a socket operation. Its result is delivered as usual.
    fn cancel(&self, token: Token) {
        let fd = match self.operations.borrow_mut().get(token) {
            Some(Operation::Socket(socket)) => socket.socket.fd(),
            _ => return,
        };
        let gone = match &mut *self.backend.borrow_mut() {
            Backend::Uring(ring) => {
                ring.cancel(token);
                false
            }
            Backend::Threads(epoll) => epoll.cancel(token, fd),
        };
        if gone {
            self.deliver(token, -libc::ECANCELED);
        }
    }

    /// Refuses new operations, cancels those on sockets and waits for the end of those in flight.
    /// It does not wait for operations that only a driver ends: the kernel drops these with the
    /// ring.
    pub(crate) fn close(&self) {
        self.closed.set(true);
        loop {
            let Some(token) = self.operations.borrow().any_in_flight() else {
                break;
            };
            self.cancel(token);
            self.turn_for(Wait::Until(None), || false);
        }
        if let Backend::Uring(ring) = &mut *self.backend.borrow_mut() {
            ring.close();
        }
    }
}

fn finish(taken: Option<Operation>, outcome: Result<()>) {
    if let Some(Operation::File(file)) = taken {
        let (done, rest): (Completion, _) = file.into_parts();
        drop(rest);
        done.complete(outcome);
    }
}

fn throw_away(taken: Option<Operation>, result: i32) {
    if let Some(Operation::Socket(socket)) = taken
        && socket.accepts
        && result >= 0
    {
        // SAFETY: an accept that no task waits for any more made this descriptor.
        drop(unsafe { OwnedFd::from_raw_fd(result) });
    }
}

/// Resolves to the result of a socket operation: a count or descriptor, or an error number,
/// negated. Dropping it cancels the operation.
pub(crate) struct SocketFuture {
    driver: Rc<Driver>,
    token: Token,
    taken: bool,
}

impl Future for SocketFuture {
    type Output = i32;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<i32> {
        let mut operations = self.driver.operations.borrow_mut();
        let Some(Operation::Socket(socket)) = operations.get(self.token) else {
            unreachable!("a socket operation stays until its future has seen the result");
        };
        match &mut socket.state {
            SocketState::Ready(result) => {
                let result = *result;
                let taken = operations.take(self.token);
                drop(operations);
                drop(taken);
                self.taken = true;
                Poll::Ready(result)
            }
            SocketState::Waiting(Some(waker)) => {
                waker.clone_from(cx.waker());
                Poll::Pending
            }
            state => {
                *state = SocketState::Waiting(Some(cx.waker().clone()));
                Poll::Pending
            }
        }
    }
}

impl Drop for SocketFuture {
    fn drop(&mut self) {
        if !self.taken {
            self.driver.detach(self.token);
        }
    }
}
