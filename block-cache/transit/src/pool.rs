//! Threads that carry out jobs, and wake the thread that waits for results.
//!
//! A thread that has just done a job polls for the next one for a few microseconds before it
//! sleeps. Polling lasts about the cost of falling asleep and being woken. The wake-up also costs
//! the pusher of the job, which is the thread that serves clients. A thread polls only while that
//! has been worth it. It sleeps at once if jobs come further apart, or if others need the processor
//! and preempt it meanwhile. Now and then it tries polling.
//!
//! The cache shares nothing else between threads. This code knows nothing of slots, so it can be
//! checked separately: see `tests/pool.rs`.

use std::collections::VecDeque;
use std::task::{Context, Poll, Waker};

use crate::poll_policy::PollPolicy;
use crate::sync::{Arc, AtomicUsize, Condvar, LOOKS, Mutex, Ordering, spin_loop, thread};

struct Jobs<J> {
    queue: VecDeque<J>,
    /// Threads that wait for one.
    sleeping: usize,
    stop: bool,
}

struct Results<R> {
    done: Vec<R>,
    /// Waker for the next result.
    waker: Option<Waker>,
}

struct Shared<J, R> {
    jobs: Mutex<Jobs<J>>,
    /// How many are in the queue, for those who look out without the lock.
    queued: AtomicUsize,
    arrived: Condvar,
    results: Mutex<Results<R>>,
}

/// A pool of threads.
pub(crate) struct Pool<J, R> {
    shared: Arc<Shared<J, R>>,
    threads: Vec<thread::JoinHandle<()>>,
}

const UNPOISONED: &str = "nothing panics while it has this lock";

impl<J: Send + 'static, R: Send + 'static> Pool<J, R> {
    /// Starts `threads` threads that do `work`.
    ///
    /// # Errors
    /// If the system has no more threads.
    pub(crate) fn new(
        threads: usize,
        work: impl Fn(J) -> R + Send + Sync + 'static,
    ) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            jobs: Mutex::new(Jobs {
                queue: VecDeque::with_capacity(256),
                sleeping: 0,
                stop: false,
            }),
            queued: AtomicUsize::new(0),
            arrived: Condvar::new(),
            results: Mutex::new(Results {
                done: Vec::with_capacity(256),
                waker: None,
            }),
        });
        let work = Arc::new(work);
        let mut pool = Self {
            shared,
            threads: Vec::with_capacity(threads),
        };
        for _ in 0..threads {
            let (shared, work) = (Arc::clone(&pool.shared), Arc::clone(&work));
            let builder = thread::Builder::new().name("forebay-evict".to_owned());
            pool.threads
                .push(builder.spawn(move || run(&shared, &*work))?);
        }
        Ok(pool)
    }

    /// Adds a job. Whether a thread had to be woken for it.
    pub(crate) fn push(&self, job: J) -> bool {
        let mut jobs = self.shared.jobs.lock().expect(UNPOISONED);
        jobs.queue.push_back(job);
        self.shared
            .queued
            .store(jobs.queue.len(), Ordering::Relaxed);
        let wake = jobs.sleeping > 0;
        drop(jobs);
        // This is a system call, so it is left out if no task needs it.
        if wake {
            self.shared.arrived.notify_one();
        }
        wake
    }

    /// Takes the results that are there; waits for one if there is none.
    pub(crate) fn poll_results(&self, into: &mut Vec<R>, cx: &Context<'_>) -> Poll<()> {
        let mut results = self.shared.results.lock().expect(UNPOISONED);
        if results.done.is_empty() {
            results.waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        into.append(&mut results.done);
        Poll::Ready(())
    }
}

impl<J, R> Drop for Pool<J, R> {
    /// Ends the threads. Jobs that have not begun are dropped.
    fn drop(&mut self) {
        if let Ok(mut jobs) = self.shared.jobs.lock() {
            jobs.stop = true;
            jobs.queue.clear();
        }
        self.shared.arrived.notify_all();
        for thread in self.threads.drain(..) {
            // One that panicked has said so.
            let _ = thread.join();
        }
    }
}

/// Polls for a job, without the lock. Returns whether there was one. Another thread may take it.
fn poll(queued: &AtomicUsize) -> bool {
    (0..LOOKS).any(|_| {
        let queued = queued.load(Ordering::Relaxed);
        spin_loop();
        queued > 0
    })
}

fn run<J, R>(shared: &Shared<J, R>, work: &impl Fn(J) -> R) {
    let mut poll_policy = PollPolicy::default();
    loop {
        if shared.queued.load(Ordering::Relaxed) == 0 && poll_policy.should_poll() {
            poll_policy.note_result(poll(&shared.queued));
        }
        let mut jobs = shared.jobs.lock().expect(UNPOISONED);
        let job = loop {
            if jobs.stop {
                return;
            }
            if let Some(job) = jobs.queue.pop_front() {
                shared.queued.store(jobs.queue.len(), Ordering::Relaxed);
                break job;
            }
            jobs.sleeping += 1;
            jobs = shared.arrived.wait(jobs).expect(UNPOISONED);
            jobs.sleeping -= 1;
        };
        drop(jobs);
        let result = work(job);
        let mut results = shared.results.lock().expect(UNPOISONED);
        results.done.push(result);
        let waker = results.waker.take();
        drop(results);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}
