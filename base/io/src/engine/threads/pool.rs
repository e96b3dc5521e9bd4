//! Worker threads that carry out file steps, for a reactor that cannot or for calls that only exist
//! in a blocking form.
//!
//! A device that hangs blocks its workers for any time. So a pool gives each file a limited number
//! of workers, and starts others for other files, up to [`FILES_IN_FULL`] times as many.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use forebay_block::{Context, Result};

use super::jobs::Jobs;
use crate::engine::{FileStep, Parker, Token};

/// Number of files that may use all of their workers at a time.
const FILES_IN_FULL: usize = 4;

/// A step on a file, which a worker carries out.
pub(crate) trait BlockingStep: Send + 'static {
    /// Returns the descriptor of the file.
    fn fd(&self) -> RawFd;

    /// Carries the step out. Returns its result, or a negated error number.
    fn perform(&self) -> i32;
}

// SAFETY: the operation keeps the memory of the step's pointers alive until the result is
// delivered. The owner of that memory does not touch it meanwhile.
unsafe impl Send for FileStep {}

impl BlockingStep for FileStep {
    fn fd(&self) -> RawFd {
        self.target().fd
    }

    fn perform(&self) -> i32 {
        self.perform()
    }
}

struct Job<S> {
    token: Token,
    step: S,
}

struct Shared<S> {
    jobs: Mutex<Jobs<Job<S>>>,
    arrived: Condvar,
    results: Mutex<Vec<(Token, i32)>>,
    /// Whether there are results, for looking without the lock.
    ready: AtomicBool,
    parker: Arc<Parker>,
    workers: Mutex<Vec<JoinHandle<()>>>,
}

impl<S: BlockingStep> Shared<S> {
    /// Starts a worker that was counted.
    fn start_worker(self: &Arc<Self>) -> std::io::Result<()> {
        let shared = Arc::clone(self);
        let worker = std::thread::Builder::new()
            .name("forebay-io".to_owned())
            .stack_size(64 << 10)
            .spawn(move || work(&shared))?;
        lock(&self.workers).push(worker);
        Ok(())
    }

    /// Starts a worker if a step lacks one. Without a thread, the step waits for one of the others.
    fn grow(self: &Arc<Self>, mut jobs: MutexGuard<'_, Jobs<Job<S>>>) {
        if !jobs.lacks_worker() {
            return;
        }
        jobs.add_worker();
        drop(jobs);
        if self.start_worker().is_err() {
            lock(&self.jobs).remove_worker();
        }
    }
}

pub(crate) struct Pool<S: BlockingStep = FileStep> {
    shared: Arc<Shared<S>>,
}

impl<S: BlockingStep> Pool<S> {
    /// Starts a pool with `per_file` workers, the most that steps on one file use at a time.
    ///
    /// # Errors
    /// The error of the operating system, if a thread cannot be started.
    pub(crate) fn new(parker: &Arc<Parker>, per_file: usize) -> Result<Self> {
        let shared = Arc::new(Shared {
            jobs: Mutex::new(Jobs::new(per_file, per_file * FILES_IN_FULL)),
            arrived: Condvar::new(),
            results: Mutex::new(Vec::with_capacity(256)),
            ready: AtomicBool::new(false),
            parker: Arc::clone(parker),
            workers: Mutex::new(Vec::with_capacity(per_file)),
        });
        let pool = Self { shared };
        for _ in 0..per_file {
            lock(&pool.shared.jobs).add_worker();
            (pool.shared.start_worker()).context(|| "starting an I/O worker thread")?;
        }
        Ok(pool)
    }

    pub(crate) fn push(&self, token: Token, step: S) {
        let fd = step.fd();
        let mut jobs = lock(&self.shared.jobs);
        jobs.push(fd, Job { token, step });
        self.shared.arrived.notify_one();
        self.shared.grow(jobs);
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

impl<S: BlockingStep> Drop for Pool<S> {
    fn drop(&mut self) {
        lock(&self.shared.jobs).stop();
        self.shared.arrived.notify_all();
        // A worker may have started another one meanwhile.
        loop {
            let workers = std::mem::take(&mut *lock(&self.shared.workers));
            if workers.is_empty() {
                return;
            }
            for worker in workers {
                let _ = worker.join();
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn work<S: BlockingStep>(shared: &Arc<Shared<S>>) {
    loop {
        let mut jobs = lock(&shared.jobs);
        let job = loop {
            if let Some(job) = jobs.take() {
                break job;
            }
            if jobs.is_stopped() {
                return;
            }
            jobs = shared
                .arrived
                .wait(jobs)
                .unwrap_or_else(PoisonError::into_inner);
        };
        // If this step hangs, another worker takes the next one.
        shared.grow(jobs);
        let result = job.step.perform();
        // The worker itself takes the next step that this permits.
        lock(&shared.jobs).finish(job.step.fd());
        let mut results = lock(&shared.results);
        results.push((job.token, result));
        shared.ready.store(true, Ordering::Release);
        drop(results);
        shared.parker.unpark();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};
    use std::time::{Duration, Instant};

    use super::*;

    /// A step that ends at a signal, as on a device that hangs until then; or at once.
    struct Signalled {
        fd: RawFd,
        signal: Option<Mutex<Receiver<()>>>,
    }

    impl BlockingStep for Signalled {
        fn fd(&self) -> RawFd {
            self.fd
        }

        fn perform(&self) -> i32 {
            if let Some(signal) = &self.signal {
                let _ = lock(signal).recv();
            }
            self.fd
        }
    }

    /// Returns the results of a pool: `count` of them, or fewer after ten seconds.
    fn results_of(pool: &Pool<Signalled>, count: usize) -> Vec<i32> {
        let (began, mut results) = (Instant::now(), Vec::new());
        while results.len() < count && began.elapsed() < Duration::from_secs(10) {
            pool.take_results(&mut results);
            std::thread::sleep(Duration::from_millis(1));
        }
        results.into_iter().map(|(_, result)| result).collect()
    }

    #[test]
    fn devices_that_hang_do_not_stop_another() {
        let parker = Arc::new(Parker::new().expect("made"));
        let pool = Pool::new(&parker, 2).expect("started");
        let mut signals = Vec::new();
        // More steps than there are workers at the start.
        for nth in 0..30 {
            let (signal, waits) = channel();
            signals.push(signal);
            let step = Signalled {
                fd: 100 + nth % 3,
                signal: Some(Mutex::new(waits)),
            };
            pool.push(Token::default(), step);
        }
        for _ in 0..100 {
            let step = Signalled {
                fd: 7,
                signal: None,
            };
            pool.push(Token::default(), step);
        }
        assert_eq!(results_of(&pool, 100), vec![7; 100]);
        drop(signals);
        assert_eq!(results_of(&pool, 30).len(), 30);
    }
}
