//! Worker threads that carry out file steps, for a reactor that cannot or for calls that only exist
//! in a blocking form.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

use forebay_block::{Context, Result};

use crate::engine::{FileStep, Parker, Token};

struct Job {
    token: Token,
    step: FileStep,
}

// SAFETY: the operation keeps the memory of the step's pointers alive until the result is
// delivered. The owner of that memory does not touch it meanwhile.
unsafe impl Send for Job {}

#[derive(Default)]
struct Jobs {
    queue: VecDeque<Job>,
    stop: bool,
}

struct Shared {
    jobs: Mutex<Jobs>,
    arrived: Condvar,
    results: Mutex<Vec<(Token, i32)>>,
    /// Whether there are results, for looking without the lock.
    ready: AtomicBool,
    parker: Arc<Parker>,
}

pub(crate) struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

impl Pool {
    pub(crate) fn new(parker: &Arc<Parker>, workers: usize) -> Result<Self> {
        let shared = Arc::new(Shared {
            jobs: Mutex::new(Jobs::default()),
            arrived: Condvar::new(),
            results: Mutex::new(Vec::with_capacity(256)),
            ready: AtomicBool::new(false),
            parker: Arc::clone(parker),
        });
        let mut pool = Self {
            shared,
            workers: Vec::with_capacity(workers),
        };
        for _ in 0..workers {
            let shared = Arc::clone(&pool.shared);
            let worker = std::thread::Builder::new()
                .name("forebay-io".to_owned())
                .stack_size(64 << 10)
                .spawn(move || work(&shared))
                .context(|| "starting an I/O worker thread")?;
            pool.workers.push(worker);
        }
        Ok(pool)
    }

    pub(crate) fn push(&self, token: Token, step: FileStep) {
        let mut jobs = lock(&self.shared.jobs);
        jobs.queue.push_back(Job { token, step });
        drop(jobs);
        self.shared.arrived.notify_one();
    }

    pub(crate) fn has_results(&self) -> bool {
        self.shared.ready.load(Ordering::Acquire)
    }

    pub(crate) fn take_results(&self, results: &mut Vec<(Token, i32)>) {
        if self.has_results() {
            let mut done = lock(&self.shared.results);
            self.shared.ready.store(false, Ordering::Release);
            results.append(&mut done);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        lock(&self.shared.jobs).stop = true;
        self.shared.arrived.notify_all();
        for worker in self.workers.drain(..) {
            let _ = worker.join();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn work(shared: &Shared) {
    loop {
        let mut jobs = lock(&shared.jobs);
        let job = loop {
            if let Some(job) = jobs.queue.pop_front() {
                break job;
            }
            if jobs.stop {
                return;
            }
            jobs = shared
                .arrived
                .wait(jobs)
                .unwrap_or_else(PoisonError::into_inner);
        };
        drop(jobs);
        let result = job.step.perform();
        let mut results = lock(&shared.results);
        results.push((job.token, result));
        shared.ready.store(true, Ordering::Release);
        drop(results);
        shared.parker.unpark();
    }
}
