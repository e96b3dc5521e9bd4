//! Evicting threads on a virtual clock. Each does one job at a time, then polls for the next one
//! for a while, and sleeps. The library's threads do the same (block-cache/transit/src/pool.rs) and
//! decide on polling by the same code.

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use forebay_io::rt;
use forebay_io::sync::Semaphore;
use forebay_transit::Workers;

use crate::poll_policy::PollPolicy;

/// Measures how long a thread polls for a job before it sleeps, in nanoseconds. Returns the median
/// of many times.
pub(crate) fn look_ns() -> u64 {
    let queued = AtomicUsize::new(0);
    let mut times: Vec<Duration> = (0..1001)
        .map(|_| {
            let begin = Instant::now();
            for _ in 0..Workers::LOOKS {
                std::hint::black_box(queued.load(Ordering::Relaxed));
                std::hint::spin_loop();
            }
            begin.elapsed()
        })
        .collect();
    times.sort_unstable();
    u64::try_from(times[times.len() / 2].as_nanos()).unwrap_or(u64::MAX)
}

/// A thread without a job.
#[derive(Clone, Copy)]
struct Idle {
    /// Policy at the end of the last job.
    before: PollPolicy,
    /// End of the last job.
    since: Duration,
    /// Policy when the thread began to poll or to sleep.
    after: PollPolicy,
    /// End of polling. It is `since` if the thread sleeps at once.
    until: Duration,
}

/// Threads that evict.
pub(crate) struct Evictors {
    /// One permit for each idle thread.
    free: Semaphore,
    idle: RefCell<Vec<Idle>>,
    /// Time that a thread polls.
    poll: Duration,
    /// Number of jobs for which a thread had to be woken.
    woken: Cell<u64>,
}

/// A thread that was taken for a job.
pub(crate) struct Taken {
    poll_policy: PollPolicy,
    /// Whether the thread had to be woken.
    pub(crate) asleep: bool,
}

impl Evictors {
    /// Returns `threads` threads that poll for `poll` before they sleep. They sleep at first.
    pub(crate) fn new(threads: usize, poll: Duration) -> Self {
        let asleep = Idle {
            before: PollPolicy::default(),
            since: Duration::ZERO,
            after: PollPolicy::default(),
            until: Duration::ZERO,
        };
        let threads = threads.max(1);
        Self {
            free: Semaphore::new(threads as u64),
            idle: RefCell::new(vec![asleep; threads]),
            poll,
            woken: Cell::new(0),
        }
    }

    /// Returns the number of jobs for which a thread had to be woken.
    pub(crate) fn woken(&self) -> u64 {
        self.woken.get()
    }

    /// Takes a thread as soon as one is idle. Prefers one that polls.
    pub(crate) async fn take(&self) -> Taken {
        self.free.acquire(1).await;
        let mut idle = self.idle.borrow_mut();
        let newest = (0..idle.len()).max_by_key(|index| idle[*index].until);
        let Idle {
            before,
            since,
            mut after,
            until,
        } = idle.swap_remove(newest.expect("as many are idle as the semaphore has left"));
        let now = rt::now();
        // A job was there when the last one ended.
        let at_once = since == now && until > Duration::ZERO;
        let asleep = !at_once && now >= until;
        if until > since {
            after.note_result(!asleep);
        }
        self.woken.set(self.woken.get() + u64::from(asleep));
        let poll_policy = if at_once { before } else { after };
        Taken {
            poll_policy,
            asleep,
        }
    }

    /// Returns a thread whose job is done.
    pub(crate) fn put(&self, thread: Taken) {
        let (before, since) = (thread.poll_policy, rt::now());
        let mut after = before;
        let until = match after.should_poll() {
            true => since + self.poll,
            false => since,
        };
        self.idle.borrow_mut().push(Idle {
            before,
            since,
            after,
            until,
        });
        self.free.release(1);
    }
}
