//! A device whose work is the processor's, carried out by threads of its own.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;

use forebay_block::{BlockDevice, Completion, Context, DeviceInfo, Request, Result};
use forebay_io::rt;

use crate::pool::Pool;

/// Carries out a request on the thread that calls, whichever that is.
pub type Run = Arc<dyn Fn(&Request) -> Result<()> + Send + Sync>;

struct Job {
    token: usize,
    request: Request,
}

struct Shared {
    pool: Pool<Job, (usize, Result<()>)>,
    /// Completions in flight, by token.
    pending: RefCell<Vec<Option<Completion>>>,
    unused: RefCell<Vec<usize>>,
    in_flight: Cell<usize>,
    /// Requests for which a thread had to be woken.
    woken: Cell<u64>,
    collecting: Cell<bool>,
}

/// A device that hands its requests to threads. It belongs to the reactor that it was made on.
pub struct Workers {
    shared: Rc<Shared>,
    info: DeviceInfo,
}

impl std::fmt::Debug for Workers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Workers")
            .field("name", &self.info.name)
            .field("in_flight", &self.shared.in_flight)
            .finish_non_exhaustive()
    }
}

impl Workers {
    /// How often a thread looks for the next request before it sleeps.
    pub const LOOKS: usize = crate::sync::LOOKS;

    /// A device that is described by `info`, and whose requests `threads` threads carry out by
    /// `run`.
    ///
    /// # Errors
    /// If the threads cannot be started.
    pub fn new(info: DeviceInfo, run: Run, threads: usize) -> Result<Self> {
        let work = move |job: Job| (job.token, run(&job.request));
        let pool = Pool::new(threads.max(1), work)
            .context(|| format!("starting {threads} eviction threads of {}", info.name))?;
        Ok(Self {
            shared: Rc::new(Shared {
                pool,
                pending: RefCell::default(),
                unused: RefCell::default(),
                in_flight: Cell::new(0),
                woken: Cell::new(0),
                collecting: Cell::new(false),
            }),
            info,
        })
    }

    /// Requests for which a thread had to be woken: each cost who sent it a system call.
    #[must_use]
    pub fn woken(&self) -> u64 {
        self.shared.woken.get()
    }
}

impl Shared {
    /// Hands results out, as long as some are to come.
    async fn collect(self: Rc<Self>) {
        let mut results = Vec::with_capacity(64);
        while self.in_flight.get() > 0 {
            poll_fn(|cx| self.pool.poll_results(&mut results, cx)).await;
            self.in_flight.set(self.in_flight.get() - results.len());
            for (token, result) in results.drain(..) {
                let done = self.pending.borrow_mut()[token].take();
                self.unused.borrow_mut().push(token);
                done.expect("a job has one result").complete(result);
            }
        }
        self.collecting.set(false);
    }
}

impl BlockDevice for Workers {
    fn info(&self) -> DeviceInfo {
        self.info.clone()
    }

    fn submit(&self, request: Request, done: Completion) {
        let shared = &self.shared;
        let unused = shared.unused.borrow_mut().pop();
        let mut pending = shared.pending.borrow_mut();
        let token = unused.unwrap_or_else(|| {
            pending.push(None);
            pending.len() - 1
        });
        pending[token] = Some(done);
        shared.in_flight.set(shared.in_flight.get() + 1);
        if shared.pool.push(Job { token, request }) {
            shared.woken.set(shared.woken.get() + 1);
        }
        if !shared.collecting.replace(true) {
            rt::spawn(Rc::clone(shared).collect());
        }
    }
}
