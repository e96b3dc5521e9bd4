//! Threads that carry out blocking calls for tasks of a reactor.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use forebay_block::{Context as _, Result};

use crate::answer::Answer;

/// Stack of each thread, bytes.
const STACK_BYTES: usize = 256 << 10;

type Work = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Queue {
    work: VecDeque<Work>,
    is_closed: bool,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    queued: Condvar,
}

/// A fixed number of threads with one queue. Outcomes that arrive before the reactor's next turn
/// wake it once.
///
/// Queued work is carried out even if this is dropped. The drop does not wait: a call may hang.
pub struct Workers(Arc<Shared>);

impl Workers {
    /// Starts `threads` threads with this name.
    ///
    /// # Errors
    /// The system's error if a thread cannot be started.
    pub fn new(name: &str, threads: usize) -> Result<Self> {
        let this = Self(Arc::default());
        for _ in 0..threads {
            let shared = Arc::clone(&this.0);
            std::thread::Builder::new()
                .name(name.to_owned())
                .stack_size(STACK_BYTES)
                .spawn(move || shared.work())
                .context(|| format!("starting a thread {name}"))?;
        }
        Ok(this)
    }

    /// Runs `work` on a thread, and waits for its outcome. If the future is dropped, the work is
    /// carried out all the same.
    pub async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        let answer = Answer::default();
        let given = answer.clone();
        let work = Box::new(move || given.give(work()));
        self.0.lock().work.push_back(work);
        self.0.queued.notify_one();
        answer.get().await
    }
}

impl std::fmt::Debug for Workers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let queued = self.0.lock().work.len();
        f.debug_struct("Workers")
            .field("queued", &queued)
            .finish_non_exhaustive()
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.0.lock().is_closed = true;
        self.0.queued.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        loop {
            let idle = |queue: &mut Queue| queue.work.is_empty() && !queue.is_closed;
            let waited = self.queued.wait_while(self.lock(), idle);
            let mut queue = waited.unwrap_or_else(PoisonError::into_inner);
            let Some(work) = queue.work.pop_front() else {
                return;
            };
            drop(queue);
            work();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;
    use crate::rt;
    use crate::{Engine, Reactor};

    #[test]
    fn blocking_work_stops_neither_the_reactor_nor_other_work() {
        let reactor = Reactor::new(Engine::Threads).expect("a reactor");
        reactor.run(async {
            let workers = Workers::new("test-work", 2).expect("threads");
            let (end, blocked) = mpsc::channel::<()>();
            let waiting = workers.run(move || blocked.recv().is_ok());
            let mut waiting = std::pin::pin!(waiting);
            let soon = rt::at_most(Duration::from_millis(20), waiting.as_mut()).await;
            assert_eq!(soon, None, "it waits, and the clock runs");
            assert_eq!(workers.run(|| 7).await, 7, "another thread is free");
            end.send(()).expect("it waits");
            assert!(waiting.await);
        });
    }

    #[test]
    fn work_that_nobody_waits_for_is_carried_out() {
        let reactor = Reactor::new(Engine::Threads).expect("a reactor");
        let (done, outcome) = mpsc::channel();
        reactor.run(async move {
            let workers = Workers::new("test-work", 1).expect("a thread");
            let slow = workers.run(|| std::thread::sleep(Duration::from_millis(50)));
            assert!(rt::at_most(Duration::ZERO, slow).await.is_none());
            let second = workers.run(move || done.send(()));
            assert!(rt::at_most(Duration::ZERO, second).await.is_none());
        });
        let outcome = outcome.recv_timeout(Duration::from_secs(30));
        outcome.expect("both are carried out after the drop");
    }
}
