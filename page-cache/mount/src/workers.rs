//! Threads for requests that may wait for the source.
//!
//! The threads that read the kernel's requests execute them as long as enough of these threads are
//! free. More requests at a time are executed here. So requests that wait for a slow source do not
//! delay those for pages in memory.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Maximum number of threads. Requests beyond it wait for each other.
const WORKERS_MAX: usize = 256;
/// Time after which a thread without work ends.
const IDLE: Duration = Duration::from_secs(10);

type Work = Box<dyn FnOnce() + Send>;

/// The threads. They start when they are needed.
#[derive(Debug)]
pub(crate) struct Workers {
    shared: Arc<Shared>,
    /// Number of requests that the threads which read them are executing.
    executing: AtomicUsize,
    /// Maximum of `executing`.
    executing_max: usize,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// Notified of work, of the end, and of the end of each thread.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Work>,
    /// Number of requests that threads of the node answer.
    unanswered: usize,
    threads: usize,
    idle: usize,
    is_over: bool,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Shared")
    }
}

/// A request that a thread of the node may answer, until this is dropped.
pub(crate) struct Unanswered(Arc<Shared>);

impl Drop for Unanswered {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.unanswered -= 1;
        if state.is_over {
            self.0.changed.notify_all();
        }
    }
}

/// A request that is executed by the thread that has read it, until this is dropped.
pub(crate) struct Executing<'a>(&'a AtomicUsize);

impl Drop for Executing<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Workers {
    /// Returns workers for requests beyond `executing_max` at a time.
    pub(crate) fn new(executing_max: usize) -> Self {
        Self {
            shared: Arc::default(),
            executing: AtomicUsize::new(0),
            executing_max,
        }
    }

    /// Returns a guard if the calling thread may execute a request that may wait.
    pub(crate) fn enter(&self) -> Option<Executing<'_>> {
        let before = self.executing.fetch_add(1, Ordering::Relaxed);
        let executing = Executing(&self.executing);
        (before < self.executing_max).then_some(executing)
    }

    /// Returns a guard of a request that a thread of the node may answer, before the end.
    pub(crate) fn begin(&self) -> Option<Unanswered> {
        let mut state = self.shared.lock();
        if state.is_over {
            return None;
        }
        state.unanswered += 1;
        Some(Unanswered(Arc::clone(&self.shared)))
    }

    /// Executes a request on another thread. The calling thread executes it if the system refuses
    /// a thread. With [`WORKERS_MAX`] threads, it waits for one of them.
    pub(crate) fn run(&self, work: impl FnOnce() + Send + 'static) {
        let mut state = self.shared.lock();
        state.waiting.push_back(Box::new(work));
        if state.idle >= state.waiting.len() {
            self.shared.changed.notify_one();
            return;
        }
        if state.threads == WORKERS_MAX {
            return;
        }
        let shared = Arc::clone(&self.shared);
        let thread = std::thread::Builder::new().name("pagecache-wait".into());
        if thread.spawn(move || shared.work()).is_ok() {
            state.threads += 1;
            return;
        }
        if let Some(work) = state.waiting.pop_back() {
            drop(state);
            work();
        }
    }

    /// Waits until all requests have been executed and answered, and ends the threads.
    pub(crate) fn end(&self) {
        let mut state = self.shared.lock();
        state.is_over = true;
        self.shared.changed.notify_all();
        while state.threads > 0 || state.unanswered > 0 {
            let woken = self.shared.changed.wait(state);
            state = woken.unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Shared {
    fn work(&self) {
        let mut state = self.lock();
        loop {
            if let Some(work) = state.waiting.pop_front() {
                drop(state);
                work();
                state = self.lock();
                continue;
            }
            if state.is_over {
                break;
            }
            state.idle += 1;
            let waited = self.changed.wait_timeout(state, IDLE);
            let timeout;
            (state, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            state.idle -= 1;
            if timeout.timed_out() && state.waiting.is_empty() {
                break;
            }
        }
        state.threads -= 1;
        drop(state);
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn requests_that_wait_do_not_delay_others() {
        let workers = Workers::new(1);
        let (release, released) = channel::<()>();
        let released = Arc::new(Mutex::new(released));
        let (done, ended) = channel();
        let first = workers.enter().expect("the first one");
        assert!(workers.enter().is_none(), "one at a time");
        for number in 0..40 {
            let (released, done) = (Arc::clone(&released), done.clone());
            workers.run(move || {
                if number < 39 {
                    let _ = released.lock().expect("no panic").recv();
                }
                let _ = done.send(number);
            });
        }
        let ended_first = ended.recv_timeout(Duration::from_secs(30));
        assert_eq!(ended_first, Ok(39), "39 others wait");
        drop(release);
        drop(first);
        assert!(workers.enter().is_some());
        workers.end();
        assert_eq!(ended.try_iter().count(), 39, "the end waits for all");
    }

    #[test]
    fn the_end_waits_for_answers_and_refuses_more_requests() {
        let workers = Arc::new(Workers::new(1));
        let unanswered = workers.begin().expect("before the end");
        let ending = Arc::clone(&workers);
        let (done, ended) = channel();
        let end = std::thread::spawn(move || {
            ending.end();
            let _ = done.send(());
        });
        while let Some(unanswered) = workers.begin() {
            drop(unanswered);
            std::thread::yield_now();
        }
        let waits = ended.recv_timeout(Duration::from_millis(50));
        assert!(waits.is_err(), "a request has no answer");
        drop(unanswered);
        let waited = ended.recv_timeout(Duration::from_secs(30));
        assert_eq!(waited, Ok(()));
        end.join().expect("no panic");
    }
}
